"""What stops a run: signals, a time budget, a loss that is not finite, memory that runs out."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator

import torch
from torch.nn.utils import get_total_norm
from transformers import TrainerCallback

from helpers.machine import ranks
from helpers.show import tracking

SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)]
WATCH_SECONDS = 0.25  # ipykernel checks its parent once a second
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "resource_exhausted")  # of CUDA, of a CPU, of XLA


class Stopped(RuntimeError):
    """The run was asked to stop, saved a checkpoint of the last finished step and stopped."""


class EvaluationStopped(Exception):
    """Leaves an evaluation: the step before it is saved, and the evaluation is repeated when the run continues."""


class EvaluationOutOfMemory(RuntimeError):
    """Memory ran out in an evaluation; the steps before it are saved."""


class NonFiniteLoss(RuntimeError):
    """The loss, a gradient, a weight or an optimizer state became NaN or infinite; nothing was saved since."""


class Stops(TrainerCallback):
    """Turns a request to stop into a checkpoint and a stop at the end of the step; `reason` says what the request was.

    Requests are SIGTERM (preemption), SIGINT (the Stop button, Ctrl-C), SIGHUP, the end of the time budget, and, in a
    Jupyter kernel or under a launcher, the end of the parent process. A handler only sets a flag, since saving in it can
    deadlock. A second SIGINT interrupts at once. Only periodic saves are a guarantee.

    Args:
        max_hours: the time budget; 0 is none.
    """

    def __init__(self, max_hours: float = 0.0):
        self.max_hours = max_hours
        self.reason = ""
        self.out_of_time = False
        self._deadline = math.inf

    @contextlib.contextmanager
    def listening(self, since: float | None = None) -> Iterator[Stops]:
        """Listens inside the block; the budget counts from `since`, a `time.monotonic()` (default: now)."""
        self.reason, self.out_of_time = "", False
        if since is None:
            since = time.monotonic()
        if self.max_hours:
            self._deadline = since + self.max_hours * 3600
        handlers, ended = {}, threading.Event()
        threading.Thread(target=self._watch, args=(ended, os.getppid()), daemon=True).start()
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                    handlers[number] = signal.signal(number, self._request)
        _spare_orphans(True)
        try:
            yield self
        finally:
            ended.set()
            self.reason = ""  # later cells may evaluate what a stopped run has
            for number, handler in handlers.items():
                signal.signal(number, handler or signal.SIG_DFL)
            _spare_orphans(False)

    def _request(self, number, frame) -> None:
        if self.reason and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.reason = self.reason or signal.Signals(number).name

    def _look_at_the_clock(self) -> None:
        if time.monotonic() >= self._deadline and not self.reason:
            self.reason, self.out_of_time = f"max_hours={self.max_hours:g}", True

    def _watch(self, ended: threading.Event, parent: int) -> None:
        watched = tracking.in_kernel() or ranks.count() > 1
        is_announced = False
        while not ended.wait(WATCH_SECONDS):
            if watched and os.getppid() != parent:
                self.reason = self.reason or "the parent process is gone"
            self._look_at_the_clock()
            if self.reason and not is_announced:
                is_announced = True
                tracking.say(f"{self.reason}: the run saves after this step and stops")

    def on_step_end(self, args, state, control, **kwargs):
        self._look_at_the_clock()
        agreed = next(filter(None, ranks.gather(self.reason)), "")  # all processes stop after the same step
        if agreed:  # one that came while this process waited for the others is for the next step
            self.reason = agreed
            control.should_save = True
            control.should_training_stop = True

    def on_prediction_step(self, args, state, control, **kwargs):
        if self.reason and ranks.count() == 1:  # several processes leave an evaluation together, at its end
            raise EvaluationStopped


class _AnyParent(int):
    """A process id that equals all others, so that ipykernel's poller does not end a kernel that is still saving."""

    def __ne__(self, other) -> bool:
        return False

    __hash__ = int.__hash__


def _spare_orphans(spared: bool) -> None:
    """Tells ipykernel whether to spare a kernel without a parent, which it would otherwise end within a second."""
    if tracking.in_kernel():
        from ipykernel.kernelapp import IPKernelApp

        poller = IPKernelApp.instance().poller
        if getattr(poller, "parent_pid", 0):
            kind = _AnyParent if spared else int
            poller.parent_pid = kind(poller.parent_pid)


def all_finite(tensors: Iterable) -> bool:
    """Whether no floating-point tensor holds NaN or infinity: one pass over each, one wait for the device."""
    values = []
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.numel():
            value = tensor.detach()
            if value.device.type == "xla":  # where the norm would compile
                value = value.cpu()
            values.append(value)
    return bool(get_total_norm(values, math.inf).isfinite())


class FiniteGuard:
    """Remembers on the device the first step with a loss that is not finite; only reading it waits for the device.

    Args:
        device: of the losses.
        step: how many steps are finished.
    """

    def __init__(self, device, step: int = 0):
        self.step = torch.full((), step + 1, dtype=torch.int32, device=device)
        self.first_bad = torch.zeros_like(self.step)

    def update(self, loss, *, ends_step: bool) -> None:
        """Notes the loss of one micro-batch; `ends_step`: the optimizer steps after it."""
        bad = ~torch.isfinite(loss.detach()).all() & (self.first_bad == 0)
        self.first_bad = torch.where(bad, self.step, self.first_bad)
        if ends_step:
            self.step = self.step + 1

    def first_bad_step(self) -> int:
        """The first bad step, or 0. Waits for the device."""
        return int(self.first_bad.item())


class LossScale:
    """Counts the steps that fp16 skips because a gradient overflowed, so that no run which learns nothing reports success.

    The scaler halves its scale when it skips a step; a run whose scale falls below 1 stops. Fused AdamW skips on the device, which
    accelerate does not see. Therefore accelerate is told, and the learning rate does not advance with a skipped step. Reading the scale
    waits for the device once a step. Without a scaler nothing is skipped.
    """

    def __init__(self, scaler=None, skipped: int = 0):
        self.scaler, self.skipped = scaler, skipped
        self.scale = scaler.get_scale() if scaler else 1.0

    def after_update(self, optimizer) -> str:
        """Notes whether this step was skipped; returns why the run must stop, or ""."""
        if not self.scaler:
            return ""
        before, self.scale = self.scale, self.scaler.get_scale()
        optimizer._is_overflow = self.scale < before
        self.skipped += optimizer._is_overflow
        if self.scale < 1:
            return f"fp16 skipped {self.skipped} steps, and its loss scale is {self.scale:g}"
        return ""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out (CUDA, CPU allocator, XLA)."""
    message = str(error).lower()
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(words in message for words in OUT_OF_MEMORY)


def is_not_repeatable(error: BaseException) -> bool:
    """Whether torch has no kernel for an operation that gives the same bits again, and was asked for one."""
    return "does not have a deterministic implementation" in str(error)


def smaller_micro_batch(micro_batch: int, accumulation: int, multiple_of: int = 1) -> tuple[int, int] | None:
    """The next (micro-batch, accumulation) with the same product and at most half the micro-batch, or None.

    multiple_of: devices that share a micro-batch.
    """
    effective = micro_batch * accumulation
    for smaller in range(micro_batch // 2, 0, -1):
        if effective % smaller == 0 and smaller % multiple_of == 0:
            return smaller, effective // smaller
    return None
