"""The ontology and its files; violations, against slow searches through every pair and path."""

import pytest

from helpers.graphmer.graph.knowledge_graph import Triple
from helpers.graphmer.graph.ontology import PROPERTIES, SOFTWARE, UNKNOWN, read_ontology

pytestmark = pytest.mark.once

SMALL = """
[types]
thing = ""
box = "thing"

[relations.holds]
domain = ["box"]
range = ["thing"]
antisymmetric = true
acyclic = true
inverse_functional = true
inverse = "held_by"

[relations.labels]
domain = ["thing"]
range = ["thing"]
functional = true
"""


def violations(graph) -> list[Triple]:
    """Triples that the ontology of software forbids: by an end of a known type, or because another says the opposite."""
    relations, triples, wrong = read_ontology().relations, set(graph.triples), []
    for triple in graph.triples:
        relation = relations[triple.relation]
        kinds = (graph.entities[triple.head].type, relation.domain), (graph.entities[triple.tail].type, relation.range)
        opposite = Triple(triple.tail, triple.relation, triple.head)
        if any(kind not in (*known, UNKNOWN) for kind, known in kinds) or (
            relation.antisymmetric and triple.head != triple.tail and opposite in triples
        ):
            wrong.append(triple)
    return wrong


# ---- the ontology of software


def test_an_inverse_swaps_domain_and_range_and_what_is_unique():
    relations = read_ontology().relations
    pairs = [(relation, relations[relation.inverse]) for relation in relations.values() if relation.inverse]
    assert len(pairs) >= 10
    for relation, inverse in pairs:
        assert inverse.inverse == relation.name
        assert (inverse.domain, inverse.range) == (relation.range, relation.domain)
        assert (inverse.functional, inverse.inverse_functional) == (relation.inverse_functional, relation.functional)
        assert (inverse.acyclic, inverse.antisymmetric) == (relation.acyclic, relation.antisymmetric)
        assert inverse.canonical is not relation.canonical


@pytest.mark.parametrize(
    ("head", "relation", "tail", "fits"),
    [
        ("package", "contains", "module", True),
        ("interface", "contains", "constructor", True),
        ("field", "part_of", "enum", True),
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
    known = read_ontology().relations[relation]
    assert (head in known.domain and tail in known.range) is fits


def test_every_property_is_used_by_the_ontology_of_software():
    relations = read_ontology().relations.values()
    for name in (*PROPERTIES[:2], "inverse_functional", "inverse"):
        assert any(getattr(relation, name) for relation in relations)


def test_a_file_with_the_same_text_is_the_same_ontology(tmp_path):
    (tmp_path / "software.toml").write_text(SOFTWARE.read_text(encoding="utf-8"), encoding="utf-8")
    assert read_ontology(tmp_path / "software.toml") == read_ontology()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("antisymmetric = true", "antisymetric = true", r"relations\.holds: unknown key antisymetric; known: domain"),
        ("acyclic = true", 'acyclic = "yes"', r"relations\.holds\.acyclic='yes': must be true or false"),
        (
            'domain = ["box"]',
            'domain = ["boxx"]',
            r"relations\.holds\.domain=\['boxx'\]: must be a list of types: thing, box",
        ),
        ('range = ["thing"]\nanti', "range = []\nanti", r"relations\.holds\.range=\[\]"),
        ('domain = ["box"]\n', "", r"relations\.holds\.domain=None"),
        ('inverse = "held_by"', 'inverse = "holds"', r"relations\.holds\.inverse='holds'"),
        ('inverse = "held_by"', 'inverse = "labels"', "relation 'labels' is there twice"),
        ('thing = ""', 'thing = "box"', "types.thing: is a kind of itself"),
        ('box = "thing"', 'box = "thingy"', r"types\.box='thingy'"),
        ('thing = ""\nbox = "thing"', 'box = "thing"\nthing = 3', r"types\.thing=3: must be another of its types"),
        ('thing = ""', 'thing = ""\nunknown = ""', "types.unknown='': must be another of its types"),
        ("[types]", "[kinds]", "needs the tables `types` and `relations`, found: kinds, relations"),
        ("[types]", "[types", "not TOML"),
    ],
)
def test_a_wrong_ontology_is_refused_with_its_place(tmp_path, old, new, message):
    assert old in SMALL
    path = tmp_path / "wrong.toml"
    path.write_text(SMALL.replace(old, new, 1))
    with pytest.raises(ValueError, match=message) as caught:
        read_ontology(path)
    assert "wrong.toml" in str(caught.value)
