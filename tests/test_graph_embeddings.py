"""Embeddings of the graph and a walk over it, asked for open calls: scores of candidates, the walk beside networkx, PyKEEN's pipeline."""

import networkx
import numpy as np
import pytest

from benchmarks import graph_embeddings
from benchmarks.graph_calls import Question
from benchmarks.graph_embeddings import calls, counted, few, of_code, scores, split, trained, walks
from helpers.graphmer.graph.extraction import load_graph

TRIPLES = [
    ("m", "contains", "m.f"),
    ("m", "contains", "m.A"),
    ("m.A", "contains", "m.A.close"),
    ("n", "contains", "n.B"),
    ("n.B", "contains", "n.B.close"),
    ("m.f", "instantiates", "m.A"),
    ("m.f", "calls", "n.g"),
    ("n", "contains", "n.g"),
    ("m", "imports", "n"),
]


def question(caller: str, *candidates: str) -> Question:
    return Question("m", caller, "m", "close", "x", 0, (), frozenset(), ("m.py", 1, 0), [*candidates], {candidates[0]})


def test_a_candidate_that_no_triple_has_gets_the_mean_of_the_others():
    asked = [question("m.f", "a", "new", "b"), question("unseen", "a", "b"), question("m.f", "new", "newer")]
    known, values = ("m.f", "a", "b"), {"a": 1.0, "b": 4.0}
    found = scores(asked, known, lambda caller, candidates: np.array([values[each] for each in candidates]))
    assert [each.tolist() for each in found] == [[1, 2.5, 4], [0, 0], [0, 0]]


def test_triples_of_tests_and_parameters_and_those_left_open_are_not_trained_on(tmp_path):
    folder = tmp_path / "zoo"
    (folder / "tests").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "keeper.py").write_text("def feed(animal):\n    animal.eat()\n    clean()\n\n\ndef clean():\n    pass\n")
    (folder / "tests/test_keeper.py").write_text("from zoo.keeper import clean\n\n\ndef test_clean():\n    clean()\n")
    graph = load_graph(folder)
    assert {triple.relation for triple in graph.triples} >= {"has_parameter", "contains", "calls"}
    assert ("zoo.keeper.feed", "calls", "?.eat") in {tuple(triple) for triple in graph.triples}
    found = set(of_code(graph))
    assert ("zoo.keeper.feed", "calls", "zoo.keeper.clean") in found and (
        "zoo.keeper",
        "contains",
        "zoo.keeper.feed",
    ) in found
    assert not any(
        relation == "has_parameter" or "test" in head + tail or "?" in tail for head, relation, tail in found
    )


def test_a_walk_is_networkx_personalised_pagerank():
    graph = networkx.MultiGraph([(head, tail) for head, _, tail in TRIPLES])
    expected = networkx.pagerank(graph, alpha=0.85, personalization={"m.f": 1}, tol=1e-12, max_iter=1000)
    found = walks(TRIPLES, steps=200)("m.f", [*expected])
    assert found == pytest.approx([*expected.values()], abs=1e-9)


def test_a_walk_finds_the_method_of_the_class_that_the_caller_makes():
    near, far = walks(TRIPLES)("m.f", ["m.A.close", "n.B.close"])
    assert near > far > 0


def test_pykeens_pipeline_learns_who_calls_whom_within_two_packages(monkeypatch):
    pytest.importorskip("pykeen")
    for name, value in {"BATCH": 64, "TESTED": 10}.items():
        monkeypatch.setattr(graph_embeddings, name, value)
    triples = [
        (f"{side}.f{n}", "calls", f"{side}.f{(n + step) % 12}")
        for side in "ab"
        for n in range(12)
        for step in range(1, 8)
    ]
    training, testing = split(triples, seed=0)
    assert (training.num_triples, testing.num_triples, training.num_entities) == (151, 17, 24)
    assert few(testing, 5, 0).num_triples == 5 and 0 < counted(training, testing, 0)["mrr"] < 1
    for model in graph_embeddings.MODELS:
        score = calls(trained(model, training, testing, 0, 40).model, training)
        inside, across = (score("a.f0", [f"{side}.f{n}" for n in (8, 9, 10, 11)]) for side in "ab")
        assert inside.mean() > across.mean(), model
