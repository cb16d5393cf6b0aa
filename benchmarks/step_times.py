"""Seconds of a Hugging Face trainer's optimizer steps, for the benchmarks of whole training steps."""

from __future__ import annotations

import itertools
import statistics
import time

import torch
from transformers import TrainerCallback

WARM_UP = 2  # steps that do not count


class StepTimes(TrainerCallback):
    """Seconds of each optimizer step after the warm-up."""

    def __init__(self):
        self.marks: list[float] = []

    def on_step_end(self, args, state, control, **kwargs):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.marks.append(time.perf_counter())

    def median(self) -> float:
        marks = self.marks[WARM_UP:]
        return statistics.median(later - earlier for earlier, later in itertools.pairwise(marks))
