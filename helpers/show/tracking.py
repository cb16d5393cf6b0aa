"""What a person sees: lines, and whether metrics go to W&B."""

from __future__ import annotations

import contextlib
import netrc
import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

from helpers.notebook import secrets


def say(message: str) -> None:
    """Prints one line for the person who watches."""
    print(message, flush=True)


def in_kernel() -> bool:
    """Whether this process is a Jupyter kernel."""
    app = sys.modules.get("ipykernel.kernelapp")
    return app is not None and app.IPKernelApp.initialized()


def is_watched() -> bool:
    """Whether a person's notebook frontend is attached: papermill and nbmake run a notebook without one.

    Their client, nbclient, can be told from a frontend only by the fact that it does not allow stdin.
    """
    return in_kernel() and getattr(sys.modules["IPython"].get_ipython().kernel, "_allow_stdin", True)


def hide_bars() -> None:
    """Keeps the bars of datasets and transformers, which need a frontend, out of logs and saved notebooks."""
    import datasets
    import transformers

    if not is_watched():
        datasets.disable_progress_bars()
        transformers.utils.logging.disable_progress_bar()


def wandb_mode() -> tuple[str | None, str]:
    """The mode of `wandb.init`, and the reason: without a key it would stop a headless run with a question.

    None is the mode that W&B's own settings say.
    """
    mode = os.environ.get("WANDB_MODE")
    if mode:
        return mode, ""
    server = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    if secrets.provide("WANDB_API_KEY") or _has_login(server):
        return None, ""
    return "offline", (
        f" (no WANDB_API_KEY among the secrets or in the environment, and no `wandb login` for {server})"
    )


def _has_login(server: str) -> bool:
    """Whether `wandb login` has noted a key for the server."""
    file = os.environ.get("NETRC") or Path.home() / ".netrc"
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        return netrc.netrc(file).authenticators(urlsplit(server).netloc) is not None
    return False
