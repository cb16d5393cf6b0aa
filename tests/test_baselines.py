"""Unigram and bigram baselines, held against slow obvious loops."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from helpers.reservoir.baselines import (
    PRIOR_STRENGTHS,
    SMOOTHING,
    Bigram,
    Unigram,
    bigram_nats,
    prior_strength,
    unigram_nats,
)
from helpers.reservoir.blocks import TokenBlocks
from helpers.reservoir.sample import sample_stories
from helpers.reservoir.tokens import load_tokenizer, open_tokens, write_tokens

V, T = 300, 16


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Training tokens and validation blocks of a toy corpus; some validation pairs and tokens are new."""
    folder = tmp_path_factory.mktemp("corpus")
    tokenizer = load_tokenizer("train", sample_stories(40, seed=0), V)[0]
    train = write_tokens(sample_stories(40, seed=0), tokenizer, folder / "train.bin")
    held_out = [*sample_stories(6, seed=1), "Zürich & Co. §5 = 100%"]
    return open_tokens(train.path), TokenBlocks(write_tokens(held_out, tokenizer, folder / "validation.bin"), T)


def slow_unigram(tokens, token):
    return (tokens.count(token) + SMOOTHING) / (len(tokens) + SMOOTHING * V)


def slow_bigram_loss(tokens, pairs, k):
    pair_counts, context_counts = Counter(itertools.pairwise(tokens)), Counter(tokens[:-1])
    loss = 0.0
    for context, token in pairs:
        mixed = pair_counts[context, token] + k * slow_unigram(tokens, token)
        loss -= math.log(mixed / (context_counts[context] + k))
    return loss / len(pairs)


def slow_strength(tokens):
    cut = len(tokens) - int(0.1 * len(tokens))
    pairs = list(zip(tokens[cut:], tokens[cut + 1 :], strict=False))
    return min(PRIOR_STRENGTHS, key=lambda k: slow_bigram_loss(tokens[:cut], pairs, k))


def predicted_pairs(blocks):
    return [pair for block in blocks for ids in [block["input_ids"].tolist()] for pair in itertools.pairwise(ids)]


def test_unigram_equals_a_slow_loop(corpus):
    tokens, blocks = corpus
    nats = [-math.log(slow_unigram(tokens.tolist(), token)) for _, token in predicted_pairs(blocks)]
    assert unigram_nats(tokens, blocks, V) == pytest.approx(math.fsum(nats) / len(nats), abs=1e-12)


def test_bigram_equals_a_slow_loop(corpus):
    tokens, blocks = corpus[0][:1500], corpus[1]
    slow = tokens.tolist()
    expected = slow_bigram_loss(slow, predicted_pairs(blocks), slow_strength(slow))
    assert bigram_nats(tokens, blocks, V) == pytest.approx(expected, abs=1e-12)


def test_mixing_is_chosen_inside_the_range_of_choices(corpus):
    chosen = prior_strength(corpus[0].astype(np.int64), V)
    assert PRIOR_STRENGTHS[0] < chosen < PRIOR_STRENGTHS[-1]


def test_mixing_is_the_best_for_the_tail_of_the_training_tokens(corpus):
    for tokens in (corpus[0][:900], corpus[0][:120], np.tile(corpus[0][:60], 20)):
        assert prior_strength(tokens.astype(np.int64), V) == slow_strength(tokens.tolist())


@pytest.mark.parametrize("strength", [0.25, 8.0])
def test_probabilities_sum_to_one_after_every_context(corpus, strength):
    tokens = corpus[0][:800].astype(np.int64)
    bigram = Bigram.fit(tokens, V, strength)
    assert len(np.unique(tokens)) < V  # some contexts are never seen
    sums = bigram.probability(np.arange(V)[:, None], np.arange(V)[None, :]).sum(axis=1)
    assert sums == pytest.approx(np.ones(V), abs=1e-12)
    assert Unigram.fit(tokens, V).probability_V.sum() == pytest.approx(1, abs=1e-12)


def test_bigram_beats_unigram_which_beats_the_uniform_guess(corpus):
    tokens, blocks = corpus
    assert bigram_nats(tokens, blocks, V) < unigram_nats(tokens, blocks, V) - 0.5 < math.log(V) - 0.5


def test_bigram_of_a_cycle_is_almost_certain(tmp_path):
    tokenizer = load_tokenizer("train", [], 257)[0]
    blocks = TokenBlocks(write_tokens(["abcd" * 400], tokenizer, tmp_path / "cycle.bin"), 8)
    tokens = open_tokens(tmp_path / "cycle.bin")
    assert unigram_nats(tokens, blocks, 257) == pytest.approx(math.log(4), abs=0.05)
    assert bigram_nats(tokens, blocks, 257) < 0.01


def test_token_outside_the_vocabulary_is_refused(corpus):
    tokens, blocks = corpus
    with pytest.raises(ValueError, match="vocab_size=10"):
        unigram_nats(tokens, blocks, 10)
    with pytest.raises(ValueError, match="too few"):
        bigram_nats(tokens[:3], blocks, V)
