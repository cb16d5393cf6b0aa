"""Ranks against a slow loop over sorted candidates, and against PyKEEN's evaluator where it is installed."""

import random

import numpy as np
import pytest

from helpers.graphmer.graph.knowledge_graph import UNRESOLVED, Entity, Triple, build_graph
from helpers.graphmer.graph.ontology import UNKNOWN, read_ontology
from helpers.graphmer.graph.splits import Splits
from helpers.graphmer.links.ranking import (
    DIRECTIONS,
    _first_share,
    admitted,
    bootstrap_interval,
    evaluate,
    filtered_ranks,
    metrics,
    rank,
    rate,
    reliability,
)

pytestmark = pytest.mark.once

ONTOLOGY = read_ontology()


def small_graph(functions=12, classes=6, triples=70, seed=0):
    """Functions and classes of two modules, an external of unknown type, an unresolved mention; and its triples in parts."""
    draw = random.Random(seed)
    names = [f"m{number % 2}.f{number}" for number in range(functions)]
    types = [f"m{number % 2}.C{number}" for number in range(classes)]
    entities = [Entity(name, "function", name[3:], module=name[:2]) for name in names]
    entities += [Entity(name, "class", name[3:], module=name[:2]) for name in types]
    entities += [Entity(name, "module", name, module=name) for name in ("m0", "m1")]
    entities += [Entity("os.x", UNKNOWN, "x", "external", "os"), Entity("?.y", UNKNOWN, "y", UNRESOLVED)]
    made = {Triple(f"m{number % 2}", "contains", name) for number, name in enumerate(names)}
    while len(made) < triples:
        relation, tails = draw.choice((("calls", [*names, "os.x"]), ("instantiates", types)))
        made.add(Triple(draw.choice(names), relation, draw.choice(tails)))
    graph = build_graph(entities, [*made, Triple(names[0], "calls", "?.y")], {})
    shuffled = sorted(made)
    draw.shuffle(shuffled)
    parts = (shuffled[: triples // 2], shuffled[triples // 2 : -triples // 4], shuffled[-triples // 4 :])
    return graph, Splits(*(tuple(sorted(part)) for part in parts), {})


class Random:
    """Scores of few values, so that many are equal; a fixed one for each triple. Counts what it is asked for."""

    def __init__(self, levels=4):
        self.levels, self.asked = levels, []

    def of(self, head, relation, tail) -> float:
        return random.Random(f"{head} {relation} {tail}").randrange(self.levels) / self.levels

    def __call__(self, given, relation, candidates, direction):
        self.asked += [(direction, relation, one) for one in given]
        if direction == "tail":
            return np.array([[self.of(head, relation, tail) for tail in candidates] for head in given])
        return np.array([[self.of(head, relation, tail) for head in candidates] for tail in given])


def slow_rank(scorer, triple, direction, graph, true) -> float:
    """Mean of the first and the last place that the answer can have in a sorted list."""
    relation = ONTOLOGY.relations[triple.relation]
    types = relation.range if direction == "tail" else relation.domain
    others = []
    for name, entity in graph.entities.items():
        asked = Triple(triple.head, triple.relation, name)
        if direction == "head":
            asked = Triple(name, triple.relation, triple.tail)
        possible = entity.status != UNRESOLVED and (entity.type == UNKNOWN or entity.type in types)
        if possible and asked not in true:
            others.append(scorer.of(*asked))
    own = scorer.of(*triple)
    places = [place for place, value in enumerate(sorted([*others, own], reverse=True), 1) if value == own]
    return (places[0] + places[-1]) / 2


@pytest.mark.parametrize("levels", [1, 3, 10**9])
def test_ranks_are_those_of_a_slow_loop_in_both_directions(levels):
    graph, splits = small_graph()
    scorer = Random(levels)
    ranking = rank(scorer, splits, graph, ONTOLOGY, chunk=20)
    true = {*splits.train, *splits.validation, *splits.test}
    assert ranking.triples == splits.test
    for direction, ranks_N in zip(DIRECTIONS, ranking.ranks_DN, strict=True):
        assert ranks_N.tolist() == [slow_rank(scorer, triple, direction, graph, true) for triple in splits.test]


def test_each_query_is_computed_once():
    graph, splits = small_graph(functions=4, triples=20)
    scorer = Random()
    result = evaluate(scorer, splits, graph, ONTOLOGY, part="train", chunk=1)
    assert len(scorer.asked) == len(set(scorer.asked)) == result["queries"] < 2 * len(splits.train)


def test_chunks_change_no_rank():
    graph, splits = small_graph()
    first, second = (rank(Random(), splits, graph, ONTOLOGY, chunk=chunk).ranks_DN for chunk in (1, 10**6))
    assert (first == second).all()


def test_a_constant_score_gains_nothing_and_a_perfect_one_everything():
    ranks = filtered_ranks(np.zeros(9), [4], [4, 5])
    assert ranks.tolist() == [4.5]  # eight are left
    assert filtered_ranks(np.eye(5)[2] + np.eye(5)[3], [2, 3], [3, 2, 2]).tolist() == [1, 1]


def test_triples_that_a_split_dropped_are_true_as_well():
    graph, splits = small_graph()
    dropped = Splits((), (), splits.test, {})
    ranks = [rank(Random(), one, graph, ONTOLOGY).ranks_DN for one in (splits, dropped)]
    assert (ranks[0] == ranks[1]).all()


def test_candidates_are_what_the_ontology_admits_and_the_unknown():
    graph, _ = small_graph()
    candidates = admitted(graph, ONTOLOGY, ["calls", "instantiates"])
    functions = [name for name, entity in graph.entities.items() if entity.type == "function"]
    classes = [name for name, entity in graph.entities.items() if entity.type == "class"]
    assert candidates["calls"]["tail"] == sorted([*functions, "os.x"])
    assert candidates["calls"]["head"] == sorted([*functions, *classes, "m0", "m1", "os.x"])
    assert candidates["instantiates"]["tail"] == sorted([*classes, "os.x"])


def test_an_end_that_is_stated_against_the_ontology_is_a_candidate_for_all():
    graph, splits = small_graph()
    odd = Triple("m0.f0", "instantiates", "m0")
    graph = build_graph(graph.entities.values(), [*graph.triples, odd], {})
    splits = Splits(splits.train, splits.validation, (odd,), {})
    assert "m0" in admitted(graph, ONTOLOGY, ["instantiates"])["instantiates"]["tail"]
    assert evaluate(Random(), splits, graph, ONTOLOGY)["tail"]["ranks"] == 1


def test_summaries_are_means_over_their_ranks():
    graph, splits = small_graph()
    ranking = rank(Random(), splits, graph, ONTOLOGY)
    result = evaluate(Random(), splits, graph, ONTOLOGY)
    both = ranking.ranks_DN.ravel()
    assert result["both"]["mrr"] == pytest.approx(sum(1 / value for value in both) / len(both))
    assert result["both"]["hits@3"] == pytest.approx(sum(value <= 3 for value in both) / len(both))
    named = np.array([triple.relation == "contains" for triple in ranking.triples])
    assert named.any()
    assert result["beyond_names"]["tail"]["mrr"] == pytest.approx((1 / ranking.ranks_DN[0][~named]).mean())
    assert result["relations"]["contains"]["head"]["mrr"] == pytest.approx((1 / ranking.ranks_DN[1][named]).mean())
    assert sum(found["tail"]["ranks"] for found in result["relations"].values()) == len(splits.test)
    low, high = result["both"]["mrr_interval"]
    assert low <= result["both"]["mrr"] <= high


def test_metrics_of_known_ranks():
    assert metrics([1, 2, 4, 20]) == {"mrr": 0.45, "hits@1": 0.25, "hits@3": 0.5, "hits@10": 0.75}


def test_intervals_hold_the_mean_as_often_as_they_say():
    draw = np.random.default_rng(0)
    held = 0
    for seed in range(200):
        low, high = bootstrap_interval(draw.random(60) < 0.3, seed=seed)
        held += low <= 0.3 <= high
    assert 0.88 <= held / 200 <= 0.99


def test_intervals_are_wider_where_values_come_in_groups():
    values, groups = np.repeat(np.arange(20) % 2, 30), np.repeat(np.arange(20), 30)
    alone, grouped = (np.diff(bootstrap_interval(values, by))[0] for by in (None, groups))
    assert grouped > 3 * alone


def test_rates_have_the_interval_of_wilson():
    """(p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n), by hand."""
    found, p, n, z = rate(3, 20), 3 / 20, 20, 1.959964
    half = z * (p * (1 - p) / n + z**2 / (4 * n**2)) ** 0.5
    expected = [(p + z**2 / (2 * n) + sign * half) / (1 + z**2 / n) for sign in (-1, 1)]
    assert found["interval"] == pytest.approx(expected, abs=1e-5)
    assert rate(0, 0)["rate"] is None


def test_a_drawn_part_is_that_of_the_seed():
    graph, splits = small_graph()
    drawn = [rank(Random(), splits, graph, ONTOLOGY, max_queries=5, seed=seed).triples for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == 5
    assert set(drawn[0]) <= set(splits.test)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"part": "dev"}, "part='dev': must be one of train, validation, test"),
        ({"max_queries": -1}, "max_queries=-1"),
    ],
)
def test_impossible_options_are_refused(options, message):
    graph, splits = small_graph()
    with pytest.raises(ValueError, match=message):
        evaluate(Random(), splits, graph, ONTOLOGY, **options)


def test_scores_without_a_rank_are_refused():
    graph, splits = small_graph()

    class Broken(Random):
        def of(self, *triple):
            return np.nan

    with pytest.raises(ValueError, match="NaN, which has no rank"):
        evaluate(Broken(), splits, graph, ONTOLOGY)

    class Transposed(Random):
        def __call__(self, *asked):
            return super().__call__(*asked).T

    with pytest.raises(ValueError, match=r"Transposed: scores \[\d+, \d+\] for \d+ queries"):
        evaluate(Transposed(), splits, graph, ONTOLOGY)
    with pytest.raises(ValueError, match="relation='likes': not in the ontology"):
        admitted(graph, ONTOLOGY, ["likes"])


def test_ranking_metrics_equal_pykeens_on_the_same_scores():
    pytest.importorskip("pykeen")
    import torch
    from pykeen.evaluation import RankBasedEvaluator

    draw = torch.Generator().manual_seed(0)
    scores_QX = torch.randint(0, 40, (200, 50), generator=draw).float()
    answers_Q = torch.randint(0, 50, (200,), generator=draw)
    true_QX = torch.rand(200, 50, generator=draw) < 0.1
    true_QX[torch.arange(200), answers_Q] = True
    known = [row.nonzero()[:, 0].tolist() for row in true_QX]
    rows = zip(scores_QX.numpy(), answers_Q.tolist(), known, strict=True)
    ours = metrics(np.concatenate([filtered_ranks(scores_X, [answer], true) for scores_X, answer, true in rows]))

    evaluator = RankBasedEvaluator(filtered=True)
    of_answers_Q1 = scores_QX[torch.arange(200), answers_Q][:, None]
    filtered_QX = scores_QX.masked_fill(true_QX, float("nan"))  # as PyKEEN filters, the answer put back
    filtered_QX[torch.arange(200), answers_Q] = of_answers_Q1[:, 0]
    evaluator.process_scores_(torch.zeros(200, 3, dtype=torch.long), "tail", filtered_QX, of_answers_Q1)
    theirs = evaluator.finalize()
    assert ours["mrr"] == pytest.approx(theirs.get_metric("tail.realistic.inverse_harmonic_mean_rank"), abs=1e-6)
    for k in (1, 3, 10):
        assert ours[f"hits@{k}"] == pytest.approx(theirs.get_metric(f"tail.realistic.hits_at_{k}"), abs=1e-6)


def test_the_calibration_error_is_the_mean_gap_of_bins():
    confidence = np.array([0.95, 0.95, 0.95, 1.0, 0.15, 0.1])
    right = np.array([True, True, False, True, False, True])
    found = reliability(confidence, right)
    expected = abs(3.85 - 3) / 6 + abs(0.25 - 1) / 6
    assert found == pytest.approx({"probability": 4.1 / 6, "right": 4 / 6, "error": expected})


def test_probabilities_that_come_true_have_no_calibration_error():
    draw = np.random.default_rng(0)
    confidence = draw.random(100_000)
    assert reliability(confidence, draw.random(100_000) < confidence)["error"] < 0.01
    assert reliability(confidence, draw.random(100_000) < confidence**2)["error"] > 0.1


def test_the_probability_of_a_first_answer_is_its_share_without_other_true_ones():
    scores = np.log(np.array([4.0, 3.0, 2.0, 1.0]))
    assert _first_share(scores, [0, 2], 2) == pytest.approx(3 / 6)
    assert _first_share(scores, [2], 2) == pytest.approx(4 / 10)
