"""Bits per byte, counting alone, and intervals, against numbers that can be worked out."""

import json

import numpy as np
import pytest
import torch

from helpers.reservoir import evaluation
from helpers.reservoir.data import SAMPLE
from helpers.reservoir.evaluation import Score, compressed_bits, probabilities, verdict

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


def scored(*factors: float, texts: int = 80) -> list[Score]:
    """Scores of the same texts, with so many times the nats."""
    nats = np.linspace(50, 100, texts)
    return [Score(factor * nats, np.full(texts, 60)) for factor in factors]


def test_the_verdict_begins_with_yes_no_or_not_shown():
    better, counting, worse = scored(0.9, 1, 2)
    good = verdict(better, counting, 2.5)
    assert good.startswith("Yes: ") and "10.0% fewer bits than counting (10.0% to 10.0% over 80 test texts)" in good
    assert "xz 2.500" in good and "one training run" in good
    assert verdict(worse, counting, 2.5).startswith("No: ")
    assert verdict(counting, counting, 2.5).startswith("Not shown: ")
    few = verdict(*scored(0.9, 1, texts=10), 2.5)
    assert few.startswith("Not shown: ") and "10 test texts are too few for an interval" in few


def test_a_compressor_saves_bits_on_what_it_has_read():
    text = " ".join(json.loads(SAMPLE.read_text())[:20])
    assert compressed_bits([text], [text]) < 0.1 < 2 < compressed_bits(["another text"], [text]) < 8
