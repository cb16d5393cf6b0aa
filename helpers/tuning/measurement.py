"""Timing of settings: short runs of the real trainer on the same examples, in turn with what they are compared to."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.data import SequentialSampler
from transformers import TrainerCallback

from helpers import meter, ranks
from helpers.progress import Progress

from . import monitoring
from .compiled_memory import GIB, CompiledMemory
from .evaluation import scores
from .settings import Settings
from .task import Task
from .training import ClassifierTrainer, Encoded, encode, grouped_order, new_trainer

WARM_UP = 4  # steps before the clock starts: allocations, compilation, and on XLA what follows the first log
FLUSH = 2  # the step after which the first loss is read
HOPELESS = 5  # times the start's seconds an example, over the warm-up: bf16 that a CPU emulates takes 40 times as long
SHARE = 0.9  # of the memory that a step may fill
GRACE = 30  # seconds of warm-up that are never too many: libraries load kernels, workers start
F1_ROWS = 128  # of validation, after a window


class TooSlow(RuntimeError):
    """A setting is so slow that timing it is not worth the wait."""


@dataclass(frozen=True)
class Window:
    """What one timing gave; the clock ran over `steps` only."""

    steps: int
    examples: int
    seconds: float  # by `training.clock`
    warm_up_seconds: float  # wall time
    compile_seconds: float  # XLA's
    loss: float  # mean over the window
    peak_memory: int | None  # bytes
    utilisation: float | None

    @property
    def examples_per_second(self) -> float:
        return self.examples / self.seconds


class WindowTrainer(ClassifierTrainer):
    """Leaves nothing behind, takes examples in the order given, and says nothing."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.remove_callback(Progress)
        self.clock = Clock(self)
        self.add_callback(self.clock)

    def _get_train_sampler(self, train_dataset=None):
        return SequentialSampler(self.train_dataset)

    def _save_checkpoint(self, model, trial) -> None:
        """A window is not resumed."""

    def _shrink_micro_batch(self, error: Exception) -> None:
        """Out of memory is an answer here, not something to go on from."""
        raise error


class Clock(TrainerCallback):
    """Reads the trainer's meter, which leaves compilation out, at the end of the warm-up and after the last step.

    Where `start_seconds`, those of an example at the start, are given, it stops a warm-up that is hopelessly slow: also in
    the middle of a step, which can take an hour where a CPU emulates a number format.
    """

    def __init__(self, trainer: WindowTrainer):
        self.trainer, self.runtime = trainer, trainer.runtime
        self.monitor = monitoring.Monitor(self.runtime, interval=0.2)
        self.start_seconds, self.begun, self.can_reset = 0.0, 0, False  # `begun` counts steps
        self.first = self.began = self.ended = 0.0  # begin of the warm-up, begin and end of the window
        self.warm_up = 0.0
        self._open = contextlib.ExitStack()
        self.close = self._open.close

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 0:
            self.first = self._now()
            self.warm_up = -self.trainer.meter.training_seconds()
            if self.start_seconds:
                self._open.callback(register_module_forward_pre_hook(self._stop_if_hopeless).remove)
        if state.global_step == WARM_UP:
            self.runtime.wait()
            self.warm_up += self.trainer.meter.training_seconds()
            self._stop_if_hopeless()
            self.close()
            self.can_reset = monitoring.reset_peak(self.runtime)
            self._open.enter_context(self.monitor)
            self.began = self._now()
        self.begun += 1

    def on_step_end(self, args, state, control, **kwargs):
        control.should_log = state.global_step in (FLUSH, WARM_UP, state.max_steps)
        control.should_evaluate = control.should_save = False
        if state.global_step == state.max_steps:
            self.ended = self._now()
            self.close()

    def _now(self) -> float:
        self.runtime.wait()
        return self.trainer.training_seconds()

    def _stop_if_hopeless(self, *_) -> None:
        expected = self.start_seconds * self.begun * self.trainer.settings.batch_size
        taken = self.trainer.training_seconds() - self.first
        if expected and taken > max(GRACE, HOPELESS * expected):
            raise TooSlow(f"gave up: more than {taken / expected:.0f} times as slow as the start")


class Bench:
    """One task's model and examples, on which every setting is timed from the same weights."""

    def __init__(self, task: Task):
        quiet = {"patience": 0, "report_to": "none", "logging_steps": 10**9}
        texts = dataclasses.replace(task.texts, validation=task.texts.validation[:F1_ROWS])
        self.task = dataclasses.replace(task, texts=texts, params=task.params.model_copy(update=quiet))
        self.runtime, self._rows = task.runtime, list(task.texts.train)
        random.Random(task.params.seed).shuffle(self._rows)
        self.compiled_memory = CompiledMemory() if self.runtime.kind == "xla" else None
        self.f1: dict[Settings, float] = {}
        self.peaks: dict[Settings, int] = {}
        self._probed: dict[Settings, tuple[int, int]] = {}  # settings without a batch -> the last batch, and its bytes

    def run(
        self,
        settings: Settings,
        *,
        steps: int,
        measure_f1: bool = False,
        rows: Encoded | None = None,
        start_seconds: float = 0.0,
    ) -> Window:
        """One window of so many steps after the warm-up, on `rows` or else the task's; with `measure_f1` more is in `f1` then.

        Raises TooSlow where `start_seconds`, those of an example at the start, are given, and what the trainer raises.
        """
        mark = self.compiled_memory.mark() if self.compiled_memory else 0
        with tempfile.TemporaryDirectory() as folder:
            trainer = new_trainer(
                self.task,
                settings,
                Path(folder),
                seed=self.task.params.seed,
                steps=WARM_UP + steps,
                train=rows or self._examples(settings, steps),
                cls=WindowTrainer,
                eval_strategy="no",
                save_strategy="no",
                logging_first_step=False,
            )
            # Compilers may take their time, and one of several processes cannot give up alone.
            trainer.clock.start_seconds = 0.0 if settings.compiled or ranks.count() > 1 else start_seconds
            with contextlib.closing(trainer.clock):
                trainer.train(resume_from_checkpoint=False)
            if measure_f1:
                logits = trainer.logits(self.task.encoded("validation", settings.length))
                self.f1[settings] = scores(logits, self.task.labels("validation"))["f1"]
        return ranks.broadcast(self._window(trainer, settings, steps, mark))  # by which all judge alike

    def _window(self, trainer: WindowTrainer, settings: Settings, steps: int, mark: int) -> Window:
        clock = trainer.clock
        peak = meter.peak_memory(self.runtime) if clock.can_reset or self.compiled_memory else None
        if self.compiled_memory:
            self.peaks[settings] = max(self.compiled_memory.peak(mark) or 0, self.peaks.get(settings, 0))
            peak = peak or self.peaks[settings] or None
        return Window(
            steps=steps,
            examples=steps * settings.batch_size,
            seconds=max(clock.ended - clock.began, 1e-9),
            warm_up_seconds=clock.warm_up,
            compile_seconds=trainer.meter.compile_seconds,
            loss=[entry["loss"] for entry in trainer.state.log_history if "loss" in entry][-1],
            peak_memory=peak,
            utilisation=clock.monitor.results()["utilisation"],
        )

    def steps(self, settings: Settings) -> int:
        """Steps of a window: as many examples whatever the batch."""
        return max(1, self.task.params.window_examples // settings.batch_size)

    def _examples(self, settings: Settings, steps: int) -> Encoded:
        """Warm-up examples, then the window's, the same for every setting but for their order."""
        count = steps * settings.batch_size
        rows = itertools.islice(itertools.cycle(self._rows), count + WARM_UP * settings.batch_size)
        rows = encode(list(rows), self.task.tokenizer, settings.length)
        window, warm = rows[:count], rows[count:]
        if settings.padding == "grouped":
            generator = torch.Generator().manual_seed(self.task.params.seed)
            order = grouped_order([len(row["input_ids"]) for row in window], settings.batch_size, generator)
            window = [window[i] for i in order]
        return warm + window

    def probe(self, settings: Settings) -> None:
        """Runs steps of the longest text, as often as a batch has examples: a window may happen to have short ones only.

        Raises MemoryError where they take more than nine tenths of the memory, and what the device raises. A CPU raises
        nothing in time (the system ends the process): there nothing runs that could take more by the batch before.
        """
        import psutil

        batch, first, kind = settings.batch_size, self.task.start.batch_size, self.runtime.kind
        memory = self.runtime.memory or psutil.virtual_memory().total // self.runtime.device_count
        probed = dataclasses.replace(settings, batch_size=0)
        if kind == "cpu" and batch > first:
            if probed not in self._probed:
                self.probe(dataclasses.replace(settings, batch_size=first))
            before, peak = self._probed.get(probed, (batch, 0))
            self._fits(peak * batch / before, memory, f"by {before} examples a step it could take")
        full = max(self.task.encoded("train", settings.length), key=lambda row: len(row["input_ids"]))
        window = self.run(settings, steps=1, rows=[full] * batch * (WARM_UP + 1))
        peak = ranks.broadcast(torch.cuda.max_memory_reserved() if kind == "cuda" else window.peak_memory)
        if peak:
            self._probed[probed] = batch, peak
            self._fits(peak, memory, "it takes")

    @staticmethod
    def _fits(needed: float, memory: float, said: str) -> None:
        if needed > SHARE * memory:
            raise MemoryError(f"{said} {needed / GIB:.2f} of {memory / GIB:.2f} GiB")
