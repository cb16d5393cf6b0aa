"""Filtered ranking of the right entity among all that a relation admits, for any scorer, in both directions.

Conventions of PyKEEN's RankBasedEvaluator: other true answers of a query are left out of its ranking, and among equal
scores the rank is the mean of the best and the worst place ("realistic"), so that a constant score gains nothing.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from helpers.graphmer.graph.knowledge_graph import UNRESOLVED, KnowledgeGraph, Triple
from helpers.graphmer.graph.ontology import UNKNOWN, Ontology
from helpers.graphmer.graph.splits import Splits

# Q queries · X candidates · N answers (triples asked for) · D directions

TAIL, HEAD = DIRECTIONS = ("tail", "head")  # what is asked for: (h, r, ?) and (?, r, t)
PARTS = ("train", "validation", "test")
# Ids are qualified names: a.B contains a.B.c, which has the parameter a.B.c(x). Both can be answered without a graph.
NAMED = ("contains", "has_parameter")
HITS = (1, 3, 10)
_RESAMPLES = 1000


class Scorer(Protocol):
    """Anything that says how likely each candidate is; higher is likelier, the scale is its own."""

    def __call__(self, given: list[str], relation: str, candidates: list[str], direction: str) -> np.ndarray:
        """[Q, X] of (given, relation, candidate) where `TAIL` is asked for, of (candidate, relation, given) where `HEAD` is.

        `candidates` is the same list object in all calls for one relation and direction.
        """


def filtered_ranks(scores_X: np.ndarray, answers_N: Sequence[int], known: Collection[int]) -> np.ndarray:
    """Realistic ranks [N] from 1 of the candidates `answers_N` of one query, in fp64.

    known: the query's true answers (columns), all of them; those that are not asked for are not ranked.
    """
    known = np.unique(np.fromiter(known, np.int64))
    ranks_N = np.empty(len(answers_N))
    for place, answer in enumerate(answers_N):
        score, others = scores_X[answer], scores_X[known[known != answer]]
        above = np.count_nonzero(scores_X > score) - np.count_nonzero(others > score)
        equal = np.count_nonzero(scores_X == score) - np.count_nonzero(others == score)  # the answer's own included
        ranks_N[place] = above + (equal + 1) / 2
    return ranks_N


def metrics(ranks_N: Sequence[float] | np.ndarray) -> dict[str, float]:
    """Mean reciprocal rank and the share of ranks up to 1, 3 and 10. Raises ValueError without ranks."""
    ranks_N = np.asarray(ranks_N, np.float64)
    if not len(ranks_N):
        raise ValueError("ranks: there are none, and so no mean")
    return {"mrr": float((1 / ranks_N).mean())} | {f"hits@{k}": float((ranks_N <= k).mean()) for k in HITS}


def reliability(confidence_N: np.ndarray, right_N: np.ndarray, bins: int = 10) -> dict[str, float]:
    """Mean probability of first answers, share that is right, and the expected calibration error of bins of equal width.

    Naeini, Cooper and Hauskrecht (2015); 0 where first answers of probability p are right in a share p of cases.
    """
    bin_N = np.minimum((confidence_N * bins).astype(int), bins - 1)
    gaps = np.bincount(bin_N, confidence_N - right_N)
    found = {"probability": confidence_N.mean(), "right": right_N.mean(), "error": np.abs(gaps).sum() / len(bin_N)}
    return {name: float(value) for name, value in found.items()}


def _first_share(scores_X: np.ndarray, known: Sequence[int], answer: int) -> float:
    """Softmax of the best score, other true answers than the one that is asked for left out."""
    scores_X = scores_X.astype(np.float64)
    scores_X[[column for column in known if column != answer]] = -np.inf
    return float(1 / np.exp(scores_X - scores_X.max()).sum())


def bootstrap_interval(
    values_N: Sequence[float] | np.ndarray, groups_N: Sequence[str] | None = None, *, seed: int = 0
) -> list[float]:
    """95 % interval of the mean: percentiles of 1,000 resamples of whole groups (default: each value is one).

    What one module asks is alike; as groups, modules give the wider interval that this deserves.
    """
    values_N = np.asarray(values_N, np.float64)
    if not len(values_N):
        raise ValueError("values: there are none, and so no interval")
    groups_N = np.arange(len(values_N)) if groups_N is None else np.unique(np.asarray(groups_N), return_inverse=True)[1]
    counts_G, sums_G = np.bincount(groups_N), np.bincount(groups_N, values_N)
    draws = np.random.default_rng(seed).multinomial(
        len(counts_G), np.full(len(counts_G), 1 / len(counts_G)), _RESAMPLES
    )
    return [float(bound) for bound in np.percentile((draws @ sums_G) / (draws @ counts_G), (2.5, 97.5))]


def rate(count: int, of: int) -> dict:
    """A share with the 95 % interval of Wilson (1927); of nothing it is None."""
    from scipy.stats import binomtest

    if not of:
        return {"rate": None, "count": 0, "of": 0, "interval": [0.0, 1.0]}
    low, high = binomtest(count, of).proportion_ci(0.95, method="wilson")
    return {"rate": count / of, "count": count, "of": of, "interval": [float(low), float(high)]}


def admitted(graph: KnowledgeGraph, ontology: Ontology, relations: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    """Relation -> direction -> candidates, the same for every method; sorted.

    Entities whose type is in range (tails) or domain (heads) or unknown, and the few ends that the graph itself states
    against the ontology. An unresolved entity is no candidate: it stands for a name, not for a thing.

    Raises ValueError: the ontology lacks a relation.
    """
    stated = {(direction, relation): set() for relation in relations for direction in DIRECTIONS}
    for triple in graph.resolved():
        if (TAIL, triple.relation) in stated:
            stated[TAIL, triple.relation].add(triple.tail)
            stated[HEAD, triple.relation].add(triple.head)
    found: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for (direction, relation), ends in stated.items():
        if relation not in ontology.relations:
            raise ValueError(f"relation={relation!r}: not in the ontology, which has {', '.join(ontology.relations)}")
        known = ontology.relations[relation]
        types = {*(known.range if direction == TAIL else known.domain), UNKNOWN}
        found[relation][direction] = [
            entity.id
            for entity in graph.entities.values()
            if (entity.type in types and entity.status != UNRESOLVED) or entity.id in ends
        ]
    return dict(found)


# ---- a whole part


@dataclass(frozen=True)
class Ranking:
    triples: tuple[Triple, ...] = field(repr=False)
    ranks_DN: np.ndarray = field(repr=False)  # of both directions
    candidates: dict[str, dict[str, int]]  # relation -> direction -> how many
    queries: int  # distinct ones
    confidence_DN: np.ndarray = field(repr=False)  # softmax of the first answer

    def summary(self, graph: KnowledgeGraph, *, seed: int = 0) -> dict:
        """What `evaluate` returns."""
        relations = np.array([triple.relation for triple in self.triples])
        modules = [graph.entities[triple.head].module or triple.head for triple in self.triples]
        groups = np.unique(np.array(modules), return_inverse=True)[1]

        def summed(chosen: np.ndarray) -> dict:
            ranks_DN, groups_N = self.ranks_DN[:, chosen], groups[chosen]
            both = _summary(ranks_DN.ravel(), np.tile(groups_N, len(DIRECTIONS)), seed)
            return {"both": both} | {
                direction: _summary(ranks_N, groups_N, seed)
                for direction, ranks_N in zip(DIRECTIONS, ranks_DN, strict=True)
            }

        beyond = ~np.isin(relations, NAMED)
        return {
            "triples": len(self.triples),
            "queries": self.queries,
            **summed(np.ones(len(relations), bool)),
            "reliability": reliability(self.confidence_DN.ravel(), self.ranks_DN.ravel() == 1),
            "beyond_names": summed(beyond) if beyond.any() else None,
            "relations": {
                name: summed(relations == name) | {"candidates": self.candidates[name]}
                for name in np.unique(relations).tolist()
            },
        }


def evaluate(
    scorer: Scorer,
    splits: Splits,
    graph: KnowledgeGraph,
    ontology: Ontology,
    *,
    seed: int = 0,
    **options: Any,
) -> dict:
    """Filtered MRR and Hits@1, 3, 10 of the triples of a part, each asked for by its tail and by its head.

    options: `part`, `max_queries` and `chunk` of `rank`.

    Returns {"triples", "queries", "both", "tail", "head", "beyond_names", "relations"}: means over the ranks of both
    directions or of one, as {"ranks", "mrr", "mrr_interval", "hits@1", ...}, with 95 % bootstrap intervals over modules;
    "beyond_names" without the relations `NAMED` (None if nothing is left); "relations" each on its own; "reliability".

    Raises ValueError: an unknown part, a part without triples, a relation that the ontology lacks, scores that are NaN
    or of a wrong shape.
    """
    return rank(scorer, splits, graph, ontology, seed=seed, **options).summary(graph, seed=seed)


def rank(
    scorer: Scorer,
    splits: Splits,
    graph: KnowledgeGraph,
    ontology: Ontology,
    *,
    part: str = "test",
    max_queries: int = 0,
    seed: int = 0,
    chunk: int = 2**26,
) -> Ranking:
    """The ranks behind `evaluate`. Filtered by the triples of all parts and by those that a split dropped: true as well.

    max_queries: triples asked for, drawn with `seed`; 0 is all of them.
    chunk: scores held at a time (Q·X), 256 MiB by default.
    """
    triples = asked(splits, part, max_queries, seed)
    known = true_answers((*splits.train, *splits.validation, *splits.test, *graph.resolved()))
    places: dict[str, list[int]] = defaultdict(list)  # relation -> its triples
    for place, triple in enumerate(triples):
        places[triple.relation].append(place)
    ranks_DN, confidence_DN = np.empty((2, len(DIRECTIONS), len(triples)))
    queries = 0
    all_candidates = admitted(graph, ontology, sorted(places))
    for relation, candidates in all_candidates.items():
        for ranks_N, confidence_N, direction in zip(ranks_DN, confidence_DN, DIRECTIONS, strict=True):
            column = {name: number for number, name in enumerate(candidates[direction])}
            asked_by: dict[str, list[int]] = defaultdict(list)  # what is given -> the triples
            for place in places[relation]:
                asked_by[given(triples[place], direction)].append(place)
            queries += len(asked_by)
            size = max(1, chunk // max(1, len(column)))
            for query, scores_X in _scores(scorer, sorted(asked_by), relation, candidates[direction], direction, size):
                true_columns = [column[name] for name in known[direction, relation, query] if name in column]
                places_N = asked_by[query]
                answers_N = [column[answer(triples[place], direction)] for place in places_N]
                ranks_N[places_N] = filtered_ranks(scores_X, answers_N, true_columns)
                confidence_N[places_N] = [_first_share(scores_X, true_columns, one) for one in answers_N]
    counts = {name: {d: len(found) for d, found in candidates.items()} for name, candidates in all_candidates.items()}
    return Ranking(triples, ranks_DN, counts, queries, confidence_DN)


def _scores(scorer: Scorer, queries: list[str], relation: str, candidates: list[str], direction: str, size: int):
    """Each query with its scores [X]; `size` of them are computed at a time."""
    for part in (queries[first : first + size] for first in range(0, len(queries), size)):
        yield from zip(part, score(scorer, part, relation, candidates, direction), strict=True)


def score(scorer: Scorer, queries: list[str], relation: str, candidates: list[str], direction: str) -> np.ndarray:
    """One call of the scorer, [Q, X]. Raises ValueError: another shape, or NaN."""
    scores_QX = np.asarray(scorer(queries, relation, candidates, direction))
    if scores_QX.shape != (len(queries), len(candidates)):
        raise ValueError(
            f"{type(scorer).__name__}: scores {list(scores_QX.shape)} for {len(queries)} queries and {len(candidates)} "
            "candidates; give one score a pair"
        )
    if np.isnan(scores_QX).any():
        raise ValueError(
            f"{type(scorer).__name__}: some scores of {relation} are NaN, which has no rank; look at the model"
        )
    return scores_QX


def asked(splits: Splits, part: str, max_queries: int, seed: int) -> tuple[Triple, ...]:
    """The triples of a part, or `max_queries` of them. Raises ValueError: an unknown or empty part, a negative number."""
    if part not in PARTS:
        raise ValueError(f"part={part!r}: must be one of {', '.join(PARTS)}")
    if max_queries < 0:
        raise ValueError(f"max_queries={max_queries}: must be 0 (all) or more")
    triples = getattr(splits, part)
    if not triples:
        raise ValueError(f"part={part!r}: no triples to ask for; raise held_out")
    if not max_queries or max_queries >= len(triples):
        return triples
    return tuple(sorted(random.Random(seed).sample(triples, max_queries)))


def true_answers(triples: Iterable[Triple]) -> dict[tuple[str, str, str], set[str]]:
    """(direction, relation, what is given) -> its answers."""
    known = defaultdict(set)
    for triple in triples:
        for direction in DIRECTIONS:
            known[direction, triple.relation, given(triple, direction)].add(answer(triple, direction))
    return known


def given(triple: Triple, direction: str) -> str:
    return triple.head if direction == TAIL else triple.tail


def answer(triple: Triple, direction: str) -> str:
    return triple.tail if direction == TAIL else triple.head


def _summary(ranks_N: np.ndarray, groups_N: np.ndarray, seed: int) -> dict:
    return {
        "ranks": len(ranks_N),
        **metrics(ranks_N),
        "mrr_interval": bootstrap_interval(1 / ranks_N, groups_N, seed=seed),
        "hits@10_interval": bootstrap_interval(ranks_N <= 10, groups_N, seed=seed),
    }
