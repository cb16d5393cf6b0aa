"""Progress of a training run."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from typing import Any, ClassVar

from transformers import TrainerCallback
from transformers.integrations.integration_utils import rewrite_logs
from transformers.utils.notebook import NotebookProgressCallback

from . import tables
from .tracking import is_watched, say, wandb_mode

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
        parts = [f"step {state.global_step}/{state.max_steps}"]
        for name, digits in SHOWN.items():
            if name in logs:
                parts.append(f"{name} {logs[name]:{digits}}")
        if "loss" in logs:
            (step, since), now = self._mark, time.perf_counter()
            self._mark = (state.global_step, now)
            rate = max((state.global_step - step) / max(now - since, 1e-9), 1e-9)
            remaining = tables.seconds((state.max_steps - state.global_step) / rate)
            parts += [f"steps/s {rate:.2f}", f"left {remaining}"]
        say("  ".join(parts))


class LiveProgress(NotebookProgressCallback, Progress):
    """transformers' own bar and table, which move with every step."""

    def on_train_end(self, args, state, control, **kwargs):
        self.training_tracker.predicted_remaining = None  # after one step it has no rate to show beside it: a TypeError
        super().on_train_end(args, state, control, **kwargs)


def progress() -> Progress:
    """A bar where a person's notebook frontend is attached, lines elsewhere."""
    return LiveProgress() if is_watched() else Progress()


class Wandb(TrainerCallback):
    """Metrics to W&B: one W&B run for each trainer, which its later sessions continue, and one group for a run's folder.

    Training goes on without W&B where that cannot be reached.
    """

    _open: ClassVar[dict[str, Any]] = {}  # W&B's runs of this process, by id

    def __init__(self):
        self._run = None
        self._gave_up = False

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self._log(args, state, model, {})

    def on_log(self, args, state, control, model=None, logs=None, **kwargs):
        self._log(args, state, model, rewrite_logs(logs or {}))

    def _log(self, args, state, model, metrics: dict[str, Any]) -> None:
        if self._gave_up or not state.is_world_process_zero:
            return
        import wandb

        try:
            if self._run is None:
                self._run = self._start(args, model)
            if metrics:
                self._run.log({**metrics, "train/global_step": state.global_step})
        except (wandb.Error, OSError) as error:
            self._gave_up = True
            say(f"report_to='wandb': W&B cannot be reached, going on without it ({error})")

    def _start(self, args, model):
        import wandb

        folder = Path(args.output_dir)
        root = _run_folder(folder)
        group = f"{root.name}-{_wandb_id(root)}"
        part = "-".join(folder.relative_to(root).parts)
        identity = "-".join(filter(None, (_wandb_id(root), part)))
        if identity in self._open:
            return self._open[identity]
        mode, reason = wandb_mode()
        run = wandb.init(
            id=identity,
            resume=None if mode == "offline" else "allow",
            group=group,
            name=args.run_name or " ".join(filter(None, (root.name, part))),
            project=os.environ.get("WANDB_PROJECT", "huggingface"),
            dir=str(root),
            mode=mode,
            reinit="create_new",  # a run that the person has opened stays as it is
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._open[identity] = run
        configuration = getattr(model, "config", None)
        if configuration:
            run.config.update(configuration.to_dict(), allow_val_change=True)
        run.config.update(args.to_dict(), allow_val_change=True)
        run.define_metric("train/global_step")
        run.define_metric("*", step_metric="train/global_step", step_sync=True)
        if run.offline:
            say(f"W&B: offline in {Path(run.dir).parent}; `wandb sync` with this folder sends it{reason}")
        else:
            say(f"W&B: {run.url}")
        return run


def _run_folder(folder: Path) -> Path:
    """The folder of the run that a trainer's folder is or lies in."""
    for parent in (folder, *folder.parents):
        if (parent / "run.json").is_file():
            return parent
    return folder


def _wandb_id(folder: Path) -> str:
    """The id of a run in W&B, kept in its folder."""
    file = folder / "wandb_run"
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(uuid.uuid4().hex[:12], encoding="utf-8")
    return file.read_text(encoding="utf-8")
