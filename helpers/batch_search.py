"""The largest batch that fits, found by trying: doubling, then halving the gap, within 90 % of the memory.

On CUDA a step that does not fit raises, and the search goes on below it. On a CPU nothing raises in time (the system
kills the process), so a batch is tried only if the ones before say that it fits. XLA says at compile time what a step
needs (`CompiledMemory`), and on a TPU a graph that does not fit is refused by the compiler.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .interruption import is_out_of_memory
from .runtime import Runtime

SHARE = 0.9  # of the memory that may be filled
GIB = 2**30


@dataclass(frozen=True)
class Trial:
    """One batch that was tried, or judged by the ones before."""

    batch_size: int
    bytes: int | None  # the step's peak; extrapolated where the batch was not run
    fits: bool
    note: str


@dataclass(frozen=True)
class BatchSearch:
    """What was found, and why it is not larger."""

    batch_size: int
    reason: str
    trials: tuple[Trial, ...]

    def __str__(self) -> str:
        rows = [
            f"{trial.batch_size:>8}  {'fits' if trial.fits else 'does not fit':<14}"
            f"{f'{trial.bytes / GIB:8.2f} GiB' if trial.bytes else '':<14}{trial.note}"
            for trial in self.trials
        ]
        return "\n".join([*rows, f"largest batch {self.batch_size}: {self.reason}"])


def largest_batch(
    try_step: Callable[[int], int | None],
    *,
    first: int,
    limit: int,
    memory: int | None,
    multiple_of: int = 1,
    share: float = SHARE,
    look_ahead: bool = False,
) -> BatchSearch:
    """The largest batch of which a training step fits into `share` of `memory`.

    Args:
        try_step: runs one step with a batch and returns its peak in bytes (None where that is not told), or raises as
            the device does when memory runs out.
        first: the batch to begin with, a multiple of `multiple_of`.
        limit: no batch above it is of use.
        memory: bytes of a device; None where it is not told: then only what raises does not fit.
        multiple_of: devices that share a batch.
        share: of the memory that a step may fill.
        look_ahead: do not run what by the steps before does not fit.

    Raises:
        ValueError: sizes that make no sense.
        RuntimeError: not even one example a device fits; says what is short in GiB.
        Exception: what else `try_step` raises.
    """
    if multiple_of < 1 or first < multiple_of or first % multiple_of or limit < first or not 0 < share <= 1:
        raise ValueError(
            f"first={first}, limit={limit}, multiple_of={multiple_of}, share={share}: first must be a multiple of "
            "multiple_of and at most limit, share above 0 and at most 1"
        )
    trials: dict[int, Trial] = {}
    budget = None if memory is None else share * memory

    def fits(batch: int) -> bool:
        if batch not in trials:
            trials[batch] = _try(batch, try_step, budget, list(trials.values()) if look_ahead else [])
        return trials[batch].fits

    largest, smallest_failed = 0, None
    batch = first
    while smallest_failed is None and batch <= limit:
        if fits(batch):
            largest, batch = batch, batch * 2
        else:
            smallest_failed = batch
    if smallest_failed is None and largest < limit // multiple_of * multiple_of:
        top = limit // multiple_of * multiple_of
        if fits(top):
            largest = top
        else:
            smallest_failed = top
    while smallest_failed is not None and smallest_failed - largest > multiple_of:
        middle = (largest + smallest_failed) // 2 // multiple_of * multiple_of
        if fits(middle):
            largest = middle
        else:
            smallest_failed = middle
    if not largest:
        raise RuntimeError(_nothing_fits(trials[smallest_failed], budget))
    reason = f"{trials[smallest_failed].note}" if smallest_failed else f"the limit of the search is {limit}"
    if smallest_failed:
        reason = f"{smallest_failed} does not fit ({reason})"
    return BatchSearch(largest, reason, tuple(trials.values()))


def _try(batch: int, try_step: Callable[[int], int | None], budget: float | None, before: list[Trial]) -> Trial:
    expected = _extrapolated(batch, before)
    if budget is not None and expected is not None and expected > budget:
        return Trial(batch, round(expected), False, f"not run: {expected / GIB:.2f} GiB by the steps before")
    try:
        peak = try_step(batch)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        note = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    else:
        if peak is None or budget is None:
            return Trial(batch, peak, True, "" if peak is None else "memory of the device unknown")
        return Trial(batch, peak, peak <= budget, "" if peak <= budget else f"above {budget / GIB:.2f} GiB")
    # Outside `except`: the traceback would keep the failed step's tensors alive.
    _free()
    return Trial(batch, None, False, note)


def _extrapolated(batch: int, before: list[Trial]) -> float | None:
    """Bytes by the line through the last two batches that ran; None before there are two."""
    ran = [trial for trial in before if trial.bytes and trial.fits][-2:]
    if len(ran) < 2:
        return None
    (a, b) = ran
    slope = max(0.0, (b.bytes - a.bytes) / (b.batch_size - a.batch_size))
    return b.bytes + slope * (batch - b.batch_size)


def _free() -> None:
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def _nothing_fits(trial: Trial, budget: float | None) -> str:
    short = ""
    if trial.bytes and budget is not None:
        short = f": it needs {trial.bytes / GIB:.2f} GiB, {(trial.bytes - budget) / GIB:.2f} more than there are"
    return (
        f"batch_size={trial.batch_size} does not fit{short or ' (' + trial.note + ')'}; use a shorter max_length, a smaller "
        "base_model, or gradient checkpointing"
    )


def device_memory(runtime: Runtime) -> int:
    """Bytes of a device; where XLA runs on the CPU, its part of the machine's."""
    import psutil

    return runtime.memory or psutil.virtual_memory().total // runtime.device_count


class CompiledMemory:
    """What XLA's compiler says that a graph needs on one device: inputs, outputs and what lies between, in bytes.

    torch_xla writes it to a file when asked to before the first graph of the process is compiled (PT_XLA_DEBUG_LEVEL=1);
    asked later, it stays silent, and `peak` returns None. Nothing runs to find out.
    """

    LINES = re.compile(
        r"Graph input size: ([\d.]+) GB.*?Graph output size: ([\d.]+) GB.*?Aliased Input size: ([\d.]+) GB"
        r".*?Intermediate tensor size: ([\d.]+) GB",
        re.DOTALL,
    )

    def __init__(self, folder: str | Path | None = None):
        path = Path(folder or tempfile.mkdtemp(prefix="xla-compiled-")) / "compiled.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        if os.environ.setdefault("PT_XLA_DEBUG_LEVEL", "1") == "0":
            os.environ["PT_XLA_DEBUG_LEVEL"] = "1"
        self.path = Path(os.environ.setdefault("PT_XLA_DEBUG_FILE", str(path)))

    def mark(self) -> int:
        """Where the file ends now."""
        return self.path.stat().st_size if self.path.is_file() else 0

    def peak(self, since: int = 0) -> int | None:
        """Bytes of the largest graph that was compiled after the mark; None where none was, or nothing was told."""
        if not self.path.is_file():
            return None
        with self.path.open("rb") as file:
            file.seek(since)
            text = file.read().decode(errors="replace").replace("Post Compilation Analysis: ", "")
        sizes = [tuple(map(float, match.groups())) for match in self.LINES.finditer(text)]
        return max((round((i + o - a + t) * GIB) for i, o, a, t in sizes), default=None)
