"""Seconds of an optimizer step as an interval that says what it rests on.

"measured" where a calibration of this device ran this very model, "scaled from a measurement" where one of this device
ran another, else "datasheet bound": no faster than the peak and the bandwidth allow, and no slower than the least share of
a peak that a public run of ours is known to have reached. "unknown" is None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from helpers.hardware import Machine

from .calibration import Calibration
from .range import Range, around
from .workloads import Workload

if TYPE_CHECKING:
    from .counting import Count

MEASURED, SCALED, BOUND = "measured", "scaled from a measurement", "datasheet bound"
# Share of a peak: 2.7 % is the Kaggle run that the legal notebook stems from (two T4 under DataParallel, 2.70 s for a step
# of 4 x 1,000 tokens of a 0.5B model); others report 7.5 % (nanoGPT PR 376) to 73 % (nanochat PR 147).
LEAST_SHARE = 0.025
SAME_MODEL = 1.2  # either way, at the sizes that were measured: benchmarks/planner.py
OTHER_SIZE = 1.4  # the same beyond eight times the largest of them, and on several devices, which exchange gradients
OTHER_MODEL = 2.0
ADAMW_BYTES = 28.0  # a trained weight: weight, gradient and two moments are read, all but the gradient written


def step_seconds(
    workload: Workload,
    count: Count,
    machine: Machine,
    precision: str,
    accumulation: int = 1,
    calibrations: Sequence[Calibration] = (),
) -> Range | None:
    """Seconds of one optimizer step of `accumulation` micro-batches, each of `count` on every device; None: not known."""
    flops = count.flops * accumulation
    for calibration in (each for each in calibrations if each.is_for(machine)):
        if found := calibration.find(workload, precision):
            near = count.flops <= 8 * max(size.flops for size in found.sizes) and machine.count == 1
            seconds = accumulation * found.seconds(count.flops)
            return around(seconds, SAME_MODEL if near else OTHER_SIZE, MEASURED)
        others = [each.flops_per_second for each in calibration.measured if each.precision == precision]
        if others and not workload.recurrent:
            return around(flops / max(others), OTHER_MODEL, SCALED)
    peak = machine.accelerator and machine.accelerator.peak_for(precision)
    if not peak:
        return None
    bound = flops / peak + ADAMW_BYTES * count.trained / machine.accelerator.bandwidth
    return Range(low=bound, high=math.inf if workload.recurrent else bound / LEAST_SHARE, basis=BOUND)
