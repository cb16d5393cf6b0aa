"""What the tests of helpers.batch.processes run in each of several processes."""

import json
import time
from pathlib import Path

from helpers.machine import ranks

STEPS = 8


def tell(folder: str) -> None:
    told = {"gathered": ranks.gather(ranks.rank() * 10), "broadcast": ranks.broadcast({"from": ranks.rank()})}
    (Path(folder) / f"{ranks.rank()}.json").write_text(json.dumps(told))


def linger(folder: str) -> None:
    if ranks.is_main():
        (Path(folder) / "here").touch()
    time.sleep(1000)


def fail(missing: str) -> None:
    if ranks.rank() == 1:
        Path(missing).read_bytes()
    ranks.gather(None)


def own(folder: str) -> None:
    """The first process works in a folder that its notebook's kernel owns, with the method that the kernel uses."""
    from helpers.reservoir import model
    from helpers.run import folder_lock

    if ranks.is_main():
        folder_lock.own(folder)
        Path(folder, "worked").write_text(model.__file__)


def train(folder: str, options: str = "") -> None:
    """The same examples a step however many processes share them, and no dropout, which is each process's own."""
    from tests import training_run

    alike = {"accumulation": 1, "dropout": 0.0, "steps": STEPS, "save_steps": STEPS // 2}
    found = training_run.main(folder, training_run.DEFAULTS | (json.loads(options) if options else alike))
    if ranks.is_main():
        history = [entry for entry in found["log_history"] if "grad_norm" in entry or "eval_loss" in entry]
        Path(folder, "history.json").write_text(json.dumps(history))
