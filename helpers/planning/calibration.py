"""Measures a few real steps of each job on this machine and keeps what later plans need, in calibration.json.

    python -m helpers.planning.calibration              # all jobs, small models on a CPU, the notebooks' on an accelerator
    python -m helpers.planning.calibration legal_cot_sft --out calibration.json

A step's time is fitted as fixed + FLOPs of weights / rate + FLOPs of pairs of tokens / rate, which extends to other
batches and lengths of the same model. Loading calibrations imports no torch; measuring does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .catalogue import BUILDERS, job
from .jobs import Job
from .memory import memory

if TYPE_CHECKING:
    from helpers.hardware import Machine
    from helpers.runtime import Runtime

FILE = "calibration.json"
SCHEMA = 1
WARM_UP, REPEATS = 2, 5  # steps
# (sequences, length) of small models: two lengths, two batches.
SMALL_SIZES = ((8, 64), (24, 64), (8, 192))
FULL_SIZES = ((8, 128), (32, 128), (8, 512))
LEAF_SLOTS = 70  # GraphMER's lengths hold these beside the roots


@dataclass(frozen=True, kw_only=True)
class StepModel:
    """Seconds of a step: fixed + FLOPs of weights x a + FLOPs of pairs x b."""

    fixed: float
    per_weight_flop: float
    per_pair_flop: float
    update_seconds: float = 0.0  # of `fixed`: what a micro-batch that only accumulates does not do

    def seconds(self, job: Job, sequences: float, length: int) -> float:
        return (
            self.fixed
            + self.per_weight_flop * job.flops_of_weights(sequences, length)
            + self.per_pair_flop * job.flops_of_pairs(sequences, length)
        )


@dataclass(frozen=True, kw_only=True)
class Size:
    """One size that was measured."""

    sequences: int
    length: int
    seconds: float  # median of a step
    seconds_range: tuple[float, float]
    peak_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One job on one device."""

    job: str
    model: str
    precision: str
    sizes: tuple[Size, ...]
    time: StepModel
    flops_per_second: float  # at the largest size
    memory_ratio: float  # measured over counted, at the largest size
    compile_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """One device."""

    kind: str
    device: str
    count: int
    cores: int
    threads: int
    date: str
    versions: dict[str, str | None]
    matmul_flops_per_second: float
    copy_bytes_per_second: float
    jobs: tuple[Measured, ...]

    def find(self, job: Job, precision: str) -> Measured | None:
        """What was measured for this very model."""
        wanted = (job.name, job.model, precision)
        return next((each for each in self.jobs if (each.job, each.model, each.precision) == wanted), None)

    def is_for(self, machine: Machine) -> bool:
        """Whether it was taken on this kind of device; a CPU is taken for the one that was measured."""
        from helpers import hardware

        if self.kind != machine.kind:
            return False
        return machine.kind == "cpu" or hardware.find(self.device) == machine.accelerator

    def as_dict(self) -> dict:
        return {"schema": SCHEMA, **asdict(self)}


def load(paths: Iterable[str | Path]) -> list[Calibration]:
    """Calibrations from their files.

    Raises FileNotFoundError, and ValueError for a file that is no calibration.
    """
    found = []
    for path in paths:
        try:
            found.append(_read(json.loads(Path(path).read_text(encoding="utf-8"))))
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(
                f"calibration={str(path)!r}: not understood ({error}); make it anew with python -m helpers.planning.calibration"
            ) from error
    return found


def _read(values: dict) -> Calibration:
    values = dict(values)
    schema = values.pop("schema")
    if schema != SCHEMA:
        raise KeyError(f"schema {schema}")
    jobs = tuple(
        Measured(
            **{
                **each,
                "sizes": tuple(
                    Size(**{**size, "seconds_range": tuple(size["seconds_range"])}) for size in each["sizes"]
                ),
                "time": StepModel(**each["time"]),
            }
        )
        for each in values.pop("jobs")
    )
    return Calibration(**values, jobs=jobs)


def save(calibration: Calibration, path: str | Path = FILE) -> Path:
    path = Path(path)
    path.write_text(json.dumps(calibration.as_dict(), indent=1) + "\n", encoding="utf-8")
    return path


# ---- measuring


def calibrate(
    jobs: Sequence[str] = (),
    *,
    model: str = "",
    use_tpu: bool = False,
    precision: str = "auto",
    sizes: Sequence[tuple[int, int]] = (),
    repeats: int = REPEATS,
    runtime: Runtime | None = None,
) -> Calibration:
    """Takes a few real steps of each job at a few sizes on this machine.

    Args:
        jobs: names; all of them by default.
        model: of `catalogue.MODELS`; "" is "small" on a CPU, and elsewhere the notebook's own, or "small" where that does
            not fit.
        sizes: (sequences, length) each; three or more, of two lengths.
        runtime: the machine where it was detected before; `use_tpu` and `precision` are then its.

    On a CPU with one thread the clock is the process's own, which another program on the machine does not disturb.
    """
    from helpers import runtime as runtimes
    from helpers.tracking import say

    for name in jobs:
        job(name)  # an unknown one before anything slow
    runtime = runtime or runtimes.detect(use_tpu, precision)
    chosen = model or ("small" if runtime.kind == "cpu" else "")
    measured = []
    for name in jobs or BUILDERS:
        found = _measured_or_none(job(name, chosen), runtime, sizes, repeats)
        if found is None and not model and chosen != "small":
            say(f"{name}: its own model does not fit here; the small one instead")
            found = _measured_or_none(job(name, "small"), runtime, sizes, repeats)
        if found is None:
            say(f"{name}: does not fit here")
            continue
        measured.append(found)
        say(f"{name} {found.model}: {found.flops_per_second / 1e9:,.1f} GFLOP/s, {describe(found.time)}")
    return about(runtime, measured)


def _measured_or_none(job: Job, runtime: Runtime, sizes, repeats: int) -> Measured | None:
    """None where the memory is not enough."""
    import gc

    from helpers.interruption import is_out_of_memory

    try:
        return measure(job, runtime, sizes or (SMALL_SIZES if job.model == "small" else FULL_SIZES), repeats)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    finally:
        gc.collect()
        if runtime.kind == "cuda":
            import torch

            torch.cuda.empty_cache()
    return None


def about(runtime, measured: Sequence[Measured]) -> Calibration:
    """What was measured, with the device, its versions and two rates that say what it can do at best."""
    import datetime
    import os

    import torch

    return Calibration(
        kind=runtime.kind,
        device=cpu_name() if runtime.kind == "cpu" else runtime.device_name,
        count=1,  # a workload's step is computed by one device, or by each of them as a whole
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        date=datetime.date.today().isoformat(),
        versions={"torch": runtime.torch, "torch_xla": runtime.torch_xla},
        matmul_flops_per_second=_matmul_rate(runtime),
        copy_bytes_per_second=_copy_rate(runtime),
        jobs=tuple(measured),
    )


def describe(model: StepModel) -> str:
    rates = [1 / each / 1e9 if each else None for each in (model.per_weight_flop, model.per_pair_flop)]
    weights, pairs = ("-" if rate is None else f"{rate:,.1f}" for rate in rates)
    return f"{model.fixed * 1e3:.1f} ms a step + weights at {weights} + attention at {pairs} GFLOP/s"


def measure(job: Job, runtime, sizes: Sequence[tuple[int, int]], repeats: int = REPEATS) -> Measured:
    """One job at each of the sizes."""
    from . import workloads

    stepper = workloads.Stepper(
        workloads.build(job, runtime.precision), runtime.kind, runtime.precision, runtime.device
    )
    compile_before = _compile_seconds(runtime)
    measured = in_turns(stepper, sizes_of(job, sizes), repeats)
    return summary(job, runtime, measured, _compile_seconds(runtime) - compile_before)


def summary(job: Job, runtime, sizes: Sequence[Size], compile_seconds: float = 0.0) -> Measured:
    """What later plans need of the sizes that were measured."""
    largest = max(sizes, key=lambda size: sum(job.flops(size.sequences, size.length)))
    return Measured(
        job=job.name,
        model=job.model,
        precision=runtime.precision,
        sizes=tuple(sizes),
        time=fit(job, sizes),
        flops_per_second=sum(job.flops(largest.sequences, largest.length)) / largest.seconds,
        memory_ratio=_memory_ratio(job, runtime, sizes),
        compile_seconds=compile_seconds,
    )


def sizes_of(job: Job, sizes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sizes for a job: GraphMER's lengths hold its leaf slots beside the roots."""
    return [(count, length + (LEAF_SLOTS if job.name == "graphmer_se" else 0)) for count, length in sizes]


def in_turns(stepper, sizes: Sequence[tuple[int, int]], repeats: int) -> list[Size]:
    """Median seconds of a step at each (sequences, length), and its peak of memory.

    Sizes take turns, so that what else the machine does meanwhile falls on all alike.
    """
    batches = [stepper.on_device(*size) for size in sizes]
    for batch in batches:
        for _ in range(WARM_UP):
            stepper.step(batch)
    stepper.wait()
    clock, seconds = clock_for(stepper.kind), [[] for _ in sizes]
    for _ in range(repeats):
        for batch, times in zip(batches, seconds, strict=True):
            begin = clock()
            stepper.step(batch)
            stepper.wait()
            times.append(clock() - begin)
    return [
        Size(
            sequences=sequences,
            length=length,
            seconds=statistics.median(times),
            seconds_range=(min(times), max(times)),
            peak_bytes=peak_bytes(stepper, batch),
        )
        for (sequences, length), batch, times in zip(sizes, batches, seconds, strict=True)
    ]


def clock_for(kind: str) -> Callable[[], float]:
    import torch

    return time.process_time if kind == "cpu" and torch.get_num_threads() == 1 else time.perf_counter


def peak_bytes(stepper, batch) -> int | None:
    """Peak of one step: the allocator's on CUDA, of all tensors alive on a CPU, None on XLA."""
    import torch

    if stepper.kind == "cuda":
        torch.cuda.reset_peak_memory_stats()
        stepper.step(batch)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()
    if stepper.kind == "xla":
        return None
    from .live_bytes import LiveBytes

    with LiveBytes(stepper.workload.model, stepper.optimizer) as live:
        stepper.step(batch)
    return live.peak


def fit(job: Job, sizes: Sequence[Size]) -> StepModel:
    """Least squares of relative errors, no coefficient below 0."""
    import numpy as np
    from scipy.optimize import nnls

    rows = np.array(
        [
            [1.0, job.flops_of_weights(size.sequences, size.length), job.flops_of_pairs(size.sequences, size.length)]
            for size in sizes
        ]
    )
    seconds = np.array([size.seconds for size in sizes])
    scale = np.where(rows.max(0) > 0, rows.max(0), 1.0)
    solution, _ = nnls(rows / scale / seconds[:, None], np.ones(len(sizes)))
    fixed, weights, pairs = (float(each) for each in solution / scale)
    return StepModel(fixed=fixed, per_weight_flop=weights, per_pair_flop=pairs)


def _memory_ratio(job: Job, runtime, sizes: Sequence[Size]) -> float:
    ratios = [
        size.peak_bytes / memory(job, runtime.kind, runtime.precision, size.sequences, size.length).peak.value
        for size in sizes
        if size.peak_bytes
    ]
    return statistics.median(ratios) if ratios else 1.0


def cpu_name() -> str:
    """The processor's model name, as Linux tells it."""
    import platform

    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return named or platform.processor() or platform.machine()


def _compile_seconds(runtime) -> float:
    from helpers import xla

    return xla.counters()["compile_seconds"] if runtime.kind == "xla" else 0.0


def _matmul_rate(runtime) -> float:
    """FLOP/s of a large square product in the training precision."""
    import torch

    size = 1024 if runtime.kind == "cpu" else 8192
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[runtime.precision]
    matrix = torch.randn(size, size, device=runtime.device, dtype=dtype)
    return 2.0 * size**3 / _seconds(lambda: matrix @ matrix, runtime)


def _copy_rate(runtime) -> float:
    """Bytes/s read and written by a large copy."""
    import torch

    source = torch.ones(2**24 if runtime.kind == "cpu" else 2**28, device=runtime.device)
    return 8.0 * source.numel() / _seconds(source.clone, runtime)


def _seconds(call, runtime) -> float:
    import torch

    from helpers import xla

    def wait():
        if runtime.kind == "cuda":
            torch.cuda.synchronize()
        elif runtime.kind == "xla":
            xla.wait()

    call()
    wait()
    clock, times = clock_for(runtime.kind), []
    for _ in range(REPEATS):
        begin = clock()
        result = call()
        wait()
        times.append(clock() - begin)
        del result
    return statistics.median(times)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m helpers.planning.calibration", description=__doc__.splitlines()[0])
    parser.add_argument("jobs", nargs="*", help=f"of {', '.join(BUILDERS)}; all by default")
    parser.add_argument("--model", default="", help="small, or one of the job's own")
    parser.add_argument("--tpu", action="store_true", help="measure the TPU")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--out", default=FILE)
    given = parser.parse_args(arguments)
    from helpers.tracking import say

    try:
        result = calibrate(given.jobs, model=given.model, use_tpu=given.tpu, precision=given.precision)
    except ValueError as error:
        parser.error(str(error))
    say(f"{save(result, given.out)}: {result.device}, {len(result.jobs)} jobs")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
