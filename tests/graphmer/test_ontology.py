"""The ontology of software, and which triples of a graph it forbids."""

import pytest

from helpers.graphmer.graph.knowledge_graph import UNKNOWN, Triple, read_ontology

pytestmark = pytest.mark.once


def violations(graph) -> list[Triple]:
    """Triples that the ontology of software forbids: by an end of a known type, or because another says the opposite."""
    relations, triples, wrong = read_ontology(), set(graph.triples), []
    for triple in graph.triples:
        relation = relations[triple.relation]
        kinds = (graph.entities[triple.head].type, relation.domain), (graph.entities[triple.tail].type, relation.range)
        opposite = Triple(triple.tail, triple.relation, triple.head)
        if any(kind not in (*known, UNKNOWN) for kind, known in kinds) or (
            relation.antisymmetric and triple.head != triple.tail and opposite in triples
        ):
            wrong.append(triple)
    return wrong


@pytest.mark.parametrize(
    ("head", "relation", "tail", "fits"),
    [
        ("package", "contains", "module", True),
        ("interface", "contains", "constructor", True),
        ("parameter", "contains", "class", False),
        ("test", "raises", "exception", True),
        ("test", "raises", "class", False),
        ("exception", "inherits_from", "class", True),
        ("module", "inherits_from", "class", False),
        ("constructor", "has_parameter", "parameter", True),
        ("class", "implements", "class", False),
    ],
)
def test_relations_admit_subtypes_and_nothing_else(head, relation, tail, fits):
    known = read_ontology()[relation]
    assert (head in known.domain and tail in known.range) is fits
