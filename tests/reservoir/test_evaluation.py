"""Bits per byte, the weight of the counts, and intervals, against numbers that can be worked out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.reservoir import evaluation
from helpers.reservoir.counts import Counts
from helpers.reservoir.evaluation import Score, beside, best_mixture, chosen_mixture, in_words, probabilities, verdict
from helpers.reservoir.training import RecallLlama

from .test_counts import stream
from .test_model import END, V, made


def test_probabilities_are_the_models_softmax_over_each_text_alone():
    model, tokens = made(), stream(2, 12)
    expected, text = [], [END]
    for token in tokens.tolist():
        expected.append(model(torch.tensor([text])).logits[0, -1].softmax(-1)[token].item())
        text = [END] if token == END else [*text, token]
    inside = np.concatenate(([False], tokens[:-1] != END))  # the end of a text is read with what was before it
    found = probabilities(model, tokens, END, length=9)
    np.testing.assert_allclose(found[inside], np.array(expected)[inside], rtol=1e-3)


def test_a_uniform_guess_over_the_bytes_has_eight_bits_per_byte():
    tokens, bytes_V = np.array([5, 6, END, 7, END]), np.ones(V, dtype=int)
    bytes_V[END] = 0
    score = Score.of(np.array([1 / 256, 1 / 256, 1.0, 1 / 256, 1.0]), tokens, bytes_V, END)
    assert score.bits_per_byte == pytest.approx(8) and score.bytes_S.tolist() == [2, 1]


def test_the_mixture_is_never_worse_on_dev_than_either_part():
    train, dev = stream(0, 60), stream(1, 20)
    counts = Counts.fit(train, V, END)
    good = np.where(np.arange(len(dev)) % 2, 0.9, 0.001)
    for alone in (good, np.full(len(dev), 1e-9), np.ones(len(dev))):
        weight, cache, nats = best_mixture(alone, counts, dev)
        parts = evaluation.nats_of(alone).sum(), evaluation.nats_of(counts.with_cache(dev, 0.0)).sum()
        assert nats <= min(parts) + 1e-9 and 0 <= weight <= 1 and 0 <= cache < 1
    assert (
        best_mixture(np.full(len(dev), 1e-9), counts, dev)[0] == 1
        and best_mixture(np.ones(len(dev)), counts, dev)[0] == 0
    )


def test_a_difference_that_every_text_shows_is_told_and_one_that_changes_sign_is_not():
    random = np.random.default_rng(0)
    nats, bytes_S = random.uniform(50, 100, 80), np.full(80, 60)
    better, noise = Score(0.9 * nats, bytes_S), Score(nats * random.uniform(0.8, 1.2, 80), bytes_S)
    theirs = Score(nats, bytes_S)
    assert beside(better, theirs) == pytest.approx((0.1, 0.1, 0.1))
    assert "is better than" in in_words("A", "B", better, theirs)
    assert "is worse than" in in_words("A", "B", theirs, better)
    assert "is not told apart from" in in_words("A", "B", noise, theirs)
    assert ", 10.0% fewer (95 %: 10.0% fewer to 10.0% fewer, over 80 test texts)" in in_words("A", "B", better, theirs)
    assert ", 11.1% more (" in in_words("A", "B", theirs, better)


def test_the_verdict_says_where_counting_is_as_good():
    nats, bytes_S = np.linspace(50, 100, 80), np.full(80, 60)
    counting, worse, better = (Score(factor * nats, bytes_S) for factor in (1, 2, 0.9))
    names = ("counting", "reservoir without counts", "reservoir with counts", "Llama with counts")

    good = verdict(dict(zip(names, (counting, worse, better, counting), strict=True)))
    assert [row.split(":")[0] for row in good] == [
        "The reservoir without counts is worse than counting alone",
        "The mixture of both is better than counting alone",
        "The mixture of both is better than the Llama's mixture",
    ]
    same = verdict(dict(zip(names[:3], (counting, worse, counting), strict=True)))
    assert len(same) == 3 and "Counting alone is as good on this text" in same[-1]


def test_counting_alone_is_chosen_where_dev_does_not_show_that_a_mixture_is_better():
    dev, bytes_V = stream(1, 20), np.ones(V, dtype=int)
    counts = Counts.fit(stream(0, 60), V, END)
    better = 1.5 * counts.with_cache(dev, 0.0)
    assert chosen_mixture(better, counts, 0.05, dev, bytes_V, END)[0] < 1
    last_text = np.arange(len(dev)) >= np.flatnonzero(dev == END)[-2]
    for none in (better * last_text + 1e-9, np.full(len(dev), 1e-9)):  # better on one text of twenty, and on none
        assert chosen_mixture(none, counts, 0.05, dev, bytes_V, END) == (1.0, 0.05)


def test_the_llama_beside_has_as_many_weights_and_begins_at_the_same_codes():
    model, codes = made(units=240, embedding_size=32, readout_size=64), torch.randn(V, 6)
    llama = RecallLlama.beside(model, codes, length=16, seed=0)
    sizes = llama.num_parameters(), model.num_parameters()
    assert 0.6 < sizes[0] / sizes[1] < 1.6
    near, start = torch.nn.functional.cosine_similarity, llama.get_input_embeddings().weight
    alike = near(start[:, None], start[None], dim=-1)
    torch.testing.assert_close(alike, near(codes[:, None], codes[None], dim=-1), atol=1e-4, rtol=0)
    assert probabilities(llama, stream(3, 4), END, length=9).min() > 0
