"""Runs on the nodes of a Ray cluster: one task for each run, restarted in the same folder if its node dies.

The only file that imports ray. The notebook, its data, the working directory and `--output-dir` must lie on a disk that
all nodes share, under the same paths. Every node needs the libraries of the notebook; this package is sent along.

A run is stopped by a file on that disk, which the process beside its kernel looks at: `ray.cancel` may put a
TaskCancelledError in the place of the run's own answer.
"""

import os
import signal
import socket
import uuid
from concurrent.futures import Future
from pathlib import Path

from .execution import Outcome, execute, not_started, show_output
from .grid import Run

REQUIREMENT = "ray>=2.50,<3"
RETRIES = 10  # how often the node of a run may die


class RayRuns:
    """Runs that wait in Ray's queue for a node that has the CPUs and GPUs they need.

    Args:
        address: of the cluster; `auto` is the one that this machine belongs to.
        cpus, gpus: of each run; by default one GPU if the cluster has any.

    Raises:
        ValueError: ray is not installed, or no cluster answers.
    """

    def __init__(self, address: str = "auto", cpus: int = 1, gpus: int | None = None):
        try:
            import ray
        except ModuleNotFoundError as error:
            raise ValueError(f'ray={address!r}: Ray is not installed here: pip install "{REQUIREMENT}"') from error
        host, _, port = address.removeprefix("ray://").rpartition(":")
        try:
            if host:  # ray.init would wait for minutes if there is none
                socket.create_connection((host, int(port)), timeout=10).close()
            package = str(Path(__file__).resolve().parents[1])
            ray.init(address, runtime_env={"py_modules": [package]}, logging_level="warning")
        except (OSError, ValueError) as error:
            raise ValueError(
                f"ray={address!r}: no Ray cluster answers ({error}): start one with `ray start --head`"
            ) from error
        has_gpus = ray.cluster_resources().get("GPU", 0) >= 1
        needs = {"num_cpus": cpus, "num_gpus": int(has_gpus) if gpus is None else gpus}
        self._task = ray.remote(max_retries=RETRIES, **needs)(_on_node)
        self._tasks: list[ray.ObjectRef] = []
        self._stop_file, self._killed = None, False

    def submit(self, run: Run) -> Future:
        """A future of the run's outcome; a run that lost too many nodes has failed."""
        self._stop_file = self._stop_file or run.batch / f".stop-{uuid.uuid4().hex}"
        task = self._task.options(name=run.name).remote(run, str(Path.cwd()), self._stop_file)
        self._tasks.append(task)
        answer: Future = Future()
        task.future().add_done_callback(lambda ended: answer.set_result(self._answer(run, ended)))
        return answer

    def _answer(self, run: Run, ended: Future) -> Outcome:
        import ray

        try:
            return ended.result()
        except ray.exceptions.RayError as error:
            if self._killed:
                return not_started(run)
            return {"run": run.name, "status": "failed", "error": f"{type(error).__name__}: {error}"}

    def stop(self) -> None:
        """Tells the runs to save a checkpoint, and starts no further run."""
        if self._stop_file:
            self._stop_file.parent.mkdir(parents=True, exist_ok=True)
            self._stop_file.touch()

    def kill(self) -> None:
        """Kills the processes that wait for the kernels; their kernels then end within seconds."""
        import ray

        self._killed = True
        for task in self._tasks:
            ray.cancel(task, force=True, recursive=False)
        if self._stop_file:
            self._stop_file.unlink(missing_ok=True)


def _on_node(run: Run, directory: str, stop_file: Path) -> Outcome:
    show_output()
    try:
        os.chdir(directory)
    except OSError as error:
        raise ValueError(
            f"{directory} is not on this node ({error}): start the command in a folder on a disk that all nodes share"
        ) from error
    return execute(run, lambda: signal.SIGTERM if stop_file.exists() else 0)
