"""kill -9 at a chosen file operation, without a line in the code under test: through the interpreter's audit events."""

import os
import signal
import sys
from collections.abc import Callable

FILE_OPERATIONS = ("open", "os.", "shutil.")  # prefixes of audit events


def kill_at(number: int, within: str = "") -> None:
    """Kills this process at its n-th file operation on a path that contains `within`."""
    seen = 0

    def hook(event: str, arguments: tuple) -> None:
        nonlocal seen
        if not event.startswith(FILE_OPERATIONS):
            return
        paths = [os.fspath(argument) for argument in arguments if isinstance(argument, (str, os.PathLike))]
        if not within or any(within in path for path in paths):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def killed(work: Callable[[], object], number: int, within: str = "") -> bool:
    """Runs `work` in a forked child that dies at its n-th file operation (`kill_at`); False when it ended before."""
    child = os.fork()
    if child:
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
    kill_at(number, within)
    try:
        work()
    finally:
        os._exit(0)


def fail_at(number: int, code: int, within: str) -> None:
    """From now on the n-th time that a file or folder is opened whose path contains `within` fails with errno `code`; 0: each time."""
    seen = 0

    def hook(event: str, arguments: tuple) -> None:
        nonlocal seen
        if event in ("open", "os.scandir", "os.listdir") and within in str(arguments[0]):
            seen += 1
            if number in (0, seen):
                raise OSError(code, os.strerror(code))

    sys.addaudithook(hook)


def disturbed(work: Callable[[], object], code: int, number: int, within: str) -> str:
    """What `work` returned or raised, in a forked child in which `fail_at` was called."""
    read, write = os.pipe()
    child = os.fork()
    if child:
        os.close(write)
        with os.fdopen(read) as answer:
            said = answer.read()
        os.waitpid(child, 0)
        return said
    fail_at(number, code, within)
    try:
        answer = str(work())
    except BaseException as error:
        answer = f"{type(error).__name__}: {error}"
    os.write(write, answer.encode())
    os._exit(0)
