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
from accelerate.utils.memory import clear_device_cache
from torch.nn.modules.module import register_module_forward_pre_hook
from transformers import TrainerCallback
from transformers.trainer_pt_utils import get_length_grouped_indices

from helpers.machine import ranks
from helpers.plan.settings import FITS
from helpers.show import tables
from helpers.show.progress import Progress

from .task import Encoded, Settings, Task, encode
from .training import ClassifierTrainer

WARM_UP = 4  # steps before the clock starts: allocations, compilation, and on XLA what follows the first log
FLUSH = 2  # the step after which the first loss is read
HOPELESS = 5  # times the start's seconds an example, over the warm-up: bf16 that a CPU emulates takes 40 times as long
GRACE = 30  # seconds of warm-up that are never too many: libraries load kernels, workers start
SORTED = 50  # batches whose texts are sorted by length together: transformers' number for a run of a few hundred


class TooSlow(RuntimeError):
    """A setting is so slow that timing it is not worth the wait."""


@dataclass(frozen=True)
class Window:
    """What one timing gave; the clock ran over `steps` only."""

    steps: int
    examples: int
    seconds: float  # by `calibrate.clock`
    warm_up_seconds: float  # wall time
    compile_seconds: float  # XLA's
    loss: float  # mean over the window
    peak_memory: int | None  # bytes; None where the peak is an earlier window's

    @property
    def examples_per_second(self) -> float:
        return self.examples / self.seconds


class WindowTrainer(ClassifierTrainer, TrainerCallback):
    """Times its steps after the warm-up; leaves nothing behind and says nothing.

    Its own callback reads the meter, which leaves compilation out, at the end of the warm-up and after the last step. Where
    `start_seconds`, those of an example at the start, are given, it stops a warm-up that is hopelessly slow: also in the
    middle of a step, which can take an hour where a CPU emulates a number format.
    """

    def __init__(self, *args, start_seconds: float, **kwargs):
        super().__init__(*args, **kwargs)
        self.remove_callback(Progress)
        self.add_callback(self)
        self.start_seconds, self.begun = start_seconds, 0  # `begun` counts steps
        self.peak_before: int | None = 0  # bytes
        self.first = self.began = self.ended = 0.0  # begin of the warm-up, begin and end of the window
        self.warm_up = 0.0  # wall time
        self.watch = contextlib.ExitStack()

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 0:
            self.first, self.warm_up = self._now(), -self.meter.training_seconds()
            if self.start_seconds:
                self.watch.callback(register_module_forward_pre_hook(self._stop_if_hopeless).remove)
        if state.global_step == WARM_UP:
            self._now()
            self.warm_up += self.meter.training_seconds()
            self._stop_if_hopeless()
            self.watch.close()
            clear_device_cache(garbage_collection=True)
            if self.runtime.kind == "cuda":
                torch.cuda.reset_peak_memory_stats()
            else:  # a peak that cannot be reset is told where this window raises it
                self.peak_before = self.runtime.engine.peak_memory()
            self.began = self._now()
        self.begun += 1

    def on_step_end(self, args, state, control, **kwargs):
        control.should_log = state.global_step in (FLUSH, WARM_UP, state.max_steps)
        control.should_evaluate = control.should_save = False
        if state.global_step == state.max_steps:
            self.ended = self._now()

    def window(self) -> Window:
        """What a run that has ended gave."""
        steps, peak = self.state.global_step - WARM_UP, self.runtime.engine.peak_memory()
        return Window(
            steps=steps,
            examples=steps * self.settings.batch_size,
            seconds=max(self.ended - self.began, 1e-9),
            warm_up_seconds=self.warm_up,
            compile_seconds=self.meter.compile_seconds,
            loss=[entry["loss"] for entry in self.state.log_history if "loss" in entry][-1],
            peak_memory=peak if peak and peak > self.peak_before else None,
        )

    def _now(self) -> float:
        self.runtime.wait()
        return self.training_seconds()

    def _stop_if_hopeless(self, *_) -> None:
        expected = self.start_seconds * self.begun * self.settings.batch_size
        taken = self.training_seconds() - self.first
        if expected and taken > max(GRACE, HOPELESS * expected):
            raise TooSlow(f"gave up: more than {taken / expected:.0f} times as slow as the start")

    def _save_checkpoint(self, model, trial) -> None:
        """A window is not resumed."""

    def _shrink_micro_batch(self, error: Exception) -> None:
        """Out of memory is an answer here, not something to go on from."""
        raise error


class Bench:
    """One task's model and examples, on which every setting is timed from the same weights."""

    def __init__(self, task: Task):
        quiet = {"patience": 0, "report_to": "none", "logging_steps": 10**9}
        self.task = dataclasses.replace(task, params=task.params.model_copy(update=quiet))
        self.runtime, self._rows = task.runtime, list(task.texts.train)
        random.Random(task.params.seed).shuffle(self._rows)

    def run(self, settings: Settings, *, steps: int, rows: Encoded | None = None, start_seconds: float = 0.0) -> Window:
        """One window of so many steps after the warm-up, on `rows` or else the task's.

        Raises TooSlow where `start_seconds`, those of an example at the start, are given, and what the trainer raises.
        """
        # Compilers may take their time, and one of several processes cannot give up alone.
        patient = settings.compiled or ranks.count() > 1
        with tempfile.TemporaryDirectory() as folder:
            trainer = WindowTrainer(
                self.task,
                settings,
                Path(folder),
                seed=self.task.params.seed,
                steps=WARM_UP + steps,
                train=rows or self._examples(settings, steps),
                start_seconds=0.0 if patient else start_seconds,
                eval_strategy="no",
                save_strategy="no",
                logging_first_step=False,
                train_sampling_strategy="sequential",
            )
            with trainer.watch:
                trainer.train(resume_from_checkpoint=False)
        return ranks.broadcast(trainer.window())  # by which all judge alike

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
            lengths = [len(row["input_ids"]) for row in window]
            order = get_length_grouped_indices(lengths, settings.batch_size, SORTED, generator)
            window = [window[i] for i in order]
        return warm + window

    def probe(self, settings: Settings) -> None:
        """Runs steps of the longest text, as often as a batch has examples: a window may happen to have short ones only.

        Raises what the device raises. A CPU raises nothing in time (the system ends the process): there memory is counted,
        and MemoryError raised where it does not surely fit.
        """
        if self.runtime.kind == "cpu":
            memory = self.task.plan(settings).memory
            if memory.fits not in FITS:
                raise MemoryError(f"up to {tables.size(memory.peak.high)} of {tables.size(memory.capacity)}")
            return
        full = max(self.task.encoded("train", settings.length), key=lambda row: len(row["input_ids"]))
        self.run(settings, steps=1, rows=[full] * settings.batch_size * (WARM_UP + 1))
