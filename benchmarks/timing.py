"""Seconds of calls that take turns, so that all of them see a busy machine, and of a trainer's optimizer steps."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable

import torch
from transformers import TrainerCallback

WARM_UP = 2  # optimizer steps that do not count


def taking_turns(sides: dict[str, Callable], device: torch.device, repetitions: int) -> dict[str, list[float]]:
    """Seconds of each side, in the order of turns, after a warm-up of each."""
    for call in sides.values():
        seconds_of(call, device)
    times = {name: [] for name in sides}
    for _ in range(repetitions):
        for name, call in sides.items():
            times[name].append(seconds_of(call, device))
    return times


def seconds_of(call: Callable, device: torch.device) -> float:
    """On a GPU between two events, which includes the waits for launches; on a CPU the processor's time."""
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1000
    begin = time.process_time()
    call()
    return time.process_time() - begin


class StepTimes(TrainerCallback):
    """Seconds of each optimizer step of a Hugging Face trainer after the warm-up."""

    def __init__(self):
        self.marks: list[float] = []

    def on_step_end(self, args, state, control, **kwargs):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.marks.append(time.perf_counter())

    def median(self) -> float:
        marks = self.marks[WARM_UP:]
        return statistics.median(later - earlier for earlier, later in itertools.pairwise(marks))
