"""Files on disks that fill up, drop or lose power: written whole or not at all, removed; room and mounts are checked."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pydantic_core

from helpers.parameters import DRIVE

COLAB_DRIVE = Path("/content/drive")
REMOVED = ".removed-"

_mounts = {COLAB_DRIVE}  # where a disk is to be expected


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary file, which then takes the place of `path`: whole or not at all, whatever ends the process or the machine."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Writes JSON. Arrays and tensors become lists or numbers; NaN and infinities become null."""
    text = pydantic_core.to_json(value, indent=2, inf_nan_mode="null", fallback=lambda array: array.tolist())
    with replacing(path) as temporary:
        temporary.write_bytes(text + b"\n")


def read_json(path: Path) -> Any:
    """The value, or None if there is no such file or it holds no JSON, as a power failure leaves it."""
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None


def copy(source: Path, target: Path) -> None:
    """Copies a file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)


def sync(path: Path) -> None:
    """Waits until a file or a folder is on the disk."""
    if os.name == "nt" and path.is_dir():
        return  # Windows opens no directories
    access = os.O_RDONLY if path.is_dir() else os.O_RDWR
    descriptor = os.open(path, access)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # A mounted Drive or bucket has no directories to sync; its files were synced.
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP)):
            raise
    finally:
        os.close(descriptor)


def remove(folder: Path, truncate: bool = False) -> None:
    """Removes a folder, or a link to one, as far as the disk lets it; what stays behind has a name that nobody reads.

    truncate: empties files first, since the trash of Google Drive counts their bytes.
    """
    with contextlib.suppress(OSError):  # a file of it is in use, on NFS or Windows: it goes next time
        if folder.is_symlink():
            folder.unlink()
            return
        removed = folder.with_name(f"{REMOVED}{folder.name}")
        folder.rename(removed)
        sweep(folder.parent, truncate)


def sweep(parent: Path, truncate: bool = False) -> None:
    """Removes what `remove` had to leave in this folder."""
    for removed in parent.glob(f"{REMOVED}*"):
        if truncate:
            for path in removed.rglob("*"):
                with contextlib.suppress(OSError):
                    os.truncate(path, 0)
        shutil.rmtree(removed, ignore_errors=True)


def require_mount(name: str, path: Path) -> None:
    """Raises ValueError if `path` lies where a disk should be mounted and none is: its files would go elsewhere.

    Disks are expected at Colab's place, at those of /etc/fstab, and where this process has seen one.
    """
    with contextlib.suppress(OSError):
        declared = re.findall(r"^[^#\s]\S*\s+(/\S+)", Path("/etc/fstab").read_text(encoding="utf-8"), re.MULTILINE)
        _mounts.update(map(Path, declared))
    for folder in (path, *path.parents):
        if is_mount(folder):
            _mounts.add(folder)
        elif folder in _mounts:
            remedy = "mount it"
            if folder == COLAB_DRIVE:
                remedy = f"set keep_in={DRIVE!r}, which mounts it"
            raise ValueError(
                f"{name}={str(path)!r}: no disk is mounted at {folder}, and a run that is on it would not be found; nothing was touched: "
                f"{remedy}, or set {name} to another folder"
            )


def is_mount(place: Path) -> bool:
    """Whether a disk is mounted there; a part of the same disk counts, which `os.path.ismount` does not see."""
    points = [disk.mountpoint for disk in psutil.disk_partitions(all=True)]
    return os.path.ismount(place) or str(place) in points
