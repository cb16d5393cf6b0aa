"""Runs on the nodes of a Ray cluster: one task for each run, restarted in the same folder if its node dies.

The notebook, its data, the working directory and `--output-dir` must lie on a disk that all nodes share, under the same
paths. Every node needs the libraries of the notebook; this package is sent along.
"""

import logging
import os
import signal
import socket
import uuid
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from .execution import Outcome, execute, show_output
from .grid import Run

REQUIREMENT = "ray>=2.50,<3"
RETRIES = 10  # how often the node of a run may die


class RayRuns:
    """Runs that wait in Ray's queue for a node with `cpus` CPUs, and with one GPU if the cluster has any.

    address: of the cluster; `auto` is the one that this machine belongs to.

    Raises ValueError if ray is not installed, or no cluster answers.
    """

    def __init__(self, address: str = "auto", cpus: int = 1):
        try:
            import ray
        except ModuleNotFoundError as error:
            raise ValueError(f'ray={address!r}: Ray is not installed here: pip install "{REQUIREMENT}"') from error
        host, _, port = address.removeprefix("ray://").rpartition(":")
        try:
            if host:  # ray.init would wait for minutes if there is none
                socket.create_connection((host, int(port)), timeout=10).close()
            package = str(Path(__file__).resolve().parents[1])
            ray.init(address, runtime_env={"py_modules": [package]}, logging_level=logging.WARNING)
        except (OSError, ValueError) as error:
            remedy = "start one with `ray start --head`"
            raise ValueError(f"ray={address!r}: no Ray cluster answers ({error}): {remedy}") from error
        self._ray = ray
        gpus = min(1, int(ray.cluster_resources().get("GPU", 0)))
        self._task = ray.remote(max_retries=RETRIES, num_cpus=cpus, num_gpus=gpus)(_on_node)
        self._tasks: list[Any] = []
        # ray.cancel may put a TaskCancelledError in the place of the outcome: a file stops the runs, on the shared disk.
        self._stop_file = Path(f".stop-{uuid.uuid4().hex}")

    def submit(self, run: Run) -> Future:
        """A future of the run's outcome, or of Ray's exception if too many nodes were lost."""
        self._stop_file = run.folder.parent / self._stop_file
        task = self._task.options(name=run.folder.name).remote(run, str(Path.cwd()), self._stop_file)
        self._tasks.append(task)
        return task.future()

    def send(self, number: int) -> None:
        """SIGTERM tells the runs to save a checkpoint; SIGKILL ends their processes, and their kernels within seconds."""
        if number == signal.SIGTERM:
            self._stop_file.parent.mkdir(parents=True, exist_ok=True)
            self._stop_file.touch()
            return
        for task in self._tasks:
            self._ray.cancel(task, force=True, recursive=False)
        self._stop_file.unlink(missing_ok=True)


def _on_node(run: Run, directory: str, stop_file: Path) -> Outcome:
    show_output()
    os.chdir(directory)
    return execute(run, lambda: signal.SIGTERM if stop_file.exists() else 0)
