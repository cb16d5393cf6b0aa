"""Graphs as they are put together, and which sources one is made of."""

import pytest

from helpers.graphmer.graph.extraction import load_graph
from helpers.graphmer.graph.knowledge_graph import (
    EXTERNAL,
    UNRESOLVED,
    Entity,
    Triple,
    build_graph,
)

pytestmark = pytest.mark.once

ENTITIES = [
    Entity("m", "module", "m", module="m", line=1, end_line=9),
    Entity("m.é", "function", "é", module="m", line=2, end_line=3),
    Entity("os.getcwd", "unknown", "getcwd", EXTERNAL),
    Entity("?.f", "unknown", "f", UNRESOLVED),
]
TRIPLES = [Triple("m", "contains", "m.é"), Triple("m.é", "calls", "os.getcwd"), Triple("m.é", "calls", "?.f")]


def test_a_graph_is_sorted_and_holds_nothing_twice():
    graph = build_graph(ENTITIES[::-1] * 2, dict.fromkeys(TRIPLES[::-1], ()), {})
    assert list(graph.entities) == sorted(entity.id for entity in ENTITIES)
    assert list(graph.triples) == sorted(TRIPLES)


def test_the_digest_changes_with_any_field():
    digests = {build_graph(ENTITIES, dict.fromkeys(TRIPLES, ()), {}).digest()}
    digests.add(build_graph(ENTITIES, dict.fromkeys(TRIPLES[:2], ()), {}).digest())
    digests.add(
        build_graph([*ENTITIES[:2], ENTITIES[2]._replace(type="class")], dict.fromkeys(TRIPLES, ()), {}).digest()
    )
    digests.add(build_graph([*ENTITIES[:2], ENTITIES[2]._replace(line=7)], dict.fromkeys(TRIPLES, ()), {}).digest())
    assert len(digests) == 4


def test_a_folder_without_sources_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r'no \.py and no \.java file; use "sample"'):
        load_graph(tmp_path)
