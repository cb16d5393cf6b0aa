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
from pathlib import Path

import psutil
from filelock import SoftFileLease, Timeout

from helpers.show import tracking

LOCK_FILE = "owner.lock"
SILENCE = 120.0  # seconds
HEARTBEAT = 10.0  # seconds; a living owner is known by the next one


class FolderTaken(RuntimeError):
    """Another process owns the run folder."""


_holds: dict[Path, tuple[SoftFileLease, float]] = {}  # of each folder, and when this process took it


@functools.cache
def _this_host() -> str:
    """The name under which filelock notes this machine; inside a container it is more than `socket.gethostname()`."""
    with tempfile.TemporaryDirectory() as folder, SoftFileLease(Path(folder) / LOCK_FILE) as lease:
        return lease.owner.hostname


def own(output_dir: Path | str) -> None:
    """Makes this process the owner of an existing folder until it ends, unless it or a parent process is the owner.

    Raises:
        FolderTaken: a living process owns the folder.
        OSError: the folder cannot be written.
    """
    path = Path(output_dir).resolve()
    held, since = _holds.get(path, (None, time.monotonic()))
    if held and held.compromise is None and held.is_lock_held_by_us:
        return
    beats = {"lease_duration": SILENCE, "heartbeat_interval": HEARTBEAT}
    lease = SoftFileLease(path / LOCK_FILE, **beats, thread_local=False)
    owner = lease.owner
    if owner and owner.hostname == _this_host() and owner.pid in {one.pid for one in psutil.Process().parents()}:
        return  # a notebook's kernel, which waits for the processes that it launched
    try:
        lease.acquire(timeout=3)  # seconds: enough for an owner that is known to be dead, also on a busy machine
    except Timeout:
        owner = lease.owner
        here = owner and owner.hostname == _this_host()
        who = f"process {owner.pid} on {owner.hostname}" if owner else "another process"
        if here or not _outwait(lease, path, who):
            raise FolderTaken(
                f"output_dir={str(path)!r} is in use by {who}; nothing was touched. Stop that run, or restart the kernel that it "
                f"is in; or set output_dir to a new folder. A dead owner is replaced after {SILENCE:.0f} s."
            ) from None
    _holds[path] = lease, since
    atexit.register(lease.release, force=True)


def _outwait(lease: SoftFileLease, path: Path, who: str) -> bool:
    """Whether an owner on another machine gave no sign of life for `SILENCE` seconds, so that this process owns its lease."""
    tracking.say(f"output_dir={str(path)!r} belongs to {who}: waiting up to {SILENCE:.0f} s for a sign of life")
    lock = path / LOCK_FILE
    with contextlib.suppress(FileNotFoundError):
        if not lock.stat().st_size:
            lock.unlink()  # whoever made it died before it wrote its name
    seen = _heartbeat(lock)
    try:
        lease.acquire(timeout=SILENCE + 10, cancel_check=lambda: _heartbeat(lock) not in (seen, None))
    except Timeout:
        return False
    tracking.say(f"{who} is silent: this process goes on with its run")
    return True


def _heartbeat(lock: Path) -> int | None:
    """When the owner gave its last sign of life; None if it gave the folder up, or the disk does not answer."""
    with contextlib.suppress(OSError):
        return lock.stat().st_mtime_ns
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
        yield _holds[path][1] if path in _holds else time.monotonic()
    finally:
        if not before:
            release(path)


def release(output_dir: Path | str) -> None:
    """Gives the folder up."""
    lease, _ = _holds.pop(Path(output_dir).resolve(), (None, None))
    if lease:
        atexit.unregister(lease.release)
        lease.release(force=True)
