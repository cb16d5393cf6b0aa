"""Which triples contradict the ontology, and how many."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import networkx

from helpers.graphmer.graph.knowledge_graph import KnowledgeGraph, Triple
from helpers.graphmer.graph.ontology import UNKNOWN, Ontology

KINDS = ("relation", "type", "domain", "range", "antisymmetric", "acyclic", "functional", "inverse_functional")


@dataclass(frozen=True)
class Violation:
    kind: str  # one of KINDS: a relation or type that the ontology lacks, or what the triple contradicts
    triple: Triple
    reason: str


@dataclass(frozen=True)
class Validation:
    """`typed_share` is what "domain/range valid" means here: triples of undetermined type count on neither side."""

    triples: int
    undetermined: int  # an end is of unknown type, so that neither domain nor range can be checked whole
    mirrored: int  # stated once more through the inverse: no contradiction, but each gives the other's answer away
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
    problems: dict[tuple[str, str, str], list[tuple[str, str]]] = {}  # of a relation between two types
    stated: dict[str, list[tuple[Triple, str, str]]] = defaultdict(
        list
    )  # relation -> triple, head, tail; inverses turned
    for triple in graph.triples:
        types = (triple.relation, graph.entities[triple.head].type, graph.entities[triple.tail].type)
        if types not in problems:
            problems[types] = list(_wrong_types(*types, ontology))
        found += [Violation(kind, triple, reason) for kind, reason in problems[types]]
        undetermined += not problems[types] and UNKNOWN in types[1:]
        relation = ontology.relations.get(triple.relation)
        if relation is None:
            continue
        if relation.canonical:
            stated[relation.name].append((triple, triple.head, triple.tail))
        else:
            stated[relation.inverse].append((triple, triple.tail, triple.head))
    mirrored = 0
    for name, triples in stated.items():
        relation = ontology.relations[name]
        mirrored += len(triples) - len({(head, tail) for _, head, tail in triples})
        if relation.antisymmetric:
            found += _both_ways(triples)
        if relation.acyclic:
            found += _on_cycles(triples)
        if relation.functional:
            found += _more_than_one(triples, "functional", "tails")
        if relation.inverse_functional:
            turned = [(triple, tail, head) for triple, head, tail in triples]
            found += _more_than_one(turned, "inverse_functional", "heads")
    found.sort(key=lambda violation: (KINDS.index(violation.kind), violation.triple))
    return Validation(len(graph.triples), undetermined, mirrored, tuple(found))


def _wrong_types(name: str, head_type: str, tail_type: str, ontology: Ontology) -> Iterator[tuple[str, str]]:
    relation = ontology.relations.get(name)
    if relation is None:
        yield "relation", f"the ontology has no relation {name!r}"
    for end, found in (("domain", head_type), ("range", tail_type)):
        if found == UNKNOWN:
            continue
        if found not in ontology.types:
            yield "type", f"the ontology has no type {found!r}"
        elif relation and found not in (allowed := getattr(relation, end)):
            yield end, f"{found} is not in the {end} of {name}: {', '.join(sorted(allowed))}"


def _both_ways(triples: Iterable[tuple[Triple, str, str]]) -> Iterator[Violation]:
    pairs = {(head, tail) for _, head, tail in triples}
    for triple, head, tail in triples:
        if head != tail and (tail, head) in pairs:
            yield Violation("antisymmetric", triple, "holds in both directions")


def _on_cycles(triples: list[tuple[Triple, str, str]]) -> Iterator[Violation]:
    """A triple lies on a cycle where both its ends are in one strongly connected component."""
    components = networkx.strongly_connected_components(networkx.DiGraph((head, tail) for _, head, tail in triples))
    component = {name: number for number, names in enumerate(components) for name in names}
    for triple, head, tail in triples:
        if component[head] == component[tail]:
            yield Violation("acyclic", triple, "leads back to its head")


def _more_than_one(triples: Iterable[tuple[Triple, str, str]], kind: str, what: str) -> Iterator[Violation]:
    others: dict[str, set[str]] = defaultdict(set)
    for _, one, other in triples:
        others[one].add(other)
    for triple, one, _ in triples:
        if len(others[one]) > 1:
            yield Violation(kind, triple, f"{one} has {len(others[one])} {what}: {', '.join(sorted(others[one])[:3])}")
