"""Memory of a training step on one device: what it holds, part by part, and at its fullest moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .jobs import Job
from .ranges import COUNTED, MEASURED, Range

if TYPE_CHECKING:
    from .calibration import Measured

MEMORY_SPREAD = 0.15  # either way; measured memory is met to that: benchmarks/planner.py
COUNTED_SPREAD = {
    "cpu": (0.85, 1.25),
    "cuda": (0.85, 1.25),
    "xla": (0.6, 1.4),
}  # XLA fuses, and recomputes when it is full


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one device in a training step, by part. `peak` is less than their sum: gradients come as activations go."""

    weights: float
    gradients: float
    optimizer: float
    casts: float  # half-precision copies that autocast makes of weights
    activations: float
    activations_unfused: float  # were every attention matrix kept
    activations_fused: float  # were none
    logits: float
    peak: Range

    @property
    def parts(self) -> dict[str, float]:
        return {
            name: getattr(self, name)
            for name in ("weights", "gradients", "optimizer", "casts", "activations", "logits")
        }


def memory(
    job: Job,
    kind: str,
    precision: str,
    sequences: float,
    length: int,
    *,
    checkpointing: bool = False,
    accumulating: bool = False,
    measured: Measured | None = None,
) -> Memory:
    """What a step over `sequences` on one device holds.

    accumulating: gradients of earlier micro-batches are there beside the activations.
    """
    weights, gradients, optimizer = job.weight_bytes(precision), 4.0 * job.updated, 8.0 * job.updated
    fused, unfused = (job.activation_bytes(sequences, length, precision, kind, each) for each in (True, False))
    activations = fused if job.is_fused(kind) else unfused
    if checkpointing:  # a layer's input each, and the whole of one layer at a time
        inputs = 4 * sequences * length * job.sizes.width * job.sizes.layers
        activations, fused, unfused = (inputs + each / job.sizes.layers for each in (activations, fused, unfused))
    logits, casts = job.logit_bytes(sequences, length, precision), job.cast_bytes(precision)
    # The fullest moment is the beginning of backward, or its end.
    begin = activations + logits + casts + _first_gradients(job, sequences, length) + gradients * accumulating
    peak = weights + optimizer + max(begin, gradients + _update_bytes(job, kind))
    if measured is not None:
        peak *= measured.memory_ratio
        interval = Range(low=peak * (1 - MEMORY_SPREAD), high=peak * (1 + MEMORY_SPREAD), value=peak, basis=MEASURED)
    else:
        low, high = COUNTED_SPREAD[kind]
        interval = Range(low=peak * low, high=peak * high, value=peak, basis=COUNTED)
    return Memory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        casts=casts,
        activations=activations,
        activations_unfused=unfused,
        activations_fused=fused,
        logits=logits,
        peak=interval,
    )


def _first_gradients(job: Job, sequences: float, length: int) -> float:
    """Gradients that exist while all activations do: those of the last layer's tokens, and of a head over a vocabulary."""
    head = 4.0 * job.sizes.vocab * job.sizes.width if job.logits and _head_is_trained(job) else 0.0
    pairs = job.sizes.heads * length if job.fusable != "always" else 0
    return head + 4.0 * sequences * length * (max(job.sizes.inner, job.sizes.width) + pairs)


def _head_is_trained(job: Job) -> bool:
    return any(part.trained for part in job.parts if part.name == "embedding and head")


def _update_bytes(job: Job, kind: str) -> float:
    """What AdamW makes beside its state: on a CPU copies of the largest weight, in one kernel nothing."""
    largest = max((part.updated for part in job.parts if "embedding" in part.name), default=0)
    return 8.0 * largest if kind == "cpu" else 0.0
