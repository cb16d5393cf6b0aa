"""Co-occurrence codes, held against a dense matrix built pair by pair, and against a grammar whose classes are known."""

import numpy as np
import pytest
import torch

from helpers.reservoir.codes import cooccurrence_codes

pytestmark = pytest.mark.once

# V vocabulary · C floats of a code · T tokens
CLASSES = {"noun": range(8), "verb": range(8, 16), "place": range(16, 24)}
V, UNSEEN = 26, 25  # token 24 ends a sentence


def grammar(sentences: int = 3000, seed: int = 0) -> np.ndarray:
    """Sentences noun verb place end, each word uniform in its class."""
    random = np.random.default_rng(seed)
    words = [random.choice(list(members), sentences) for members in CLASSES.values()]
    return np.stack([*words, np.full(sentences, 24)], axis=1).ravel().astype(np.uint16)


def slow_codes(tokens, vocab_size: int, size: int) -> np.ndarray:
    """The docstring's definition, pair by pair, with a dense matrix and an exact SVD."""
    counts = np.zeros((vocab_size, 2 * vocab_size))  # next tokens, then last ones
    for distance, weight in ((1, 1.0), (2, 1 / 2), (3, 1 / 3)):
        for here in range(len(tokens) - distance):
            earlier, later = int(tokens[here]), int(tokens[here + distance])
            counts[earlier, later] += weight
            counts[later, vocab_size + earlier] += weight
    contexts = counts.sum(0) ** 0.75
    information = np.zeros_like(counts)
    for token, context in zip(*np.nonzero(counts), strict=True):
        given = counts[token, context] / counts[token].sum()
        information[token, context] = max(0.0, np.log(given / (contexts[context] / contexts.sum())))
    left, singular, _ = np.linalg.svd(information)
    codes = left[:, :size] * np.sqrt(singular[:size])
    seen = counts.sum(1) > 0
    codes[seen] -= codes[seen].mean(0)
    codes[~seen] = 0
    norms = np.linalg.norm(codes, axis=1, keepdims=True)
    return codes / np.where(norms > 0, norms, 1) * np.sqrt(size)


@pytest.mark.parametrize("size", [1, 3, 9])
def test_codes_equal_a_slow_loop_up_to_a_rotation(size):
    tokens = np.random.default_rng(1).zipf(1.6, 400) % 16  # so few that the randomised SVD takes all directions
    found, expected = cooccurrence_codes(tokens, 17, size, seed=0).double().numpy(), slow_codes(tokens, 17, size)
    assert np.abs(found @ found.T - expected @ expected.T).max() < 1e-4 * size


def test_tokens_of_one_class_are_nearer_to_each_other_than_to_any_other():
    codes_VC = torch.nn.functional.normalize(cooccurrence_codes(grammar(), V, 4, seed=0))
    cosine_VV = (codes_VC @ codes_VC.T).numpy()
    for members in CLASSES.values():
        within = cosine_VV[np.ix_(members, members)].min()
        outside = [token for token in range(25) if token not in members]
        assert within > 0.9 > 0.5 > cosine_VV[np.ix_(members, outside)].max()


def test_what_follows_counts_as_well_as_what_precedes():
    # 2 and 4 share what precedes them and half of what follows; 5 and 6 follow the same tokens.
    tokens = np.array([[0, 2, 5], [0, 3, 6], [1, 2, 5], [1, 3, 6], [0, 4, 6], [1, 4, 5]] * 50)
    near = torch.nn.functional.normalize(cooccurrence_codes(tokens.ravel(), 8, 6, seed=0))
    cosine_VV = near @ near.T
    assert cosine_VV[2, 4] > cosine_VV[2, 0] and cosine_VV[5, 6] > cosine_VV[5, 2]


def test_codes_have_unit_mean_square_and_a_token_that_never_occurs_has_the_code_zero():
    codes_VC = cooccurrence_codes(grammar(), V, 5, seed=0)
    assert codes_VC.shape == (V, 5) and codes_VC.dtype == torch.float32
    assert torch.allclose(codes_VC[:25].square().mean(1), torch.ones(25), atol=1e-5)
    assert torch.equal(codes_VC[UNSEEN], torch.zeros(5))


def test_the_same_text_and_seed_give_the_same_bits_whatever_was_drawn_before():
    torch.manual_seed(1)
    first = cooccurrence_codes(grammar(), V, 5, seed=3)
    torch.manual_seed(2)
    assert torch.equal(cooccurrence_codes(grammar(), V, 5, seed=3), first)


def test_another_seed_gives_other_bits_and_the_same_angles():
    one, other = (cooccurrence_codes(grammar(), V, 3, seed=seed) for seed in (1, 2))
    assert not torch.equal(one, other)
    assert (one @ one.T - other @ other.T).abs().max() < 0.01 * 3


def test_the_generator_of_the_caller_stays_as_it_was():
    torch.manual_seed(7)
    before = torch.get_rng_state()
    cooccurrence_codes(grammar(100), V, 5, seed=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_tokens_are_read_only():
    tokens = grammar(100)
    tokens.flags.writeable = False
    before = tokens.copy()
    cooccurrence_codes(tokens, V, 5, seed=0)
    assert (tokens == before).all()


def test_only_the_first_tokens_of_a_long_text_count(monkeypatch):
    monkeypatch.setattr("helpers.reservoir.codes.MAX_TOKENS", 400)
    long = cooccurrence_codes(np.concatenate((grammar(100), grammar(100)[::-1])), V, 5, seed=0)
    assert torch.equal(long, cooccurrence_codes(grammar(100), V, 5, seed=0))


def test_a_text_of_two_tokens_is_enough():
    codes_VC = cooccurrence_codes(np.array([1, 2]), 4, 2, seed=0)
    assert codes_VC.isfinite().all() and not codes_VC[[0, 3]].any()
