"""Splits, searched for leaks pair by pair."""

import random
from itertools import combinations

import pytest

from helpers.graphmer.graph.knowledge_graph import Entity, Triple, new_graph
from helpers.graphmer.graph.splits import split_by_unit

pytestmark = pytest.mark.once

RELATIONS = ("calls", "called_by", "instantiates", "tests", "returns")


def random_graph(modules=40, functions=5, triples=900, seed=0, texts=None):
    """Functions of modules of packages of two, and some outside, with triples between any of them."""
    draw = random.Random(seed)
    entities, names, made = [], [], []
    for number in range(modules):
        package, module = f"p{number // 2}", f"p{number // 2}.m{number}"
        entities += [Entity(name, kind, module=name) for name, kind in ((package, "package"), (module, "module"))]
        made.append(Triple(package, "contains", module))
        for function in range(functions):
            name = f"{module}.f{function}"
            names.append(name)
            entities.append(Entity(name, "function", module=module))
    outside = [Entity(f"builtins.{name}", "function") for name in "abc"]
    entities += outside
    targets = names + [entity.id for entity in outside] * 10
    made += [Triple(draw.choice(names), draw.choice(RELATIONS), draw.choice(targets)) for _ in range(triples)]
    mirrored = [Triple(tail, "called_by", head) for head, _, tail in made[modules : modules + 60] if tail in names]
    return new_graph(entities, {*made, *mirrored}, texts or {})


def parts(splits):
    return splits.train, splits.validation, splits.test


@pytest.mark.parametrize("seed", range(3))
def test_no_pair_of_entities_is_in_two_parts_in_any_order_or_relation(seed):
    splits = split_by_unit(random_graph(seed=seed), seed=seed)
    for one, other in combinations(parts(splits), 2):
        assert one and other
        pairs = {(triple.head, triple.tail) for triple in one}
        assert not any((triple.head, triple.tail) in pairs or (triple.tail, triple.head) in pairs for triple in other)


def test_modules_of_the_same_content_stay_together():
    """Copies of one file under many names; with each in the same part, no part but one has any."""
    copies = [f"p{number // 2}.m{number}" for number in (1, 8, 15, 22)]
    for seed in range(8):
        graph = random_graph(texts=dict.fromkeys(copies, "same") | {"p0.m0": "other"})
        splits = split_by_unit(graph, seed=seed, held_out=0.3)
        pairs = {triple[::2] for triple in graph.triples}
        found = {
            number
            for number, part in enumerate(parts(splits))
            for triple in part
            if graph.entities[triple.head].module in copies and triple[::2][::-1] not in pairs
        }
        assert len(found) == 1


def test_units_that_are_too_few_give_way_to_smaller_ones():
    graph = random_graph(modules=2, functions=30)  # one package
    splits = split_by_unit(graph, seed=0)
    assert splits.reason == "held out by definition (61 of them): by package they would be too few or too large"
    units = [{triple.head.partition("(")[0] for triple in part} for part in parts(splits)]
    mirrored = {triple.head for triple in graph.triples if triple.relation == "called_by"}
    assert not (units[0] - mirrored) & (units[1] | units[2])
    assert split_by_unit(random_graph(), seed=0).reason == "held out by package (20 of them)"


def test_empty_files_make_no_packages_one():
    texts = {f"p{number}": "" for number in range(20)}
    splits = split_by_unit(random_graph(texts=texts), seed=0, held_out=0.3)
    assert splits == split_by_unit(random_graph(), seed=0, held_out=0.3)
