"""Kneser-Ney baselines, held against slow obvious loops."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from helpers.reservoir.baselines import KneserNey, kneser_ney_nats
from helpers.reservoir.blocks import TokenBlocks
from helpers.reservoir.sample import sample_stories
from helpers.reservoir.tokens import load_tokenizer, tokens_of

V, T = 300, 16


@pytest.fixture(scope="module")
def corpus():
    """Training tokens and validation blocks of a toy corpus; some validation pairs and tokens are new."""
    tokenizer = load_tokenizer("train", sample_stories(40, seed=0), V)[0]
    train = tokens_of(sample_stories(40, seed=0), tokenizer)
    held_out = [*sample_stories(6, seed=1), "Zürich & Co. §5 = 100%"]
    return train, TokenBlocks(tokens_of(held_out, tokenizer), T)


def slow_discounts(counts):
    n = [sum(count == k for count in counts) for k in range(5)]
    Y = n[1] / (n[1] + 2 * n[2]) if n[1] and n[2] else 0.5
    if all(n[1:]):
        three = [k - (k + 1) * Y * n[k + 1] / n[k] for k in (1, 2, 3)]
        if min(three) > 0:
            return three
    return [Y] * 3


class SlowKneserNey:
    """Chen and Goodman's formulas over dictionaries, one probability at a time."""

    def __init__(self, tokens, order=3):
        self.counts = {order: Counter(zip(*(tokens[place:] for place in range(order)), strict=False))}
        for shorter in range(order - 1, 0, -1):  # each different token before counts once
            self.counts[shorter] = Counter(gram[1:] for gram in self.counts[shorter + 1])
        self.discounts = {order: slow_discounts(counts.values()) for order, counts in self.counts.items()}

    def probability(self, context, token):
        order = len(context) + 1
        shorter = self.probability(context[1:], token) if context else 1 / V
        after = {gram[-1]: count for gram, count in self.counts[order].items() if gram[:-1] == context}
        if not after:
            return shorter
        D = {next_one: self.discounts[order][min(count, 3) - 1] for next_one, count in after.items()}
        kept = after[token] - D[token] if token in after else 0
        return (kept + sum(D.values()) * shorter) / sum(after.values())


def predicted_pairs(blocks):
    return [pair for block in blocks for ids in [block["input_ids"].tolist()] for pair in itertools.pairwise(ids)]


# Twelve sequences of three tokens, most of them three times, each time followed by a token of its own.
THRICE = [
    token
    for number, times in enumerate([2, 4, *[3] * 10])
    for time in range(times)
    for token in (*range(3 * number, 3 * number + 3), 40 + 5 * number + time)
]


@pytest.mark.parametrize(
    ("text", "three_discounts"),
    [("stories", [1, 2, 3]), ("one story", [1]), ("never a repeat", []), ("a cycle", []), ("often thrice", [])],
)
def test_kneser_ney_equals_the_formulas_over_dictionaries(corpus, text, three_discounts):
    tokens = {
        "stories": corpus[0][:4000].astype(np.int64),
        "one story": corpus[0][:180].astype(np.int64),
        "never a repeat": np.arange(V),
        "a cycle": np.arange(200) % 4,
        "often thrice": np.array(THRICE),
    }[text]
    model, slow = KneserNey.fit(tokens, V, 3), SlowKneserNey(tokens.tolist())
    assert sorted(order for order, found in slow.discounts.items() if len(set(found)) > 1) == three_discounts
    queries = np.stack([tokens[:40], tokens[1:41], np.roll(tokens[2:42], 3)], axis=1).tolist()  # seen and unseen
    for *context, token in [*queries, [V - 1, int(tokens[1]), int(tokens[2])], [V - 1, V - 1, 0]]:
        for shorter in (context, context[1:], []):
            expected = slow.probability(tuple(shorter), token)
            assert model.probability([np.array(t) for t in shorter], np.array(token)) == pytest.approx(
                expected, abs=1e-12
            )


@pytest.mark.parametrize("order", [1, 2, 3])
def test_kneser_ney_loss_looks_back_as_far_as_its_order_says_and_never_across_a_block(corpus, order):
    tokens, blocks = corpus[0][:1500], corpus[1]
    slow = SlowKneserNey(tokens.tolist(), order)
    nats = [
        -math.log(slow.probability(tuple(ids[max(0, t - order + 1) : t]), ids[t]))
        for block in blocks
        for ids in [block["input_ids"].tolist()]
        for t in range(1, T)
    ]
    assert kneser_ney_nats(tokens, blocks, V, order) == pytest.approx(math.fsum(nats) / len(nats), abs=1e-12)


def test_kneser_ney_gives_every_token_a_probability_and_they_sum_to_one(corpus):
    tokens = corpus[0][:800].astype(np.int64)
    model = KneserNey.fit(tokens, V, 3)
    a, b = tokens[10:12]
    never = np.setdiff1d(np.arange(V), tokens)[0]
    for context in ([a, b], [never, b], [a, never], [never, never], [b], [never], []):
        probability_V = model.probability([np.array([token]) for token in context], np.arange(V))
        assert probability_V.min() > 0
        assert probability_V.sum() == pytest.approx(1, abs=1e-12)


def test_kneser_ney_finds_what_two_tokens_say_and_one_does_not():
    """Each letter is the sum of the two before, modulo 7; a letter alone has two or three successors."""
    letters = [0, 1]
    while len(letters) < 2000:
        letters.append((letters[-1] + letters[-2]) % 7)
    tokenizer = load_tokenizer("train", [], 257)[0]
    text = "".join("abcdefg"[letter] for letter in letters)
    tokens = tokens_of([text], tokenizer)
    blocks = TokenBlocks(tokens, 32)
    assert kneser_ney_nats(tokens, blocks, 257, 2) > 0.7
    assert kneser_ney_nats(tokens, blocks, 257, 3) < 0.1


def test_the_trigram_beats_the_bigram_on_new_stories(corpus):
    tokens, blocks = corpus
    assert kneser_ney_nats(tokens, blocks, V, 3) < kneser_ney_nats(tokens, blocks, V, 2)


def test_blocks_of_two_tokens_have_one_token_of_context(corpus):
    tokens, blocks = corpus[0][:1500], TokenBlocks(corpus[1].ids_BT.ravel(), 2)
    slow = SlowKneserNey(tokens.tolist())
    nats = [-math.log(slow.probability((context,), token)) for context, token in predicted_pairs(blocks)]
    assert kneser_ney_nats(tokens, blocks, V, 3) == pytest.approx(math.fsum(nats) / len(nats), abs=1e-12)


def test_bigram_beats_unigram_which_beats_the_uniform_guess(corpus):
    tokens, blocks = corpus
    assert kneser_ney_nats(tokens, blocks, V, 2) < kneser_ney_nats(tokens, blocks, V, 1) - 0.5 < math.log(V) - 0.5


def test_bigram_of_a_cycle_is_almost_certain():
    tokenizer = load_tokenizer("train", [], 257)[0]
    tokens = tokens_of(["abcd" * 400], tokenizer)
    blocks = TokenBlocks(tokens, 8)
    assert kneser_ney_nats(tokens, blocks, 257, 1) == pytest.approx(math.log(4), abs=0.05)
    assert kneser_ney_nats(tokens, blocks, 257, 2) < 0.01
