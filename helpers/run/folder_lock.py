"""One owner for each run folder, so that two processes never write the same run.

filelock's `SoftFileLease` needs no locks from the file system: a file names the owner and carries its heartbeat, on a local disk, NFS or a mounted
Drive. An owner that is known to be dead is replaced at once, which only its own machine can know; any other after `SILENCE`.
"""

from __future__ import annotations

import atexit
import contextlib
from pathlib import Path

import psutil
from filelock import SoftFileLease, Timeout

LOCK_FILE = "owner.lock"
SILENCE, HEARTBEAT = 120.0, 10.0  # seconds

_leases: dict[Path, SoftFileLease] = {}


class FolderTaken(RuntimeError):
    """Another process owns the run folder."""


def own(output_dir: Path | str, name: str = "output_dir") -> None:
    """Makes this process the owner of a folder until it ends, unless it, or the kernel that started it, owns it or a folder above.

    name: of the parameter that names the folder.

    Raises:
        FolderTaken: a living process owns the folder.
        OSError: the folder cannot be made or written.
    """
    folder = Path(output_dir).resolve()
    if _leases.keys() & {folder, *folder.parents}:
        return
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / LOCK_FILE
    lease = SoftFileLease(lock, lease_duration=SILENCE, heartbeat_interval=HEARTBEAT, thread_local=False)
    owner = lease.owner
    if owner is None:  # of a process that died before it wrote its name, or of none
        lock.unlink(missing_ok=True)
    elif owner.pid in [parent.pid for parent in psutil.Process().parents()]:
        return
    beat = _heartbeat(lock)
    try:
        lease.acquire(timeout=SILENCE + HEARTBEAT, cancel_check=lambda: _heartbeat(lock) not in (beat, None))
    except Timeout:
        owner = lease.owner
        raise FolderTaken(
            f"{name}={str(folder)!r} is in use by process {owner and owner.pid} on {owner and owner.hostname}: stop that run, or restart "
            f"its kernel; or set {name} to a new folder"
        ) from None
    _leases[folder] = lease
    atexit.register(lease.release, force=True)


def _heartbeat(lock: Path) -> int | None:
    """When the owner gave its last sign of life; None if there is none."""
    with contextlib.suppress(OSError):
        return lock.stat().st_mtime_ns
    return None
