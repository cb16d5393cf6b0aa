"""Throughput, memory and MFU of a training run, with compilation, evaluation and saving kept apart."""

from __future__ import annotations

import contextlib
import math
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from helpers.machine import xla
from helpers.machine.runtime import Runtime
from helpers.show import tables

_STATE = ("examples", "tokens", "seconds", "aside_seconds", "compile_seconds", "processor_seconds")


class Meter:
    """Counts examples, tokens and seconds. Counting uses shapes only, so it never waits for the device.

    Tokens are the positions that the model computes, padding included.

    Args:
        runtime: the device; MFU is a share of the peak in its datasheet.
        flops_per_token: floating-point operations of a training step per token (about 6 x trained parameters).
    """

    def __init__(self, runtime: Runtime, flops_per_token: float):
        self.runtime = runtime
        self.flops_per_token = flops_per_token
        self.examples = self.tokens = 0
        self.seconds = self.aside_seconds = self.compile_seconds = 0.0
        self.processor_seconds = 0.0  # of all threads of this process, without evaluation and saving
        self._started: float | None = None
        self._compile_mark = 0.0
        self._aside_mark: tuple[float, float] | None = None

    def start(self, state: dict | None = None) -> None:
        """Starts the clock, from what `state()` returned in an earlier session if it is given."""
        for name, value in (state or dict.fromkeys(_STATE, 0)).items():
            setattr(self, name, value)
        if self.runtime.kind == "cuda":
            import torch

            torch.cuda.reset_peak_memory_stats()
        self._compile_mark, self._processor_mark = self._compile_clock(), time.process_time()
        self._started = time.perf_counter()

    def state(self) -> dict:
        """Counts and seconds so far, for `start` when the run is resumed."""
        self._read_clocks()
        return {name: getattr(self, name) for name in _STATE}

    def close(self) -> None:
        """Stops the clock."""
        self.runtime.wait()
        self._read_clocks()
        self._started = None

    def _read_clocks(self) -> None:
        now, compiled = time.perf_counter(), self._compile_clock()
        self._read_aside(now, compiled)  # the state that a checkpoint holds is read while it is saved
        if self._started is None:
            return
        self.seconds += now - self._started
        self._read_processor()
        self.compile_seconds += compiled - self._compile_mark
        self._started, self._compile_mark = now, compiled

    def count(self, inputs, processes: int = 1) -> None:
        """Adds a micro-batch of each of `processes`, all like `inputs`: tensors *input_ids [B, ..., T], or else the first."""
        batched = {name: tensor.shape for name, tensor in inputs.items() if getattr(tensor, "dim", lambda: 0)() >= 1}
        # Every column of ids counts; a mask may have more axes than there are positions.
        shapes = [shape for name, shape in batched.items() if name.endswith("input_ids")] or [*batched.values()][:1]
        self.examples += processes * shapes[0][0]
        self.tokens += processes * sum(math.prod(shape) for shape in shapes)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Counts the time in the block as evaluation and saving; does nothing outside a run."""
        if self._started is None:
            yield
            return
        self.runtime.wait()
        self._read_processor()
        self._aside_mark = time.perf_counter(), self._compile_clock()
        try:
            yield
        finally:
            self.runtime.wait()
            self._read_aside(time.perf_counter(), self._compile_clock())
            self._read_processor()
            self._aside_mark = None

    def _read_aside(self, now: float, compiled: float) -> None:
        if self._aside_mark is None:
            return
        since, compiled_before = self._aside_mark
        # Compilation in the block counts as compilation only.
        self.aside_seconds += now - since - (compiled - compiled_before)
        self._aside_mark = now, compiled

    def _read_processor(self) -> None:
        now = time.process_time()
        if self._aside_mark is None:
            self.processor_seconds += now - self._processor_mark
        self._processor_mark = now

    def training_seconds(self) -> float:
        """Seconds of training so far, without compilation, evaluation and saving."""
        self._read_clocks()
        return max(self.seconds - self.aside_seconds - self.compile_seconds, 1e-9)

    def results(self) -> dict:
        """Seconds, rates per second of pure training, MFU with the peak that it is a share of, peak memory in bytes."""
        training = self.training_seconds()
        tokens_per_second = self.tokens / training
        accelerator = self.runtime.accelerator
        peak = accelerator and accelerator.peak_for(self.runtime.precision)
        return {
            "seconds": round(self.seconds, 3),
            "compile_seconds": round(self.compile_seconds, 3),
            "evaluate_and_save_seconds": round(self.aside_seconds, 3),
            "examples_per_second": round(self.examples / training, 3),
            "tokens_per_second": round(tokens_per_second, 1),
            "mfu": peak and round(tokens_per_second * self.flops_per_token / (peak * self.runtime.device_count), 4),
            "mfu_peak": peak and f"{peak / 1e12:g} TFLOP/s {self.runtime.precision} a device ({accelerator.source})",
            "peak_memory_bytes": peak_memory(self.runtime),
        }

    @staticmethod
    def rows(train: Mapping[str, Any], xla: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """The `train` and `xla` parts of results.json for `tables.show`."""
        shown = {
            "steps": train["steps"],
            "loss, first and last": f"{tables.cell(train['loss_first'])}, {tables.cell(train['loss_last'])}",
            "time in all": tables.seconds(train["seconds"]),
            "of it compiling": tables.seconds(train["compile_seconds"]),
            "of it evaluating and saving": tables.seconds(train["evaluate_and_save_seconds"]),
            "examples a second": train["examples_per_second"],
            "tokens a second": train["tokens_per_second"],
            "model FLOPs utilisation": train["mfu"] and f"{train['mfu']:.1%} of {train['mfu_peak']}",
            "memory at most": tables.size(train["peak_memory_bytes"]),
            "resumed from step": train["resumed_from_step"],
            **{name.replace("_", " "): value for name, value in (xla or {}).items()},
        }
        return [{"measured": name, "": value} for name, value in shown.items() if value is not None]

    def _compile_clock(self) -> float:
        return xla.counters()["compile_seconds"] if self.runtime.kind == "xla" else 0.0


def peak_memory(runtime: Runtime) -> int | None:
    """Peak in bytes: of the allocator on CUDA, of the device on a TPU (None if unknown), of the process on a CPU."""
    if runtime.kind == "cuda":
        import torch

        return torch.cuda.max_memory_allocated()
    if runtime.kind == "xla":
        info = xla.memory_info() or {}
        return info.get("peak_bytes_used") or info.get("bytes_used")
    if sys.platform == "win32":
        import psutil

        return psutil.Process().memory_info().peak_wset
    status = Path("/proc/self/status")
    if status.exists() and (found := re.search(r"VmHWM:\s+(\d+)", status.read_text())):
        return 1024 * int(found[1])
    import resource  # may include the peak of the parent process

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
