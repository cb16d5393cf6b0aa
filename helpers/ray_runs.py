"""Runs on the nodes of a Ray cluster that is there: one task a run, started again in the same folder where a node dies.

The only file that imports ray. The notebook, its data, the working directory and `--output-dir` must lie on a disk that
all nodes share, under the same paths; the node's Python needs what the notebook needs. This package comes along.
"""

import concurrent.futures
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from helpers.execution import Ended, Run, execute, logger, show_output
from helpers.kernels import Kernels

REQUIREMENT = "ray>=2.50,<3"
RETRIES = 10  # nodes that one run may lose


class RayRuns:
    """Runs that wait in Ray's queue for a node with what they need.

    Args:
        address: of the cluster, `auto` for the one that this machine belongs to.
        cpus, gpus: what a run takes. One CPU, and one GPU where the cluster has any, unless given.

    Raises:
        ValueError: ray is not installed, or no cluster is there.
    """

    def __init__(self, address: str = "auto", cpus: int | None = None, gpus: int | None = None):
        try:
            import ray
        except ModuleNotFoundError as error:
            raise ValueError(f'ray={address!r}: Ray is not installed here: pip install "{REQUIREMENT}"') from error
        host, _, port = address.removeprefix("ray://").rpartition(":")
        try:
            if host:  # ray.init would wait for minutes where nothing is
                socket.create_connection((host, int(port)), timeout=10).close()
            ray.init(address, runtime_env={"py_modules": [str(Path(__file__).parent)]}, logging_level="warning")
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
        import ray

        self._tasks, self._killed = {}, False
        task = ray.remote(_on_node)
        for each in runs:
            options = task.options(name=each.name, **self._needs)
            self._tasks[options.remote(each, kernel_name, str(Path.cwd()))] = each
        logger.info("%d runs handed to Ray, each takes %s", len(runs), self._needs)

    def going(self) -> bool:
        return bool(self._tasks)

    def ended(self, timeout: float) -> list[tuple[Run, Ended]]:
        """As `LocalRuns.ended`; a run whose last node died is failed."""
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
        import ray

        for task in self._tasks:
            ray.cancel(task, force=force, recursive=False)

    def kill(self) -> None:
        """Kills the processes that wait for the kernels; a kernel ends within seconds of its own accord then."""
        self._killed = True
        self.stop(force=True)


def _on_node(run: Run, kernel_name: str, directory: str) -> Ended:
    show_output()
    try:
        os.chdir(directory)
    except OSError as error:
        raise ValueError(
            f"{directory} is not on this node ({error}): start from a disk that all nodes share"
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
