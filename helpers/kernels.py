"""The kernels that run notebooks now, told to stop together: SIGTERM, and after a grace time SIGKILL."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping


class Kernels:
    """Started by any thread; one that starts when the others have been told to stop is told so, too.

    SIGTERM goes to a kernel alone and not to its process group: the processes that load its data would die of it, and
    the training notebook, which saves a checkpoint and raises `Stopped`, would fail. Another notebook dies.
    """

    def __init__(self):
        self.stopping = False
        self._lock = threading.Lock()
        self._processes = set()  # psutil's, which signal no other process that got the same number later

    @contextlib.contextmanager
    def manager(self, environment: Mapping[str, str]) -> Iterator[type]:
        """The kernel manager class of one notebook, whose kernel gets `environment` on top of this process's."""
        import psutil
        from jupyter_client import AsyncKernelManager

        started = set()

        class Manager(AsyncKernelManager):
            async def start_kernel(manager, **options):
                await super().start_kernel(env={**os.environ, **environment}, **options)
                started.add(psutil.Process(manager.provisioner.pid))
                with self._lock:
                    self._processes |= started
                    if self.stopping:
                        _send(started, signal.SIGTERM)

        try:
            yield Manager
        finally:
            with self._lock:
                self._processes -= started
            for process in started if self.stopping else ():
                with contextlib.suppress(ProcessLookupError):  # processes that a kernel launched and died before
                    os.killpg(process.pid, signal.SIGKILL)

    def stop(self, number: int = signal.SIGTERM) -> None:
        with self._lock:
            self.stopping = True
            _send(self._processes, number)

    def kill(self) -> None:
        self.stop(signal.SIGKILL)


def _send(processes: set, number: int) -> None:
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
