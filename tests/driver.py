"""What the scripts share that train in a process of their own: arguments, the device, a kill, the losses, the result.

python -m tests.…_run OUTPUT_DIR '{"kind": "xla", ...}' [OUTPUT_DIR '{...}' ...]  prints one line of JSON a run.
All runs of a process are of one kind.
"""

import json
import os
import signal
import sys
from collections.abc import Callable

DEFAULTS = {
    "kind": "cpu",  # or "xla"
    "card": "",  # of CUDA, in whose place the CPU stands
    "precision": "fp32",
    "kill_step": None,  # kill -9 inside this step, before the optimizer
    "overflows": [],  # steps with an infinite gradient
    "exhausted": [],  # where memory runs out, once each: "backward", "update"
}


def detect(options: dict):
    """The CPU, also in the place of a card of CUDA, or eight virtual devices of XLA."""
    if options["kind"] == "xla":
        os.environ.update(PJRT_DEVICE="CPU", CPU_NUM_DEVICES="8")
    if options["card"]:
        from tests.machine.cuda_stand_in import pretend

        pretend(options["card"])
    import torch

    from helpers.machine import runtime

    torch.set_num_threads(1)
    return runtime.detect(options["kind"] == "xla", precision=options["precision"])


def watch(trainer, options: dict):
    """Does to the run what the options say. On XLA it counts what leaves the device, and what is compiled.

    transfers: to the host until each step's end. late: compilations and transfers inside steps from the third on.
    XLA compiles the first step and, after the first log, the second; the rest of a run reuses these programs.
    """
    import torch
    import transformers
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    from tests.harness import counters

    left = list(options["exhausted"])

    def run_out(where: str) -> None:
        if left[:1] == [where]:
            left.pop(0)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    def on_gradient(gradient):
        run_out("backward")
        infinite = trainer.state.global_step + 1 in options["overflows"]
        return torch.full_like(gradient, float("inf")) if infinite else gradient

    if left or options["overflows"]:
        weights = trainer.trained_module().parameters()
        next(weight for weight in weights if weight.requires_grad).register_hook(on_gradient)
        register_optimizer_step_pre_hook(lambda *_: run_out("update"))

    class Watch(transformers.TrainerCallback):
        def __init__(self):
            self.transfers, self.late, self.began = [], {"compiles": 0, "transfers": 0}, {}

        def on_step_begin(self, args, state, control, **kwargs):
            if trainer.runtime.kind == "xla" and len(self.transfers) > 1:
                self.began = counters()

        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            if options["kill_step"] == state.global_step + 1:
                os.kill(os.getpid(), signal.SIGKILL)

        def on_step_end(self, args, state, control, **kwargs):
            if trainer.runtime.kind == "xla":
                counts = counters()
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
