"""Benchmark of the impact of a change: a small package whose calls are written down here."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from benchmarks import graph_impact
from benchmarks.graph_encoders import windows
from benchmarks.graph_impact import (
    Lexical,
    Query,
    StaticCalls,
    drawn_candidates,
    encoder_scores,
    likely_callers,
    queries,
    reaching,
    resolver,
    traced_calls,
)
from benchmarks.held_out_rows import Rankings
from helpers.graphmer.configuration import read_configuration
from helpers.graphmer.graph.extraction import load_graph
from helpers.graphmer.modeling_graphmer.modeling_graphmer import GraphMERForPreTraining
from helpers.graphmer.text.documents import Documents
from helpers.graphmer.text.tokenizer import train_tokenizer

from .traced_package import traced

pytestmark = pytest.mark.once

TOOLS = """
def cut(thing):
    return thing


class Saw:
    def __init__(self):
        self.sharp = sharpen()

    def work(self, thing):
        return cut(thing)


class Axe(Saw):
    def work(self, thing):
        return [cut(each) for each in thing]


def sharpen():
    return True
"""
SHOP = """
from zoo.tools import Axe, Saw, cut


def order(tool, things):
    return tool.work(things)


def day(things):
    return order(Axe(), things)


def week(things):
    return day(things)


def year(things):
    return week(things)


def never(thing):
    return cut(thing)


def lazy(things):
    return (lambda: sum(1 for _ in map(cut, things)))()
"""
TESTS = """
from zoo import shop


def helper():
    return shop.year([1, 2])


def test_year():
    assert helper() == [1, 2]


def test_lazy():
    assert shop.lazy([1, 2]) == 2
"""
CUT = "zoo.tools.cut"


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "zoo"
    (folder / "tests").mkdir(parents=True)
    for name, text in (("tools", TOOLS), ("shop", SHOP), ("tests/test_shop", TESTS), ("__init__", "")):
        (folder / f"{name}.py").write_text(text)
    return folder


@pytest.fixture(scope="module")
def rows(package, tmp_path_factory) -> list[list]:
    return traced(package, tmp_path_factory.mktemp("trace") / "zoo.json")


@pytest.fixture(scope="module")
def graph(package):
    return load_graph(package)


def test_the_trace_gives_pairs_of_functions_outside_of_tests(package, graph, rows):
    callers, running = traced_calls(package, graph, rows)
    assert callers == {
        CUT: {"zoo.tools.Axe.work", "zoo.shop.lazy"},  # in a comprehension, in a lambda; `never` did not run
        "zoo.tools.Axe.work": {"zoo.shop.order"},
        "zoo.shop.order": {"zoo.shop.day"},
        "zoo.tools.Saw.__init__": {"zoo.shop.day"},
        "zoo.tools.sharpen": {"zoo.tools.Saw.__init__"},
        "zoo.shop.day": {"zoo.shop.week"},
        "zoo.shop.week": {"zoo.shop.year"},
    }
    assert set(running) == {*callers, *itertools.chain(*callers.values())}
    assert "zoo.tools.Saw.work" not in running and "zoo.tests.test_shop.helper" not in running


def test_callers_are_found_to_a_depth_by_the_shortest_way():
    calls = {"a": {"b", "c"}, "b": {"c", "a"}, "c": {"d"}, "d": {"e"}, "e": {"f"}}
    assert reaching(calls, "a") == {"b": 1, "c": 1, "d": 2, "e": 3}
    assert reaching(calls, "a", 2) == {"b": 1, "c": 1, "d": 2}
    assert reaching(calls, "f") == {}


def test_the_most_certain_way_is_what_all_ways_tried_one_by_one_give():
    draw, names = np.random.default_rng(0), "abcdef"
    certainty = {
        callee: {caller: float(draw.random()) for caller in names if caller != callee and draw.random() < 0.5}
        for callee in names
    }
    slow: dict[str, float] = {}
    for length in (1, 2, 3):
        for way in itertools.product(names, repeat=length):
            pairs = list(itertools.pairwise(("a", *way)))
            if way[-1] != "a" and all(caller in certainty[callee] for callee, caller in pairs):
                sure = float(np.prod([certainty[callee][caller] / 2 for callee, caller in pairs]))
                slow[way[-1]] = max(slow.get(way[-1], 0.0), sure)
    assert likely_callers(certainty, "a") == pytest.approx(slow)


def test_static_calls_are_read_in_three_ways(graph):
    calls = StaticCalls(graph)
    assert calls.resolved[CUT] == {"zoo.tools.Saw.work", "zoo.tools.Axe.work", "zoo.shop.never"}
    assert calls.resolved["zoo.tools.Saw.__init__"] == {"zoo.shop.day"}  # which an axe inherits
    assert "zoo.tools.Axe.work" not in calls.overriding
    assert calls.open["zoo.tools.Axe.work"] == calls.open["zoo.tools.Saw.work"] == {"zoo.shop.order"}
    assert calls.certainty["zoo.tools.Axe.work"] == {"zoo.shop.order": 0.5}
    assert reaching(calls.resolved, CUT).keys() == calls.resolved[CUT]
    assert reaching(calls.open, CUT) == dict.fromkeys(calls.resolved[CUT], 1) | {"zoo.shop.order": 2, "zoo.shop.day": 3}


def test_a_call_of_a_method_may_be_one_of_a_method_that_overrides_it(tmp_path):
    source = "class A:\n    def f(self):\n        return 1\n\n    def g(self):\n        return self.f()\n\n\n"
    source += "class B(A):\n    def f(self):\n        return 2\n"
    (tmp_path / "m.py").write_text(source)
    calls = StaticCalls(load_graph(tmp_path))
    assert calls.resolved == {"m.A.f": {"m.A.g"}}
    assert calls.overriding == {"m.A.f": {"m.A.g"}, "m.B.f": {"m.A.g"}}
    assert calls.certainty == {"m.A.f": {"m.A.g": 1.0}, "m.B.f": {"m.A.g": 0.5}}


def test_all_true_ones_are_candidates_and_the_query_is_not():
    running = [f"f{place}" for place in range(400)]
    few = drawn_candidates(running, {"f300"}, "f0")
    assert len(few) == 200 and "f300" in few and "f0" not in few and "f1" in few and "f250" not in few
    assert len(drawn_candidates(running[:50], {"f1"}, "f0")) == 49


def test_a_query_that_too_much_depends_on_is_not_asked(package, graph, rows, monkeypatch):
    monkeypatch.setattr(graph_impact, "MOST_TRUE", 3)
    found, counts = queries("zoo", package, graph, rows)
    assert CUT not in {query.entity for query in found} and counts["called"] == counts["queries"] + 1 == 6


@pytest.fixture(scope="module")
def asked(package, graph, rows) -> dict[str, Query]:
    found, counts = queries("zoo", package, graph, rows)
    assert counts["queries"] == len(found) == 6  # the constructor is no query
    return {query.entity: query for query in found}


def test_what_is_reached_by_resolved_calls_is_no_candidate_among_the_missed(asked):
    cut = asked[CUT]
    assert cut.true == {"zoo.tools.Axe.work": 1, "zoo.shop.lazy": 1, "zoo.shop.order": 2, "zoo.shop.day": 3}
    assert CUT not in cut.candidates and "zoo.shop.week" in cut.candidates
    assert sum(cut.right("all")) == 4 and sum(cut.right("missed")) == 3
    missed = [name for name, one in zip(cut.candidates, cut.chosen("missed"), strict=True) if one]
    assert set(cut.candidates) - set(missed) == {"zoo.tools.Axe.work"}  # Saw.work did not run
    assert resolver([cut]) == {"recall": 1 / 4, "precision": 1.0}


def test_features_say_what_the_sources_say(package, graph, asked):
    cut = asked[CUT]
    found = Lexical(graph, Documents.read(graph, package)).features(cut)
    assert {len(values) for values in found.values()} == {len(cut.candidates)}
    value = {name: dict(zip(cut.candidates, values, strict=True)) for name, values in found.items()}
    assert value["resolved calls"]["zoo.tools.Axe.work"] == 3 and value["resolved calls"]["zoo.shop.order"] == 0
    assert value["resolved calls, overriding methods, open names"]["zoo.shop.order"] == 2
    assert value["mentions the name"]["zoo.shop.lazy"] > 0 == value["mentions the name"]["zoo.shop.week"]
    three = value["names in sources, over three steps"]
    assert three["zoo.tools.Axe.work"] > three["zoo.shop.order"] > three["zoo.shop.day"] > three["zoo.shop.week"]
    assert value["same module"]["zoo.tools.sharpen"] == 1 and value["same module"]["zoo.shop.day"] == 0


def test_an_encoder_is_asked_from_the_side_of_what_is_called(package, graph, asked):
    configuration, tokenizer = read_configuration("cpu"), train_tokenizer([TOOLS, SHOP], 400)
    chains = windows(tokenizer, configuration, Documents.read(graph, package))
    model = GraphMERForPreTraining(configuration.graphmer_config(len(tokenizer), len(chains.relations))).eval()
    inside = list(asked.values())
    found = encoder_scores(model, chains, inside)
    alone = encoder_scores(model, chains, inside[:1])[0]
    for query, parts in zip(inside, found, strict=True):
        assert {each.shape for each in parts.values()} == {(len(query.candidates),)}
        assert all(np.isfinite(each).all() for each in parts.values())
    for name, each in alone.items():
        assert each == pytest.approx(found[0][name], abs=1e-5)


def test_a_table_has_rows_for_both_metrics(monkeypatch):
    draw, asked = np.random.default_rng(0), []
    monkeypatch.setattr(graph_impact, "FEWEST", 3)
    for package in ("p", "q"):
        for number in range(4):
            candidates = [f"{package}.c{place}" for place in range(6)]
            true = {name: 1 for name in candidates[:2]}
            query = Query(package, f"{package}.e{number}", package, true, {candidates[0]: 1}, candidates)
            good = np.array([name in true for name in candidates]) + draw.random(6) / 2
            query.features = {"good": good, "noise": draw.random(6)}
            asked.append(query)
    table = graph_impact.Table("missed", asked)
    table.add("trained", {query.entity: {"part": draw.random(6)} for query in asked})
    found = table.result()
    assert found["packages"]["p"] == {"asked": 4, "candidates": 5.0, "right": 1.0}
    assert found["rows"]["lexical"]["mrr"] == found["rows"]["lexical"]["average_precision"]["mean"] == 1
    assert found["rows"]["chance"]["mrr"] < 0.9 and len(found["rows"]["chance"]["mrr_by_seed"]) == graph_impact.DRAWS
    assert {"encoder trained", "lexical and encoder trained"} < found["rows"].keys()


def test_average_precision_is_a_sum_over_right_ones_and_equal_scores_are_one_step():
    found = Rankings(["a", "a"], ["m", "m"], [[True, False, True, False], [True, False]])
    scores = np.array([4.0, 3.0, 2.0, 1.0, 0.0, 0.0])
    assert found.average_precision(scores) == pytest.approx([(1 / 1 + 2 / 3) / 2, 1 / 2])


def test_weights_for_every_right_one_have_the_gradient_of_zero_that_a_slow_sum_has():
    draw = np.random.default_rng(0)
    right = [[True, False, False, True], [False, True], [True, False, False]]
    found = Rankings(["a", "a", "b"], ["m", "n", "o"], right)
    values = {name: [draw.normal(size=len(each)) for each in right] for name in ("one", "two")}
    for name, each in values.items():
        found.add(name, each)
    table_RF = np.stack([found._standard[name] for name in values], axis=1)
    weight_F = found.fitted(table_RF, np.ones(3, bool), np.zeros(2), every=True)
    gradient_F = weight_F.copy()
    for question, share in zip(range(3), (0.75, 0.75, 1.5), strict=True):  # each package counts alike
        rows = np.stack(
            [(each[question] - each[question].mean()) / each[question].std() for each in values.values()], 1
        )
        p = np.exp(rows @ weight_F) / np.exp(rows @ weight_F).sum()
        gradient_F += share * rows.T @ (p - np.array(right[question]) / sum(right[question]))
    assert np.abs(gradient_F).max() < 1e-3
