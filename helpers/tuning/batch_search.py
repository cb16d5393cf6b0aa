"""The largest batch that fits, found by trying: doubling, then halving the gap, within 90 % of the memory.

On CUDA a step that does not fit raises, and the search goes on below it. On a CPU nothing raises in time (the system
kills the process), so a batch is tried only if the ones before say that it fits. XLA says at compile time what a step
needs (`CompiledMemory`), and on a TPU a graph that does not fit is refused by the compiler.
"""

from __future__ import annotations

import bisect
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers import tables
from helpers.interruption import is_out_of_memory

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

    def rows(self) -> list[dict[str, Any]]:
        """Every trial, for `tables.show`."""
        return [
            {"batch": each.batch_size, "fits": each.fits, "memory": tables.size(each.bytes), "": each.note}
            for each in self.trials
        ]


def largest_batch(
    try_step: Callable[[int], int | None],
    *,
    first: int,
    limit: int,
    memory: float,
    multiple_of: int = 1,
    look_ahead: bool = False,
) -> BatchSearch:
    """The largest batch of which a training step fits into 90 % of `memory`.

    Args:
        try_step: runs one step with a batch and returns its peak in bytes (None where that is not told), or raises as
            the device does when memory runs out.
        first, limit: the batch to begin with, and above which none is of use.
        memory: bytes of a device; infinite: only what raises does not fit.
        multiple_of: devices that share a batch.
        look_ahead: do not run what by the steps before does not fit.

    Raises RuntimeError, with what is short in GiB, where not even one example a device fits; and what else `try_step` raises.
    """
    assert 1 <= multiple_of <= first <= limit and first % multiple_of == 0, (multiple_of, first, limit)
    trials: dict[int, Trial] = {}

    def too_large(batch: int) -> bool:
        if batch not in trials:
            trials[batch] = _try(batch, try_step, SHARE * memory, list(trials.values()) if look_ahead else [])
        return not trials[batch].fits

    top = limit // multiple_of * multiple_of
    doubled = [first * 2**power for power in range(limit.bit_length()) if first * 2**power < top]
    failed = next(filter(too_large, [*doubled, top]), None)
    if failed is None:
        return BatchSearch(top, f"the limit of the search is {limit}", tuple(trials.values()))
    between = range(max((batch for batch in trials if batch < failed), default=0) + multiple_of, failed, multiple_of)
    failed = [*between, failed][bisect.bisect_left(between, True, key=too_large)]
    if failed == multiple_of:
        raise RuntimeError(_nothing_fits(trials[failed], SHARE * memory))
    reason = f"{failed} does not fit ({trials[failed].note})"
    return BatchSearch(failed - multiple_of, reason, tuple(trials.values()))


def _try(batch: int, try_step: Callable[[int], int | None], budget: float, before: list[Trial]) -> Trial:
    expected = _extrapolated(batch, before)
    if expected is not None and expected > budget:
        return Trial(batch, round(expected), False, f"not run: {expected / GIB:.2f} GiB by the steps before")
    try:
        peak = try_step(batch)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        note = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    else:
        fits = peak is None or peak <= budget
        return Trial(batch, peak, fits, "" if fits else f"above {budget / GIB:.2f} GiB")
    from accelerate.utils.memory import clear_device_cache

    # Outside `except`: the traceback would keep the failed step's tensors alive.
    clear_device_cache(garbage_collection=True)
    return Trial(batch, None, False, note)


def _extrapolated(batch: int, before: list[Trial]) -> float | None:
    """Bytes by the line through the last two batches that ran; None before there are two."""
    ran = [trial for trial in before if trial.bytes and trial.fits][-2:]
    if len(ran) < 2:
        return None
    a, b = ran
    slope = max(0.0, (b.bytes - a.bytes) / (b.batch_size - a.batch_size))
    return b.bytes + slope * (batch - b.batch_size)


def _nothing_fits(trial: Trial, budget: float) -> str:
    short = f" ({trial.note})"
    if trial.bytes:
        short = f": it needs {trial.bytes / GIB:.2f} GiB, {(trial.bytes - budget) / GIB:.2f} more than there are"
    return (
        f"batch_size={trial.batch_size} does not fit{short}; use a shorter max_length, a smaller base_model, or gradient "
        "checkpointing"
    )


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

    def __init__(self):
        if os.environ.setdefault("PT_XLA_DEBUG_LEVEL", "1") == "0":
            os.environ["PT_XLA_DEBUG_LEVEL"] = "1"
        if "PT_XLA_DEBUG_FILE" not in os.environ:
            os.environ["PT_XLA_DEBUG_FILE"] = str(Path(tempfile.mkdtemp(prefix="xla-compiled-")) / "compiled.txt")
        self.path = Path(os.environ["PT_XLA_DEBUG_FILE"])

    def mark(self) -> int:
        """Where the file ends now."""
        return len(self._text())

    def peak(self, since: int = 0) -> int | None:
        """Bytes of the largest graph that was compiled after the mark; None where none was, or nothing was told."""
        text = self._text()[since:].replace("Post Compilation Analysis: ", "")
        sizes = [tuple(map(float, match.groups())) for match in self.LINES.finditer(text)]
        return max((round((i + o - a + t) * GIB) for i, o, a, t in sizes), default=None)

    def _text(self) -> str:
        return self.path.read_text(encoding="utf-8", errors="replace") if self.path.is_file() else ""
