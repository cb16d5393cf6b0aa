"""What is hidden: how much of it, in which pieces, and what stands there instead."""

import random

import numpy as np
import pytest

from helpers.graphmer.text.masking import IGNORED, mask_leaves, mask_roots, mask_slots, spans
from helpers.graphmer.text.tokenizer import MASK, PAD

pytestmark = pytest.mark.once

V = 500
IDENTIFIERS = np.zeros(V, bool)
IDENTIFIERS[100:] = True


def sequence(draw: np.random.Generator, roots=256, full=False):
    """Documents of words between other tokens, then padding unless it is full."""
    ids = np.where(draw.random(roots) < 0.65, draw.integers(100, V, roots), draw.integers(3, 100, roots))
    used = roots if full else int(draw.integers(roots // 4, roots + 1))
    segments = np.zeros(roots, np.int64)
    segments[:used] = 1 + np.sort(draw.integers(0, 3, used))
    ids[used:] = PAD
    return ids, segments


def masked(count=400, mask_prob=0.15, identifiers=IDENTIFIERS, roots=256, full=False):
    draw = np.random.default_rng(0)
    for _ in range(count):
        ids, segments = sequence(draw, roots, full)
        yield (
            ids,
            segments,
            *mask_roots(ids, segments, mask_prob=mask_prob, identifiers_V=identifiers, vocab_size=V, generator=draw),
        )


@pytest.mark.parametrize("mask_prob", [0.0, 0.05, 0.15, 0.4])
@pytest.mark.parametrize("identifiers", [IDENTIFIERS, None])
def test_the_share_of_masked_roots_is_the_request(mask_prob, identifiers):
    chosen = total = 0
    for _, segments, _, _, labels in masked(mask_prob=mask_prob, identifiers=identifiers):
        chosen += (labels != IGNORED).sum()
        total += (segments > 0).sum()
    assert chosen / total == pytest.approx(mask_prob, rel=0.01)


def test_of_the_masked_80_percent_are_mask_10_others_10_themselves():
    fates = np.zeros(3)
    for ids, _, hidden, places, labels in masked(2000):
        places = places[labels != IGNORED]
        now = hidden[places]
        fates += [(now == MASK).sum(), ((now != MASK) & (now != ids[places])).sum(), (now == ids[places]).sum()]
    assert fates / fates.sum() == pytest.approx([0.8, 0.1, 0.1], abs=0.01)


def test_labels_are_the_tokens_that_were_there_and_nothing_else_changed():
    for ids, segments, hidden, places, labels in masked(50):
        used = labels != IGNORED
        assert len(set(places[used].tolist())) == used.sum()
        np.testing.assert_array_equal(labels[used], ids[places[used]])
        assert (segments[places[used]] > 0).all()
        assert not places[~used].any()
        rest = np.setdiff1d(np.arange(len(ids)), places[used])
        np.testing.assert_array_equal(hidden[rest], ids[rest])
        assert (hidden[segments > 0] != PAD).all()


def test_identifiers_are_masked_whole_and_with_one_fate():
    longest = 0
    for ids, segments, hidden, places, labels in masked(100):
        chosen = set(places[labels != IGNORED].tolist())
        start = 0
        while start < np.count_nonzero(segments):
            end = start + 1
            while (
                end < len(ids)
                and segments[end] == segments[start]
                and IDENTIFIERS[ids[start]]
                and IDENTIFIERS[ids[end]]
            ):
                end += 1
            inside = [place in chosen for place in range(start, end)]
            assert all(inside) or not any(inside)
            if all(inside):
                longest = max(longest, end - start)
                assert len({int(token == MASK) for token in hidden[start:end]}) == 1
            start = end
    assert longest > 3


def test_without_spans_every_token_is_drawn_alone():
    ids, segments = sequence(np.random.default_rng(0))
    np.testing.assert_array_equal(spans(ids, segments, None), np.arange(len(ids)))
    halves = sum(
        any(
            place + 1 not in chosen and IDENTIFIERS[ids[place]] and IDENTIFIERS[ids[place + 1]]
            for place in chosen - {255}
        )
        for ids, _, _, places, labels in masked(20, identifiers=None)
        for chosen in [set(places[labels != IGNORED].tolist())]
    )
    assert halves == 20


@pytest.mark.parametrize(("roots", "mask_prob", "slots"), [(512, 0.15, 77), (100, 0.15, 15), (10, 0.0, 1), (8, 1.0, 8)])
def test_there_is_room_for_what_is_masked(roots, mask_prob, slots):
    assert mask_slots(roots, mask_prob) == slots
    most = 0
    for _, _, _, places, labels in masked(50, mask_prob=mask_prob, roots=roots, identifiers=None, full=True):
        assert places.shape == labels.shape == (slots,)
        most = max(most, (labels != IGNORED).sum())
    assert most == (slots if mask_prob else 0)


@pytest.mark.parametrize("mask_prob", [0.0, 0.2, 0.55, 1.0])
@pytest.mark.parametrize("count", [1, 7])
def test_the_share_of_masked_leaves_is_the_request(mask_prob, count):
    draw = random.Random(0)
    found = [mask_leaves(count, mask_prob, draw) for _ in range(20_000)]
    assert all(leaves <= set(range(count)) for leaves in found)
    assert sum(map(len, found)) / (count * len(found)) == pytest.approx(mask_prob, abs=0.005)
