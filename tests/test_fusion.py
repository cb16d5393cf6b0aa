"""helpers.planning.fusion: each rule of what XLA writes, by hand arithmetic on fake tensors."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from helpers.planning import fusion
from helpers.planning.counting import count
from helpers.planning.fusion import FusedBytes

from .workloads import bert

pytestmark = pytest.mark.once


@contextlib.contextmanager
def counted(*shapes, dtype=torch.bfloat16, half=True):
    """The counter, and tensors that are there already."""
    with FakeTensorMode(), torch.random.fork_rng(devices=[]):
        there = [torch.empty(shape, dtype=dtype) for shape in shapes]
        before = sum(each.numel() * each.element_size() for each in there)
        with FusedBytes(there, half) as live:
            live.before = before
            yield live, *there


def test_cheap_arithmetic_writes_nothing_and_keeps_what_it_is_computed_from():
    with counted((256, 128), (128, 512)) as (live, left, right):
        product = left @ right
        written = live.now - live.before
        result = (product.float() * 3 + 1).relu()
        assert written == 2 * 256 * 512 == live.now - live.before
        del product
        assert live.now - live.before == written  # `result` may be computed again
        del result
        assert live.now == live.before


def test_a_sum_of_two_branches_is_written_and_frees_them():
    with counted((256, 128), (128, 128)) as (live, left, right):
        one, other = left @ right, left @ right
        total = one + other
        del one, other
        assert live.now - live.before == 2 * 256 * 128
        assert total.shape == (256, 128)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dropout_keeps_a_byte_a_number(dtype):
    with counted((256, 128), dtype=dtype) as (live, states):
        dropped = functional.dropout(states, 0.1)
        assert live.now - live.before == 256 * 128
        assert dropped.dtype == dtype


@pytest.mark.parametrize(("rounded", "width"), [(True, 4), (False, 2)])
def test_dropout_of_rounded_shares_keeps_those_in_fp32(rounded, width):
    with counted((4, 256, 128), (4, 128, 256)) as (live, query, key):
        shares = (query @ key).float().softmax(-1)
        dropped = functional.dropout(shares.bfloat16() if rounded else shares, 0.1)
        assert live.now - live.before == (width + 1) * 4 * 256 * 256
        assert dropped.shape == shares.shape


def test_attention_keeps_its_operands_and_its_shares_in_half_precision():
    heads, tokens, width = 4, 256, 128
    with counted(*[(heads, tokens, width)] * 3) as (live, query, key, value):
        mixed = fusion.attention(query + 0, key + 0, value + 0)
        least = 2 * heads * tokens * width  # the result
        assert live.now - live.before == least
        assert live.peak - live.before >= 2 * heads * tokens * tokens
        assert mixed.shape == (heads, tokens, width)


def test_scores_that_a_softmax_reads_stay_in_fp32():
    with counted((4, 256, 128), (4, 128, 256)) as (live, query, key):
        scores = query @ key
        assert live.now - live.before == 2 * 4 * 256 * 256
        shares = scores.softmax(-1)
        assert live.now - live.before == (4 + 2) * 4 * 256 * 256
        del scores
        assert live.now - live.before == 2 * 4 * 256 * 256
        assert shares.dtype == torch.bfloat16


def test_the_attention_of_the_counter_is_torchs():
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 4, 8, 16, generator=generator) for _ in range(3))
    mask = torch.rand(8, 8, generator=generator) < 0.7
    mask |= torch.eye(8, dtype=torch.bool)
    few = key[:, :2], value[:, :2]
    for arguments, options in (
        ((query, key, value), {}),
        ((query, key, value), {"is_causal": True}),
        ((query, key, value, mask), {"scale": 0.3}),
        ((query, *few), {"enable_gqa": True}),
        ((query, key, value, torch.where(mask, 0.0, -1e4)), {}),
    ):
        expected = functional.scaled_dot_product_attention(*arguments, **options)
        torch.testing.assert_close(fusion.attention(*arguments, **options), expected)


@pytest.mark.parametrize(
    ("shape", "bytes_"),
    [
        ((160, 32, 64), 160 * 32 * 128 * 2),  # 64 are filled up to the 128 lanes of a tile
        ((160, 64, 256), 160 * 64 * 256 * 2),  # whole tiles
        ((160, 256, 64), 160 * 256 * 64 * 2),  # the other way round
        ((128, 128, 1), 128 * 128 * 2),
        ((1000,), 2000),
    ],
)
def test_the_last_two_axes_fill_tiles_in_the_better_order(shape, bytes_):
    assert fusion._tiles(shape, 2) == bytes_


def test_a_step_holds_less_than_one_that_writes_every_operation():
    fused, eager = (
        count(bert(2, attention="eager"), 8, kind=kind, precision="bf16", length=128) for kind in ("xla", "cpu")
    )
    assert fused.weights == eager.weights and fused.flops == eager.flops
    assert fused.activations < 0.8 * eager.activations
