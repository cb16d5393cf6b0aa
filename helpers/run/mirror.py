"""The second place of a run: whole checkpoints and finished files are copied there, and a new machine continues from them.

The run itself stays on the local disk. A thread looks at its folder every few seconds and copies what is new, the newest checkpoint first, to a
name that does not count until all of it is there. Training neither waits for a copy nor fails by one. A mounted Drive uploads later, and a
machine that is taken away loses the last minutes of that; therefore an old copy goes only when a newer one has been there for `SETTLED`
seconds.
"""

from __future__ import annotations

import atexit
import functools
import math
import os
import shutil
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from helpers.parameters import DRIVE, expanded
from helpers.show import tracking

from . import checkpoint, disk, folder_lock

DRIVE_POINT = Path("/content/drive")
PAUSE = 5.0  # seconds between two looks at the run's folder
SETTLED = 300.0  # seconds after which a copy is taken to be uploaded
PART = ".part-"  # before the name of a checkpoint that is being copied


def place_of(keep_in: str, folder: Path) -> Path:
    """Where the copies of a run's folder are; mounts Google Drive if that is asked for.

    Raises ValueError: no Drive here; the place and the folder lie in each other.
    """
    parent = expanded("keep_in", keep_in).absolute()
    if keep_in == DRIVE:
        parent = DRIVE_POINT / "MyDrive/kept_runs"
        try:
            from google.colab import drive

            drive.mount(str(DRIVE_POINT))
        except Exception as error:  # the classes differ by version, and by what the person did
            raise ValueError(
                f"keep_in={DRIVE!r}: Google Drive was not mounted ({error}). Run the cell again in Colab and allow the access, or name a "
                "folder that outlasts this machine"
            ) from error
    place = (parent / folder.name).resolve()
    if place.is_relative_to(folder.resolve()) or folder.resolve().is_relative_to(place):
        raise ValueError(
            f"keep_in={keep_in!r} and output_dir={str(folder)!r} lie in each other: name a folder elsewhere"
        )
    return place


def restore(place: Path, folder: Path) -> None:
    """Copies to `folder` the files that it lacks, and whole checkpoints that are newer than its own."""
    checkpoints, files = _contents(place)
    for name in files:
        if not (folder / name).exists():
            copy_file(place / name, folder / name)
    for name in reversed(checkpoints):
        newest, _ = checkpoint.newest(folder / name.parent)
        is_newer = newest is None or checkpoint.step_of(newest) < checkpoint.step_of(name)
        if is_newer and checkpoint.is_whole(place / name):
            _copy_checkpoint(place / name, folder / name)
            tracking.say(f"keep_in: restored {name} from {place}")


def _contents(folder: Path) -> tuple[list[Path], list[Path]]:
    """Checkpoints, the highest step first, and files of a run, relative to its folder; without hidden ones and W&B's, which grow all the time."""
    checkpoints, files = [], []
    for path, names, file_names in os.walk(folder):  # passes over what is removed meanwhile
        parent = Path(path)
        checkpoints += checkpoint.listed(parent)
        names[:] = [name for name in names if not name.startswith((".", "checkpoint-", "wandb"))]
        files += [parent / name for name in file_names if not name.startswith(".") and name != folder_lock.LOCK_FILE]
    checkpoints.sort(key=checkpoint.step_of, reverse=True)
    return [path.relative_to(folder) for path in checkpoints], [path.relative_to(folder) for path in files]


def copy_file(source: Path, target: Path) -> None:
    """Copies a file, whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with disk.replacing(target) as temporary:
        shutil.copyfile(source, temporary)


def _copy_checkpoint(source: Path, target: Path) -> None:
    part = target.with_name(f"{PART}{target.name}")
    _remove([part, target])
    shutil.copytree(source, part)
    part.rename(target)


def _remove(folders: Iterable[Path]) -> None:
    """Empties folders and removes them: the trash of Google Drive counts the bytes of a file."""
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                os.truncate(path, 0)
        shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def mirror_of(folder: Path, place: Path) -> Mirror:
    """The one that copies this folder to this place in this process."""
    return Mirror(folder, place)


class Mirror(threading.Thread):
    """The copies of the folder of a run; folder and place are owned by this process."""

    def __init__(self, folder: Path, place: Path):
        super().__init__(name="keep_in", daemon=True)
        self.folder, self.place = folder, place
        self.problem = ""  # why the last attempt did not copy everything
        self._since: dict[Path, float] = {}  # when a copy was first seen whole
        self._is_slow = False
        self._lock = threading.Lock()
        tracking.say(f"keep_in: checkpoints and results are copied to {place}")
        atexit.register(self.copy)
        self.start()

    def run(self) -> None:
        while True:
            self.copy()
            time.sleep(PAUSE)

    def copy(self) -> str:
        """Copies what is new; returns why not all of it could be copied, or ""."""
        with self._lock:
            before, self.problem = self.problem, ""
            try:
                self._copy_all()
            except OSError as error:
                self.problem = str(error)
                if not before:
                    tracking.say(
                        f"ATTENTION: keep_in: not copied to {self.place} ({error}): training goes on, and the copy is tried again"
                    )
            return self.problem

    def _copy_all(self) -> None:
        (self.place / folder_lock.LOCK_FILE).stat()  # raises if the disk is gone
        checkpoints, files = _contents(self.folder)
        while any(map(self._copy_if_new, checkpoints)):  # then there may be a newer one
            checkpoints, files = _contents(self.folder)
        for name in files:
            source, target = self.folder / name, self.place / name
            if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
                copy_file(source, target)
        settled: set[Path] = set()
        for name in _contents(self.place)[0]:
            if name.parent in settled and not (self.folder / name).exists():
                _remove([self.place / name])
            if time.monotonic() - self._since.get(name, math.inf) > SETTLED:
                settled.add(name.parent)
        _remove(self.place.rglob(f"{PART}*"))

    def _copy_if_new(self, name: Path) -> bool:
        source, target = self.folder / name, self.place / name
        if name in self._since or not checkpoint.is_whole(source):
            return False
        is_copied = checkpoint.is_whole(target)
        if not is_copied:
            checkpoint.copied.add(source)  # so that it is not rotated
            try:
                _copy_checkpoint(source, target)
            finally:
                checkpoint.copied.discard(source)
            newer = [
                path for path in checkpoint.listed(source.parent) if checkpoint.step_of(path) > checkpoint.step_of(name)
            ]
            if len(newer) > 1 and not self._is_slow:
                self._is_slow = True
                tracking.say(
                    f"ATTENTION: keep_in: {self.place} needs longer for a checkpoint than the run until the next: its copies are old. Set "
                    "save_steps or eval_steps higher"
                )
        self._since[name] = time.monotonic()
        return not is_copied
