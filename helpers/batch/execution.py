"""Runs of a notebook on this machine, each executed by papermill in a kernel of its own."""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from helpers.run import disk, folder_lock

from . import records
from .grid import Run, literal_path
from .records import RUN_FILE, logger

PAPERMILL_CHATTER = ("Executing ", "Ending Cell", "Input Notebook", "Output Notebook")
POLL = 0.5  # seconds
# A kernel may take ten minutes to start on a busy machine; papermill would give up after one.
OPTIONS = {"kernel_name": "python3", "progress_bar": False, "log_output": True, "start_timeout": 600}
Outcome = dict[str, Any]  # status, seconds, error; empty for a run that did not begin


def show_output(jobs: int = 1) -> None:
    """Logs to stderr what runs and what the notebooks print; with several jobs each message begins with its run."""
    form = "%(threadName)s: %(message)s" if jobs > 1 else "%(message)s"
    logging.basicConfig(format=form)
    logger.setLevel(logging.INFO)
    notebook_output = logging.getLogger("papermill")
    notebook_output.setLevel(logging.INFO)
    notebook_output.addFilter(lambda record: not record.getMessage().startswith(PAPERMILL_CHATTER))


def execute(run: Run, read_signal: Callable[[], int], environment: Mapping[str, str] | None = None) -> Outcome:
    """Makes a run that is not done; its status is "done", "done before", "failed", "stopped" or "in use".

    A signal goes to the kernel and not to its process group: it would kill the processes that load the data, and a
    training notebook could not save its checkpoint and raise `Stopped`. A notebook that does not train dies.

    Args:
        read_signal: the signal that the kernel is to get, 0 for none; called again and again.
        environment: variables for the kernel, besides those of this process.
    """
    if read_signal():
        return {}
    if records.code_digest(run.notebook) != run.identity["notebook"]:
        raise ValueError(f"{run.notebook} was edited since this command began: give the command again")
    try:
        folder_lock.own(run.folder)
    except folder_lock.FolderTaken:
        return {"status": "in use", "error": "another command is making this run: it is left alone"}
    record = records.read(run.folder)
    is_same = record.get("identity") == run.identity and record["status"] == "done"
    if is_same and not records.read_results(run.folder)[1]:
        return {"status": "done before"}
    return _execute(run, read_signal, environment or {})


def _execute(run: Run, read_signal: Callable[[], int], environment: Mapping[str, str]) -> Outcome:
    from papermill import PapermillExecutionError, execute_notebook

    logger.info("%s starts", run.folder.name)
    attempt = 1
    executed = run.folder / run.notebook.name
    while executed.exists():  # earlier attempts are kept, with their errors
        attempt += 1
        executed = run.folder / f"{run.notebook.stem}.{attempt}.ipynb"
    record = {"identity": run.identity, "parameters": run.parameters, "notebook": str(executed), "status": "unfinished"}
    disk.write_json(run.folder / RUN_FILE, record)
    began = time.monotonic()
    try:
        with _signalled(read_signal, environment) as manager:
            source, target = literal_path(run.notebook), literal_path(executed)
            notebook = execute_notebook(source, target, run.parameters, kernel_manager_class=manager, **OPTIONS)
        error = _early_end(notebook) or records.read_results(run.folder)[1]
    except PapermillExecutionError as failure:
        error = f"{failure.ename}: {failure.evalue} (In [{failure.exec_count}])"
    except Exception as failure:  # a full disk; a kernel that was killed, or never started
        error = f"{type(failure).__name__}: {failure}"
    status = "done"
    if error:
        status = "stopped" if read_signal() else "failed"
    outcome = {"status": status, "seconds": round(time.monotonic() - began, 1), "error": error}
    record["output_dir"] = str(records.output_of(run.folder))
    disk.write_json(run.folder / RUN_FILE, record | outcome)
    return outcome


def _early_end(notebook: Any) -> str:
    """What is wrong with an executed notebook although papermill reports success, as it does after `sys.exit`."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    idle = sum(cell.execution_count is None for cell in cells)
    if idle or notebook.metadata.papermill.exception:
        return f"the notebook stopped early (sys.exit?), {idle} code cells never ran"
    return ""


@contextlib.contextmanager
def _signalled(read_signal: Callable[[], int], environment: Mapping[str, str]):
    """The kernel manager class of one notebook; its kernel gets the signals, also if it starts after they came."""
    import psutil
    import zmq
    from jupyter_client import AsyncKernelManager

    kernels: list[psutil.Process] = []  # psutil never signals another process that got the same number later
    ended = threading.Event()

    class Manager(AsyncKernelManager):
        async def start_kernel(self, **options):
            if self.has_trait("transport_encryption") and zmq.has("curve"):
                self.transport_encryption = "auto"  # ipykernel warns of plain text
            await super().start_kernel(env={**os.environ, **environment}, **options)
            kernels.append(psutil.Process(self.provisioner.pid))

    def deliver() -> None:
        sent = 0
        while not ended.wait(POLL):
            if kernels and read_signal() != sent:
                sent = read_signal()
                with contextlib.suppress(psutil.NoSuchProcess):
                    kernels[-1].send_signal(sent)

    threading.Thread(target=deliver, daemon=True).start()
    try:
        yield Manager
    finally:
        ended.set()
        if read_signal():
            for kernel in kernels:
                with contextlib.suppress(ProcessLookupError):  # processes that a dead kernel started
                    os.killpg(kernel.pid, signal.SIGKILL)


class LocalRuns:
    """Runs on this machine, in the order in which they are submitted, so many at once as `jobs` says.

    Raises ValueError for fewer than one job, or more jobs than GPUs.
    """

    def __init__(self, jobs: int = 1):
        if jobs < 1:
            raise ValueError(f"jobs={jobs}: give 1 or more")
        self._shares = shares(jobs)
        self._pool = ThreadPoolExecutor(jobs)
        self._signal = 0

    def submit(self, run: Run) -> Future:
        """A future of the run's outcome."""
        return self._pool.submit(self._run, run)

    def send(self, number: int) -> None:
        """Sends SIGTERM or SIGKILL to the kernels, and starts no further run."""
        self._signal = number

    def _run(self, run: Run) -> Outcome:
        threading.current_thread().name = run.folder.name  # which its lines begin with
        share = self._shares.pop()
        try:
            return execute(run, lambda: self._signal, share)
        finally:
            self._shares.append(share)


def shares(jobs: int) -> list[dict[str, str]]:
    """Environment variables of several kernels that share this machine: a GPU for each, if there are any."""
    if jobs == 1:
        return [{}]
    import torch

    count = torch.cuda.device_count()
    if not count:
        return [{}] * jobs
    if jobs > count:
        raise ValueError(
            f"jobs={jobs}, but there are {count} GPU(s), and runs on one GPU would share its memory: give at most {count}, "
            "or set CUDA_VISIBLE_DEVICES= (empty) to train on the CPU"
        )
    gpus = [*map(str, range(count))]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible:
        gpus = visible.split(",")
    return [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in gpus[:jobs]]
