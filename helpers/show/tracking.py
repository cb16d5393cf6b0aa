"""What a person sees: lines, and whether metrics go to W&B."""

from __future__ import annotations

import inspect
import sys

from helpers.notebook import secrets


def say(message: str) -> None:
    """Prints one line for the person who watches."""
    print(message, flush=True)


def in_kernel() -> bool:
    """Whether this process is a Jupyter kernel."""
    app = sys.modules.get("ipykernel.kernelapp")
    return app is not None and app.IPKernelApp.initialized()


def report_to(wanted: str) -> tuple[str, str]:
    """`TrainingArguments.report_to`, and why not W&B where it was wanted: without a key it would block a headless run with a prompt."""
    if wanted == "none":
        return "none", ""
    try:
        import wandb
        from wandb.sdk import wandb_setup
    except ImportError:
        return "none", "report_to='wandb', but wandb is not installed: going on without it"
    secrets.provide("WANDB_API_KEY")
    # Also those of a file, and the address of a server of one's own. Unlike `wandb.setup` this starts no process.
    settings = wandb_setup.singleton().settings
    if settings.mode == "disabled":
        return "none", "report_to='wandb', but W&B is switched off (WANDB_MODE=disabled)"
    if settings.mode in ("offline", "dryrun") or _logged_in(wandb, settings):
        return "wandb", ""
    return "none", (
        f"report_to='wandb', but there is no WANDB_API_KEY (Colab or Kaggle secret, environment) and no `wandb login` for "
        f"{settings.base_url}: going on without it"
    )


def _logged_in(wandb, settings) -> bool:
    """Whether wandb has a key for its server; asks neither a person nor the server.

    Unless it is silent, `wandb.login` starts a process that asks the server for the user's name. Without a network that
    process tries for long, and this one waits for it when it ends.
    """
    if "prompt" not in inspect.signature(wandb.login).parameters:  # before wandb 0.30
        return bool(wandb.api.api_key)
    silent, settings.silent = settings.silent, True
    try:
        return wandb.login(prompt=False, verify=False)
    finally:
        settings.silent = silent
