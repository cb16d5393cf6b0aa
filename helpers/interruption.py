"""What stops a run from outside or inside: preemption, loss that is no number, memory that is not there."""

from __future__ import annotations

import signal
import threading

from transformers import TrainerCallback


class Preempted(RuntimeError):
    """SIGTERM arrived; the run saved a checkpoint at the step boundary and stopped."""


class NonFiniteLoss(RuntimeError):
    """The loss or the gradient became NaN or infinite; nothing was saved since."""


class Preemption(TrainerCallback):
    """Turns SIGTERM into a checkpoint and a stop at the next step boundary.

    The handler only sets a flag: saving inside a signal handler can deadlock. Periodic saves remain the guarantee.
    """

    def __init__(self):
        self.requested = False
        self._previous = []  # a handler for each time this was entered

    def __enter__(self) -> Preemption:
        self.requested = False
        if threading.current_thread() is threading.main_thread():
            self._previous.append(signal.signal(signal.SIGTERM, self._request))
        return self

    def __exit__(self, *exception) -> None:
        if self._previous:
            signal.signal(signal.SIGTERM, self._previous.pop() or signal.SIG_DFL)

    def _request(self, signum, frame) -> None:
        self.requested = True

    def on_step_end(self, args, state, control, **kwargs):
        if self.requested:
            control.should_save = True
            control.should_training_stop = True


class FiniteGuard:
    """Remembers on the device the first step whose loss was not finite; reading it is the only host sync."""

    def __init__(self, device):
        import torch

        self.finished_steps = torch.zeros((), dtype=torch.int32, device=device)
        self.first_bad = torch.full((), -1, dtype=torch.int32, device=device)

    def update(self, loss, *, ends_step: bool) -> None:
        """Takes the loss of one micro-batch; `ends_step` when the optimizer steps after it."""
        import torch

        bad = ~torch.isfinite(loss.detach()).all() & (self.first_bad < 0)
        self.first_bad = torch.where(bad, self.finished_steps, self.first_bad)
        if ends_step:
            self.finished_steps = self.finished_steps + 1

    def first_bad_step(self) -> int | None:
        """Steps finished before the bad one since construction, or None. Waits for the device."""
        index = int(self.first_bad.item())
        return None if index < 0 else index


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that the device's memory did not suffice (CUDA, CPU allocator, XLA)."""
    import torch
    from accelerate.utils.memory import should_reduce_batch_size

    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    if not isinstance(error, Exception):
        return False
    said = str(error)
    return should_reduce_batch_size(error) or "RESOURCE_EXHAUSTED" in said or "out of memory" in said.lower()


def smaller_micro_batch(micro_batch: int, accumulation: int, multiple_of: int = 1) -> tuple[int, int] | None:
    """The next smaller (micro-batch, accumulation) with the same product, at most half; None when there is none.

    Args:
        micro_batch: examples a forward pass.
        accumulation: forward passes an optimizer step.
        multiple_of: devices that share a micro-batch.
    """
    effective = micro_batch * accumulation
    for smaller in range(micro_batch // 2, 0, -1):
        if effective % smaller == 0 and smaller % multiple_of == 0:
            return smaller, effective // smaller
    return None
