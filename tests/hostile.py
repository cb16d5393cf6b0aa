"""What a hostile input may do: be accepted for what it is, or be refused in seconds by an error that a person can act on."""

import contextlib
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

from hypothesis import HealthCheck, settings

REFUSALS = (ValueError, FileNotFoundError, PermissionError, ConnectionError)  # themselves: no JSONDecodeError, say
SECONDS, MEMORY, LONGEST = 30, 700 * 2**20, 20_000  # bytes that one input may cost; characters of a message
MARKER = "executed"  # a file that no payload may make


def cases(count: int) -> settings:
    """So many generated inputs, the same in every run."""
    return settings(
        max_examples=count, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )


@contextlib.contextmanager
def guarded(around: Path, *names: str) -> Iterator[list[str]]:
    """Runs what reads a hostile input; the list holds the refusal's message afterwards, or nothing.

    around: the folder whose files must be what they were.
    names: one of them must be in the message.
    """
    before, most, refusal = _files(around), _peak(), []
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_mapped() + 4 * 2**30, limits[1]))  # a bomb ends the test, not the machine
    signal.signal(signal.SIGALRM, _hang)
    signal.alarm(SECONDS)
    try:
        yield refusal
    except REFUSALS as error:
        assert type(error) in REFUSALS, f"{type(error).__name__} is no message to a person: {error}"
        message = str(error)
        assert any(name in message for name in names), f"{message[:500]} names none of {names}"
        assert len(message) < LONGEST, f"a message of {len(message)} characters: {message[:200]}"
        refusal.append(message)
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert _files(around) == before
    assert _peak() - most < MEMORY


def payload(around: Path) -> object:
    """An object whose pickle makes the marker file when it is loaded."""

    class Payload:
        def __reduce__(self):
            return os.system, (f"touch '{around / MARKER}'",)

    return Payload()


def _hang(*_) -> None:
    raise TimeoutError(f"not done after {SECONDS} s")


def _mapped() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _files(around: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of every file below a folder."""
    found = (Path(folder, name) for folder, _, files in os.walk(around) for name in files)
    return {str(path): ((stat := path.lstat()).st_size, stat.st_mtime_ns) for path in found}
