"""Memory of a training step on one device as an interval, and whether it fits.

Tensors are counted (`counting.py`). What a GPU needs beside them was read off published runs (docs/results/public_runs.json).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .range import Range

if TYPE_CHECKING:
    from .counting import Count

COUNTED = "counted on fake tensors"
# kind: (least, most) of the counted bytes that are taken, and bytes that the driver takes beside them.
BESIDE = {
    "cpu": ((0.95, 1.05), (0, 0)),  # benchmarks/planner.py
    "cuda": ((1.0, 1.3), (300 * 10**6, 1_400 * 10**6)),  # fragments of the caching allocator; CUDA context
    # Operation by operation, while XLA fuses: compiled programs of the notebooks took 0.45 to 1.0 (docs/results/tpu_compiler_steps.json).
    "xla": ((0.4, 1.05), (0, 0)),
}
CPU_SHARE = 0.8  # of a computer's memory that one run may take


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one device in a training step."""

    count: Count
    peak: Range
    capacity: int | None  # bytes of a device that a run may take; None where it is not known

    @property
    def fits(self) -> str:
        """Yes: the whole interval does. No: not even its lower end does. Tight: in between."""
        if self.capacity is None:
            return "unknown"
        return "yes" if self.peak.high <= self.capacity else "tight" if self.peak.low <= self.capacity else "no"

    def results(self) -> dict[str, Any]:
        return {"fits": self.fits, "capacity": self.capacity, "peak": asdict(self.peak), **asdict(self.count)}


def memory(count: Count, kind: str, capacity: int | None, *, processes: int = 1) -> Memory:
    """Memory of the counted step.

    Args:
        count: of one device.
        kind: "cpu", "cuda" or "xla".
        capacity: bytes of a device (of a CPU: of the computer), or None.
        processes: that reduce gradients among each other, in buckets as large as all of them.
    """
    (least, most), (low, high) = BESIDE[kind]
    counted = count.peak + (count.gradients if processes > 1 and kind != "xla" else 0)
    span = Range(low=counted * least + low, high=counted * most + high, value=counted + low, basis=COUNTED)
    return Memory(count=count, peak=span, capacity=capacity and int(capacity * (CPU_SHARE if kind == "cpu" else 1)))
