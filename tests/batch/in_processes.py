"""What the tests of helpers.batch.processes run in each of several processes."""

import json
import time
from pathlib import Path

from helpers.machine import ranks
from helpers.run import folder_lock

STEPS = 8


def exchange(folder):
    """The first process works in a folder that belongs to the kernel."""
    if ranks.is_main():
        folder_lock.own(folder)
    Path(folder, f"rank-{ranks.rank()}").write_text(f"{ranks.gather(ranks.rank())} {ranks.broadcast(ranks.rank())}")
    print("I am", ranks.rank())


def linger(folder):
    Path(folder, f"rank-{ranks.rank()}").touch()
    time.sleep(1000)


def train(folder, options=""):
    """The same examples a step however many processes share them, and no dropout, which is each process's own."""
    from tests import training_run

    alike = {"accumulation": 1, "dropout": 0.0, "steps": STEPS, "save_steps": STEPS // 2}
    measured = training_run.main(folder, training_run.DEFAULTS | (json.loads(options) if options else alike))
    if ranks.is_main():
        history = [entry for entry in measured["log_history"] if "grad_norm" in entry or "eval_loss" in entry]
        Path(folder, "history.json").write_text(json.dumps(history))
