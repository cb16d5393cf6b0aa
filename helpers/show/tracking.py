"""What a person sees: lines, W&B, and no needless warnings of libraries."""

from __future__ import annotations

import logging
import netrc
import os
import re
import sys
import warnings

from helpers.notebook import secrets


def say(message: str) -> None:
    """One line to the person watching."""
    print(message, flush=True)


def in_kernel() -> bool:
    """Whether this process is a Jupyter kernel."""
    app = sys.modules.get("ipykernel.kernelapp")
    return app is not None and app.IPKernelApp.initialized()


def report_to(wanted: str) -> tuple[str, str]:
    """`TrainingArguments.report_to` and the reason: W&B without a key would block a headless run with a prompt."""
    if wanted == "none":
        return "none", "report_to='none'"
    try:
        import wandb  # noqa: F401
    except ImportError:
        return "none", "report_to='wandb', but wandb is not installed: going on without it"
    if os.environ.get("WANDB_MODE") == "offline":
        return "wandb", "W&B offline (WANDB_MODE): no key needed"
    if not (secrets.provide("WANDB_API_KEY") or _wandb_logged_in()):
        return "none", (
            "report_to='wandb', but there is no WANDB_API_KEY (Colab or Kaggle secret, environment) and no `wandb login`: "
            "going on without it"
        )
    return "wandb", "W&B key found"


# First words of warnings that a user of a notebook can do nothing about; all others stay.
CHATTER = (
    "IProgress not found",  # widgets, which no saved notebook can show
    "'pin_memory' argument is set as true but no accelerator is found",
    "Using EarlyStoppingCallback without load_best_model_at_end",  # the trainer loads the best weights itself
    "The tied weights mapping and config for this model specifies to tie",
    "`broadcast_buffers` is deprecated",  # transformers sets it
    "`is_gradient_checkpointing` is deprecated",  # peft asks for it
    "`gradient_checkpointing` is deprecated",  # trl sets it
    "The tokenizer has new PAD/BOS/EOS tokens",  # on purpose
)


def silence_chatter() -> None:
    """Keeps CHATTER from warnings and from the loggers of the Hugging Face libraries."""
    for words in CHATTER:
        warnings.filterwarnings("ignore", message=re.escape(words))
    for name in ("trainer_callback", "modeling_utils", "trainer_utils", "training_args"):
        logging.getLogger(f"transformers.{name}").addFilter(lambda record: not record.getMessage().startswith(CHATTER))


def _wandb_logged_in() -> bool:
    try:
        return netrc.netrc().authenticators("api.wandb.ai") is not None
    except (FileNotFoundError, netrc.NetrcParseError):
        return False
