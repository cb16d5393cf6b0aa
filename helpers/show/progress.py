"""Progress of a training run: a line for each log, and metrics in W&B."""

import os
import time
import uuid
from datetime import datetime, timedelta
from pathlib import Path

import requests.utils
from transformers import TrainerCallback
from transformers.integrations import WandbCallback

from helpers.notebook import secrets

from . import tables
from .tracking import say

SHOWN = {"loss": ".4f", "eval_loss": ".4f", "learning_rate": ".2e", "skipped_steps": "d"}  # of a log, and its digits


class Progress(TrainerCallback):
    """Prints one plain line for each log, with the time that is left, evaluations and saving included."""

    def on_train_begin(self, args, state, control, **kwargs):
        self.first_step = state.global_step + 2  # what is before it may compile

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.first_step:
            self.began = time.monotonic()

    def on_log(self, args, state, control, logs=None, **kwargs):
        parts = [f"{name} {logs[name]:{digits}}" for name, digits in SHOWN.items() if name in logs]
        if "loss" in logs and self.first_step < state.global_step < state.max_steps:
            elapsed = time.monotonic() - self.began
            step_seconds = elapsed / (state.global_step - self.first_step)
            left = step_seconds * (state.max_steps - state.global_step)
            end = datetime.now() + timedelta(seconds=left)
            parts.append(f"left {tables.seconds(left)}, until {end:%H:%M}")
        if parts:
            step = f"step {state.global_step}/{state.max_steps}"
            say("  ".join([step, *parts]))


class Wandb(WandbCallback):
    """The stock callback with one W&B run for each trainer, which its later sessions continue.

    Raises RuntimeError before the first step if W&B cannot be reached.
    """

    def on_train_begin(self, args, state, control, **kwargs):
        import wandb

        self._wandb, self._initialized = wandb, False
        if not state.is_world_process_zero:
            self._wandb = None  # which makes this a callback that does nothing
            return
        file = Path(args.output_dir, "wandb_run")
        if not file.exists():
            file.write_text(uuid.uuid4().hex)
        os.environ |= {"WANDB_RUN_ID": file.read_text(), "WANDB_RESUME": "allow", "WANDB_DIR": args.output_dir}
        os.environ |= {"WANDB_SILENT": "true", "WANDB_CONSOLE": "off"}
        os.environ.setdefault("WANDB_INIT_TIMEOUT", "20")  # seconds
        server = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
        if not (secrets.provide("WANDB_API_KEY") or requests.utils.get_netrc_auth(server)):
            os.environ.setdefault("WANDB_MODE", "offline")  # W&B would ask for a key, and nobody may be there
        wandb.teardown()  # a run that was left open, and the environment as wandb read it before
        try:
            super().on_train_begin(args, state, control, **kwargs)
        except Exception as error:
            raise RuntimeError(f"report_to='wandb': {error}. Set WANDB_MODE=offline, or report_to='none'") from error
        offline = f"offline in {args.output_dir}, for want of a WANDB_API_KEY; `wandb sync` sends it"
        say(f"W&B: {wandb.run.url or offline}")

    def on_train_end(self, args, state, control, **kwargs):
        super().on_train_end(args, state, control, **kwargs)
        if self._wandb:
            self._wandb.finish()
            self._wandb = None  # an evaluation after the training would open the run again
