"""Throughput, memory and MFU of a training run, with compilation, evaluation and saving kept apart."""

from __future__ import annotations

import contextlib
import math
import operator
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from helpers.machine.runtime import Runtime
from helpers.show import tables

MASKS = ("attention_mask", "segment_ids", "root_segments")  # 0 at padding


class Meter:
    """Counts examples, tokens and seconds; only `state` and `results` wait for the device.

    Positions are what the model computes, tokens are positions without the padding of texts. `processor_seconds` are those of all threads
    of this process, without evaluation and saving.

    Args:
        runtime: the device; MFU is a share of the peak in its datasheet.
        flops_per_token: floating-point operations of a training step per token (about 6 x trained parameters).
    """

    # The state of a run, by the names of meter.json.
    examples: int
    positions: int
    padding: torch.Tensor
    seconds: float
    aside_seconds: float
    compile_seconds: float
    processor_seconds: float

    def __init__(self, runtime: Runtime, flops_per_token: float):
        self.runtime = runtime
        self.flops_per_token = flops_per_token
        self._aside = False
        self._mark: tuple[float, float, float] | None = None  # the clocks when they were last read; None outside a run
        self._restore({})

    def _restore(self, state: Mapping[str, float]) -> None:
        for name in Meter.__annotations__:
            setattr(self, name, state.get(name, 0))
        self.padding = torch.tensor(self.padding, device=self.runtime.device)

    def start(self, state: Mapping[str, float] | None = None) -> None:
        """Starts the clock, from what `state()` returned in an earlier session if it is given."""
        self._restore(state or {})
        self.runtime.engine.reset_peak()
        self._mark = self._clocks()

    def state(self) -> dict:
        """Counts and seconds so far, for `start` when the run is resumed."""
        self._read()
        state = {name: getattr(self, name) for name in Meter.__annotations__}
        state["padding"] = int(self.padding)
        return state

    def close(self) -> None:
        """Stops the clock."""
        self.runtime.wait()
        self._read()
        self._mark = None

    def _clocks(self) -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), self.runtime.engine.compile_seconds

    def _read(self) -> None:
        """Adds the time that has passed since the clocks were last read."""
        if self._mark is None:
            return
        now = self._clocks()
        wall, processor, compiling = map(operator.sub, now, self._mark)
        self._mark = now
        self.seconds += wall
        self.compile_seconds += compiling
        if self._aside:
            self.aside_seconds += wall - compiling
        else:
            self.processor_seconds += processor

    def count(self, inputs, processes: int = 1) -> None:
        """Adds a micro-batch of each of `processes`, all like `inputs`: tensors *input_ids [B, ..., T], or else the first."""
        tensors = {name: tensor for name, tensor in inputs.items() if torch.is_tensor(tensor) and tensor.dim()}
        # Every column of ids counts; a mask may have more axes than there are positions.
        shapes = [tensor.shape for name, tensor in tensors.items() if name.endswith("input_ids")]
        if not shapes:
            shapes = [next(iter(tensors.values())).shape]
        self.examples += processes * shapes[0][0]
        self.positions += processes * sum(map(math.prod, shapes))
        for name, tensor in tensors.items():
            if name.endswith(MASKS) and tensor.shape in shapes:
                self.padding = self.padding + processes * (tensor == 0).sum()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Counts the time in the block as evaluation and saving; does nothing outside a run."""
        self._turn(aside=True)
        try:
            yield
        finally:
            self._turn(aside=False)

    def _turn(self, aside: bool) -> None:
        if self._mark is not None:
            self.runtime.wait()
            self._read()
        self._aside = aside

    def training_seconds(self) -> float:
        """Seconds of training so far, without compilation, evaluation and saving."""
        self._read()
        return max(self.seconds - self.aside_seconds - self.compile_seconds, 1e-9)

    def results(self) -> dict:
        """Seconds, rates per second of pure training, MFU with the peak that it is a share of, peak memory in bytes."""
        training = self.training_seconds()
        padding = int(self.padding)
        tokens_per_second = (self.positions - padding) / training
        accelerator = self.runtime.accelerator
        mfu = mfu_peak = None
        peak = accelerator and accelerator.peak_for(self.runtime.precision)
        if accelerator and peak:
            mfu = round(tokens_per_second * self.flops_per_token / (peak * self.runtime.device_count), 4)
            mfu_peak = f"{peak / 1e12:g} TFLOP/s {self.runtime.precision} a device ({accelerator.source})"
        return {
            "seconds": round(self.seconds, 3),
            "compile_seconds": round(self.compile_seconds, 3),
            "evaluate_and_save_seconds": round(self.aside_seconds, 3),
            "examples_per_second": round(self.examples / training, 3),
            "tokens_per_second": round(tokens_per_second, 1),
            "padding": round(padding / max(self.positions, 1), 4),
            "mfu": mfu,
            "mfu_peak": mfu_peak,
            "peak_memory_bytes": self.runtime.engine.peak_memory(),
        }

    @staticmethod
    def rows(train: Mapping[str, Any], xla: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """The `train` and `xla` parts of results.json for `tables.show`."""
        shown = {
            "first and last loss": f"{tables.cell(train['loss_first'])}, {tables.cell(train['loss_last'])}",
            "first step, counted from the setup cell": tables.seconds(train.get("first_step_seconds")),
            "total time": tables.seconds(train["seconds"]),
            "of this compiling": tables.seconds(train["compile_seconds"]),
            "of this evaluating and saving": tables.seconds(train["evaluate_and_save_seconds"]),
            "examples per second": train["examples_per_second"],
            "tokens per second": train["tokens_per_second"],
            "padding": f"{train['padding']:.0%} of what is computed",
            "model FLOPs utilisation": train["mfu"] and f"{train['mfu']:.1%} of {train['mfu_peak']}",
            "peak memory": tables.size(train["peak_memory_bytes"]),
        }
        for name, value in (xla or {}).items():
            shown[name.replace("_", " ")] = value
        return [{"measured": name, "": value} for name, value in shown.items() if value is not None]
