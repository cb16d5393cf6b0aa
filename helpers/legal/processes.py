"""Training in several processes that share a batch, one a GPU: launched from a notebook, or by `accelerate launch`.

accelerate's `notebook_launcher` forks, and a process that has used CUDA cannot be forked: a kernel that has looked at its
GPU, or asked the model before training, could not launch. So a fresh interpreter launches, which has touched nothing; the
kernel keeps its GPU and loads the weights when all is done. On more machines:

    accelerate launch --num_machines 2 ... -m helpers.legal.processes OUTPUT_DIR/processes.json
"""

from __future__ import annotations

import functools
import json
import os
import socket
import subprocess
import sys
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers import run_folder, runtime  # nothing that loads transformers: `detect` says first what it is to run on

from .parameters import LegalParameters

if TYPE_CHECKING:
    from helpers.runtime import Runtime

    from .training import LegalTrainer

JOB_FILE = "processes.json"  # what the launched processes are told
MEASURED_FILE = "measured.json"  # `LegalTrainer.results` of the first of them
NOISE = ("Launching training on", "\n")  # accelerate says CUDA even where there is none


@dataclass(frozen=True)
class Processes:
    """How many processes train together, and why so many."""

    count: int
    reason: str
    visible_gpus: str | None  # CUDA_VISIBLE_DEVICES for them; None where it is not set

    def __str__(self) -> str:
        return f"processes  {self.count}: {self.reason}"


def detect(params: LegalParameters) -> tuple[Runtime, Processes]:
    """`runtime.detect`, with the devices of all processes, and the processes.

    Raises ValueError for more processes than GPUs and for several on a TPU, and as `runtime.detect`.
    """
    gpus, visible = _gpus()
    machine = runtime.detect(params.use_tpu, params.precision)
    wanted = params.num_processes
    if machine.kind == "xla":
        if wanted > 1:
            raise ValueError(f"num_processes={wanted}: one process drives all chips of a TPU; set it to 0 or 1")
        count, reason = 1, f"it drives all {machine.device_count} chips"
    elif machine.kind == "cuda":
        if wanted > gpus:
            raise ValueError(f"num_processes={wanted}: torch sees {gpus} GPU(s), and each needs its own; set it to 0")
        count = wanted or gpus
        reason = "asked for" if wanted else f"one for each of {gpus} visible GPU(s)"
    else:
        count = wanted or 1
        reason = "asked for; they share the cores" if wanted > 1 else "there is no GPU to share with"
    if machine.kind != "xla":
        machine = replace(machine, device_count=count)
    return machine, Processes(count, reason, visible)


@functools.cache  # `runtime.detect` leaves one GPU visible in this process
def _gpus() -> tuple[int, str | None]:
    import torch

    return torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")


def train(trainer: LegalTrainer, params: LegalParameters, processes: Processes) -> dict[str, Any]:
    """Trains, here or in several processes, and returns what was measured (`LegalTrainer.results`).

    Several build data and model anew from `params`, as the notebook did, and write the checkpoints into the same
    folder; `trainer` then has the weights of the best evaluation as if it had trained itself.

    Raises RuntimeError where a process fails, with what it said, and as `LegalTrainer.train`.
    """
    if processes.count == 1:
        trainer.train(resume_from_checkpoint=params.resume)
        return trainer.results()
    import torch

    folder = Path(trainer.args.output_dir)
    trainer.model.to("cpu")  # the first process needs the memory
    if trainer.runtime.kind == "cuda":
        torch.cuda.empty_cache()
    run_folder.write_json(folder / JOB_FILE, {"num_processes": processes.count, "parameters": params.model_dump()})
    _launch(folder / JOB_FILE, processes)
    trainer.model.to(trainer.args.device)
    trainer.train(resume_from_checkpoint=True)
    return json.loads((folder / MEASURED_FILE).read_text(encoding="utf-8"))


def _launch(job: Path, processes: Processes) -> None:
    from helpers import tracking

    package = str(Path(__file__).resolve().parents[2])
    environment = {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // processes.count)),
        "TOKENIZERS_PARALLELISM": "false",
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH")))),
        "PYTHONUNBUFFERED": "1",
    }
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    if processes.visible_gpus is not None:
        environment["CUDA_VISIBLE_DEVICES"] = processes.visible_gpus
    tracking.say(f"training in {processes.count} processes ({processes.reason})")
    said: deque[str] = deque(maxlen=1)
    with subprocess.Popen(
        [sys.executable, "-m", __name__, str(job)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as launcher:
        try:
            for line in launcher.stdout:
                if not line.startswith(NOISE):
                    tracking.say(line.rstrip("\n"))
                    said.append(line.strip())
        except BaseException:  # no process outlives an interrupted cell
            launcher.terminate()  # which ends its workers too
            raise
    if launcher.returncode:
        raise RuntimeError(f"training in {processes.count} processes failed: {''.join(said)}")


# ---- in the launched processes


def main(arguments: list[str]) -> None:
    """`python -m helpers.legal.processes OUTPUT_DIR/processes.json`: launches, or trains where accelerate has launched."""
    (job,) = arguments
    os.environ["USE_TORCH_XLA"] = "0"  # read when accelerate is imported; a TPU's chips need no launcher
    if "LOCAL_RANK" in os.environ:
        train_one(job)
        return
    from accelerate import notebook_launcher
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record

    count = json.loads(Path(job).read_text(encoding="utf-8"))["num_processes"]
    try:
        notebook_launcher(record(train_one), args=(job,), num_processes=count, use_port=str(_free_port()))
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        said = failure.message
        sys.exit(said["message"] if isinstance(said, dict) else said)


def train_one(job: str) -> None:
    """What each process does: the run of the job's parameters, its share of every batch."""
    if int(os.environ.get("RANK", "0")):
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 -- one process speaks, until the end
    import torch

    if torch.cuda.is_available() and "LOCAL_RANK" in os.environ:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # or the first GPU would hold something of every process
    from . import experiment
    from .model import load_model

    told = json.loads(Path(job).read_text(encoding="utf-8"))
    params = LegalParameters(**told["parameters"])
    machine = runtime.detect(False, params.precision)
    data = experiment.load_data(params)
    model, tokenizer = load_model(params, machine)
    encoded = experiment.encode(data.splits, tokenizer, params)
    plan, step = experiment.plan(model, encoded, params, machine)
    trainer = experiment.legal_trainer(model, encoded, params, plan, step, machine, Path(params.output_dir))
    trainer.train(resume_from_checkpoint=params.resume)
    if trainer.is_world_process_zero():
        run_folder.write_json(Path(params.output_dir) / MEASURED_FILE, trainer.results())


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


if __name__ == "__main__":
    main(sys.argv[1:])
