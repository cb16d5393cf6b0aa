"""Utilisation and memory over the time of a run, sampled every second in a thread, and their plot.

    with Monitor(machine) as monitor:
        trainer.train()
    monitor.plot(folder / "figures" / "utilisation.png")

A reading asks the driver or the kernel for two numbers; it never waits for the device's work.
"""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from .runtime import Runtime

CLEAR_PEAK = Path("/proc/self/clear_refs")  # Linux: 5 written here resets the process's peak (man 5 proc)


@dataclass(frozen=True)
class Sample:
    """One reading."""

    seconds: float  # since the monitor began
    utilisation: float | None  # 0 to 1: of the device, or of all CPU cores by this process
    memory: int | None  # bytes in use


class Monitor:
    """Samples from `with` to its end; `why` says what the numbers are, and why there are none where there are none."""

    def __init__(self, runtime: Runtime, interval: float = 1.0):
        """
        Args:
            runtime: the device to watch.
            interval: seconds between two readings.
        """
        if interval <= 0:
            raise ValueError(f"interval={interval}: must be more than 0 seconds")
        self.runtime, self.interval = runtime, interval
        self.samples: list[Sample] = []
        self._read, self.why = _reader(runtime)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._began = 0.0

    def __enter__(self) -> Monitor:
        self.samples, self._began = [], time.perf_counter()
        self._stop.clear()
        self._read()  # what is counted since the last reading begins here
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)
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
        """Mean utilisation, weighted with time, most memory, how many readings, and of what."""
        busy = known = begin = 0.0
        for sample in self.samples:
            if sample.utilisation is not None:
                busy += sample.utilisation * (sample.seconds - begin)
                known += sample.seconds - begin
            begin = sample.seconds
        memory = [sample.memory for sample in self.samples if sample.memory is not None]
        return {
            "utilisation": round(busy / known, 4) if known else None,
            "memory_bytes": max(memory, default=None),
            "samples": len(self.samples),
            "source": self.why,
        }

    def plot(self, path: str | Path, *, title: str):
        """Utilisation (%) and memory (GiB) against seconds, as PNG; returns the matplotlib figure."""
        import matplotlib.pyplot as plt

        figure, (above, below) = plt.subplots(2, 1, figsize=(7, 4.2), sharex=True, layout="constrained")
        for axes, name, scale in ((above, "utilisation", 100), (below, "memory", 2**-30)):
            points = [(s.seconds, getattr(s, name) * scale) for s in self.samples if getattr(s, name) is not None]
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", markersize=3)
            else:
                axes.text(0.5, 0.5, "not told here", ha="center", va="center", transform=axes.transAxes)
        above.set(title=title, ylabel="utilisation (%)", ylim=(0, 105))
        below.set(xlabel=f"seconds\n{self.why}", ylabel="memory (GiB)")
        below.set_ylim(bottom=0)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
        return figure


def _reader(runtime: Runtime):
    """A function that returns (utilisation, bytes), and what they are."""
    return {"cuda": _cuda_reader, "xla": _xla_reader, "cpu": _cpu_reader}[runtime.kind](runtime)


def _cuda_reader(runtime: Runtime):
    import torch

    memory = "PyTorch's reserved memory"
    try:
        import pynvml

        torch.cuda.utilization()
    except ImportError:
        return lambda: (None, torch.cuda.memory_reserved()), f"no utilisation (pynvml is not installed); {memory}"
    except (RuntimeError, pynvml.NVMLError) as error:  # a slice of a board, or a driver that does not tell
        return lambda: (None, torch.cuda.memory_reserved()), f"no utilisation (NVML: {error}); {memory}"

    def read():
        return torch.cuda.utilization() / 100, torch.cuda.memory_reserved()

    return read, f"NVML: share of the time in which a kernel ran; {memory}"


def _xla_reader(runtime: Runtime):
    from . import xla

    duty = _tpu_duty()
    cpu, _ = _cpu_reader(runtime)

    def memory():
        info = xla.memory_info()
        return info.get("bytes_used") if info else None

    if duty is None:
        return lambda: (
            cpu()[0],
            memory(),
        ), "the host's cores by this process (no duty cycle is told here); device memory"
    return lambda: (duty(), memory()), "TPU duty cycle, mean over chips; memory of the first chip"


def _tpu_duty():
    """libtpu's own metric, or None where libtpu does not have it."""
    if importlib.util.find_spec("libtpu") is None:
        return None
    try:
        from libtpu.sdk import tpumonitoring

        metric = "duty_cycle_pct"
        if metric not in tpumonitoring.list_supported_metrics():
            return None
    except (ImportError, AttributeError):
        return None

    def read():
        chips = [float(value) for value in tpumonitoring.get_metric(metric).data()]
        return sum(chips) / len(chips) / 100 if chips else None

    return read


def _cpu_reader(runtime: Runtime):
    import psutil

    process, cores = (
        psutil.Process(),
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    )

    def read():
        return min(1.0, process.cpu_percent() / 100 / cores), process.memory_info().rss

    return read, f"this process's share of {cores} cores and its resident memory"


def reset_peak(runtime: Runtime) -> bool:
    """Starts `meter.peak_memory` afresh and gives freed memory back; False where the peak cannot be reset."""
    import gc

    gc.collect()
    if runtime.kind == "cuda":
        import torch

        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return True
    if runtime.kind == "xla" or not CLEAR_PEAK.exists():
        return False
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
    if trim:
        trim(0)
    try:
        CLEAR_PEAK.write_text("5")
    except OSError:
        return False
    return True
