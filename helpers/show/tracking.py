"""What a person sees: lines, and whether metrics go to W&B."""

from __future__ import annotations

import inspect
import sys

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
        import wandb
    except ImportError:
        return "none", "report_to='wandb', but wandb is not installed: going on without it"
    secrets.provide("WANDB_API_KEY")
    settings = wandb.setup().settings  # also those of a file, and the address of a server of one's own
    if settings.mode == "disabled":
        return "none", "report_to='wandb', but W&B is switched off (WANDB_MODE=disabled)"
    if settings.mode in ("offline", "dryrun"):
        return "wandb", "W&B offline (WANDB_MODE): no key needed"
    # The newer way to ask for a login without a prompt, and that of wandb before it.
    asks = "prompt" in inspect.signature(wandb.login).parameters
    if wandb.login(prompt=False, verify=False) if asks else wandb.api.api_key:
        return "wandb", f"W&B key found for {settings.base_url}"
    return "none", (
        f"report_to='wandb', but there is no WANDB_API_KEY (Colab or Kaggle secret, environment) and no `wandb login` for "
        f"{settings.base_url}: going on without it"
    )
