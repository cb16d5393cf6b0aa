"""Runs of a notebook, each executed by papermill in a kernel of its own, on this machine.

papermill reports success after `sys.exit` half way and for a NaN loss; here both are failures.
"""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from helpers.run import folder_lock

from . import records
from .grid import Run, literal_path
from .records import logger

PAPERMILL_CHATTER = ("Executing ", "Ending Cell", "Input Notebook", "Output Notebook")
POLL = 0.5  # seconds
START = 600  # seconds that a kernel may take to start on a busy machine; papermill would give up after 60
Outcome = dict[str, Any]  # folder, status, seconds, error


def show_output(jobs: int = 1) -> None:
    """Logs to stderr what runs and what the notebooks print; with several jobs each message begins with its run."""
    logging.basicConfig(format=("%(threadName)s: " if jobs > 1 else "") + "%(message)s")
    logger.setLevel(logging.INFO)
    notebook_output = logging.getLogger("papermill")
    notebook_output.setLevel(logging.INFO)
    notebook_output.addFilter(lambda record: not record.getMessage().startswith(PAPERMILL_CHATTER))


def execute(run: Run, asked: Callable[[], int], environment: Mapping[str, str] | None = None) -> Outcome:
    """Makes a run that is not done; its status is "done", "done before", "failed", "stopped", "in use" or "not run".

    A signal goes to the kernel and not to its process group: it would kill the processes that load the data, and a
    training notebook could not save its checkpoint and raise `Stopped`. A notebook that does not train dies.

    Args:
        asked: the signal that the kernel is to get, 0 for none; called again and again.
        environment: variables for the kernel, besides those of this process.
    """
    outcome = {"run": run.name}
    try:
        if asked():
            return not_started(run)
        identity = records.identify(run)
        outcome["folder"] = folder = records.find(run.batch, identity) or records.new_folder(run, identity)
        with folder_lock.owned(folder):
            record = records.read(folder)
            if record.get("identity", identity) != identity:  # another command took the folder at this moment
                return execute(run, asked, environment)
            if record.get("status") == "done" and not records.results(folder)[1]:
                return outcome | {"status": "done before"}
            records.note(folder, identity=identity, parameters=run.parameters, status="unfinished", error="")
            ended = _execute(run, folder, asked, environment or {})
            records.note(folder, **ended)
            return outcome | ended
    except folder_lock.FolderTaken:
        return outcome | {"status": "in use", "error": "another process makes this run: it is left alone"}
    except Exception as failure:  # such as a full disk: the other runs go on
        return outcome | {"status": "failed", "error": f"{type(failure).__name__}: {failure}"}


def not_started(run: Run) -> Outcome:
    """The outcome of a run that this command did not begin; an earlier one may have."""
    outcome = {"run": run.name, "status": "not run"}
    with contextlib.suppress(OSError, ValueError):  # the notebook is gone
        folder = records.find(run.batch, records.identify(run))
        if folder:
            done = records.read(folder)["status"] == "done"
            outcome |= {"folder": folder, "status": "done before" if done else "stopped"}
    return outcome


def _execute(run: Run, folder: Path, asked: Callable[[], int], environment: Mapping[str, str]) -> Outcome:
    from papermill import PapermillExecutionError, execute_notebook

    logger.info("%s starts", folder.name)
    attempt = len([*folder.glob("*.ipynb")]) + 1  # earlier ones are kept, with their errors
    executed = folder / (run.notebook.name if attempt == 1 else f"{run.notebook.stem}.{attempt}.ipynb")
    # In a second place all runs lie beside each other, under the names of these folders.
    keep_in = {**run.defaults, **run.parameters}.get("keep_in")
    output = f"{run.batch.name},{folder.name}" if keep_in else "output"
    before = records.read(folder).get("output_dir")
    parameters = {"output_dir": before or str(folder / output), **run.parameters}
    records.note(folder, notebook=str(executed), output_dir=parameters["output_dir"])
    options = {"kernel_name": "python3", "progress_bar": False, "log_output": True, "start_timeout": START}
    began = time.monotonic()
    try:
        with _signalled(asked, environment) as manager:
            paths = literal_path(run.notebook), literal_path(executed)
            notebook = execute_notebook(*paths, parameters, kernel_manager_class=manager, **options)
        error = _early_end(notebook) or records.results(folder)[1]
    except PapermillExecutionError as failure:
        error = f"{failure.ename}: {failure.evalue} (In [{failure.exec_count}])"
    # A full disk; nbclient's DeadKernelError (killed, out of memory) and a kernel that never starts.
    except (OSError, RuntimeError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    status = "done"
    if error:
        status = "stopped" if asked() else "failed"
    return {"status": status, "seconds": round(time.monotonic() - began, 1), "error": error}


def _early_end(notebook: Any) -> str:
    """What is wrong with an executed notebook although papermill reports success, or ""."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    idle = sum(cell.execution_count is None for cell in cells)
    if idle or notebook.metadata.papermill.exception:
        return f"the notebook stopped early (sys.exit?), {idle} code cells never ran"
    return ""


@contextlib.contextmanager
def _signalled(asked: Callable[[], int], environment: Mapping[str, str]):
    """The kernel manager class of one notebook; its kernel gets the signals that are asked for, also if it starts after them."""
    import psutil
    import zmq
    from jupyter_client import AsyncKernelManager

    started: list[psutil.Process] = []  # psutil never signals another process that got the same number later
    ended = threading.Event()

    class Manager(AsyncKernelManager):
        async def start_kernel(self, **options):
            if self.has_trait("transport_encryption") and zmq.has("curve"):
                self.transport_encryption = "auto"  # ipykernel warns of plain text
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


class LocalRuns:
    """Runs on this machine, in the order in which they are submitted.

    jobs: runs at once. With more than one, each gets its own GPU, if there are any, and its share of the cores
    (`OMP_NUM_THREADS`, unless it is set). Raises ValueError for fewer than one job, or more jobs than GPUs.
    """

    def __init__(self, jobs: int = 1):
        if jobs < 1:
            raise ValueError(f"jobs={jobs}: give 1 or more")
        self._shares = shares(jobs)
        self._pool = ThreadPoolExecutor(jobs)
        self._asked = 0

    def submit(self, run: Run) -> Future:
        """A future of the run's outcome."""
        return self._pool.submit(self._run, run)

    def stop(self) -> None:
        """Sends SIGTERM to the kernels, and starts no further run."""
        self._asked = signal.SIGTERM

    def kill(self) -> None:
        """Kills the kernels, and starts no further run."""
        self._asked = signal.SIGKILL

    def _run(self, run: Run) -> Outcome:
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
    visible = list(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")))
    if visible:
        gpus = visible[: len(gpus)]
    if gpus and jobs > len(gpus):
        raise ValueError(
            f"jobs={jobs}, but there are {len(gpus)} GPU(s), and runs on one GPU would share its memory: give at most "
            f"{len(gpus)}, or set CUDA_VISIBLE_DEVICES= (empty) to train on the CPU"
        )
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, os.cpu_count() // jobs))
    if not gpus:
        return [{"OMP_NUM_THREADS": threads}] * jobs
    return [{"OMP_NUM_THREADS": threads, "CUDA_VISIBLE_DEVICES": gpu} for gpu in gpus[:jobs]]
