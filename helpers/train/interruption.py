"""What stops a run: signals, a time budget, a loss that is not finite, memory that runs out."""

import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterator

import torch
from transformers import TrainerCallback

from helpers.machine import ranks
from helpers.show.tracking import say

SIGNALS = {signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGTERM)}
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "resource_exhausted")  # of CUDA, of a CPU, of XLA


class Stopped(RuntimeError):
    """The run was asked to stop, saved a checkpoint of the last finished step and stopped."""


class NonFiniteLoss(RuntimeError):
    """The loss, a gradient or a weight became NaN or infinite; nothing was saved since."""


class Stops(TrainerCallback):
    """Turns a request to stop into a checkpoint and a stop at the end of the step; `reason` says what the request was.

    Requests are SIGTERM (preemption), SIGINT (the Stop button, Ctrl-C), SIGHUP, and the end of the time budget. A handler only sets a
    flag, since saving in it can deadlock. A second SIGINT interrupts at once. Only periodic saves are a guarantee.

    max_hours: the time budget of a `train()`; 0 is none.
    """

    def __init__(self, max_hours: float = 0.0):
        self.max_hours = max_hours or math.inf
        self.reason = ""

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Listens inside the block; the time budget begins with it."""
        self.reason = ""
        self.deadline = time.monotonic() + 3600 * self.max_hours
        handlers = {}
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                    handlers[number] = signal.signal(number, self._request)
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler or signal.SIG_DFL)

    def _request(self, number, frame) -> None:
        if self.reason and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.reason = signal.Signals(number).name
        with contextlib.suppress(RuntimeError):  # it came while another line was printed
            say(f"{self.reason}: the run saves after this step and stops")

    def agreed(self) -> str:
        """The reason for which all processes stop now, or ""; a request that comes meanwhile is for the next step."""
        agreed = next(filter(None, ranks.gather(self.reason)), "")
        self.reason = agreed or self.reason
        return agreed

    def on_step_end(self, args, state, control, **kwargs):
        if time.monotonic() > self.deadline and state.global_step < state.max_steps:
            self.reason = self.reason or f"max_hours={self.max_hours:g}"
        if self.agreed():
            control.should_save = control.should_training_stop = True


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out (CUDA, CPU allocator, XLA)."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        words in str(error).lower() for words in OUT_OF_MEMORY
    )
