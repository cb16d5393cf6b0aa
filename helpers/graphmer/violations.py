"""How often the first answer of a scorer contradicts the ontology: nothing restricts it to the types that fit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import networkx
import numpy as np

from helpers.graphmer.knowledge_graph import UNRESOLVED, KnowledgeGraph, Triple
from helpers.graphmer.ontology import UNKNOWN, Ontology
from helpers.graphmer.ranking import DIRECTIONS, HEAD, TAIL, Scorer, answer, asked, given, rate, scores_of
from helpers.graphmer.splits import Splits

# Q queries · X candidates

KINDS = ("type", "antisymmetric", "acyclic")


def violation_rates(
    scorer: Scorer,
    splits: Splits,
    graph: KnowledgeGraph,
    ontology: Ontology,
    *,
    part: str = "test",
    max_queries: int = 0,
    seed: int = 0,
    chunk: int = 2**22,
) -> dict:
    """Rates of first answers that contradict the ontology, alone or together with the training triples.

    Asked are the distinct (h, r, ?) and (?, r, t) of a part (of `max_queries` of its triples) among all entities that are
    resolved, without those that training already has as answers. Of equal scores the first by id counts.

    Kinds: "type", the answer's is outside of range (tails) or domain (heads), an unknown one never is; "antisymmetric",
    training says the reverse; "acyclic", training leads from the tail back to the head, an entity to itself included. The
    last two count among the relations that forbid it.

    Returns kind (and "any", and "relations" -> relation -> kind) -> {"rate", "count", "of", "interval"}, Wilson, 95 %.
    Raises ValueError like `ranking.evaluate`.
    """
    candidates = [entity.id for entity in graph.entities.values() if entity.status != UNRESOLVED]
    column = {name: place for place, name in enumerate(candidates)}
    trained: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for triple in splits.train:
        for direction in DIRECTIONS:
            trained[direction, triple.relation, given(triple, direction)].append(column[answer(triple, direction)])
    queries: dict[tuple[str, str], set[str]] = defaultdict(set)
    for triple in asked(splits, part, max_queries, seed):
        if triple.relation not in ontology.relations:
            raise ValueError(
                f"relation={triple.relation!r}: not in the ontology; it has {', '.join(ontology.relations)}"
            )
        for direction in DIRECTIONS:
            queries[triple.relation, direction].add(given(triple, direction))
    forbidden = Forbidden(splits.train, graph, ontology)
    counts: dict[str, dict[str, list[int]]] = defaultdict(lambda: {kind: [0, 0] for kind in ("any", *KINDS)})
    for (relation, direction), names in sorted(queries.items()):
        for query, scores_X in scores_of(scorer, sorted(names), relation, candidates, direction, chunk):
            scores_X = scores_X.copy()
            scores_X[trained.get((direction, relation, query), [])] = -np.inf
            found = candidates[int(scores_X.argmax())]
            head, tail = (query, found) if direction == TAIL else (found, query)
            kinds = forbidden.kinds(Triple(head, relation, tail), direction)
            for name in (relation, ""):
                _count(counts[name], kinds, forbidden.checked(relation))
    total = counts.pop("")
    return {kind: rate(*pair) for kind, pair in total.items()} | {
        "relations": {name: {kind: rate(*pair) for kind, pair in found.items()} for name, found in counts.items()}
    }


class Forbidden:
    """What a predicted triple contradicts, given the training triples."""

    def __init__(self, train: Iterable[Triple], graph: KnowledgeGraph, ontology: Ontology):
        self._graph, self._ontology = graph, ontology
        self._trained: dict[str, networkx.DiGraph] = defaultdict(networkx.DiGraph)  # by relation
        for triple in train:
            self._trained[triple.relation].add_edge(triple.head, triple.tail)

    def checked(self, relation: str) -> tuple[str, ...]:
        """The kinds that can be violated."""
        known = self._ontology.relations[relation]
        return ("type", *(kind for kind in KINDS[1:] if getattr(known, kind)))

    def kinds(self, triple: Triple, predicted: str) -> set[str]:
        """`predicted`: the end, "tail" or "head", whose type is looked at."""
        relation, found = self._ontology.relations[triple.relation], set()
        entity = self._graph.entities[triple.tail if predicted == TAIL else triple.head]
        if entity.type != UNKNOWN and entity.type not in (relation.domain if predicted == HEAD else relation.range):
            found.add("type")
        trained = self._trained[triple.relation]
        trained.add_nodes_from((triple.head, triple.tail))
        if relation.antisymmetric and triple.head != triple.tail and trained.has_edge(triple.tail, triple.head):
            found.add("antisymmetric")
        if relation.acyclic and networkx.has_path(trained, triple.tail, triple.head):
            found.add("acyclic")
        return found


def _count(counts: dict[str, list[int]], kinds: set[str], checked: Iterable[str]) -> None:
    for kind in checked:
        counts[kind][0] += kind in kinds
        counts[kind][1] += 1
    counts["any"][0] += bool(kinds)
    counts["any"][1] += 1
