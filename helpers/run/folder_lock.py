"""One owner for each run folder, so that two processes never write the same run.

A file in the folder names the owner's host and process, and carries a heartbeat that others watch by their own clock
(filelock's `SoftFileLease`, which needs no locks from the file system: it works on a local disk, NFS and a mounted
Drive). A dead owner on this machine is replaced at once, one elsewhere after `SILENCE` seconds without a heartbeat.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from filelock import SoftFileLease, Timeout

from helpers.show import tracking

LOCK_FILE = "owner.lock"
SILENCE = 120.0  # seconds; a heartbeat comes every third of it
UNSIGNED = 5.0  # seconds after which a lock file that is still empty means that its process died while writing it


class FolderTaken(RuntimeError):
    """Another process owns the run folder."""


@dataclass
class _Hold:
    lease: SoftFileLease
    since: float = field(default_factory=time.monotonic)


_holds: dict[Path, _Hold] = {}


@functools.cache
def _this_host() -> str:
    """The name under which filelock notes this machine: inside a container not that of `socket.gethostname()` alone."""
    with tempfile.TemporaryDirectory() as folder, SoftFileLease(Path(folder) / LOCK_FILE) as lease:
        return lease.owner.hostname


def own(output_dir: Path | str) -> None:
    """Makes this process the owner of an existing folder until it ends, unless it or a parent process is the owner.

    Raises:
        FolderTaken: a living process owns the folder.
        OSError: the folder cannot be written.
    """
    path = Path(output_dir).resolve()
    hold = _holds.get(path)
    if hold is not None and hold.lease.compromise is None and hold.lease.is_lock_held_by_us:
        return
    lease = SoftFileLease(path / LOCK_FILE, lease_duration=SILENCE, thread_local=False)
    try:
        lease.acquire(timeout=1)  # seconds: enough for an owner that is known to be dead
    except Timeout:
        owner, parents = lease.owner, {parent.pid for parent in psutil.Process().parents()}
        if owner and owner.hostname == _this_host() and owner.pid in parents:
            return  # a notebook's kernel, which waits for the processes that it launched
        _outwait(lease, path)
    _holds[path] = _Hold(lease) if hold is None else _Hold(lease, hold.since)
    atexit.register(lease.release, force=True)


def _outwait(lease: SoftFileLease, path: Path) -> None:
    """Acquires the lease if its owner, on another machine, is silent for `SILENCE` seconds; else raises FolderTaken."""
    owner, seen = lease.owner, _heartbeat(path)
    who = f"process {owner.pid} on {owner.hostname}" if owner else "another process"
    if owner is None or owner.hostname != _this_host():
        tracking.say(f"output_dir={str(path)!r} belongs to {who}: waiting up to {SILENCE:.0f} s for a sign of life")
        began = time.monotonic()
        while time.monotonic() < began + SILENCE + 10 and _heartbeat(path) in (seen, None):
            if seen and not seen[1] and time.monotonic() > began + UNSIGNED:
                (path / LOCK_FILE).unlink(missing_ok=True)
            with contextlib.suppress(Timeout):
                lease.acquire(timeout=2)
                tracking.say(f"{who} is silent: this process goes on with its run")
                return
    raise FolderTaken(
        f"output_dir={str(path)!r} is in use by {who}; nothing was touched. Stop that run, or "
        f"restart the kernel that it is in; or set output_dir to a new folder. A dead owner is replaced after {SILENCE:.0f} s."
    )


def _heartbeat(path: Path) -> tuple[float, int] | None:
    """When the lock file was written last, and its size in bytes; None if there is none."""
    try:
        status = (path / LOCK_FILE).stat()
        return status.st_mtime, status.st_size
    except OSError:
        return None


def check(output_dir: Path | str) -> None:
    """Raises FolderTaken if another process took over our folder (this machine was suspended, for example)."""
    if Path(output_dir).resolve() in _holds:
        own(output_dir)


@contextlib.contextmanager
def owned(output_dir: Path | str) -> Iterator[float]:
    """Owns the folder inside the block, and after it if it did so before; yields the `time.monotonic()` since when."""
    path = Path(output_dir).resolve()
    before = path in _holds
    path.mkdir(parents=True, exist_ok=True)
    own(path)
    try:
        yield _holds[path].since if path in _holds else time.monotonic()
    finally:
        if not before:
            release(path)


def release(output_dir: Path | str) -> None:
    """Gives the folder up."""
    hold = _holds.pop(Path(output_dir).resolve(), None)
    if hold is not None:
        atexit.unregister(hold.lease.release)
        hold.lease.release(force=True)
