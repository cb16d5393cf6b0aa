"""Scorers added up, with weights that are fitted on validation for each relation and direction."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from helpers.graphmer.graph.knowledge_graph import KnowledgeGraph, Triple
from helpers.graphmer.graph.ontology import Ontology
from helpers.graphmer.graph.splits import Splits
from helpers.graphmer.links.ranking import DIRECTIONS, Scorer, admitted, answer, given, score, true_answers

# Q queries · X candidates · S scorers

_FITTED = 60  # triples a relation and direction, for six weights or so
_PRIOR = 1e-4


class ScoreFusion:
    """Weighted sum of scorers; a relation without weights has the mean of the others'.

    weights: (relation, direction) -> scorer -> weight.
    """

    def __init__(self, scorers: Mapping[str, Scorer], weights: dict[tuple[str, str], dict[str, float]]):
        self.scorers, self.weights = dict(scorers), weights

    @classmethod
    def fitted(
        cls,
        scorers: Mapping[str, Scorer],
        splits: Splits,
        graph: KnowledgeGraph,
        ontology: Ontology,
        *,
        triples: int = _FITTED,
        seed: int = 0,
    ) -> ScoreFusion:
        """With the weights of each relation and direction under which validation is likeliest.

        A conditional logit: softmax over all candidates, other true answers left out.

        triples: at most this many a relation and direction, drawn with `seed`.

        Raises ValueError: no scorers, or no triples of validation.
        """
        if not scorers or not splits.validation:
            raise ValueError(
                f"scorers={list(scorers)}, {len(splits.validation)} triples of validation: needs a scorer and triples to weigh it by"
            )
        weights: dict[tuple[str, str], dict[str, float]] = {}
        by_relation: dict[str, list[Triple]] = defaultdict(list)
        for triple in splits.validation:
            by_relation[triple.relation].append(triple)
        known = true_answers((*splits.train, *splits.validation, *splits.test, *graph.resolved()))
        for relation, candidates in admitted(graph, ontology, sorted(by_relation)).items():
            found = by_relation[relation]
            found = sorted(random.Random(seed).sample(found, min(triples, len(found))))
            for direction in DIRECTIONS:
                weights_S = _likeliest(scorers, found, relation, direction, candidates[direction], known)
                weights[relation, direction] = dict(zip(scorers, weights_S, strict=True))
        return cls(scorers, weights)

    def __call__(self, queries: list[str], relation: str, candidates: list[str], direction: str) -> np.ndarray:
        weights = self.weights.get((relation, direction)) or self._usual(direction)
        total_QX = np.zeros((len(queries), len(candidates)), np.float32)
        for name, scorer in self.scorers.items():
            if weights[name]:
                total_QX += np.float32(weights[name]) * score(scorer, queries, relation, candidates, direction)
        return total_QX

    def _usual(self, direction: str) -> dict[str, float]:
        found = [weights for (_, other), weights in self.weights.items() if other == direction]
        return {name: sum(weights[name] for weights in found) / len(found) for name in self.scorers}


def _likeliest(scorers, triples, relation, direction, candidates, known) -> list[float]:
    from scipy.optimize import minimize

    queries = [given(triple, direction) for triple in triples]
    column = {name: place for place, name in enumerate(candidates)}
    answers_Q = np.array([column[answer(triple, direction)] for triple in triples])
    scores_SQX = np.stack(
        [score(scorer, queries, relation, candidates, direction) for scorer in scorers.values()]
    ).astype(np.float32)
    rows_Q = np.arange(len(queries))
    left_out = np.zeros(scores_SQX.shape[1:], bool)
    for row, query in enumerate(queries):
        left_out[row, [column[name] for name in known[direction, relation, query]]] = True
    left_out[rows_Q, answers_Q] = False
    of_answers_SQ = scores_SQX[:, rows_Q, answers_Q].astype(np.float64)

    def loss(weights_S: np.ndarray) -> tuple[float, np.ndarray]:
        logits_QX = np.tensordot(weights_S.astype(np.float32), scores_SQX, 1)
        logits_QX[left_out] = -np.inf
        top_Q1 = logits_QX.max(1, keepdims=True)
        shares_QX = np.exp(logits_QX - top_Q1)
        totals_Q = shares_QX.sum(1)
        shares_QX /= totals_Q[:, None]
        negative = np.log(totals_Q) + top_Q1[:, 0] - weights_S @ of_answers_SQ
        gradient_S = np.tensordot(scores_SQX, shares_QX, 2) - of_answers_SQ.sum(1)
        # A weak prior keeps the weights of a relation with few triples finite.
        return (
            float(negative.mean() + _PRIOR * weights_S @ weights_S),
            gradient_S / len(queries) + 2 * _PRIOR * weights_S,
        )

    return minimize(loss, np.ones(len(scores_SQX)), jac=True, method="L-BFGS-B").x.tolist()
