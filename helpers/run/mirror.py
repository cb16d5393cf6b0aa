"""The second place of a run: whole checkpoints and finished files are copied there, and a new machine continues from them.

The run itself stays on the local disk. A thread looks at its folder every few seconds and copies what is new, the newest checkpoint first, to a
name that does not count until all of it is there. Training neither waits for a copy nor fails by one. A mounted Drive uploads later, and a
machine that is taken away loses the last minutes of that; therefore an old copy goes only when a newer one has been there for `SETTLED`
seconds.
"""

import atexit
import functools
import os
import shutil
import threading
import time
from pathlib import Path

from helpers.parameters import DRIVE
from helpers.show.tracking import say_once

from . import checkpoint, disk, folder_lock

DRIVE_POINT = Path("/content/drive")
PAUSE = 5.0  # seconds between two looks at the run's folder
SETTLED = 300.0  # seconds after which a copy is taken to be uploaded
# Of the files: hidden ones, the lock, checkpoints, which are copied as a whole, and W&B's, which grow all the time.
PASSED_OVER = shutil.ignore_patterns(".*", folder_lock.LOCK_FILE, "checkpoint-*", "wandb")


def place_of(keep_in: str, folder: Path) -> Path:
    """Where the copies of a run's folder are; mounts Google Drive if that is asked for.

    Raises ValueError if there is no Drive here.
    """
    if keep_in == DRIVE:
        keep_in = f"{DRIVE_POINT}/MyDrive/kept_runs"
        try:
            from google.colab import drive

            drive.mount(str(DRIVE_POINT))
        except Exception as error:  # the classes differ by version, and by what the person did
            raise ValueError(
                f"keep_in='drive': Google Drive was not mounted ({error}). Run the cell again in Colab, or name a folder that outlasts it"
            ) from error
    return Path(keep_in, folder.name).resolve()


def copy_new(folder: Path, place: Path, changed: bool) -> None:
    """Copies the files and the whole checkpoints that a place lacks, and with `changed` the files that have changed since they were copied."""

    def copy(name: str, target_name: str) -> None:
        source, target = Path(name), Path(target_name)
        if not target.exists() or (changed and target.stat().st_mtime < source.stat().st_mtime):
            with disk.replacing(target) as temporary:
                shutil.copyfile(source, temporary)

    try:
        shutil.copytree(folder, place, ignore=PASSED_OVER, copy_function=copy, dirs_exist_ok=True)
    finally:  # one file that cannot be read keeps no checkpoint back
        for source in _checkpoints(folder):
            target = place / source.relative_to(folder)
            if not checkpoint.is_whole(target):
                checkpoint.copied = source  # is not rotated
                if checkpoint.is_whole(source):
                    part = target.with_name(".part")
                    _remove(part)
                    _remove(target)
                    shutil.copytree(source, part)
                    part.rename(target)
            checkpoint.copied = None


def _checkpoints(folder: Path):
    """Checkpoints below a folder, whole or not, of each training the highest step first."""
    for parent, *_ in os.walk(folder):  # passes over what is removed meanwhile
        yield from checkpoint.listed(parent)


def _remove(folder: Path) -> None:
    """Empties a folder and removes it: the trash of Google Drive counts the bytes of a file."""
    for path in folder.rglob("*"):
        if path.is_file():
            os.truncate(path, 0)
    shutil.rmtree(folder, ignore_errors=True)


class Mirror(threading.Thread):
    """The copies of the folder of a run, in a place that this process owns."""

    def __init__(self, folder: Path, place: Path):
        super().__init__(daemon=True)
        self.folder, self.place = folder, place
        self.since: dict[Path, float] = {}  # when a copy of a checkpoint was first seen whole
        self.lock = threading.Lock()
        atexit.register(self.copy)
        self.start()

    def run(self) -> None:
        while True:
            say_once(self.copy())
            time.sleep(PAUSE)

    def copy(self) -> str:
        """Copies what is new; returns a line that says whether all of it could be copied."""
        try:
            with self.lock:
                self._copy()
        except OSError as error:
            return (
                f"ATTENTION: keep_in: not everything is copied to {self.place} ({error}): training goes on, and the copy is tried again. "
                "If this is the last line, run the cell again"
            )
        return f"keep_in: everything is copied to {self.place}"

    def _copy(self) -> None:
        if not folder_lock.is_owner(self.place):
            raise OSError("its disk is gone, or a run on another machine has taken it: stop one of the two")
        copy_new(self.folder, self.place, changed=True)
        settled: set[Path] = set()
        for copy in _checkpoints(self.place):
            if copy.parent in settled and not (self.folder / copy.relative_to(self.place)).exists():
                _remove(copy)
            elif (
                checkpoint.is_whole(copy) and time.monotonic() - self.since.setdefault(copy, time.monotonic()) > SETTLED
            ):
                settled.add(copy.parent)


mirror_of = functools.cache(Mirror)  # one a folder and place in this process
