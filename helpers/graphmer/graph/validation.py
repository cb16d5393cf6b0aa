"""Which triples contradict the ontology, and how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import networkx

from helpers.graphmer.graph.knowledge_graph import KnowledgeGraph, Triple
from helpers.graphmer.graph.ontology import UNKNOWN, Ontology, Relation

KINDS = ("relation", "type", "domain", "range", "antisymmetric", "acyclic", "functional", "inverse_functional")


class Violation(NamedTuple):
    kind: str  # one of KINDS: a relation or type that the ontology lacks, or what the triple contradicts
    triple: Triple


@dataclass(frozen=True)
class Validation:
    """`typed_share` is what "domain/range valid" means here: triples of undetermined type count on neither side."""

    triples: int
    undetermined: int  # an end is of unknown type, so that neither domain nor range can be checked whole
    violations: tuple[Violation, ...] = field(repr=False)

    @property
    def counts(self) -> dict[str, int]:
        """Violations of each kind, those that did not occur included."""
        found = Counter(violation.kind for violation in self.violations)
        return {kind: found[kind] for kind in KINDS}

    @property
    def typed_share(self) -> float:
        """Share of the triples with two known types that fit domain and range; 1 where there are none."""
        wrong = {violation.triple for violation in self.violations if violation.kind in KINDS[:4]}
        checked = self.triples - self.undetermined
        return 1 - len(wrong) / checked if checked else 1.0


def validate(graph: KnowledgeGraph, ontology: Ontology) -> Validation:
    """Checks every triple. A triple that contradicts in several ways is in `violations` several times."""
    found: list[Violation] = []
    undetermined = 0
    problems: dict[tuple[str, str, str], list[str]] = {}  # of a relation between two types
    stated: dict[str, list[tuple[Triple, str, str]]] = {}  # relation -> triple, head, tail; inverses turned
    for triple in graph.triples:
        types = (triple.relation, graph.entities[triple.head].type, graph.entities[triple.tail].type)
        if types not in problems:
            problems[types] = list(_wrong_types(*types, ontology))
        found += [Violation(kind, triple) for kind in problems[types]]
        undetermined += not problems[types] and UNKNOWN in types[1:]
        if relation := ontology.relations.get(triple.relation):
            ends = triple[::2] if relation.canonical else triple[::-2]
            stated.setdefault(relation.name if relation.canonical else relation.inverse, []).append((triple, *ends))
    for name, triples in stated.items():
        found += _forbidden(ontology.relations[name], triples)
    found.sort(key=lambda violation: (KINDS.index(violation.kind), violation.triple))
    return Validation(len(graph.triples), undetermined, tuple(found))


def _wrong_types(name: str, head_type: str, tail_type: str, ontology: Ontology) -> Iterator[str]:
    relation = ontology.relations.get(name)
    if relation is None:
        yield "relation"
    for end, found in (("domain", head_type), ("range", tail_type)):
        if found != UNKNOWN and found not in ontology.types:
            yield "type"
        elif found != UNKNOWN and relation and found not in getattr(relation, end):
            yield end


def _forbidden(relation: Relation, triples: Iterable[tuple[Triple, str, str]]) -> Iterator[Violation]:
    """What contradicts other triples; one lies on a cycle where both its ends are in one strongly connected component."""
    pairs = {(head, tail) for _, head, tail in triples}
    tails, heads = Counter(head for head, _ in pairs), Counter(tail for _, tail in pairs)
    component = {}
    if relation.acyclic:
        components = networkx.strongly_connected_components(networkx.DiGraph(pairs))
        component = {name: number for number, names in enumerate(components) for name in names}
    for triple, head, tail in triples:
        if relation.antisymmetric and head != tail and (tail, head) in pairs:
            yield Violation("antisymmetric", triple)
        if relation.acyclic and component[head] == component[tail]:
            yield Violation("acyclic", triple)
        if relation.functional and tails[head] > 1:
            yield Violation("functional", triple)
        if relation.inverse_functional and heads[tail] > 1:
            yield Violation("inverse_functional", triple)
