"""Tasks on graphs that are small enough to count by hand, and against slow loops."""

import random

import numpy as np
import pytest
from sklearn.metrics import f1_score

from helpers.graphmer.knowledge_graph import Entity, Triple, build_graph
from helpers.graphmer.ontology import read_ontology
from helpers.graphmer.splits import Splits
from helpers.graphmer.tasks import (
    CALLS,
    IMPORTS,
    Mention,
    ambiguous_mentions,
    best_threshold,
    candidate_pairs,
    disambiguation,
    pair_f1,
    pair_scores,
)

pytestmark = pytest.mark.once

ONTOLOGY = read_ontology()


class Table:
    """A scorer of written scores; 0 for what is not in it."""

    def __init__(self, scores):
        self.scores = scores

    def tails(self, heads, relation, candidates):
        return np.array([[self.scores.get((head, relation, tail), 0.0) for tail in candidates] for head in heads])

    def heads(self, tails, relation, candidates):
        return np.array([[self.scores.get((head, relation, tail), 0.0) for head in candidates] for tail in tails])


def calls_graph(functions=30, seed=0):
    """Modules a, b, c that share the names of their functions; calls between them, in three parts."""
    draw = random.Random(seed)
    entities = [Entity(module, "module", module, module=module) for module in "abc"]
    names = [f"{'abc'[number % 3]}.f{number // 3}" for number in range(functions)]
    entities += [Entity(name, "function", name[2:], module=name[0], line=1, end_line=2) for name in names]
    triples = sorted({Triple(*draw.sample(names, 1), "calls", *draw.sample(names, 1)) for _ in range(120)})
    triples += [Triple(one, "imports", other) for one in "abc" for other in "abc" if one < other]
    triples += [Triple(one, "imports_name", name) for one in "abc" for name in names[:9] if one != name[0]]
    graph = build_graph(entities, triples, {})
    return graph, Splits(*(tuple(graph.triples[part::3]) for part in range(3)), {})


# ---- pairs


@pytest.mark.parametrize("relations", [CALLS, IMPORTS])
def test_pairs_are_all_true_tails_and_as_many_wrong_ones_as_asked_for(relations):
    graph, splits = calls_graph()
    pairs = candidate_pairs(splits, graph, ONTOLOGY, relations=relations, part="test", negatives=4)
    true = {triple for triple in splits.test if triple.relation in relations}
    assert {triple for triple, holds in zip(pairs.triples, pairs.true, strict=True) if holds} == true
    wrong = [triple for triple, holds in zip(pairs.triples, pairs.true, strict=True) if not holds]
    assert not set(wrong) & set(graph.triples)
    assert all(triple.head != triple.tail for triple in wrong)
    assert len(set(wrong)) == len(wrong) <= 4 * len(true)
    if relations == CALLS:
        assert len(wrong) == 4 * len(true)
        same = [
            triple
            for triple in wrong
            if any(triple.tail[2:] == other.tail[2:] for other in true if other.head == triple.head)
        ]
        assert len(same) > 0.1 * len(wrong)
    again = candidate_pairs(splits, graph, ONTOLOGY, relations=relations, part="test", negatives=4)
    assert pairs == again


def test_scores_of_pairs_are_those_of_their_triples():
    graph, splits = calls_graph()
    pairs = candidate_pairs(splits, graph, ONTOLOGY, relations=("calls", "imports"), part="train", seed=1)
    scores = {triple: number / 7 for number, triple in enumerate(pairs.triples)}
    for chunk in (1, 10**6):
        found = pair_scores(Table(scores), pairs, chunk=chunk)
        assert found.tolist() == [scores[triple] for triple in pairs.triples]


@pytest.mark.parametrize("levels", [3, 1000])
def test_the_threshold_is_the_best_of_all(levels):
    for seed in range(12):
        draw = np.random.default_rng(seed)
        scores, true = draw.integers(0, levels, 40) / 8, draw.random(40) < 0.3
        true[0] = True

        def f1(threshold, scores=scores, true=true):
            called = scores >= threshold
            return 2 * (called & true).sum() / (called.sum() + true.sum())

        assert f1(best_threshold(scores, true)) == max(f1(value) for value in scores)


def test_f1_is_taken_at_the_threshold_of_validation():
    graph, splits = calls_graph()
    parts = [candidate_pairs(splits, graph, ONTOLOGY, relations=CALLS, part=part) for part in ("validation", "test")]
    draw = random.Random(0)
    scores = {
        triple: holds + draw.gauss(0, 0.6)
        for pairs in parts
        for triple, holds in zip(pairs.triples, pairs.true, strict=True)
    }
    result = pair_f1(Table(scores), *parts)
    called = [scores[triple] >= result["threshold"] for triple in parts[1].triples]
    assert result["f1"] == pytest.approx(f1_score(parts[1].true, called))
    assert result["interval"][0] < result["f1"] < result["interval"][1]
    assert result["all_true"] == pytest.approx(f1_score(parts[1].true, [True] * len(called)))
    assert result["all_true"] < result["f1"] < 1
    perfect = {triple: float(triple in graph.triples) for triple in scores}
    assert pair_f1(Table(perfect), *parts)["f1"] == 1


def test_a_head_may_be_left_out_by_lot():
    graph, splits = calls_graph()
    pairs = candidate_pairs(splits, graph, ONTOLOGY, relations=CALLS, part="test", max_heads=5)
    assert len({triple.head for triple in pairs.triples}) == 5


# ---- names


def test_mentions_are_the_names_that_several_have():
    graph, splits = calls_graph()
    mentions = ambiguous_mentions(splits, graph, ONTOLOGY)
    calls = [triple for triple in splits.test if triple.relation == "calls"]
    for triple in calls:
        true = {other.tail for other in graph.triples if other.head == triple.head and other.relation == "calls"}
        others = {f"{module}.{triple.tail[2:]}" for module in "abc"} - true
        found = [mention for mention in mentions if (mention.head, mention.tail) == triple[::2]]
        assert [set(mention.others) for mention in found] == ([others] if others else [])
    head, name = mentions[0].head, mentions[0].tail[2:]
    sources = {head: f"{head}\n    {name}(1)\n"}
    named = ambiguous_mentions(splits, graph, ONTOLOGY, text=lambda entity: sources.get(entity, "f"))
    assert {(mention.head, mention.tail[2:]) for mention in named} == {(head, name)}
    with pytest.raises(ValueError, match=r"relations=\['raises'\], part='test': no tail shares its name"):
        ambiguous_mentions(splits, graph, ONTOLOGY, relations=["raises"])


def test_disambiguation_shares_a_tie():
    mentions = [
        Mention("h", "calls", "a.f", ("b.f",)),
        Mention("h", "calls", "c.f", ("a.g", "b.g", "c.g")),
        Mention("i", "calls", "b.f", ("a.f",)),
    ]
    result = disambiguation(Table({("h", "calls", "a.f"): 1.0, ("i", "calls", "a.f"): 1.0}), mentions)
    assert result["top1"] == pytest.approx((1 + 1 / 4 + 0) / 3)
    assert result["chance"] == pytest.approx((1 / 2 + 1 / 4 + 1 / 2) / 3)
    assert result["candidates"] == pytest.approx(8 / 3)
