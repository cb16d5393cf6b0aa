"""Bits per byte, counting alone, and intervals, against numbers that can be worked out."""

import numpy as np
import pytest
import torch

from helpers.reservoir import evaluation
from helpers.reservoir.evaluation import Score, compare, describe, probabilities, verdict

from .slow_model import END, V, stream
from .test_model import made


def test_probabilities_are_the_models_softmax_over_each_text_alone(monkeypatch):
    model, tokens = made(), stream(2, 12)
    expected, text = [], [END]
    for token in tokens.tolist():
        expected.append(model(torch.tensor([text])).logits[0, -1].softmax(-1)[token].item())
        text = [END] if token == END else [*text, token]
    monkeypatch.setattr(evaluation, "STRETCH", 9)
    np.testing.assert_allclose(probabilities(model, tokens, END), expected, rtol=1e-3)


def test_a_uniform_guess_over_the_bytes_has_eight_bits_per_byte():
    tokens, bytes_V = np.array([5, 6, END, 7, END]), np.ones(V, dtype=int)
    bytes_V[END] = 0
    score = Score.of(np.array([1 / 256, 1 / 256, 1.0, 1 / 256, 1.0]), tokens, bytes_V, END)
    assert score.bits_per_byte == pytest.approx(8) and score.bytes_S.tolist() == [2, 1]


def test_a_difference_that_every_text_shows_is_told_and_one_that_changes_sign_is_not():
    random = np.random.default_rng(0)
    nats, bytes_S = random.uniform(50, 100, 80), np.full(80, 60)
    better, noise = Score(0.9 * nats, bytes_S), Score(nats * random.uniform(0.8, 1.2, 80), bytes_S)
    theirs = Score(nats, bytes_S)
    share = compare(better, theirs)
    assert (share.value, share.low, share.high) == pytest.approx((0.1, 0.1, 0.1))
    assert "A compared with B: better" in describe("A", "B", better, theirs)
    assert "A compared with B: worse" in describe("A", "B", theirs, better)
    assert "with B: no significant difference" in describe("A", "B", noise, theirs)
    assert ", 10.0% fewer (95 %: 10.0% fewer to 10.0% fewer, over 80 test texts)" in describe("A", "B", better, theirs)
    assert ", 11.1% more (" in describe("A", "B", theirs, better)


def test_the_verdict_says_where_counting_is_as_good():
    nats, bytes_S = np.linspace(50, 100, 80), np.full(80, 60)
    counting, worse, better = (Score(factor * nats, bytes_S) for factor in (1, 2, 0.9))
    good = verdict({"counting": counting, "reservoir": better, "GRU": worse}, "reservoir")
    assert [row.split(",")[0] for row in good] == [
        "The reservoir compared with counting: better",
        "The reservoir compared with the GRU: better",
    ]
    few = {
        name: Score(score.nats_S[:10], score.bytes_S[:10]) for name, score in (("counting", counting), ("GRU", better))
    }
    assert verdict(few, "GRU")[0].endswith("10 test texts are too few for a verdict.")
    assert len(verdict(few, "GRU")) == 1
    same = verdict({"counting": counting, "reservoir": counting}, "reservoir")
    assert len(same) == 2 and "Counting alone is as good on this text" in same[-1]
