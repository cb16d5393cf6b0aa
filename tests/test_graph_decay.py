"""Decay on graph distance, and ALiBi, held against the notes' table and loops over the formulas."""

import math

import pytest
import torch

from helpers.graphmer.modeling_graphmer.graph_attention import Decay, alibi

# GraphMERT's run: base 0.6, offset 1; the rounded values are the notes' own.
DISTANCES = (0, 1, 2, 5, 10, 50)
ROUNDED = (1.0, 0.870, 0.750, 0.504, 0.310, 0.043)


def gelu(x: float) -> float:
    return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))


def slow_decay(distance: float, offset: float, base: float) -> float:
    return base ** gelu(math.sqrt(distance + 1) - offset)


def test_decay_of_the_notes_distances():
    found = Decay(1, 0.6)(torch.tensor([[DISTANCES]])).flatten().tolist()
    assert found == pytest.approx([slow_decay(d, 1.0, 0.6) for d in DISTANCES], abs=1e-6)
    assert found == pytest.approx(ROUNDED, abs=6e-4)
    assert found[0] == 1.0


def test_every_head_decays_by_its_own_offset_and_the_base_counts():
    decay = Decay(3, 0.8)
    with torch.no_grad():
        decay.offset.copy_(torch.tensor([1.0, 0.2, 3.5]))
    distance_BNN = torch.randint(0, 60, (2, 4, 4))
    found = decay(distance_BNN)
    assert found.shape == (2, 3, 4, 4)
    for b, a, i, j in ((b, a, i, j) for b in range(2) for a in range(3) for i in range(4) for j in range(4)):
        expected = slow_decay(int(distance_BNN[b, i, j]), float(decay.offset[a]), 0.8)
        assert float(found[b, a, i, j]) == pytest.approx(expected, abs=1e-6)


def test_gradient_of_the_offsets_is_that_of_finite_differences():
    distance_BNN = torch.randint(0, 60, (1, 5, 5))
    decay = Decay(2, 0.6)
    found = torch.autograd.grad(decay(distance_BNN).sum(), decay.offset)[0]
    step = 1e-6
    total = sum(
        (slow_decay(int(d), 1 + step, 0.6) - slow_decay(int(d), 1 - step, 0.6)) / (2 * step)
        for d in distance_BNN.flatten()
    )
    assert found.tolist() == pytest.approx([total] * 2, rel=1e-4)


def test_alibi_tells_left_from_right_and_grows_with_distance():
    found = alibi(torch.tensor([[0, 1, 2, 3, 4]]), 4)[0]
    for a, (left, right) in enumerate(((1, 2), (2, 1), (1, 2), (2, 1))):
        slope = 2 ** (-8 * (a + 1) / 4)
        for i in range(5):
            for j in range(5):
                assert float(found[a, i, j]) == pytest.approx(-slope * abs(i - j) * (right if j > i else left))
