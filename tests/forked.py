"""Training runs as real processes that do not import torch each anew: children of a server that has imported it already.

run(DRIVER, "folder", '{"steps": 12}')   # as subprocess.run([sys.executable, DRIVER, ...], capture_output=True, text=True)
run("-c", "print(1 + 1)", xla=True, PJRT_DEVICE="CPU")

A child is a process of its own: it dies of its signals, starts its own XLA client and ends as any interpreter does. It is
not for what an interpreter does first: environment variables that a library reads on import, the order of imports, the
seed of hashes (a child has the server's), the peak of memory.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
XLA_SWITCH = "USE_TORCH_XLA"  # transformers and accelerate read it on import: CPU and XLA have a server each
MODULES = ("torch", "transformers.trainer", "accelerate", "datasets", "peft", "sentence_transformers")
COMMON = {"TOKENIZERS_PARALLELISM": "false"}


class Run:
    """A started process: `pid`, `poll` and `wait` as of subprocess.Popen."""

    def __init__(self, *arguments: object, xla: bool = False, stdout=None, stderr=None, **environment: str):
        ours, theirs = socket.socketpair()
        request = {"arguments": [str(each) for each in arguments], "environment": _environment(xla) | environment}
        with theirs, Path(os.devnull).open("r+b") as nothing:
            files = [nothing, stdout or nothing, stderr or nothing, theirs]
            socket.send_fds(_server(xla), [json.dumps(request).encode()], [each.fileno() for each in files])
        self._answers = ours.makefile("r")
        self.pid = int(self._answers.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self.wait(0)

    def wait(self, seconds: float | None = None) -> int | None:
        """The exit status, negative after a signal; None if the process still runs after so many seconds."""
        if self.returncode is None and select.select([self._answers], [], [], seconds)[0]:
            self.returncode = int(self._answers.readline())
        return self.returncode


def run(
    *arguments: object, xla: bool = False, fresh: bool = False, timeout: float = 900, **environment: str
) -> subprocess.CompletedProcess:
    """Runs a script, or code after "-c", with arguments in the root folder to its end, and returns what it printed.

    Args:
        xla: whether transformers and accelerate take XLA in it, where torch_xla is installed.
        fresh: an interpreter of its own, whose hashes have another seed: nothing may hang on the order of a set.
    """
    if fresh:
        options = {"cwd": ROOT, "env": os.environ | COMMON | environment, "timeout": timeout}
        return subprocess.run([sys.executable, *map(str, arguments)], **options, capture_output=True, text=True)
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        process = Run(*arguments, xla=xla, stdout=stdout, stderr=stderr, **environment)
        if process.wait(timeout) is None:
            os.kill(process.pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(arguments, timeout)
        for file in (stdout, stderr):
            file.seek(0)
        return subprocess.CompletedProcess(arguments, process.returncode, stdout.read(), stderr.read())


def _environment(xla: bool) -> dict[str, str]:
    return os.environ | COMMON | {XLA_SWITCH: str(int(xla))}


@functools.cache
def _server(xla: bool) -> socket.socket:
    """Where requests go. The server ends when this process has ended, however it did."""
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    environment = _environment(xla) | {"OMP_NUM_THREADS": "1"}  # no thread of numpy may be there at a fork
    command = [sys.executable, __file__, str(theirs.fileno())]
    subprocess.Popen(command, cwd=ROOT, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    theirs.close()
    return ours


def _serve(requests: socket.socket) -> dict:
    """Forks for every request, forever. Returns it in the child."""
    gc.disable()  # halves the time of the imports
    for name in MODULES:
        importlib.import_module(name)
    import torch

    assert not torch.cuda.is_initialized()  # a child could not use it
    gc.enable()
    gc.freeze()  # a collection writes into every object it looks at, and all memory would be copied
    keepers: list[int] = []
    while True:
        message, files, _, _ = socket.recv_fds(requests, 2**20, 4)
        if not message:
            os._exit(0)
        keepers = [each for each in keepers if os.waitpid(each, os.WNOHANG)[0] == 0]
        keepers.append(os.fork())
        if keepers[-1] == 0:
            requests.close()
            _keep(files)
            return json.loads(message)
        for file in files:
            os.close(file)


def _keep(files: list[int]) -> None:
    """Forks the process that is asked for and returns in it; stays behind to tell its number and how it ended."""
    *streams, answers = files
    child = os.fork()
    if child:
        for file in range(3):
            os.close(file)
        for file in streams:
            os.close(file)
        os.write(answers, f"{child}\n".encode())
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(answers, f"{status}\n".encode())
        os._exit(0)
    for number, file in enumerate(streams):
        os.dup2(file, number)
        os.close(file)
    os.close(answers)


if __name__ == "__main__":
    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    os.environ.clear()
    os.environ.update(request["environment"])
    import numpy

    numpy.random.seed()  # from the system, as a new interpreter's; Python's own is after a fork
    if request["arguments"][0] == "-c":
        _, code, *sys.argv[1:] = request["arguments"]
        sys.path[0] = ""
        exec(compile(code, "<string>", "exec", dont_inherit=True), {"__name__": "__main__"})
    else:
        sys.argv = request["arguments"]
        runpy.run_path(sys.argv[0], run_name="__main__")  # its folder is this file's and in sys.path
