"""Graphs as JSONL: written, read back, one's own; and which source a name stands for."""

import json

import pytest

from helpers.graphmer.graph.extraction import load_graph
from helpers.graphmer.graph.knowledge_graph import (
    EXTERNAL,
    UNRESOLVED,
    Entity,
    Triple,
    build_graph,
    read_graph,
)

pytestmark = pytest.mark.once

ENTITIES = [
    Entity("m", "module", "m", module="m", line=1, end_line=9),
    Entity("m.é", "function", "é", module="m", line=2, end_line=3),
    Entity("os.getcwd", "unknown", "getcwd", EXTERNAL),
    Entity("?.f", "unknown", "f", UNRESOLVED),
]
TRIPLES = [Triple("m", "contains", "m.é"), Triple("m.é", "calls", "os.getcwd"), Triple("m.é", "calls", "?.f")]


def write_lines(folder, name: str, *records) -> None:
    text = "".join((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records)
    (folder / name).write_text(text, encoding="utf-8")


def test_a_graph_is_sorted_and_holds_nothing_twice():
    graph = build_graph(ENTITIES[::-1], TRIPLES[::-1] * 2, {})
    assert list(graph.entities) == sorted(entity.id for entity in ENTITIES)
    assert list(graph.triples) == sorted(TRIPLES)


def test_the_digest_changes_with_any_field():
    digests = {build_graph(ENTITIES, TRIPLES, {}).digest()}
    digests.add(build_graph(ENTITIES, TRIPLES[:2], {}).digest())
    digests.add(build_graph([*ENTITIES[:3], ENTITIES[3]._replace(type="class")], TRIPLES, {}).digest())
    digests.add(build_graph([*ENTITIES[:3], ENTITIES[3]._replace(line=7)], TRIPLES, {}).digest())
    assert len(digests) == 4


def test_resolved_triples_have_two_known_ends():
    graph = build_graph(ENTITIES, [*TRIPLES, Triple("?.f", "calls", "m.é")], {})
    assert set(graph.resolved()) == set(TRIPLES[:2])


def test_ids_types_and_triples_are_enough_of_a_graph_of_ones_own(tmp_path):
    write_lines(
        tmp_path, "entities.jsonl", {"id": "a.b", "type": "class", "file": "x"}, "", {"id": "?.c", "type": "unknown"}
    )
    write_lines(tmp_path, "triples.jsonl", {"head": "a.b", "relation": "calls", "tail": "?.c", "qualifiers": {}})
    graph = load_graph(tmp_path)
    assert graph.entities == {"?.c": Entity("?.c", "unknown", "c", UNRESOLVED), "a.b": Entity("a.b", "class", "b")}
    assert graph.triples == (Triple("a.b", "calls", "?.c"),)


@pytest.mark.parametrize(
    ("file", "record", "message"),
    [
        ("entities", "{", r"entities\.jsonl, line 3 is not JSON"),
        ("entities", "[]", r"entities\.jsonl, line 3 is not a JSON object"),
        ("entities", {"id": "c"}, r"entities\.jsonl, line 3: field 'type' is missing"),
        ("entities", {"id": "a", "type": "class"}, r"entities\.jsonl, line 3: entity 'a' is there twice"),
        (
            "entities",
            {"id": "c", "type": "class", "line": "3"},
            r"line 3: field 'line' is '3'; it must be a whole number",
        ),
        (
            "entities",
            {"id": "c", "type": "class", "status": "new"},
            r"line 3: status='new': must be one of defined, ext",
        ),
        ("triples", {"head": "a", "relation": "calls"}, r"triples\.jsonl, line 2: field 'tail' is missing"),
        ("triples", {"head": "a", "relation": 3, "tail": "b"}, r"triples\.jsonl, line 2: field 'relation' is 3"),
        ("triples", {"head": "a", "relation": "calls", "tail": "c"}, r"triples\.jsonl, line 2: 'c' is no entity"),
    ],
)
def test_a_wrong_line_is_refused_with_file_and_number(tmp_path, file, record, message):
    lines = {
        "entities": [{"id": "a", "type": "class"}, {"id": "b", "type": "class"}],
        "triples": [{"head": "a", "relation": "calls", "tail": "b"}],
    }
    lines[file].append(record)
    for name, records in lines.items():
        write_lines(tmp_path, f"{name}.jsonl", *records)
    with pytest.raises(ValueError, match=message):
        read_graph(tmp_path)


def test_bytes_that_are_not_utf8_are_refused_with_their_line(tmp_path):
    write_lines(tmp_path, "triples.jsonl")
    (tmp_path / "entities.jsonl").write_bytes(b'\n{"id": "caf\xe9", "type": "class"}\n')
    with pytest.raises(ValueError, match=r"entities\.jsonl, line 2 is not JSON"):
        read_graph(tmp_path)


def test_triples_without_entities_ask_for_them(tmp_path):
    write_lines(tmp_path, "triples.jsonl")
    with pytest.raises(FileNotFoundError, match=r"entities\.jsonl"):
        load_graph(tmp_path)


def test_a_folder_without_sources_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r'no \.py and no \.java file; use "sample"'):
        load_graph(tmp_path)


def test_sources_include_their_tests_unless_asked_not_to(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "t.py").touch()
    (tmp_path / "m.py").touch()
    assert {"m", "tests.t"} <= load_graph(tmp_path).entities.keys()
    assert "tests.t" not in load_graph(tmp_path, include_tests=False).entities
