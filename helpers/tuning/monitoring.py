"""Utilisation and memory over a run, read every second in a thread, and their plot. W&B's system charts show the same live.

    with Monitor(machine) as monitor:
        trainer.train()
    monitor.plot(folder / "figures" / "utilisation.png")

A reading asks the driver or the kernel for two numbers; it never waits for the device's work.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil

from helpers.run_folder import saved
from helpers.runtime import Runtime

DUTY_CYCLE = "duty_cycle_pct"  # libtpu's own metric


class Sample(NamedTuple):
    """One reading."""

    seconds: float  # since the monitor began
    utilisation: float | None  # 0 to 1: of the device, or of all CPU cores by this process
    memory: int | None  # bytes in use


class Monitor:
    """Samples from `with` to its end, every `interval` seconds; `why` says what the numbers are and why some are missing."""

    def __init__(self, runtime: Runtime, interval: float = 1.0):
        self.interval, self.samples, self._began = interval, [], time.perf_counter()
        self._read, self.why = _reader(runtime)
        self._read()  # what is counted since the last reading begins here
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)

    def __enter__(self) -> Monitor:
        self._thread.start()
        return self

    def __exit__(self, *exception) -> None:
        self._stop.set()
        self._thread.join()
        self._take()  # also a run shorter than the interval has a sample

    def _run(self) -> None:
        while not self._stop.wait(self.interval):
            self._take()

    def _take(self) -> None:
        self.samples.append(Sample(time.perf_counter() - self._began, *self._read()))

    def results(self) -> dict:
        """Mean utilisation, most memory, how many readings, and of what."""
        known = [sample.utilisation for sample in self.samples if sample.utilisation is not None]
        return {
            "utilisation": round(statistics.fmean(known), 4) if known else None,
            "memory_bytes": max((s.memory for s in self.samples if s.memory is not None), default=None),
            "samples": len(self.samples),
            "source": self.why,
        }

    def plot(self, path: str | Path, *, title: str):
        """Utilisation (%) and memory (GiB) against seconds, as PNG; returns the matplotlib figure."""
        import matplotlib.pyplot as plt

        figure, (above, below) = plt.subplots(2, 1, figsize=(7, 4.2), sharex=True, layout="constrained")
        for axes, name, scale in ((above, "utilisation", 100), (below, "memory", 2**-30)):
            points = [(s.seconds, getattr(s, name) * scale) for s in self.samples if getattr(s, name) is not None]
            axes.plot(*zip(*points or [(0, 0)], strict=True), marker="o", markersize=3)
        above.set(title=title, ylabel="utilisation (%)", ylim=(0, 105))
        below.set(xlabel=f"seconds\n{self.why}", ylabel="memory (GiB)", xlim=(0, None), ylim=(0, None))
        return saved(figure, path)


def _reader(runtime: Runtime) -> tuple[Callable[[], tuple[float | None, int | None]], str]:
    """What reads utilisation and bytes, and what they are."""
    process = psutil.Process()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    busy, why = lambda: min(1.0, process.cpu_percent() / 100 / cores), f"this process's share of {cores} cores"
    if runtime.kind == "cpu":
        return lambda: (busy(), process.memory_info().rss), f"{why} and its resident memory"
    if runtime.kind == "xla":
        from helpers import xla

        memory = lambda: (xla.memory_info() or {}).get("bytes_used")  # noqa: E731
        try:
            from libtpu.sdk import tpumonitoring

            told = runtime.device_name != xla.ON_CPU and DUTY_CYCLE in tpumonitoring.list_supported_metrics()
        except (ImportError, AttributeError):  # another libtpu, or none; where there is no TPU it would wait for one
            told = False
        if not told:
            return lambda: (busy(), memory()), f"{why} (no duty cycle is told here); memory of the first chip"

        def duty() -> float | None:
            chips = [float(value) for value in tpumonitoring.get_metric(DUTY_CYCLE).data()]
            return statistics.mean(chips) / 100 if chips else None

        return lambda: (duty(), memory()), "TPU duty cycle, mean over chips; memory of the first chip"
    import pynvml
    import torch

    memory = torch.cuda.memory_reserved
    try:
        torch.cuda.utilization()
    except (RuntimeError, pynvml.NVMLError) as error:  # a slice of a board, or a driver that does not tell
        return lambda: (None, memory()), f"no utilisation (NVML: {error}); PyTorch's reserved memory"
    why = "NVML: share of the time in which a kernel ran; PyTorch's reserved memory"
    return lambda: (torch.cuda.utilization() / 100, memory()), why
