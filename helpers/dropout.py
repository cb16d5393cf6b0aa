"""Dropout that each chip of a TPU draws for its own part of a batch.

torch_xla's generator makes the numbers of the whole batch on every chip and keeps them in memory for the backward pass
(RngBitGenerator is not partitioned). Here a mask is a hash of an element's index and of two numbers that are drawn once a
call: a counter-based generator (Salmon et al. 2011), which XLA splits like any elementwise code and computes again in
backward. A mask depends neither on the number of chips nor on the sharding.
"""

from __future__ import annotations

import math

import torch

_registered: list[torch.library.Library] = []


def use_for_xla() -> None:
    """From here on `aten::dropout`, also that inside of attention, is this one on XLA. Calling it again changes nothing."""
    if not _registered:
        _registered.append(torch.library.Library("aten", "IMPL"))
        _registered[0].impl("dropout", dropout, "AutogradXLA")


def dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """`x` [any shape] with a share `p` of its elements 0 and the others divided by 1 - p; `x` itself where not `train`."""
    if not train or p == 0:
        return x
    if p == 1:
        return x * 0
    seeds = torch.randint(-(2**31), 2**31 - 1, (2,), dtype=torch.int32, device=x.device)
    return torch.where(kept(seeds, x.shape, p), x / (1 - p), 0)


def kept(seeds: torch.Tensor, shape: torch.Size, p: float) -> torch.Tensor:
    """Which elements stay [shape], bool, each with probability 1 - p; `seeds` [2] int32."""
    index = torch.zeros((), dtype=torch.int32, device=seeds.device)
    for axis, size in enumerate(shape):
        stride = (math.prod(shape[axis + 1 :]) + 2**31) % 2**32 - 2**31  # of more elements than int32 counts: wraps around
        steps = torch.arange(size, dtype=torch.int32, device=seeds.device) * stride
        index = index + steps.reshape([-1 if each == axis else 1 for each in range(len(shape))])
    return _mix(_mix(index ^ seeds[0]) + seeds[1]) >= int(p * 2**32) - 2**31


def _mix(x: torch.Tensor) -> torch.Tensor:
    """A bijection of int32 in which every bit depends on every bit (C. Wellons' lowbias32, public domain)."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B - 2**32)):
        x = (x ^ _shifted(x, shift)) * factor
    return x ^ _shifted(x, 16)


def _shifted(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift to the right."""
    return (x >> bits) & (2 ** (32 - bits) - 1)
