"""Throughput, memory and MFU of a training run, with compilation, evaluation and saving kept apart."""

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from helpers.machine.runtime import Runtime
from helpers.show import tables

MASKS = ("attention_mask", "segment_ids", "root_segments")  # 0 at padding


class Meter(TrainerCallback, ExportableState):
    """Counts examples, positions and seconds; the `trainer_state.json` of a checkpoint carries the counts into the next session.

    Positions are what the model computes, tokens are positions without the padding of texts. Processor time is that of all threads of this
    process.

    Args:
        runtime: the device; MFU is a share of the peak in its datasheet.
        flops_per_token: floating-point operations of a training step per token (about 6 x trained parameters).
    """

    def __init__(self, runtime: Runtime, flops_per_token: float):
        self.runtime, self.flops_per_token = runtime, flops_per_token
        self.counts: defaultdict[str, Any] = defaultdict(int)  # that of padding is on the device
        self._clocks: dict[str, float] = {}  # as last read; none while they stand still

    def state(self) -> dict:
        """The counts in the form of transformers' stateful callbacks."""
        return {"args": {}, "attributes": {name: float(count) for name, count in self.counts.items()}}

    def restore(self, state) -> None:
        """Goes on from the counts of a checkpoint's TrainerState."""
        saved = state.stateful_callbacks.get("Meter", {})
        self.counts = defaultdict(int, saved.get("attributes", {}))

    def on_train_begin(self, args, state, control, **kwargs):
        self.restore(state)
        self.runtime.engine.reset_peak()
        self._clocks = self._now()

    def on_train_end(self, *args, **kwargs):
        self._read()
        self._clocks = {}

    def _now(self) -> dict[str, float]:
        self.runtime.engine.wait()
        compiling = self.runtime.engine.compile_seconds
        return {"seconds": time.perf_counter(), "processor_seconds": time.process_time(), "compile_seconds": compiling}

    def _read(self) -> None:
        """Adds the time that has passed since the clocks were last read."""
        if self._clocks:
            before, self._clocks = self._clocks, self._now()
            for name, now in self._clocks.items():
                self.counts[name] += now - before[name]

    def count(self, inputs, processes: int = 1) -> None:
        """Adds a micro-batch of each of `processes`, all like `inputs`: tensors *input_ids [B, ..., T], or else the first."""
        tensors = {name: tensor for name, tensor in inputs.items() if torch.is_tensor(tensor) and tensor.dim()}
        # Every column of ids counts; a mask may have more axes than there are positions.
        shapes = [tensor.shape for name, tensor in tensors.items() if name.endswith("input_ids")]
        shapes = shapes or [next(iter(tensors.values())).shape]
        self.counts["examples"] += processes * shapes[0][0]
        self.counts["positions"] += processes * sum(map(math.prod, shapes))
        for name, tensor in tensors.items():
            if name.endswith(MASKS) and tensor.shape in shapes:
                self.counts["padding"] = self.counts["padding"] + processes * (tensor == 0).sum()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Evaluation and saving: the clocks of training stand still."""
        self._read()
        stopped, self._clocks = self._clocks, {}
        yield
        if stopped:
            self._clocks = self._now()
            self.counts["aside_seconds"] += self._clocks["seconds"] - stopped["seconds"]

    def training_seconds(self) -> float:
        """Seconds of training so far, without compilation, evaluation and saving."""
        self._read()
        return max(self.counts["seconds"] - self.counts["compile_seconds"], 1e-9)

    def results(self) -> dict:
        """Seconds, rates per second of pure training, MFU with the peak that it is a share of, peak memory in bytes."""
        training, counts = self.training_seconds(), self.counts
        padding = int(counts["padding"])
        rate = (counts["positions"] - padding) / training
        device, precision = self.runtime.accelerator, self.runtime.precision
        mfu = mfu_peak = None
        peak = device and device.peak_for(precision)
        if device and peak:
            mfu = round(rate * self.flops_per_token / (peak * self.runtime.device_count), 4)
            mfu_peak = f"{peak / 1e12:g} TFLOP/s {precision} a device ({device.source})"
        return {
            "seconds": round(counts["seconds"] + counts["aside_seconds"], 3),
            "compile_seconds": round(counts["compile_seconds"], 3),
            "evaluate_and_save_seconds": round(counts["aside_seconds"], 3),
            "examples_per_second": round(counts["examples"] / training, 3),
            "tokens_per_second": round(rate, 1),
            "padding": round(padding / max(counts["positions"], 1), 4),
            "mfu": mfu,
            "mfu_peak": mfu_peak,
            "peak_memory_bytes": self.runtime.engine.peak_memory(),
        }

    @staticmethod
    def rows(train: dict, xla: dict | None = None) -> list[dict[str, Any]]:
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
