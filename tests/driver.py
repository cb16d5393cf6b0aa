"""What the scripts share that train in a process of their own: arguments, the device, a kill, the losses, the result.

python -m tests.…_run OUTPUT_DIR '{"kind": "xla", ...}' [OUTPUT_DIR '{...}' ...]  prints one line of JSON a run.
All runs of a process are of one kind.
"""

import json
import os
import signal
import sys
from collections.abc import Callable


def detect(kind: str, **options):
    """The CPU, or eight virtual devices of XLA."""
    if kind == "xla":
        os.environ.update(PJRT_DEVICE="CPU", CPU_NUM_DEVICES="8")
    from helpers.machine import runtime

    return runtime.detect(kind == "xla", **options)


def watch(trainer, kill_step: int | None):
    """Kills this process inside a step, before the optimizer. On XLA it counts what leaves the device, and what is compiled.

    transfers: to the host until each step's end. late: compilations and transfers inside steps from the third on.
    XLA compiles the first step and, after the first log, the second; the rest of a run reuses these programs.
    """
    import transformers

    from helpers.machine import xla

    class Watch(transformers.TrainerCallback):
        def __init__(self):
            self.transfers, self.late, self.began = [], {"compiles": 0, "transfers": 0}, {}

        def on_step_begin(self, args, state, control, **kwargs):
            if trainer.runtime.kind == "xla" and len(self.transfers) > 1:
                self.began = xla.counters()

        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            if kill_step == state.global_step + 1:
                os.kill(os.getpid(), signal.SIGKILL)

        def on_step_end(self, args, state, control, **kwargs):
            if trainer.runtime.kind == "xla":
                counts = xla.counters()
                self.transfers.append(int(counts["item_calls"] + counts["host_transfers"]))
                if self.began:
                    self.late["compiles"] += counts["compiles"] - self.began["compiles"]
                    self.late["transfers"] += counts["host_transfers"] - self.began["host_transfers"]

    trainer.add_callback(counted := Watch())
    return counted


def logged(trainer, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def serve(main: Callable[[str, dict], dict], defaults: dict) -> None:
    """Calls `main` for each folder and its options of the command line."""
    for folder, options in zip(sys.argv[1::2], map(json.loads, sys.argv[2::2]), strict=True):
        assert options.keys() <= defaults.keys(), options
        print("RESULT " + json.dumps(main(folder, defaults | options)), flush=True)
