"""What a person watches: progress lines or a live table, W&B when asked for and logged in, the loss plot."""

from __future__ import annotations

import html
import math
import netrc
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import secrets


def say(message: str) -> None:
    """One line to the person watching."""
    print(message, flush=True)


def report_to(wanted: str) -> tuple[str, str]:
    """What `TrainingArguments.report_to` can be, and why: W&B without a key would block a headless run with a prompt."""
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


def _wandb_logged_in() -> bool:
    try:
        return netrc.netrc().authenticators("api.wandb.ai") is not None
    except (FileNotFoundError, netrc.NetrcParseError):
        return False


def _callback_base():
    from transformers import TrainerCallback

    return TrainerCallback


class Progress(_callback_base()):
    """A live table where a notebook shows one, plain lines everywhere else (and no progress-bar widgets)."""

    columns = ("step", "loss", "eval_loss", "learning_rate", "steps/s")

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
            row["steps/s"] = f"{(state.global_step - step) / max(time.perf_counter() - since, 1e-9):.2f}"
            self._mark = (state.global_step, time.perf_counter())
        self.rows.append(row)
        if self.live:
            self._show()
        else:
            say("  ".join(f"{name} {row[name]}" for name in self.columns if name in row))

    def _show(self) -> None:
        from IPython.display import HTML, display

        cells = "".join(
            "<tr>" + "".join(f"<td>{html.escape(row.get(name, ''))}</td>" for name in self.columns) + "</tr>"
            for row in self.rows[-40:]
        )
        header = "".join(f"<th>{name}</th>" for name in self.columns)
        table = HTML(f"<table><thead><tr>{header}</tr></thead><tbody>{cells}</tbody></table>")
        if self._handle is None:
            self._handle = display(table, display_id=True)
        else:
            self._handle.update(table)


def _in_notebook() -> bool:
    """Whether a person's notebook frontend is attached (papermill's and nbmake's logs want lines instead)."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    shell = get_ipython()
    return shell is not None and hasattr(shell, "kernel") and not _headless_client(shell)


def _headless_client(shell) -> bool:
    # nbclient, under papermill and nbmake alike, sends execute requests with a session user of its own process and no
    # widget support; the one thing it says of itself is that stdin cannot be asked.
    return not getattr(shell.kernel, "_allow_stdin", True)


def plot_loss(
    log_history: Sequence[Mapping], path: str | Path, *, title: str, baselines: Mapping[str, float] | None = None
):
    """Training and validation loss (nats a token) against steps, with baselines as lines; written to `path` as PNG.

    Args:
        log_history: `trainer.state.log_history`.
        path: the file.
        title: above the axes.
        baselines: name -> nats a token.

    Returns:
        The matplotlib figure.
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for key, label in (("loss", "training"), ("eval_loss", "validation")):
        points = [(entry["step"], entry[key]) for entry in log_history if key in entry]
        if points:
            axes.plot(*zip(*points, strict=True), label=label, marker="o" if key == "eval_loss" else None, markersize=3)
    for index, (name, nats) in enumerate((baselines or {}).items()):
        if math.isfinite(nats):
            axes.axhline(nats, linestyle=("--", ":", "-.")[index % 3], color="0.4", label=f"{name} ({nats:.2f})")
    axes.set(title=title, xlabel="optimizer step", ylabel="loss (nats per token)")
    if axes.lines:
        axes.legend()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return figure
