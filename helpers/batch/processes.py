"""One training in several processes: torchrun starts them from a notebook's kernel, and each runs the cells that it needs.

    call("package.module:function", {"name": "value"}, 2)

Only the first process is heard. What the processes tell each other is in `ranks`.
"""

from __future__ import annotations

import json
import os
import pkgutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from helpers.machine import ranks
from helpers.notebook import method
from helpers.parameters import INJECTED_CELL, OWN_CELL
from helpers.show import tracking

# First lines of the cells that processes run: a notebook's own mark, its settings, those that papermill injects, its method.
MARKS = ("# In every process:", *OWN_CELL, INJECTED_CELL, method.WRITTEN)


def call(function: str, parameters: dict[str, str], processes: int) -> None:
    """Calls `package.module:function` in several processes, with the GPUs that this one sees; prints what the first one prints.

    Raises RuntimeError if a process fails.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "USE_TORCH_XLA": "0"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += ["-m", __name__, function, json.dumps(parameters)]
    tracking.say(f"training in {processes} processes")
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as launcher:
        try:
            for line in launcher.stdout:  # type: ignore[union-attr]
                tracking.say(line.rstrip())
        except BaseException:  # no process outlives an interrupted cell
            launcher.terminate()
            raise
    if launcher.returncode:
        raise RuntimeError(f"training in {processes} processes failed: the lines above say why")


def main(function: str, parameters: str) -> None:
    """What each process does."""
    import torch.distributed

    threading.Thread(target=_end_with_the_kernel, daemon=True).start()
    if not ranks.is_main():
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    pkgutil.resolve_name(function)(**json.loads(parameters))
    ranks.gather(None)  # the first one to end would end the others
    if torch.distributed.is_initialized():  # else its threads abort a process that ends
        torch.distributed.destroy_process_group()


def _end_with_the_kernel() -> None:
    psutil.Process().parents()[1].wait()
    os.kill(os.getpid(), signal.SIGTERM)


def marked_cells(executed: Iterable[str]) -> list[str]:
    """What each process needs of the cells that ran in a kernel: those whose first line begins with one of MARKS.

    Of cells with the same first line the last one counts, in the place of the first.
    """
    cells = {source.partition("\n")[0]: source for source in executed if source.startswith(MARKS)}
    return [*cells.values()]


def run_cells(sources: Iterable[str]) -> Iterator[dict]:
    """Runs cells in this process, with IPython's magics but without a kernel; yields the variables after each. Raises what a cell raises."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    for source in sources:
        shell.run_cell(source, store_history=True).raise_error()
        yield shell.user_ns


if __name__ == "__main__":
    main(*sys.argv[1:])
