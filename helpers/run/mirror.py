"""The second place of a run: whole checkpoints and finished files are copied there, and a new machine continues from them.

The run itself stays on the local disk. A thread looks at its folder every few seconds and copies what is new, the newest checkpoint first, to a
name that does not count until all of it is there. Training neither waits for a copy nor fails by one. A mounted Drive uploads later, and a
machine that is taken away loses the last minutes of that; therefore an old copy goes only when a newer one has been there for `SETTLED`
seconds.
"""

import atexit
import functools
import math
import os
import shutil
import threading
import time
from pathlib import Path

from helpers.parameters import DRIVE
from helpers.show.tracking import say

from . import checkpoint, disk, folder_lock

DRIVE_POINT = Path("/content/drive")
PAUSE = 5.0  # seconds between two looks at the run's folder
SETTLED = 300.0  # seconds after which a copy is taken to be uploaded
PART = ".part"  # name of a checkpoint that is being copied
# Of the files: hidden ones, the lock, checkpoints, which are copied as a whole, and W&B's, which grow all the time.
PASSED_OVER = shutil.ignore_patterns(".*", folder_lock.LOCK_FILE, "checkpoint-*", "wandb")


def place_of(keep_in: str, folder: Path) -> Path:
    """Where the copies of a run's folder are; mounts Google Drive if that is asked for.

    Raises ValueError: no Drive here; the place is in the folder.
    """
    parent = Path(keep_in)
    if keep_in == DRIVE:
        parent = DRIVE_POINT / "MyDrive/kept_runs"
        try:
            from google.colab import drive

            drive.mount(str(DRIVE_POINT))
        except Exception as error:  # the classes differ by version, and by what the person did
            raise ValueError(
                f"keep_in='drive': Google Drive was not mounted ({error}). Run the cell again in Colab, or name a folder that outlasts it"
            ) from error
    place = (parent / folder.name).resolve()
    if folder.resolve() in place.parents:
        raise ValueError(f"keep_in={keep_in!r} is in output_dir={str(folder)!r}: name a folder elsewhere")
    return place


def restore(place: Path, folder: Path) -> None:
    """Copies to `folder` the files and the whole checkpoints that it lacks."""
    _copy_files(place, folder, changed=False)
    for name in _checkpoints(place):
        if checkpoint.is_whole(place / name) and not checkpoint.is_whole(folder / name):
            _copy_checkpoint(place / name, folder / name)
            say(f"keep_in: restored {name} from {place}")


def _checkpoints(folder: Path) -> list[Path]:
    """Checkpoints, the highest step first, relative to the folder of the run."""
    checkpoints: list[Path] = []
    for parent, *_ in os.walk(folder):  # passes over what is removed meanwhile
        checkpoints += [path.relative_to(folder) for path in checkpoint.listed(parent)]
    return sorted(checkpoints, key=checkpoint.step_of, reverse=True)


def _copy_files(folder: Path, place: Path, changed: bool) -> None:
    """Copies the files that a place lacks, and those that have changed since they were copied."""

    def copy(name: str, target_name: str) -> None:
        source, target = Path(name), Path(target_name)
        if not target.exists() or (changed and target.stat().st_mtime < source.stat().st_mtime):
            with disk.replacing(target) as temporary:
                shutil.copyfile(source, temporary)

    shutil.copytree(folder, place, ignore=PASSED_OVER, copy_function=copy, dirs_exist_ok=True)


def _copy_checkpoint(source: Path, target: Path) -> None:
    part = target.with_name(PART)
    _remove(part)
    _remove(target)
    shutil.copytree(source, part)
    part.rename(target)


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
        self.is_slow = False
        self.lock = threading.Lock()
        say(f"keep_in: checkpoints and results are copied to {place}")
        atexit.register(self.copy)
        self.start()

    def run(self) -> None:
        problem = ""
        while True:
            before, problem = problem, self.copy()
            if problem and not before:
                say(
                    f"ATTENTION: keep_in: not copied to {self.place} ({problem}): training goes on, and the copy is tried again"
                )
            time.sleep(PAUSE)

    def copy(self) -> str:
        """Copies what is new; returns why not all of it could be copied, or ""."""
        with self.lock:
            try:
                self._copy()
            except OSError as error:
                return str(error)
        return ""

    def _copy(self) -> None:
        if not folder_lock.is_owner(self.place):
            raise OSError("its disk is gone, or a run on another machine has taken it: stop one of the two")
        for name in _checkpoints(self.folder):
            if name not in self.since:
                self._copy_checkpoint(name)
        checkpoint.copied = None
        _copy_files(self.folder, self.place, changed=True)
        settled: set[Path] = set()
        for name in _checkpoints(self.place):
            if name.parent in settled and not (self.folder / name).exists():
                _remove(self.place / name)
            if time.monotonic() - self.since.get(name, math.inf) > SETTLED:
                settled.add(name.parent)

    def _copy_checkpoint(self, name: Path) -> None:
        checkpoint.copied = source = self.folder / name  # is not rotated
        if not checkpoint.is_whole(source):
            return
        newest = checkpoint.listed(source.parent)[0]
        if not checkpoint.is_whole(self.place / name):
            _copy_checkpoint(source, self.place / name)
        self.since[name] = time.monotonic()
        if newest not in checkpoint.listed(source.parent)[: checkpoint.KEPT] and not self.is_slow:
            self.is_slow = True
            say(
                f"ATTENTION: keep_in: {self.place} needs longer for a checkpoint than the run until the next: its copies are old. Set "
                "save_steps or eval_steps higher"
            )


mirror_of = functools.cache(Mirror)  # one a folder and place in this process
