"""What the tests of helpers.batch.processes run in each of several processes."""

import json
import time
from pathlib import Path

from helpers.machine import ranks

# The same examples a step however many processes share them, and no dropout, which is each process's own.
ALIKE = {"accumulation": 1, "dropout": 0.0, "steps": 8, "save_steps": 4}


def exchange(folder):
    Path(folder, f"rank-{ranks.rank()}").write_text(f"{ranks.gather(ranks.rank())} {ranks.broadcast(ranks.rank())}")
    print("I am", ranks.rank())


def linger(folder):
    Path(folder, f"rank-{ranks.rank()}").touch()
    time.sleep(1000)


def train(folder, options="{}"):
    from tests import training_run

    measured = training_run.main(folder, training_run.DEFAULTS | ALIKE | json.loads(options))
    if ranks.is_main():
        history = {}
        for entry in measured["log_history"]:
            for name in {"loss", "grad_norm", "eval_loss"} & entry.keys():
                history[f"{name} {entry['step']}"] = entry[name]
        Path(folder, "history.json").write_text(json.dumps(history))
