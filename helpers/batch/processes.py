"""A notebook in several processes: what torchrun or accelerate starts in each, and how a notebook's kernel starts them.

    torchrun --nproc-per-node 2 -m helpers.batch.processes notebooks/X.ipynb -p seed 3
    accelerate launch --multi_gpu --num_processes 2 -m helpers.batch.processes notebooks/X.ipynb -p seed 3
    call("package.module:function", {"name": "value"}, 2)          # in a kernel

Every process runs every cell, so that all take part in every training and evaluation. Three things differ in all but the
first: their output is not shown; their `output_dir` is a temporary folder, from which a cell can read what it wrote; and a
trainer (`TrainerMixin`) uses the folder of the first process for its checkpoints. `package.module:function` instead of a
notebook is called with the parameters. What the processes tell each other is in `ranks`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pkgutil
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from helpers.machine import ranks
from helpers.notebook import method
from helpers.parameters import INJECTED_CELL, OWN_CELL
from helpers.show import tracking

GRACE = 60  # seconds that a process without its launcher has to write a checkpoint
# Environment variables of the processes that `call` starts: its own process, and the methods that it uses, with their files.
KERNEL, METHODS = "HELPERS_KERNEL", "HELPERS_METHODS"
# First lines of the cells that processes run: a notebook's own mark, its settings, those that papermill injects, its method.
MARKS = ("# In every process:", *OWN_CELL, INJECTED_CELL, method.WRITTEN)
FAILED = re.compile(r"process \d+ failed: ")


def call(function: str, parameters: Mapping[str, str], processes: int) -> None:
    """Calls `package.module:function` in several processes and prints what the first of them prints.

    For a notebook's kernel: torchrun starts them, with the GPUs that this process saw at first and the method that it uses.

    Raises RuntimeError if a process fails, with what the first one to fail said.
    """
    from helpers.machine import runtime

    tracking.say(f"training in {processes} processes")
    package = str(Path(__file__).resolve().parents[2])
    environment = {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // processes)),
        **os.environ,
        KERNEL: str(os.getpid()),
        METHODS: json.dumps(method.used),
        "PYTHONPATH": os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH")))),
    }
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    visible = runtime.gpus()[1]
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += ["-m", __name__, function]
    for name, value in parameters.items():
        command += ["-p", name, value]
    failure = "a process was killed; the lines above say which"
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    with subprocess.Popen(command, env=environment, **pipes) as launcher:
        try:
            for line in launcher.stdout or ():
                tracking.say(line.rstrip("\n"))
                if FAILED.match(line) and not FAILED.match(failure):
                    failure = line.strip()
        except BaseException:  # no process outlives an interrupted cell
            launcher.terminate()  # which ends its workers too
            raise
    if launcher.returncode:
        raise RuntimeError(f"training in {processes} processes failed: {failure}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of one process. Wrong arguments exit with 2 before anything runs."""
    parser = argparse.ArgumentParser(prog="torchrun -m helpers.batch.processes", description=__doc__.partition("\n")[0])
    parser.add_argument("target", metavar="NOTEBOOK", help="an .ipynb, or package.module:function")
    parser.add_argument("-p", dest="parameters", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"))
    options = parser.parse_args(arguments)
    values = dict(options.parameters)
    try:
        if options.target.endswith(".ipynb"):
            from . import grid

            declared = grid.inspect(Path(options.target).expanduser())
            values = {name: grid.typed(declared, name, text) for name, text in values.items()}
        if os.environ.get("ACCELERATE_USE_FSDP") == "true":
            raise ValueError(
                "accelerate's configuration asks for FSDP, but cells save whole models: set it to MULTI_GPU"
            )
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    os.environ.setdefault("MPLBACKEND", "Agg")
    for module, file in json.loads(os.environ.get(METHODS, "{}")).items():
        method.use(module, file)
    if ranks.count() > 1:
        # The parameters of the notebook decide, not accelerate's configuration file.
        os.environ |= {"USE_TORCH_XLA": "0", "ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "no"}
        threading.Thread(target=_end_with_the_launcher, daemon=True).start()
    try:
        _run(options.target, values)
    except Exception as error:
        traceback.print_exc()
        print(f"process {ranks.rank()} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def _run(target: str, values: dict[str, Any]) -> None:
    with contextlib.ExitStack() as stack:
        if not ranks.is_main():
            from transformers import PreTrainedModel

            # transformers saves a model only in the first process, but the cells of the others also read what they saved.
            PreTrainedModel.should_save_on_this_rank = lambda model, is_main_process: is_main_process
            os.environ["TQDM_DISABLE"] = "1"
            nowhere = stack.enter_context(Path(os.devnull).open("w"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
        ranks.gather(None)  # all are there
        if target.endswith(".ipynb"):
            if not ranks.is_main():
                scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="rank-"))
                values["output_dir"] = str(Path(scratch) / "output")
            list(run_cells(cells(Path(target).expanduser(), values)))
        else:
            pkgutil.resolve_name(target)(**values)
        ranks.gather(None)
        if ranks.count() > 1:
            import torch

            torch.distributed.destroy_process_group()


def cells(notebook: Path, values: Mapping[str, Any]) -> list[str]:
    """The code of each cell of a notebook, with `values` assigned in a cell after the one that declares the parameters."""
    from papermill.iorw import load_notebook_node
    from papermill.parameterize import parameterize_notebook

    set_up = parameterize_notebook(load_notebook_node(str(notebook)), values)
    return [cell.source for cell in set_up.cells if cell.cell_type == "code"]


def marked_cells(executed: Iterable[str]) -> list[str]:
    """What each process needs of the cells that ran in a kernel: those whose first line begins with one of MARKS.

    Of cells with the same first line the last one counts, in the place of the first.
    """
    cells = {}
    for source in executed:
        line = source.partition("\n")[0]
        if line.startswith(MARKS):
            cells[line] = source
    return [*cells.values()]


def run_cells(sources: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Runs cells in this process, with IPython's magics but without a kernel; yields the notebook's variables after each.

    Raises what a cell raises.
    """
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    shell.showtraceback = lambda *args, **kwargs: None  # type: ignore[method-assign]  # the error is raised
    for source in sources:
        shell.run_cell(source, store_history=True).raise_error()
        yield shell.user_ns


def _end_with_the_launcher() -> None:
    """Ends this process, as SIGTERM does, once its launcher or the kernel that called it is gone."""
    launcher = os.getppid()
    kernel = int(os.environ.get(KERNEL, launcher))
    while os.getppid() == launcher and psutil.pid_exists(kernel):
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
