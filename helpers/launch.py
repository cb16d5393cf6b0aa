"""A notebook in several processes, on one machine or more: its cells run as a script in each, through accelerate's launcher.

    python -m helpers.launch notebooks/X.ipynb --processes 2 -p seed 3
    python -m helpers.launch notebooks/X.ipynb --processes 8 --machines 2 --rank 0 --address 10.0.0.1:29500   # and rank 1
    torchrun --nproc-per-node 2 -m helpers.launch notebooks/X.ipynb        # or srun, or a Kubernetes job

Every process runs every cell, so that all of them meet in every training and evaluation, with three differences for those
that are not the first: what they print goes nowhere; their `output_dir` is a temporary folder, so that whatever a cell
writes and reads back works and is thrown away; and a trainer (`TrainerMixin`) takes the folder of the first process
for its checkpoints, which all machines must therefore share. Where torchrun, SLURM or Kubernetes has started this process,
it becomes the rank that it was given. `package.module:function` in the place of a notebook is called with the parameters.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import json
import linecache
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import ranks, tracking

GRACE = 60  # seconds in which an orphan may write a checkpoint
APPEARS = 10  # seconds after which a network disk shows what another machine wrote
LAUNCHED = "HELPERS_LAUNCHED"  # environment of the processes that this module started
# The scheduler's name for each variable of torchrun, where it started one process a rank.
SCHEDULERS = (
    {"WORLD_SIZE": "SLURM_STEP_NUM_TASKS", "RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID"},
    {"WORLD_SIZE": "WORLD_SIZE", "RANK": "RANK"},  # of a Kubernetes job of PyTorch, a process a pod
)
LOST = ("Connection closed", "Connection reset", "Connection refused", "Broken pipe", "Timed out waiting")  # says gloo


def call(function: str, parameters: Mapping[str, str], processes: int) -> None:
    """Calls `package.module:function` in so many processes and prints what the first of them prints.

    For a notebook's kernel: an interpreter of its own launches, with the GPUs that this one saw at first.

    Raises RuntimeError where a process fails, with what it said.
    """
    from . import runtime

    command = [sys.executable, "-m", __name__, function, "--processes", str(processes)]
    command += [text for name, value in parameters.items() for text in ("-p", name, value)]
    environment = {**os.environ, "PYTHONPATH": _with_package(), "PYTHONUNBUFFERED": "1"}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    if (visible := runtime.gpus()[1]) is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    said: deque[str] = deque(maxlen=1)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    with subprocess.Popen(command, env=environment, **pipes) as launcher:
        try:
            for line in launcher.stdout:
                tracking.say(line.rstrip("\n"))
                said.append(line.strip())
        except BaseException:  # no process outlives an interrupted cell
            launcher.terminate()  # which ends its workers too
            raise
    if launcher.returncode:
        raise RuntimeError(f"training in {processes} processes failed: {''.join(said)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: launches, or is one of the launched. Wrong arguments exit with 2 before anything runs."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(prog="python -m helpers.launch", description=__doc__.partition("\n")[0])
    parser.add_argument("target", metavar="NOTEBOOK", help="an .ipynb, or package.module:function")
    parser.add_argument("-p", dest="parameters", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"))
    parser.add_argument("--processes", type=int, default=0, help="on this machine; 0: one for each GPU, or 1")
    parser.add_argument("--machines", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0, help="of this machine, from 0")
    parser.add_argument("--address", default="", metavar="HOST:PORT", help="of machine 0, the same on all")
    parser.add_argument("--config", default="", help="accelerate's configuration file (FSDP, for one)")
    parser.add_argument("--timeout", type=int, default=1800, help="seconds that one process waits for another")
    options = parser.parse_args(arguments)
    try:
        values = _values(options.target, options.parameters)
        many = not _is_rank() and _many(options)
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    return _launch(options, arguments) if many else _run(options, values)


def _values(target: str, parameters: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The parameters given, each of the type that the notebook declares."""
    names = [name for name, _ in parameters]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"{', '.join(sorted(twice))}: given twice")
    if not _is_notebook(target):
        return dict(parameters)
    grid = importlib.import_module("helpers.grid")  # not carried by a notebook, which calls functions only
    declared = grid.inspect(Path(target).expanduser())
    given = {name: grid.from_text(name, text, grid.kind_of(declared, name)) for name, text in parameters}
    return {"output_dir": ast.literal_eval(declared["output_dir"]["default"])} | given


def _is_notebook(target: str) -> bool:
    return target.endswith(".ipynb")


# ---- launching


def _many(options: argparse.Namespace) -> bool:
    """Whether there is anything to launch; settles how many. Raises ValueError for what cannot be."""
    import torch

    gpus = torch.cuda.device_count()
    options.processes = options.processes or max(1, gpus)
    if gpus and options.processes > gpus:
        raise ValueError(
            f"--processes={options.processes}: torch sees {gpus} GPU(s), and each process needs its own; leave it out, or "
            "set CUDA_VISIBLE_DEVICES= (empty) to train on the CPU"
        )
    if options.machines > 1 and ":" not in options.address:
        raise ValueError(f"--address={options.address!r}: give HOST:PORT of machine 0, where the others find it")
    if not 0 <= options.rank < options.machines:
        raise ValueError(f"--rank={options.rank}: must be 0 to {options.machines - 1}, another on each machine")
    return options.processes * options.machines > 1


def _launch(options: argparse.Namespace, arguments: list[str]) -> int:
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    total = options.processes * options.machines
    host, _, port = options.address.rpartition(":")
    found = ["--num_processes", total, "--num_machines", options.machines, "--machine_rank", options.rank]
    found += ["--main_process_port", port or 0, "--mixed_precision", "no", "--dynamo_backend", "no"]
    found += ["--main_process_ip", host] if host else []
    found += ["--config_file", options.config] if options.config else ["--multi_gpu"]  # which also starts CPU processes
    os.environ |= {LAUNCHED: "1", "PYTHONPATH": _with_package(), "TOKENIZERS_PARALLELISM": "false"}
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // options.processes)))
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    tracking.say(f"{total} processes on {options.machines} machine(s)")
    try:
        launch_command(launch_command_parser().parse_args([*map(str, found), "--module", __spec__.name, *arguments]))
    except ChildFailedError as error:
        failures = sorted(error.failures.items(), key=lambda each: (_is_lost(each[1]), each[1].timestamp))
        rank, failure = failures[0]
        told = failure.message if isinstance(failure.message, dict) else {"message": failure.message}
        print(told.get("extraInfo", {}).get("py_callstack", ""), file=sys.stderr)
        where = f"process {failure.local_rank} of this machine" if options.machines > 1 else f"process {rank}"
        lost = "; another machine's process is gone: see what it says" if _is_lost(failure) else ""
        print(f"{where} failed: {told['message']}{lost}", file=sys.stderr, flush=True)
        return 1
    return 0


def _is_lost(failure) -> bool:
    return any(words in str(failure.message) for words in LOST)


def _with_package() -> str:
    package = str(Path(__file__).resolve().parents[1])
    return os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))


# ---- one of the launched


def _is_rank() -> bool:
    """Whether a launcher or a scheduler started this process; its variables are then torchrun's."""
    if "LOCAL_RANK" not in os.environ:
        for names in SCHEDULERS:
            found = {ours: os.environ[theirs] for ours, theirs in names.items() if theirs in os.environ}
            if len(found) == len(names) and int(found["WORLD_SIZE"]) > 1:
                os.environ |= {"LOCAL_RANK": "0", **_meeting_point(), **found}
                break
    return "LOCAL_RANK" in os.environ


def _meeting_point() -> dict[str, str]:
    """Where the processes of a SLURM step find each other, unless the user has said it."""
    if "MASTER_ADDR" in os.environ or "SLURM_JOB_NODELIST" not in os.environ:
        return {}
    nodes = ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]]
    first = subprocess.run(nodes, capture_output=True, text=True, check=True).stdout.split()[0]
    return {"MASTER_ADDR": first, "MASTER_PORT": str(20000 + int(os.environ["SLURM_JOB_ID"]) % 20000)}


def _run(options: argparse.Namespace, values: dict[str, Any]) -> int:
    from torch.distributed.elastic.multiprocessing.errors import record

    os.environ.setdefault("MPLBACKEND", "Agg")
    if ranks.count() == 1:
        _target(options.target, values)
        return 0
    os.environ |= {"USE_TORCH_XLA": "0", ranks.TIMEOUT: str(options.timeout)}  # read when accelerate is imported
    orphan = (os.getppid(), min(GRACE, options.timeout))
    threading.Thread(target=_end_with, args=orphan, daemon=True).start()
    try:
        record(_share)(options.target, values)
    except Exception:
        if LAUNCHED not in os.environ:
            raise
        return 1  # the launcher says why
    return 0


def _share(target: str, values: dict[str, Any]) -> None:
    """What each process does."""
    import torch

    with contextlib.ExitStack() as stack:
        if not ranks.is_main():
            os.environ["TQDM_DISABLE"] = "1"
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(Path(os.devnull).open("w"))))
        if _is_notebook(target):
            check_shared(values["output_dir"])
            if not ranks.is_main():
                scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="rank-"))
                values = values | {"output_dir": str(Path(scratch) / "output")}
                _let_models_save()
        ranks.gather(None)  # all are there
        if os.environ.get("ACCELERATE_USE_FSDP") == "true" and (_is_notebook(target) or not torch.cuda.is_available()):
            raise ValueError(
                "--config asks for FSDP: accelerate ignores it on a CPU, and a notebook's cells copy and save whole models; "
                "leave it out (a function that trains alone may have it on GPUs)"
            )
        _target(target, values)
        ranks.gather(None)
        torch.distributed.destroy_process_group()


def check_shared(output_dir: str | Path) -> None:
    """Raises ValueError in every process unless all see the first one's folder: each has a part in a checkpoint."""
    parent = Path(ranks.broadcast(str(Path(output_dir).expanduser().absolute())))
    mark = parent / ranks.broadcast(f".run.json.{uuid.uuid4().hex}")  # no content to `run_folder.claim`
    with ranks.main_process_first():
        if ranks.is_main():
            parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
    deadline = time.monotonic() + APPEARS
    while not (seen := mark.exists()) and time.monotonic() < deadline:
        time.sleep(0.2)
    blind = sorted({host for host, saw in ranks.gather((socket.gethostname(), seen)) if not saw})
    if ranks.is_main():
        mark.unlink()
    if blind:
        raise ValueError(
            f"output_dir={str(parent)!r} is not seen on {', '.join(blind)}: set it to a folder on a disk that all machines "
            "share (NFS, Lustre, a mounted bucket)"
        )


def _let_models_save() -> None:
    """transformers writes a model in the first process only, and a cell here reads back what it has saved."""
    from transformers import PreTrainedModel

    PreTrainedModel.should_save_on_this_rank = lambda model, is_main_process: is_main_process


def _target(target: str, values: dict[str, Any]) -> None:
    if not _is_notebook(target):
        module, _, function = target.partition(":")
        getattr(importlib.import_module(module), function)(**values)
        return
    namespace = {"__name__": "__main__"}
    for number, source in enumerate(cells(Path(target).expanduser(), values), start=1):
        name = f"<In [{number}] of {Path(target).name}>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)  # for tracebacks
        exec(compile(source, name, "exec"), namespace)


def cells(notebook: Path, values: Mapping[str, Any]) -> list[str]:
    """The code of a notebook, a text a cell, with values for its parameters after the cell that declares them."""
    found = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            found.append("".join(cell["source"]))
            if "parameters" in cell["metadata"].get("tags", ()):
                found[-1] += "".join(f"\n{name} = {value!r}" for name, value in values.items())
    return found


def _end_with(parent: int, grace: float) -> None:
    """Ends this process as a preemption would when its launcher is gone."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
