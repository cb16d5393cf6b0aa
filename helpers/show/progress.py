"""Progress of a training run."""

from __future__ import annotations

import os
import sys
import time
import uuid
from pathlib import Path

from transformers import TrainerCallback
from transformers.integrations import WandbCallback
from transformers.utils.notebook import NotebookProgressCallback

from . import tables
from .tracking import in_kernel, say

SHOWN = {"loss": ".4f", "eval_loss": ".4f", "learning_rate": ".2e", "skipped_steps": "d"}  # of a log, and its digits


class Progress(TrainerCallback):
    """Prints one plain line for each log, with the time that is left."""

    _mark: tuple[int, float] | None = None

    def on_train_begin(self, args, state, control, **kwargs):
        self._mark = (state.global_step, time.perf_counter())

    def on_train_end(self, args, state, control, **kwargs):
        self._mark = None

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not logs or not ("loss" in logs or "eval_loss" in logs) or self._mark is None:
            return
        told = [f"step {state.global_step}/{state.max_steps}"]
        told += [f"{name} {logs[name]:{digits}}" for name, digits in SHOWN.items() if name in logs]
        if "loss" in logs:
            (step, since), self._mark = self._mark, (state.global_step, time.perf_counter())
            rate = max((state.global_step - step) / max(self._mark[1] - since, 1e-9), 1e-9)
            told += [f"steps/s {rate:.2f}", f"left {tables.seconds((state.max_steps - state.global_step) / rate)}"]
        say("  ".join(told))


class LiveProgress(NotebookProgressCallback, Progress):
    """transformers' own bar and table, which move with every step."""


def progress() -> Progress:
    """A bar where a person's notebook frontend is attached, lines elsewhere: the logs of papermill and nbmake need lines.

    Their client, nbclient, can be told from a frontend only by the fact that it does not allow stdin.
    """
    attended = in_kernel() and getattr(sys.modules["IPython"].get_ipython().kernel, "_allow_stdin", True)
    return LiveProgress() if attended else Progress()


class Wandb(WandbCallback):
    """transformers' W&B callback: all sessions of a run are one W&B run, and the run goes on where W&B does not answer."""

    def setup(self, args, state, *rest, **kwargs):
        main = state.is_world_process_zero
        ours = {"WANDB_RUN_ID": _wandb_run(args.output_dir), "WANDB_RESUME": "allow"} if main else {}
        added = [name for name in ours if name not in os.environ]
        os.environ.update({name: ours[name] for name in added})
        try:
            super().setup(args, state, *rest, **kwargs)
        except (self._wandb.Error, OSError) as error:
            say(f"report_to='wandb': W&B cannot be reached, going on without it ({error})")
            self._wandb = None
        finally:
            for name in added:
                del os.environ[name]


def _wandb_run(output_dir: str) -> str:
    """The id of a run's W&B run, kept in its folder."""
    file = Path(output_dir, "wandb_run")
    if not file.is_file():
        file.write_text(uuid.uuid4().hex[:12], encoding="utf-8")
    return file.read_text(encoding="utf-8")
