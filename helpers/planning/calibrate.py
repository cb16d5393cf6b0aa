"""What this machine really reaches: a few steps of each notebook's workload, timed, as a file that later plans rest on.

    python -m helpers.planning.calibrate                      # every notebook that this copy of the package holds
    python -m helpers.planning.calibrate legal_cot_sft

Time is fitted as fixed + FLOPs / rate at three sizes. Only random weights are needed.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from helpers import ranks

from .calibration import FILE, Calibration, Measured, Size
from .rooms import room, rooms
from .workloads import Asked, Workload

if TYPE_CHECKING:
    from helpers.runtime import Runtime

WARM_UP, REPEATS = 2, 5  # steps
PROCESSOR, WALL = "processor time", "wall time"
# (examples, tokens of a sequence), of which no more than the notebook's are taken.
SIZES = {"cpu": ((2, 64), (4, 64), (2, 128)), "cuda": ((4, 128), (16, 128), (4, 512)), "xla": ((8, 128), (16, 128), (8, 512))}  # fmt: skip


def calibrate(workloads: Iterable[Workload], runtime: Runtime, repeats: int = REPEATS) -> Calibration:
    """Takes a few real steps of each workload, which has real weights; one that does not fit is left out."""
    import torch

    measured = []
    for workload in workloads:
        with contextlib.suppress(torch.OutOfMemoryError, MemoryError):
            measured.append(measure(workload, runtime, SIZES[runtime.kind], repeats))
    return Calibration(
        kind=runtime.kind,
        device=runtime.device_name,
        threads=torch.get_num_threads(),
        date=datetime.date.today().isoformat(),
        versions={"torch": runtime.torch, "torch_xla": runtime.torch_xla},
        measured=tuple(measured),
    )


def measure(workload: Workload, runtime: Runtime, sizes: Sequence[tuple[int, int]], repeats: int = REPEATS) -> Measured:
    """One workload at (examples, length) each, the sizes taking turns, so that what else the machine does falls on all alike."""
    from .counting import count

    within = ((max(workload.least, examples), min(length, workload.length)) for examples, length in sizes)
    sizes = list(dict.fromkeys(within))
    how = {"kind": runtime.kind, "precision": runtime.precision}  # counted before the model moves to the device
    counts = [count(workload, examples, length=length, **how) for examples, length in sizes]
    stepper = Stepper(workload, runtime)
    batches = [stepper.batch(*size) for size in sizes]
    for batch in batches * WARM_UP:
        stepper.step(batch)
    runtime.wait()
    now = time.process_time if clock(runtime) == PROCESSOR else time.perf_counter
    times = [[] for _ in sizes]
    for _ in range(repeats):
        for batch, taken in zip(batches, times, strict=True):
            begin = now()
            stepper.step(batch)
            runtime.wait()
            taken.append(now() - begin)
    found = tuple(
        Size(
            examples=examples,
            length=length,
            flops=counted.flops,
            seconds=statistics.median(taken),
            seconds_range=(min(taken), max(taken)),
            peak_bytes=stepper.peak_bytes(batch),
            counted_bytes=counted.peak,
        )
        for (examples, length), counted, taken, batch in zip(sizes, counts, times, batches, strict=True)
    )
    fixed, rate = fit(found)
    names = {"notebook": workload.notebook, "model": workload.name, "precision": runtime.precision}
    return Measured(**names, sizes=found, fixed=fixed, flops_per_second=rate)


def clock(runtime: Runtime) -> str:
    """What speeds are measured in, PROCESSOR or WALL.

    One thread of a CPU is timed in processor time, which other programs on the machine do not stretch. Several threads are
    not: they may use processor time without being faster, and neither is a device that works beside the processor.
    """
    import torch

    one = runtime.kind == "cpu" and torch.get_num_threads() == 1 and ranks.count() == 1
    return PROCESSOR if one else WALL


class Stepper:
    """Optimizer steps of a workload on a device: forward, backward, clipping, AdamW."""

    def __init__(self, workload: Workload, runtime: Runtime):
        import torch

        self.workload, self.runtime = workload, runtime
        workload.model.to(runtime.device).train()
        self.trained = [parameter for parameter in workload.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=1e-6, fused=runtime.kind == "cuda")
        self.scaler = torch.amp.GradScaler("cuda", enabled=runtime.precision == "fp16")

    def batch(self, examples: int, length: int):
        import torch
        from torch.utils._pytree import tree_map_only

        device = self.runtime.device
        return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), self.workload.batch(examples, length))

    def step(self, batch) -> None:
        import torch

        half = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(self.runtime.precision)
        with torch.autocast(self.runtime.device.type, dtype=half, enabled=half is not None):
            loss = self.workload.loss(self.workload.model, batch)
        self.scaler.scale(loss).backward()
        del loss
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def peak_bytes(self, batch) -> int | None:
        """Peak of one step: the allocator's on CUDA, of all tensors alive on a CPU, None on XLA."""
        import torch
        from torch.utils._pytree import tree_leaves

        from .counting import LiveBytes

        if self.runtime.kind == "cuda":
            torch.cuda.reset_peak_memory_stats()
            self.step(batch)
            return torch.cuda.max_memory_allocated()
        if self.runtime.kind == "xla":
            return None
        model, state = self.workload.model, tree_leaves(list(self.optimizer.state.values()))
        tensors = (tensor for tensor in (*model.parameters(), *model.buffers(), *state) if torch.is_tensor(tensor))
        with LiveBytes(tensors) as live:
            self.step(batch)
        return live.peak


def fit(sizes: Sequence[Size]) -> tuple[float, float]:
    """Seconds that are fixed and FLOP/s: least squares of relative errors, neither below 0."""
    import numpy as np
    from scipy.optimize import nnls

    flops, seconds = (np.array([getattr(size, name) for size in sizes]) for name in ("flops", "seconds"))
    rows = np.stack([np.ones(len(sizes)), flops / flops.max()], axis=1)
    (fixed, slope), _ = nnls(rows / seconds[:, None], np.ones(len(sizes)))
    if not slope:  # the larger size was not slower
        return 0.0, float((flops / seconds).max())
    return float(fixed), float(flops.max() / slope)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m helpers.planning.calibrate", description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", help=f"of {', '.join(rooms())}; all by default")
    parser.add_argument("--model", default="", help="hub id or local folder; the notebook's own by default")
    parser.add_argument("--tpu", action="store_true", help="measure the TPU")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--out", default=FILE)
    given = parser.parse_args(arguments)
    from helpers import runtime

    try:
        chosen = [room(name) for name in given.notebooks or rooms()]
        machine = runtime.detect(given.tpu, given.precision)
    except ValueError as error:
        parser.error(str(error))
    asked = Asked(model=given.model)
    found = calibrate((each.planned(asked, machine, weights=True)[1] for each in chosen), machine)
    for each in found.measured:
        print(
            f"{each.notebook} {each.model}: {each.flops_per_second / 1e9:,.1f} GFLOP/s + {each.fixed * 1e3:.0f} ms a step"
        )
    Path(given.out).write_text(found.model_dump_json(indent=1) + "\n", encoding="utf-8")
    print(f"{given.out}: {found.device}, {os.cpu_count()} cores, {len(found.measured)} workloads")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
