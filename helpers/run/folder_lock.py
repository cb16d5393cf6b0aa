"""One owner for each run folder, so that two processes never write the same run.

filelock's `SoftFileLease` needs no locks from the file system: a file names the owner and carries its heartbeat, on a local disk, NFS or a mounted
Drive. An owner that is known to be dead is replaced at once, which only its own machine can know; any other after `SILENCE`.
"""

import atexit
import socket
from pathlib import Path

from filelock import SoftFileLease, Timeout

from helpers.machine import ranks

LOCK_FILE = "owner.lock"
SILENCE, PATIENCE = 120.0, 3.0  # seconds to wait for an owner elsewhere, and for one on this machine

_leases: dict[Path, SoftFileLease] = {}


class FolderTaken(RuntimeError):
    """Another process owns the run folder."""


def own(output_dir: Path | str, name: str = "output_dir") -> None:
    """Makes this process the owner of a folder until it ends, unless it owns a folder above.

    One of several processes works in the folder of the kernel that started them.

    name: of the parameter that names the folder.

    Raises:
        FolderTaken: a living process owns the folder.
        OSError: the folder cannot be made or written.
    """
    folder = Path(output_dir).resolve()
    if ranks.count() > 1 or any(map(is_owner, (folder, *folder.parents))):
        return
    folder.mkdir(parents=True, exist_ok=True)
    lease = SoftFileLease(folder / LOCK_FILE, lease_duration=SILENCE, thread_local=False)
    owner, timeout = lease.owner, PATIENCE
    if owner is None:  # of a process that died before it wrote its name, or of none
        Path(lease.lock_file).unlink(missing_ok=True)
    elif owner.hostname != socket.gethostname():
        timeout += SILENCE
    try:
        lease.acquire(timeout=timeout)
    except Timeout:
        raise FolderTaken(
            f"{name}={str(folder)!r} is in use by process {lease.pid} on {owner and owner.hostname}: stop that run, or restart its kernel; "
            f"or set {name} to a new folder"
        ) from None
    _leases[folder] = lease
    atexit.register(lease.release, force=True)


def is_owner(folder: Path) -> bool:
    """Whether the file in a folder names this process. It does not where another machine took the folder, or its disk is gone."""
    return folder in _leases and _leases[folder].is_lock_held_by_us
