"""Throughput, MFU and memory of a training run."""

import math
import time

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from helpers.machine import ranks
from helpers.machine.runtime import Runtime
from helpers.show import tables

IDS = ("input_ids", "root_ids")  # names of what a model reads, which may have a prefix
MASKS = ("attention_mask", "segment_ids", "root_segments")  # 0 at padding
WARM_UP = 2  # steps of a session that are not timed, since both may compile


class Meter(TrainerCallback, ExportableState):
    """Counts tokens and the seconds of steps, without evaluation and saving; `trainer_state.json` carries both into the next session.

    Args:
        runtime: the device; MFU is a share of the peak in its datasheet.
        flops_per_token: floating-point operations of a training step per token (about 6 x trained parameters).

    Attributes:
        clock: gives seconds.
    """

    def __init__(self, runtime: Runtime, flops_per_token: float):
        self.runtime, self.flops_per_token = runtime, flops_per_token
        self.clock = time.perf_counter
        self.began: float | None = None  # None while the clock stands still
        self.tokens = self.timed_steps = self.seconds = 0  # tokens: from the first mask on, on the device

    def state(self) -> dict:
        """The counts in the form of transformers' stateful callbacks."""
        counts = {"tokens": int(self.tokens), "timed_steps": self.timed_steps, "seconds": self.seconds}
        return {"args": {}, "attributes": counts}

    def on_train_begin(self, args, state, control, **kwargs):
        vars(self).update(state.stateful_callbacks["Meter"]["attributes"], began=None)
        self.first_step = min(state.global_step + WARM_UP, state.max_steps - 1)

    def on_step_begin(self, args, state, control, **kwargs):
        if self.began is None and state.global_step >= self.first_step:
            self.began = self.clock()

    def count(self, inputs) -> None:
        """Adds the tokens of a micro-batch: its positions without the padding of texts."""
        for name, tensor in inputs.items():
            if name.endswith(IDS):
                self.tokens += tensor.numel()
            elif name.endswith(MASKS):
                self.tokens = self.tokens - (tensor == 0).sum()

    def on_step_end(self, args, state, control, **kwargs):
        if self.began is None:
            self.runtime.engine.wait()  # for the next step, which may be timed
            return
        self.timed_steps += 1
        if control.should_evaluate or control.should_save:
            self.runtime.engine.wait()
            self.seconds += self.clock() - self.began
            self.began = None

    def step_seconds(self) -> float:
        """Mean seconds of an optimizer step until the last save; NaN if no step was timed."""
        return self.seconds / self.timed_steps if self.timed_steps else math.nan

    def results(self, steps: int, examples: int) -> dict:
        """Seconds of a run of so many steps, rates per second with so many examples in a step, MFU, and peak memory in bytes."""
        seconds = steps * self.step_seconds()
        tokens_per_second = float(self.tokens) * ranks.count() / seconds
        device = self.runtime.accelerator
        peak = device and device.peak_for(self.runtime.precision)
        return {
            "seconds": seconds,
            "examples_per_second": steps * examples / seconds,
            "tokens_per_second": tokens_per_second,
            "mfu": peak and tokens_per_second * self.flops_per_token / peak / self.runtime.device_count,
            "peak_memory_bytes": self.runtime.engine.peak_memory(),
        }

    @staticmethod
    def rows(train: dict, xla: dict | None = None) -> list[dict]:
        """The `train` and `xla` parts of results.json for `tables.show`."""
        rows = []
        for name, value in (train | (xla or {})).items():
            if name.endswith("seconds"):
                value = tables.seconds(value)
            if name.endswith("bytes"):
                value = tables.size(value)
            if value is not None and name != "messages":
                rows.append({"measured": name.replace("_", " "), "": value})
        return rows
