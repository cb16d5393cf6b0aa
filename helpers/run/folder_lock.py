"""One owner for each run folder, so that two processes never write the same run.

A file in the folder names the owner's host and process, and carries a heartbeat that others watch by their own clock
(filelock's `SoftFileLease`, which needs no locks from the file system: it works on a local disk, NFS and a mounted
Drive). An owner that is known to be dead is replaced at once, which only the machine that it ran on can know; any other after
`SILENCE` seconds without a heartbeat. A process takes its own folder again whatever happened to the disk.
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
LOOK_SECONDS = 0.5  # between two looks at a heartbeat


class FolderTaken(RuntimeError):
    """Another process owns the run folder."""


_leases: dict[Path, SoftFileLease] = {}
_began: dict[Path, float] = {}  # `time.monotonic()` from which the session in a folder counts


@functools.cache
def _this_process():
    """How filelock notes this process: its number, the host (in a container more than `socket.gethostname()`), its start."""
    with tempfile.TemporaryDirectory() as folder, SoftFileLease(Path(folder) / LOCK_FILE) as lease:
        return lease.owner


def own(output_dir: Path | str, name: str = "output_dir") -> None:
    """Makes this process the owner of an existing folder until it ends, unless it or a parent process is the owner.

    name: of the parameter that names the folder.

    Raises:
        FolderTaken: a living process owns the folder.
        OSError: the folder cannot be written.
    """
    path = Path(output_dir).resolve()
    lease_before = _leases.get(path)
    if lease_before and lease_before.compromise is None and lease_before.is_lock_held_by_us:
        return
    lease = SoftFileLease(path / LOCK_FILE, lease_duration=SILENCE, heartbeat_interval=HEARTBEAT, thread_local=False)
    owner, this = lease.owner, _this_process()
    decided = owner if _is_decided_here(owner) else None
    if decided and decided.pid in {parent.pid for parent in psutil.Process().parents()}:
        return  # a notebook's kernel, which waits for the processes that it launched
    if decided and decided.pid == this.pid:
        (path / LOCK_FILE).unlink(missing_ok=True)
    elif not decided:
        _wait_for_silence(path, name, owner)
    try:
        lease.acquire(timeout=3)  # seconds: enough for an owner that is known to be dead, also on a busy machine
    except Timeout:
        raise _refusal(path, name, lease.owner) from None
    _leases[path] = lease
    _began.setdefault(path, time.monotonic())
    atexit.register(lease.release, force=True)


def _is_decided_here(owner) -> bool:
    """Whether an owner with the name of this machine ran on it since its last start, as others may have its name, or lives here."""
    this = _this_process()
    if not owner or owner.hostname != this.hostname:
        return False
    if not owner.start:
        return psutil.pid_exists(owner.pid)
    return owner.start >> 64 == this.start >> 64


def _refusal(path: Path, name: str, owner) -> FolderTaken:
    who = f"process {owner.pid} on {owner.hostname}" if owner else "another process"
    return FolderTaken(
        f"{name}={str(path)!r} is in use by {who}; nothing was touched. Stop that run, or restart the kernel that it "
        f"is in; or set {name} to a new folder. A dead owner is replaced after {SILENCE:.0f} s."
    )


def _wait_for_silence(path: Path, name: str, owner) -> None:
    """Returns when an owner on another machine has given no sign of life for `SILENCE` seconds. Raises FolderTaken at one."""
    lock = path / LOCK_FILE
    first = _heartbeat(lock)
    if owner and first:  # without a name its maker died before it wrote one
        tracking.say(
            f"{name}={str(path)!r} is in use on {owner.hostname}: waiting up to {SILENCE:.0f} s for a sign of life"
        )
        deadline = time.monotonic() + SILENCE
        while _heartbeat(lock) == first and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        if _heartbeat(lock) not in (first, None):
            raise _refusal(path, name, owner)
        tracking.say(f"{owner.hostname} gives no sign of life: this process takes over")
    lock.unlink(missing_ok=True)


def _heartbeat(lock: Path) -> int | None:
    """When the owner gave its last sign of life; None if it gave the folder up, or the disk does not answer."""
    with contextlib.suppress(OSError):
        return lock.stat().st_mtime_ns
    return None


def check(output_dir: Path | str, name: str = "output_dir") -> None:
    """Raises FolderTaken if another process took over our folder, FileNotFoundError if the folder has gone elsewhere."""
    path = Path(output_dir).resolve()
    if path in _leases:
        if not any(path.iterdir()):
            raise FileNotFoundError(
                f"{name}={str(path)!r} was emptied or unmounted since this run began: put it back, then run the cell again"
            )
        own(path, name)


@contextlib.contextmanager
def owned(output_dir: Path | str) -> Iterator[float]:
    """Owns the folder inside the block, and after it if it did so before; yields when the session in it began."""
    path = Path(output_dir).resolve()
    before = path in _leases
    path.mkdir(parents=True, exist_ok=True)
    own(path)
    try:
        yield session_began(path)
    finally:
        if not before:
            release(path)


def session_began(output_dir: Path | str, anew: bool = False) -> float:
    """The `time.monotonic()` from which the session in a folder counts: when this process took it, or the run's folder above it.

    anew: its time was over and a person goes on, so that it counts from now.
    """
    path = Path(output_dir).resolve()
    now = time.monotonic()
    folders = [folder for folder in (path, *path.parents) if folder in _began]
    if anew:
        _began.update(dict.fromkeys(folders, now))
    return min((_began[folder] for folder in folders), default=now)


def release(output_dir: Path | str) -> None:
    """Gives the folder up."""
    path = Path(output_dir).resolve()
    _began.pop(path, None)
    lease = _leases.pop(path, None)
    if lease:
        atexit.unregister(lease.release)
        lease.release(force=True)
