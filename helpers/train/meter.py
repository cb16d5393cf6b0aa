"""Throughput, memory and MFU of a training run, with compilation, evaluation and saving kept apart."""

from __future__ import annotations

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
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
        self.runtime = runtime
        self.flops_per_token = flops_per_token
        self.counts: defaultdict[str, float] = defaultdict(float)
        self._padding: torch.Tensor | int = 0  # on the device
        self._clocks: dict[str, float] | None = None  # as last read; None while they stand still

    def state(self) -> dict:
        """The counts in the form of transformers' stateful callbacks."""
        return {"args": {}, "attributes": {**self.counts, "padding": int(self._padding)}}

    def restore(self, state) -> None:
        """Goes on from the counts of a checkpoint's TrainerState."""
        saved = state.stateful_callbacks.get("Meter", {})
        self.counts = defaultdict(float, saved.get("attributes", {}))
        self._padding = int(self.counts.pop("padding", 0))

    def on_train_begin(self, args, state, control, **kwargs):
        self.restore(state)
        self.runtime.engine.reset_peak()
        self._clocks = self._now()

    def on_train_end(self, *args, **kwargs):
        self.runtime.wait()
        self._read()
        self._clocks = None

    def _now(self) -> dict[str, float]:
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
        if not shapes:
            shapes = [next(iter(tensors.values())).shape]
        self.counts["examples"] += processes * shapes[0][0]
        self.counts["positions"] += processes * sum(map(math.prod, shapes))
        for name, tensor in tensors.items():
            if name.endswith(MASKS) and tensor.shape in shapes:
                self._padding = self._padding + processes * (tensor == 0).sum()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Evaluation and saving: the clocks of training stand still."""
        if self._clocks:
            self.runtime.wait()
        self._read()
        stopped, self._clocks = self._clocks, None
        yield
        if stopped:
            self.runtime.wait()
            self._clocks = self._now()
            self.counts["aside_seconds"] += self._clocks["seconds"] - stopped["seconds"]

    def training_seconds(self) -> float:
        """Seconds of training so far, without compilation, evaluation and saving."""
        self._read()
        return max(self.counts["seconds"] - self.counts["compile_seconds"], 1e-9)

    def results(self) -> dict:
        """Seconds, rates per second of pure training, MFU with the peak that it is a share of, peak memory in bytes."""
        training, padding, counts = self.training_seconds(), int(self._padding), self.counts
        tokens_per_second = (counts["positions"] - padding) / training
        accelerator = self.runtime.accelerator
        mfu = mfu_peak = None
        peak = accelerator and accelerator.peak_for(self.runtime.precision)
        if accelerator and peak:
            mfu = round(tokens_per_second * self.flops_per_token / (peak * self.runtime.device_count), 4)
            mfu_peak = f"{peak / 1e12:g} TFLOP/s {self.runtime.precision} a device ({accelerator.source})"
        return {
            "seconds": round(counts["seconds"] + counts["aside_seconds"], 3),
            "compile_seconds": round(counts["compile_seconds"], 3),
            "evaluate_and_save_seconds": round(counts["aside_seconds"], 3),
            "examples_per_second": round(counts["examples"] / training, 3),
            "tokens_per_second": round(tokens_per_second, 1),
            "padding": round(padding / max(counts["positions"], 1), 4),
            "mfu": mfu,
            "mfu_peak": mfu_peak,
            "peak_memory_bytes": self.runtime.engine.peak_memory(),
        }

    @staticmethod
    def rows(train: Mapping[str, Any], xla: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """The `train` and `xla` parts of results.json for `tables.show`."""
        rows = []
        for name, value in {**train, **(xla or {})}.items():
            if name.endswith("seconds"):
                value = tables.seconds(value)
            if name.endswith("bytes"):
                value = tables.size(value)
            if value is not None and name != "messages":
                rows.append({"measured": name.replace("_", " "), "": value})
        return rows
