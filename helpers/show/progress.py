"""Progress of a training run."""

from __future__ import annotations

import os
import sys
import time

from transformers import TrainerCallback
from transformers.integrations import WandbCallback

from . import tables
from .tracking import in_kernel, say


class Progress(TrainerCallback):
    """A live table in a notebook, plain lines everywhere else."""

    columns = ("step", "loss", "eval_loss", "learning_rate", "steps/s", "left")

    def __init__(self, live: bool | None = None):
        self.live = _in_notebook() if live is None else live
        self.rows: list[dict] = []
        self._handle = None
        self._mark: tuple[int, float] | None = None

    def on_train_begin(self, args, state, control, **kwargs):
        self._mark = (state.global_step, time.perf_counter())

    def on_train_end(self, args, state, control, **kwargs):
        self._mark = None

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not logs or not ("loss" in logs or "eval_loss" in logs) or self._mark is None:
            return
        row = {"step": f"{state.global_step}/{state.max_steps}"}
        row |= {name: f"{logs[name]:.4f}" for name in ("loss", "eval_loss") if name in logs}
        if "learning_rate" in logs:
            step, since = self._mark
            row["learning_rate"] = f"{logs['learning_rate']:.2e}"
            rate = (state.global_step - step) / max(time.perf_counter() - since, 1e-9)
            row["steps/s"] = f"{rate:.2f}"
            row["left"] = tables.seconds((state.max_steps - state.global_step) / max(rate, 1e-9))
            self._mark = (state.global_step, time.perf_counter())
        self.rows.append(row)
        if self.live:
            self._show()
        else:
            say("  ".join(f"{name} {row[name]}" for name in self.columns if name in row))

    def _show(self) -> None:
        from IPython.display import display

        shown = tables.Table(self.rows[-40:])
        if self._handle is None:
            self._handle = display(shown, display_id=True)
        else:
            self._handle.update(shown)


class Wandb(WandbCallback):
    """transformers' W&B callback; the run continues without it if W&B refuses or does not answer."""

    def setup(self, *args, **kwargs):
        os.environ.setdefault("WANDB_INIT_TIMEOUT", "30")  # seconds, instead of 90
        try:
            super().setup(*args, **kwargs)
        except (self._wandb.Error, OSError) as error:
            say(f"report_to='wandb': W&B cannot be reached, going on without it ({error})")
            self._wandb = None


def _in_notebook() -> bool:
    """Whether a person's notebook frontend is attached, and not papermill or nbmake, whose logs need lines.

    Their client, nbclient, can be told from a frontend only by the fact that it does not allow stdin.
    """
    return in_kernel() and getattr(sys.modules["IPython"].get_ipython().kernel, "_allow_stdin", True)
