"""A window: a short real training run whose speed is measured after a warm-up."""

from __future__ import annotations

import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import TrainerCallback
from transformers.trainer_pt_utils import get_length_grouped_indices

from helpers.machine import ranks
from helpers.show.progress import Progress

from .training import BATCH, GROUPED, SAMPLING, ClassifierTrainer, Settings, Task

WORKER_SECONDS = 60  # that a loader's worker may be silent: one that hangs would hold the window for ever


@dataclass(frozen=True)
class Window:
    """What was measured after the warm-up."""

    examples_per_second: float  # by `training.clock`
    step_seconds: float  # wall time, of which the budget is made
    loss: float


class Watch(TrainerCallback):
    """Reads the clocks (`training_seconds`, wall time) after the warm-up and after the last step."""

    def __init__(self, trainer: ClassifierTrainer, warm_up: int):
        self.trainer, self.warm_up = trainer, warm_up

    def read(self) -> tuple[float, float]:
        self.trainer.runtime.wait()
        return self.trainer.training_seconds(), time.perf_counter()

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.warm_up:
            self.began = self.read()

    def on_step_end(self, args, state, control, **kwargs):
        # The first logs come before the clock starts: on XLA what follows them is compiled once.
        control.should_log = state.global_step in (1, self.warm_up, state.max_steps)
        control.should_evaluate = control.should_save = False
        if state.global_step == state.max_steps:
            self.ended = self.read()


class WindowTrainer(ClassifierTrainer):
    """Leaves nothing behind, and waits for no worker that hangs."""

    def get_train_dataloader(self):
        loader = super().get_train_dataloader()
        stock = getattr(loader, "base_dataloader", loader)
        if getattr(stock, "num_workers", 0):  # on XLA there are none
            stock.timeout = WORKER_SECONDS
        return loader

    def _save_checkpoint(self, model, trial) -> None:
        """A window is not resumed."""

    def _shrink_micro_batch(self, error: Exception) -> None:
        """Out of memory is an answer here, not something to go on from."""
        raise error


def grouped_order(lengths: list[int], batch: int, rows: int, seed: int) -> list[int]:
    """Places of a window's texts as transformers groups them by length where they are a few of `rows` texts.

    Left to itself transformers would sort a window of 12 batches by threes, and a run of 200 batches and more by fifties. A window
    of fewer batches than a run sorts together is sorted as a whole, which saves less padding than the run will.
    """
    sorted_together = max(1, min(rows // (4 * batch), 50))  # batches, as in transformers
    generator = torch.Generator().manual_seed(seed)
    return get_length_grouped_indices(lengths, batch, mega_batch_mult=sorted_together, generator=generator)


def warm_up_rows(rows: list[dict], settings: Settings, batch: int, steps: int) -> list[dict]:
    """Batches of the longest text, so that memory is tried; one of each length that a compiled step will see, the longest first."""
    longest = max(rows, key=lambda row: len(row["input_ids"]))
    multiple = settings.get("pad_to_multiple_of")
    lengths = [len(longest["input_ids"])]
    if multiple and settings.get("torch_compile"):
        below = lengths[0] // multiple * multiple
        lengths += range(below, 0, -multiple)
    warm = []
    for place in range(max(steps, len(lengths))):
        length = lengths[place % len(lengths)]
        row = dict(longest)
        for name, value in longest.items():
            if isinstance(value, list):
                row[name] = value[:length]
        warm += [row] * batch
    return warm


def measure_window(task: Task, settings: Settings, examples: int) -> Window:
    """Speed of `settings` on the same texts as every other window.

    Raises RuntimeError for a worker that hangs, and what a device without enough memory raises.
    """
    runtime = task.runtime
    batch = settings[BATCH] * runtime.device_count
    rows = task.rows("train", settings)
    steps = max(1, examples // batch)
    warm_up = 2
    if runtime.kind == "xla":
        warm_up = 4
    warm = warm_up_rows(rows, settings, batch, warm_up)
    drawn = random.Random(task.params.seed).choices(rows, k=steps * batch)
    if settings[SAMPLING] == GROUPED:
        lengths = [len(row["input_ids"]) for row in drawn]
        order = grouped_order(lengths, batch, len(rows), task.params.seed)
        drawn = [drawn[place] for place in order]
    with tempfile.TemporaryDirectory() as folder:
        trainer = WindowTrainer(
            task,
            settings | {SAMPLING: "sequential"},
            Path(folder),
            seed=task.params.seed,
            steps=len(warm) // batch + steps,
            train=warm + drawn,
            eval_strategy="no",
            save_strategy="no",
            report_to="none",
            logging_steps=10**9,
            logging_first_step=False,
        )
        watch = Watch(trainer, len(warm) // batch)
        trainer.remove_callback(Progress)
        trainer.add_callback(watch)
        trainer.train(resume_from_checkpoint=False)
    seconds = watch.ended[0] - watch.began[0]
    wall = watch.ended[1] - watch.began[1]
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    window = Window(
        examples_per_second=steps * batch / max(seconds, 1e-9),
        step_seconds=wall / steps,
        loss=losses[-1],
    )
    return ranks.broadcast(window)  # several processes judge alike
