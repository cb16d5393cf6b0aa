"""A notebook in several processes, on one or more machines: each runs its cells as a script, started by accelerate.

    python -m helpers.launch notebooks/X.ipynb --processes 2 -p seed 3
    python -m helpers.launch notebooks/X.ipynb --processes 8 --machines 2 --rank 0 --address 10.0.0.1:29500   # and rank 1
    torchrun --nproc-per-node 2 -m helpers.launch notebooks/X.ipynb        # or srun, or a Kubernetes job

Every process runs every cell, so that all take part in every training and evaluation. Three things differ in all but the
first: their output is not shown; their `output_dir` is a temporary folder, from which a cell can read what it wrote; and a
trainer (`TrainerMixin`) uses the folder of the first process for its checkpoints, which all machines must therefore share.
If torchrun, SLURM or Kubernetes started this process, it takes the rank that it was given. `package.module:function` instead
of a notebook is called with the parameters.
"""

from __future__ import annotations

import argparse
import ast
import json
import linecache
import os
import pkgutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import grid, processes, ranks, tracking

APPEARS = 10  # seconds after which a network disk shows what another machine wrote
# The scheduler's name for each variable of torchrun, if it started one process for each rank.
SCHEDULERS = (
    {"WORLD_SIZE": "SLURM_STEP_NUM_TASKS", "RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID"},
    {"WORLD_SIZE": "WORLD_SIZE", "RANK": "RANK"},  # a PyTorch job of Kubernetes, with one process in each pod
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: launches the processes, or is one of them. Wrong arguments exit with 2 at once."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(prog="python -m helpers.launch", description=__doc__.partition("\n")[0])
    parser.add_argument("target", metavar="NOTEBOOK", help="an .ipynb, or package.module:function")
    parser.add_argument("-p", dest="parameters", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"))
    parser.add_argument("--processes", type=int, default=0, help="on this machine; 0: one for each GPU, or one")
    parser.add_argument("--machines", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0, help="number of this machine, from 0")
    parser.add_argument("--address", default="", metavar="HOST:PORT", help="of machine 0; the same on all machines")
    parser.add_argument("--config", default="", help="accelerate's configuration file, for FSDP for example")
    parser.add_argument("--timeout", type=int, default=1800, help="seconds that one process waits for another")
    options = parser.parse_args(arguments)
    try:
        values = _values(options.target, options.parameters)
        many = not _is_rank() and _many(options)
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    if many:
        tracking.say(f"{options.processes * options.machines} processes on {options.machines} machine(s)")
        return processes.start(__spec__.name, arguments, options.processes, options.machines, _where(options))
    os.environ.setdefault("MPLBACKEND", "Agg")
    if ranks.count() == 1:
        _run(options.target, values)
        return 0
    return processes.take_part(lambda: _share(options.target, values), options.timeout)


def _values(target: str, parameters: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The given parameters, each of the type that the notebook declares."""
    names = [name for name, _ in parameters]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"{', '.join(sorted(twice))}: given twice; give each once")
    if not _is_notebook(target):
        return dict(parameters)
    declared = grid.inspect(Path(target).expanduser())
    given = {name: grid.from_text(name, text, grid.kind_of(declared, name)) for name, text in parameters}
    return {"output_dir": ast.literal_eval(declared["output_dir"]["default"])} | given


def _is_notebook(target: str) -> bool:
    return target.endswith(".ipynb")


def _many(options: argparse.Namespace) -> bool:
    """Whether there are several processes to launch; sets how many. Raises ValueError for what is impossible."""
    import torch

    gpus = torch.cuda.device_count()
    options.processes = options.processes or max(1, gpus)
    if gpus and options.processes > gpus:
        raise ValueError(
            f"--processes={options.processes}: torch sees {gpus} GPU(s), and each process needs its own; leave it out, or "
            "set CUDA_VISIBLE_DEVICES= (empty) to train on the CPU"
        )
    if options.machines > 1 and ":" not in options.address:
        raise ValueError(f"--address={options.address!r}: give HOST:PORT of machine 0")
    if not 0 <= options.rank < options.machines:
        raise ValueError(f"--rank={options.rank}: give 0 to {options.machines - 1}, a different one on each machine")
    return options.processes * options.machines > 1


def _where(options: argparse.Namespace) -> list[str | int]:
    """Options for accelerate's launcher."""
    found = ["--config_file", options.config] if options.config else []
    if options.machines > 1:
        host, _, port = options.address.rpartition(":")
        found += ["--machine_rank", options.rank, "--main_process_ip", host, "--main_process_port", port]
    return found


def _is_rank() -> bool:
    """Whether a launcher or a scheduler started this process; sets torchrun's variables if a scheduler did."""
    if "LOCAL_RANK" not in os.environ:
        for names in SCHEDULERS:
            found = {ours: os.environ[theirs] for ours, theirs in names.items() if theirs in os.environ}
            if len(found) == len(names) and int(found["WORLD_SIZE"]) > 1:
                os.environ |= {"LOCAL_RANK": "0", **_meeting_point(), **found}
                break
    return "LOCAL_RANK" in os.environ


def _meeting_point() -> dict[str, str]:
    """Where the processes of a SLURM step find each other, unless the user has set it."""
    if "MASTER_ADDR" in os.environ or "SLURM_JOB_NODELIST" not in os.environ:
        return {}
    nodes = ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]]
    first = subprocess.run(nodes, capture_output=True, text=True, check=True).stdout.split()[0]
    return {"MASTER_ADDR": first, "MASTER_PORT": str(20000 + int(os.environ["SLURM_JOB_ID"]) % 20000)}


def _share(target: str, values: dict[str, Any]) -> None:
    """The work of each process. Raises ValueError where FSDP cannot be used, and as `check_shared` does."""
    import torch

    if os.environ.get("ACCELERATE_USE_FSDP") == "true" and (_is_notebook(target) or not torch.cuda.is_available()):
        raise ValueError(
            "--config asks for FSDP: accelerate ignores it on a CPU, and a notebook's cells copy and save whole models; "
            "leave it out (a function that trains alone may have it on GPUs)"
        )
    with tempfile.TemporaryDirectory(prefix="rank-") as scratch:
        if _is_notebook(target):
            check_shared(values["output_dir"])
            if not ranks.is_main():
                values = values | {"output_dir": str(Path(scratch) / "output")}
                _let_models_save()
        _run(target, values)


def check_shared(output_dir: str | Path) -> None:
    """Raises ValueError in every process unless all see the folder of the first: each writes a part of a checkpoint."""
    parent = Path(ranks.broadcast(str(Path(output_dir).expanduser().absolute())))
    mark = parent / ranks.broadcast(f".run.json.{uuid.uuid4().hex}")  # a name that `run_folder.claim` ignores
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
    """transformers saves a model only in the first process, but the cells of the others also read what they saved."""
    from transformers import PreTrainedModel

    PreTrainedModel.should_save_on_this_rank = lambda model, is_main_process: is_main_process


def _run(target: str, values: dict[str, Any]) -> None:
    if not _is_notebook(target):
        pkgutil.resolve_name(target)(**values)
        return
    namespace = {"__name__": "__main__"}
    for number, source in enumerate(cells(Path(target).expanduser(), values), start=1):
        name = f"<In [{number}] of {Path(target).name}>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)  # for tracebacks
        exec(compile(source, name, "exec"), namespace)


def cells(notebook: Path, values: Mapping[str, Any]) -> list[str]:
    """The code of each cell of a notebook, with `values` assigned after the cell that declares the parameters."""
    found = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            found.append("".join(cell["source"]))
            if "parameters" in cell["metadata"].get("tags", ()):
                found[-1] += "".join(f"\n{name} = {value!r}" for name, value in values.items())
    return found


if __name__ == "__main__":
    sys.exit(main())
