"""Runs of a notebook, each executed by papermill in a kernel of its own and judged by what it wrote, on this machine.

papermill reports success after `sys.exit` half way and for a NaN loss; here both are failures.
"""

import contextlib
import json
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .grid import Run, literal_path

PAPERMILL_CHATTER = ("Executing ", "Ending Cell", "Input Notebook", "Output Notebook")
POLL = 0.5  # seconds
START = 600  # seconds that a kernel may take to start on a busy machine; papermill would give up after 60
Ended = tuple[dict[str, Any], dict[str, Any]]  # columns of the table; results.json
logger = logging.getLogger("helpers.batch")


def show_output(jobs: int = 1) -> None:
    """Logs to stderr what runs and what the notebooks print; with several jobs each message begins with its run."""
    logging.basicConfig(format=("%(threadName)s: " if jobs > 1 else "") + "%(message)s")
    logger.setLevel(logging.INFO)
    notebook_output = logging.getLogger("papermill")
    notebook_output.setLevel(logging.INFO)
    notebook_output.addFilter(lambda record: not record.getMessage().startswith(PAPERMILL_CHATTER))


def finished(each: Run) -> Ended | None:
    """(outcome, results) of a run that is done with the same parameters; None for one that must be executed."""
    import nbformat

    try:
        executed = nbformat.read(each.executed, as_version=4)
        if executed.metadata.papermill.parameters != each.parameters:
            return None  # its folder decides whether this is the same run
        error, results = _outcome(executed, each.output_dir)
        seconds = round(executed.metadata.papermill.duration, 1)
    except (FileNotFoundError, nbformat.reader.NotJSONError, AttributeError, TypeError):
        return None  # nothing there, or cut short when its batch was killed
    return None if error else ({"status": "done before", "seconds": seconds}, results)


def execute(each: Run, asked: Callable[[], int], environment: Mapping[str, str] | None = None) -> Ended:
    """Runs the notebook; the status is "done", "failed", or "stopped" after a signal.

    The signal goes to the kernel and not to its process group: it would kill the processes that load the data, and a
    training notebook could not save its checkpoint and raise `Stopped`. A notebook that does not train dies.

    Args:
        asked: the signal that the kernel is to get, 0 for none; called again and again.
        environment: variables for the kernel, besides those of this process.
    """
    from papermill import PapermillExecutionError, execute_notebook

    if asked():
        return not_run(each)
    logger.info("%s starts", each.name)
    each.executed.parent.mkdir(parents=True, exist_ok=True)
    if each.executed.exists():  # unfinished: its traceback is evidence
        attempts = [*each.executed.parent.glob("*.attempt*.ipynb")]
        each.executed.rename(each.executed.with_suffix(f".attempt{len(attempts) + 1}.ipynb"))
    error, results, began = "", {}, time.monotonic()
    paths = literal_path(each.notebook), literal_path(each.executed)
    options = {"kernel_name": "python3", "progress_bar": False, "log_output": True, "start_timeout": START}
    try:
        with _signalled(asked, environment or {}) as manager:
            executed = execute_notebook(*paths, each.parameters, kernel_manager_class=manager, **options)
        error, results = _outcome(executed, each.output_dir)
    except PapermillExecutionError as failure:
        error = f"{failure.ename}: {failure.evalue} (In [{failure.exec_count}])"
    # A full disk; nbclient's DeadKernelError (killed, out of memory) and a kernel that never starts.
    except (OSError, RuntimeError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    status = ("stopped" if asked() else "failed") if error else "done"
    return {"status": status, "seconds": round(time.monotonic() - began, 1), "error": error}, results


def not_run(each: Run) -> Ended:
    """The outcome of a run that was not started since the batch was asked to stop; an earlier command may have started it."""
    return {"status": "stopped" if each.executed.exists() else "not run"}, {}


@contextlib.contextmanager
def _signalled(asked: Callable[[], int], environment: Mapping[str, str]):
    """The kernel manager class of one notebook; its kernel gets the signals that are asked for, also if it starts after them."""
    import psutil
    from jupyter_client import AsyncKernelManager

    started: list[psutil.Process] = []  # psutil never signals another process that got the same number later
    ended = threading.Event()

    class Manager(AsyncKernelManager):
        async def start_kernel(self, **options):
            await super().start_kernel(env={**os.environ, **environment}, **options)
            started.append(psutil.Process(self.provisioner.pid))

    def deliver() -> None:
        sent = 0
        while not ended.wait(POLL):
            if started and asked() != sent:
                sent = asked()
                with contextlib.suppress(psutil.NoSuchProcess):
                    started[-1].send_signal(sent)

    threading.Thread(target=deliver, daemon=True).start()
    try:
        yield Manager
    finally:
        ended.set()
        for process in started if asked() else ():
            with contextlib.suppress(ProcessLookupError):  # processes that a dead kernel started
                os.killpg(process.pid, signal.SIGKILL)


def _outcome(executed: Any, output_dir: Path) -> tuple[str, dict[str, Any]]:
    """What is wrong with an executed notebook ("" for nothing) although papermill reports success, and its results."""
    cells = [cell for cell in executed.cells if cell.cell_type == "code" and cell.source.strip()]
    idle = sum(cell.execution_count is None for cell in cells)
    if idle or executed.metadata.papermill.exception:
        return f"the notebook stopped early (sys.exit?), {idle} code cells never ran", {}
    path = output_dir / "results.json"
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return f"papermill reports success, but {path} cannot be read: {error}", {}
    loss = (results.get("train") or {}).get("loss_last")
    if not isinstance(loss, (int, float)) or not math.isfinite(loss):
        return f"train.loss_last in {path} is {loss!r}, not a finite number", results
    return "", results


class LocalRuns:
    """Runs on this machine, in the order in which they are submitted.

    Args:
        jobs: runs at once. With more than one, each gets its own GPU, if there are any, and its share of the cores
            (`OMP_NUM_THREADS`, unless it is set); with one, it sees the whole machine.

    Raises:
        ValueError: fewer than one job, or more jobs than GPUs.
    """

    def __init__(self, jobs: int = 1):
        if jobs < 1:
            raise ValueError(f"jobs={jobs}: give 1 or more")
        self._shares = shares(jobs)
        self._pool = ThreadPoolExecutor(jobs)
        self._asked = 0

    def submit(self, run: Run) -> Future:
        """A future of the run's outcome and results."""
        return self._pool.submit(self._run, run)

    def stop(self) -> None:
        """Sends SIGTERM to the kernels, and starts no further run."""
        self._asked = signal.SIGTERM

    def kill(self) -> None:
        """Kills the kernels, and starts no further run."""
        self._asked = signal.SIGKILL

    def _run(self, run: Run) -> Ended:
        threading.current_thread().name = run.name  # which its lines begin with
        share = self._shares.pop()
        try:
            return execute(run, lambda: self._asked, share)
        finally:
            self._shares.append(share)


def shares(jobs: int) -> list[dict[str, str]]:
    """The environment variables of each of several kernels that share this machine."""
    if jobs == 1:
        return [{}]
    import torch

    gpus = [str(number) for number in range(torch.cuda.device_count())]
    if visible := [each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]:
        gpus = visible[: len(gpus)]
    if gpus and jobs > len(gpus):
        raise ValueError(
            f"jobs={jobs}, but there are {len(gpus)} GPU(s), and runs on one GPU would share its memory: give at most "
            f"{len(gpus)}, or set CUDA_VISIBLE_DEVICES= (empty) to train on the CPU"
        )
    cores = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, os.cpu_count() // jobs))}
    return [cores | ({"CUDA_VISIBLE_DEVICES": gpus[number]} if gpus else {}) for number in range(jobs)]
