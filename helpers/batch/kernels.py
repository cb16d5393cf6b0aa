"""The kernels that run notebooks, which are stopped together: by SIGTERM, and after a grace time by SIGKILL."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping


class Kernels:
    """Kernels, started in any thread; one that starts after `stop` is stopped, too.

    SIGTERM goes to a kernel and not to its process group: it would kill the processes that load the data, and a training
    notebook could not save its checkpoint and raise `Stopped`. A notebook that does not train dies.
    """

    def __init__(self):
        self.stopping = False
        self._lock = threading.Lock()
        self._processes = set()  # psutil's, which never signal another process that got the same number later

    @contextlib.contextmanager
    def manager(self, environment: Mapping[str, str]) -> Iterator[type]:
        """The kernel manager class of one notebook; `environment`: variables besides those of this process."""
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
                with contextlib.suppress(ProcessLookupError):  # processes that a dead kernel launched
                    os.killpg(process.pid, signal.SIGKILL)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Sends a signal to all kernels, and SIGTERM to those that start later."""
        with self._lock:
            self.stopping = True
            _send(self._processes, number)

    def kill(self) -> None:
        """Kills all kernels at once."""
        self.stop(signal.SIGKILL)


def _send(processes: set, number: int) -> None:
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
