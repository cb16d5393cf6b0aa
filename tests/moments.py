"""A training run that stands still for a second at a chosen moment, so that a fault can come there; for tests/faults.py.

    python -m tests.moments OUTPUT_DIR [MODEL [KIND [OPTIONS]]]

A file `moment` beside OUTPUT_DIR names the moment. The run that comes to it renames the file to `reached`, with the number of
finished steps in it, stands still, and leaves a file `left`. Without that file the run is the plain one of the model's own driver (tests/*_run.py).
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path

PAUSE = 1.0  # seconds
STEPS, EVERY = 9, 3  # evaluations and checkpoints come every 3 steps
GRAPH = {"run.max_steps": STEPS, "run.eval_interval_steps": EVERY, "run.save_interval_steps": EVERY}
# Each notebook's trainer: the driver that builds it small, and the options that make it short.
DRIVERS = {
    "reservoir": ("training_run", {"steps": STEPS, "save_steps": EVERY, "width": 16, "accumulation": 1}),
    "lejepa": ("lejepa_run", {"steps": STEPS, "save_steps": EVERY, "eval_steps": EVERY}),
    "legal": ("legal_run", {"steps": STEPS, "save_steps": EVERY}),
    "graphmer": ("graph_run", {"changes": GRAPH}),
    "tuning": ("tuning_run", {"steps": STEPS}),  # evaluates and saves every 4
}


def train(folder: str, model: str = "reservoir", kind: str = "cpu", options: str = "{}") -> None:
    """Trains; of `options`, `clock` (seconds by which the clock jumps half way) and `report_to` are meant for here."""
    from helpers.machine import ranks, runtime

    given = json.loads(options)
    clock, report_to = given.pop("clock", 0.0), given.pop("report_to", "none")
    name, short = DRIVERS[model]
    driver, detect = importlib.import_module(f"tests.{name}"), runtime.detect

    def detect_first(*args, **kwargs):  # it settles whether torch_xla takes part, so that the trainer can be imported
        machine = detect(*args, **kwargs)
        _prepare(Path(folder).parent, clock, report_to)
        return machine

    runtime.detect = detect_first
    found = driver.main(folder, driver.DEFAULTS | {"kind": kind} | short | given)
    if ranks.is_main():  # where helpers.batch looks
        Path(folder, "results.json").write_text(json.dumps({"train": found["train"]}))


def _prepare(beside: Path, clock: float, report_to: str) -> None:
    from transformers import TrainerCallback

    from helpers.machine import ranks, xla
    from helpers.show import tracking
    from helpers.train.trainer import TrainerMixin

    waiting = beside / "moment"
    moment = waiting.read_text() if waiting.exists() and ranks.is_main() else ""
    half = STEPS // 2

    def reached(step: int) -> None:
        waiting.write_text(str(step))
        waiting.rename(beside / "reached")

    def stand_still(step: int) -> None:
        if waiting.exists():
            reached(step)
            time.sleep(PAUSE)
            (beside / "left").touch()

    class Moment(TrainerCallback):
        compiles = False

        def on_step_begin(self, args, state, control, **kwargs):
            self.compiles = moment == "compile"  # the first step's graph
            if clock and state.global_step == half:
                now = time.time
                time.time = lambda: now() + clock

        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            if moment == "step" and state.global_step == half:
                stand_still(half)

        def on_prediction_step(self, args, state, control, **kwargs):
            if moment == "evaluation" and state.global_step >= half:
                stand_still(state.global_step)

    callback, original, sync = Moment(), TrainerMixin.__init__, xla.sync

    def initialise(self, *args, **kwargs):
        kwargs["args"].report_to = [report_to] if tracking.report_to(report_to)[0] != "none" else []
        original(self, *args, **kwargs)
        self.add_callback(callback)

    def announced_sync() -> None:
        announced = callback.compiles and waiting.exists()
        if announced:
            reached(0)
        sync()
        if announced:
            (beside / "left").touch()

    def opened(event: str, arguments: tuple) -> None:
        """At the last file of a checkpoint but its manifest: what is written through Python's own `open`."""
        if moment == "write" and event == "open" and str(arguments[0]).endswith("/trainer_state.json"):
            staging = next((part for part in Path(str(arguments[0])).parts if part.startswith(".staging-")), "")
            step = int(staging.removeprefix(".staging-") or 0)
            if step >= half:
                stand_still(step)

    TrainerMixin.__init__, xla.sync = initialise, announced_sync
    sys.addaudithook(opened)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    train(*sys.argv[1:])
