"""A window: a short real training run whose speed is measured after a warm-up."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import torch
from transformers.trainer_pt_utils import get_length_grouped_indices

from helpers.machine import ranks
from helpers.show.progress import Progress

from .training import BATCH, GROUPED, SAMPLING, ClassifierTrainer, Settings, Task


class WindowTrainer(ClassifierTrainer):
    """Reads its clock after the warm-up and after the last step, and leaves nothing behind."""

    warm_up = 0  # steps
    began = ended = 0.0  # seconds of training

    def on_step_end(self, args, state, control, **kwargs):
        super().on_step_end(args, state, control, **kwargs)
        if state.global_step in (self.warm_up, state.max_steps):
            self.runtime.wait()
            self.began, self.ended = self.ended, self.training_seconds()

    def _save_checkpoint(self, model, trial) -> None:
        """A window is not resumed."""

    def _shrink_micro_batch(self, error: Exception) -> None:
        """Out of memory is an answer here, not something to go on from."""
        raise error


def measure_window(task: Task, settings: Settings, examples: int) -> float:
    """Examples a second, on the same texts as every other window, after some steps with the longest text, which try the memory.

    Raises what a device without enough memory raises, and NonFiniteLoss.
    """
    batch = settings[BATCH] * task.runtime.device_count
    rows = task.rows("train", settings.get("pad_to"))
    steps = max(1, examples // batch)
    drawn = random.Random(task.params.seed).choices(rows, k=steps * batch)
    lengths = [len(row["input_ids"]) for row in drawn]
    if settings[SAMPLING] == GROUPED:
        # A run sorts up to 50 batches together. A window is sorted as a whole, which saves less padding than the run will.
        generator = torch.Generator().manual_seed(task.params.seed)
        order = get_length_grouped_indices(lengths, batch, mega_batch_mult=steps, generator=generator)
        drawn = [drawn[place] for place in order]
    longest = max(rows, key=lambda row: len(row["input_ids"]))
    warm_up = 2
    if task.runtime.kind == "xla":
        warm_up = 4  # what comes after a log is compiled, too
    with tempfile.TemporaryDirectory() as folder:
        trainer = WindowTrainer(
            task,
            settings | {SAMPLING: "sequential"},
            Path(folder),
            seed=task.params.seed,
            steps=warm_up + steps,
            train=[longest] * batch * warm_up + drawn,
            eval_strategy="no",
            save_strategy="no",
            report_to="none",
        )
        trainer.warm_up = warm_up
        trainer.remove_callback(Progress)
        trainer.train(resume_from_checkpoint=False)
    return ranks.broadcast(steps * batch / max(trainer.ended - trainer.began, 1e-9))  # several processes judge alike
