"""Runs on this machine: up to `jobs` at once, each in a kernel of its own."""

import os
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from helpers.batch.execution import Ended, Run, execute
from helpers.batch.kernels import Kernels


class LocalRuns:
    """Runs started in the order given.

    Args:
        jobs: runs at once. With more than one, each gets its own GPU, if there are any, and its share of the cores
            (`OMP_NUM_THREADS`, unless it is set); with one, it sees the whole machine.

    Raises:
        ValueError: fewer than one job, or more jobs than GPUs.
    """

    def __init__(self, jobs: int = 1):
        if jobs < 1:
            raise ValueError(f"jobs={jobs}: give 1 or more")
        self._jobs, self._shares = jobs, _shares(jobs)
        self._waiting: deque[Run] = deque()
        self._going: dict[Future, tuple[Run, dict[str, str]]] = {}

    def start(self, runs: Sequence[Run], kernel_name: str) -> None:
        """Takes the runs; `ended` starts them."""
        self._kernel_name, self._kernels, self._pool = kernel_name, Kernels(), ThreadPoolExecutor(self._jobs)
        self._waiting.extend(runs)

    def going(self) -> bool:
        """Whether a run waits or has not ended."""
        return bool(self._waiting or self._going)

    def ended(self, timeout: float) -> list[tuple[Run, Ended]]:
        """Starts runs while there is room, waits up to `timeout` seconds for one to end, and returns those that ended."""
        while self._waiting and self._shares:
            run, share = self._waiting.popleft(), self._shares.pop()
            self._going[self._pool.submit(self._run, run, share)] = run, share
        ended = []
        for future in wait(self._going, timeout, FIRST_COMPLETED).done:
            run, share = self._going.pop(future)
            self._shares.append(share)
            ended.append((run, future.result()))
        return ended

    def stop(self) -> None:
        """Starts no further run and sends SIGTERM to the kernels."""
        self._waiting.clear()
        self._kernels.stop()

    def kill(self) -> None:
        """Starts no further run and kills the kernels."""
        self._waiting.clear()
        self._kernels.kill()

    def _run(self, run: Run, share: dict[str, str]) -> Ended:
        threading.current_thread().name = run.name  # which its lines begin with
        return execute(run, self._kernel_name, self._kernels, share)


def _shares(jobs: int) -> list[dict[str, str]]:
    """The environment variables of each kernel."""
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
