"""Runs on the nodes of a Ray cluster: one task for each run, restarted in the same folder if its node dies.

The only file that imports ray. The notebook, its data, the working directory and `--output-dir` must lie on a disk that
all nodes share, under the same paths. Every node needs the libraries of the notebook; this package is sent along.
"""

import concurrent.futures
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from helpers.batch.execution import Ended, Run, execute, logger, show_output
from helpers.batch.kernels import Kernels

REQUIREMENT = "ray>=2.50,<3"
RETRIES = 10  # how often the node of a run may die


class RayRuns:
    """Runs that wait in Ray's queue for a node that has the CPUs and GPUs they need.

    Args:
        address: of the cluster; `auto` is the one that this machine belongs to.
        cpus, gpus: of each run; by default one CPU, and one GPU if the cluster has any.

    Raises:
        ValueError: ray is not installed, or no cluster answers.
    """

    def __init__(self, address: str = "auto", cpus: int | None = None, gpus: int | None = None):
        try:
            import ray
        except ModuleNotFoundError as error:
            raise ValueError(f'ray={address!r}: Ray is not installed here: pip install "{REQUIREMENT}"') from error
        host, _, port = address.removeprefix("ray://").rpartition(":")
        try:
            if host:  # ray.init would wait for minutes if there is none
                socket.create_connection((host, int(port)), timeout=10).close()
            ray.init(address, runtime_env={"py_modules": [str(Path(__file__).parents[1])]}, logging_level="warning")
        except (OSError, ValueError) as error:
            raise ValueError(
                f"ray={address!r}: no Ray cluster answers ({error}): start one with `ray start --head`"
            ) from error
        has_gpus = ray.cluster_resources().get("GPU", 0) >= 1
        self._needs = {
            "num_cpus": 1 if cpus is None else cpus,
            "num_gpus": int(has_gpus) if gpus is None else gpus,
            "max_retries": RETRIES,
        }

    def start(self, runs: Sequence[Run], kernel_name: str) -> None:
        """Puts the runs into Ray's queue."""
        import ray

        self._tasks, self._killed = {}, False
        task = ray.remote(_on_node)
        for each in runs:
            options = task.options(name=each.name, **self._needs)
            self._tasks[options.remote(each, kernel_name, str(Path.cwd()))] = each
        logger.info("%d runs sent to Ray; each takes %s", len(runs), self._needs)

    def going(self) -> bool:
        """Whether a run waits or has not ended."""
        return bool(self._tasks)

    def ended(self, timeout: float) -> list[tuple[Run, Ended]]:
        """As `LocalRuns.ended`; a run that lost too many nodes has failed."""
        import ray

        ended = []
        for task in ray.wait(list(self._tasks), timeout=timeout)[0]:
            each = self._tasks.pop(task)
            try:
                ended.append((each, ray.get(task)))
            except ray.exceptions.RayError as error:
                cancelled = isinstance(error, ray.exceptions.TaskCancelledError)
                if cancelled and not self._killed:
                    continue  # it never began
                outcome = {"status": "stopped" if self._killed else "failed", "seconds": "", "failed_cell": ""}
                ended.append((each, ({**outcome, "error": f"{type(error).__name__}: {error}"}, {})))
        return ended

    def stop(self, force: bool = False) -> None:
        """Cancels the runs: those on a node save a checkpoint, unless `force` kills them."""
        import ray

        for task in self._tasks:
            ray.cancel(task, force=force, recursive=False)

    def kill(self) -> None:
        """Kills the processes that wait for the kernels; their kernels then end within seconds."""
        self._killed = True
        self.stop(force=True)


def _on_node(run: Run, kernel_name: str, directory: str) -> Ended:
    show_output()
    try:
        os.chdir(directory)
    except OSError as error:
        raise ValueError(
            f"{directory} is not on this node ({error}): start the command in a folder on a disk that all nodes share"
        ) from error
    kernels = Kernels()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(execute, run, kernel_name, kernels)
        while not future.done():
            try:
                concurrent.futures.wait([future], timeout=0.5)
            except KeyboardInterrupt:  # how `ray.cancel` arrives
                kernels.stop()
        return future.result()
