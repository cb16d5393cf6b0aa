"""Tasks on graphs that are small enough to count by hand, and against slow loops."""

import random

import numpy as np
import pytest

from helpers.graphmer.graph.knowledge_graph import Entity, Triple, build_graph
from helpers.graphmer.graph.ontology import read_ontology
from helpers.graphmer.graph.splits import Splits
from helpers.graphmer.links.tasks import (
    Mention,
    ambiguous_mentions,
    disambiguation,
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
