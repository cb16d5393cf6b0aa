"""Seconds of an optimizer step as an interval that says what it rests on.

What steps that others published made of their bound; of a recurrence the bound alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from helpers.machine.hardware import Machine

from .range import Range
from .workloads import Workload

if TYPE_CHECKING:
    from .counting import Count

PUBLISHED, BOUND = "published runs", "datasheet bound"
# benchmarks/public_runs.py: log of seconds over their bound, least and most; what the logs of size and balance add.
PUBLIC = {"cuda": (-1.16, 0.088, -0.376, 0.215), "xla": (-1.084, 0.523, 0.0, 0.215)}
SIZES = (0.004, 0.5)  # of published micro-batches, in seconds at the peak
ADAMW_BYTES = 28.0  # a trained weight: weight, gradient and two moments are read, all but the gradient written


def step_seconds(
    workload: Workload,
    count: Count,
    machine: Machine,
    precision: str,
    accumulation: int = 1,
) -> Range | None:
    """Seconds of one optimizer step of `accumulation` micro-batches, each of `count` on every device; None: not known."""
    flops = count.flops * accumulation
    peak = machine.accelerator and machine.accelerator.peak_for(precision)
    if not peak:
        return None
    bandwidth, ideal = machine.accelerator.bandwidth, count.flops / peak
    bound = flops / peak + ADAMW_BYTES * count.trained / bandwidth
    if workload.recurrent:
        return Range(low=bound, high=math.inf, basis=BOUND)
    least, most, size, balance = PUBLIC[machine.kind]
    shift = size * clipped(ideal) + balance * math.log(peak / bandwidth)
    low, high = (bound * max(1, math.exp(each + shift)) for each in (least, most))
    return Range(low=low, high=high * max(1, SIZES[0] / ideal), basis=PUBLISHED)


def clipped(ideal: float) -> float:
    """Log of a micro-batch's seconds at the peak, within SIZES."""
    return math.log(min(max(ideal, SIZES[0]), SIZES[1]))
