"""The second place of a run: whole checkpoints and results are copied there, and a new machine continues from them.

The run itself stays on the local disk. A thread looks at its folder every few seconds and copies what is new: of a checkpoint the manifest
comes last, so that a copy without one, or whose files differ from it, does not count. Training neither waits for a copy nor fails by one.
A mounted Drive uploads later, and a machine that is taken away loses the last minutes of that in any order; therefore an old copy
goes only when a newer one has been there for `SETTLED` seconds.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import shutil
import threading
import time
from pathlib import Path

import psutil

from helpers.data.files import RUN_FILE
from helpers.parameters import DRIVE, expanded
from helpers.show import tracking

from . import checkpoint, disk, folder_lock

DRIVE_FOLDER = "MyDrive/kept_runs"
UPLOADED = "uploaded"  # the folder of a file that was uploaded as data
RESULTS_FILE = "results.json"
NOT_COPIED = re.compile(r"(^|/)(\.|damaged-|checkpoint-\d+/|uploaded/|owner\.lock$)")  # one by one
PAUSE = 5.0  # seconds between two looks at the run's folder
SETTLED = 300.0  # seconds after which a copy is taken to be uploaded
AT_EXIT, AT_RESULTS = 60.0, 900.0  # seconds to wait for the last copies


def place_of(keep_in: str, folder: Path) -> Path | None:
    """Where the copies of a run's folder are, None without `keep_in`; mounts Google Drive if that is asked for.

    Raises ValueError: no Drive here, or no disk at that place; the place and the folder are one, or in one another.
    """
    if not keep_in:
        return None
    parent = _mount_drive() if keep_in == DRIVE else expanded("keep_in", keep_in).absolute()
    place = parent / folder.name
    disk.require_mount("keep_in", place)
    inner, outer = place.resolve(), folder.resolve()
    if inner.is_relative_to(outer) or outer.is_relative_to(inner):
        raise ValueError(
            f"keep_in={keep_in!r} and output_dir={str(folder)!r} lie in each other: name a folder elsewhere"
        )
    return place


def _colab_drive():
    """The module that mounts Google Drive, None outside of Colab."""
    with contextlib.suppress(ImportError):
        from google.colab import drive

        return drive
    return None


def _mount_drive() -> Path:
    point, drive = disk.COLAB_DRIVE, _colab_drive()
    remedy = "name a folder that outlasts this machine, or leave it empty"
    if drive is None:
        raise ValueError(f"keep_in={DRIVE!r} is Google Drive in Colab, and this is not Colab: {remedy}")
    if not disk.is_mount(point):
        try:
            if any("papermill" in parent.cmdline() for parent in psutil.Process().parents()):
                raise RuntimeError("papermill cannot show the dialogue")
            drive.mount(str(point))
        except Exception as error:  # the classes differ by version, and by what the person did
            raise ValueError(
                f"keep_in={DRIVE!r}: Google Drive was not mounted ({error}). Run the cell again and allow the access, or {remedy}"
            ) from error
    return point / DRIVE_FOLDER


def warn(folder: Path) -> None:
    """Says what becomes of a run without a second place where the platform deletes its disk."""
    remedy = f"set keep_in={DRIVE!r} to continue in a new runtime" if _colab_drive() else ""
    if "KAGGLE_KERNEL_RUN_TYPE" in os.environ:
        remedy = "choose Persistence > Files only in the session options to continue in a new session"
    if remedy and not folder.is_relative_to(disk.COLAB_DRIVE):
        tracking.say(f"ATTENTION: this run is deleted with this runtime's disk: {remedy}")


def restore(place: Path, folder: Path) -> None:
    """Copies to `folder` the files that it lacks, and whole checkpoints that are newer than its own. Raises OSError."""
    try:
        for name in _files(place):
            lost = (place / name).suffix == ".json" and disk.read_json(place / name) is None
            if not (folder / name).exists() and not lost:
                disk.copy(place / name, folder / name)
        newest: dict[Path, int] = {}  # step of the newest checkpoint that a folder had itself; -1: none
        for unit in sorted(_units(place)):
            target = folder / unit
            steps = map(checkpoint.step_of, checkpoint.listed(target.parent))
            newest.setdefault(unit.parent, max(steps, default=-1))
            if not target.exists() and _step(unit) > newest[unit.parent]:
                _bring(place / unit, target)
    except OSError as error:
        raise OSError(
            f"keep_in: the copies in {str(place)!r} could not be read or brought here ({error}); they were not touched. Mount the disk "
            "again, or free space, and run the cell again"
        ) from error


def _bring(source: Path, target: Path) -> None:
    """Copies a folder with a manifest, whole or not at all, and says which."""
    staging = target.with_name(f".staging-{target.name}")
    shutil.rmtree(staging, ignore_errors=True)
    shutil.copytree(source, staging)
    problem = checkpoint.damage(staging)
    if problem:
        tracking.say(f"keep_in: skipped {source}: {problem}")
        return
    staging.rename(target)
    tracking.say(f"keep_in: restored {target.name} from {source.parent}")


def _files(folder: Path) -> list[Path]:
    """Files that are copied one by one, relative to `folder`; the results come last."""
    files = []
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if path.is_file() and not NOT_COPIED.search(name.as_posix()):
            files.append(name)
    return sorted(files, key=lambda name: name.name == RESULTS_FILE)


def _units(folder: Path) -> set[Path]:
    """Folders that count only as a whole, checkpoints and uploaded data, relative to `folder`."""
    units = set()
    for manifest in folder.rglob(checkpoint.MANIFEST):
        unit = manifest.parent.relative_to(folder)
        if re.fullmatch(rf"([^./][^/]*/)*(checkpoint-\d+|{UPLOADED})", unit.as_posix()):
            units.add(unit)
    return units


def _step(unit: Path) -> int:
    if unit.name == UPLOADED:
        return 0
    return checkpoint.step_of(unit)


def close_current() -> None:
    """Ends the copies of the run that this process had before, if there was one."""
    if Mirror.current:
        Mirror.current.close()


class Mirror:
    """The copies of the folder of a run; folder and place are owned by this process."""

    current: Mirror | None = None

    def __init__(self, folder: Path, place: Path):
        Mirror.current = self
        tracking.say(f"keep_in: checkpoints and results are copied to {place}")
        self.folder, self.place = folder, place
        self.problem = ""  # why the last attempt did not copy everything
        self._stamps: dict[Path, tuple[int, int]] = {}  # size and time of the files that were copied
        self._since: dict[Path, float] = {}  # when a checkpoint was there whole
        self._begun = self._done = 0  # attempts
        self._ended = False
        self._wake, self._attempt = threading.Event(), threading.Condition()
        threading.Thread(target=self._work, name="keep_in", daemon=True).start()
        atexit.register(self.close)

    def finish(self, patience: float) -> bool:
        """Whether all that is there now is copied, after at most so many seconds."""
        attempt = self._begun + 1
        self._wake.set()
        with self._attempt:
            self._attempt.wait_for(lambda: self._ended or self._done >= attempt, patience)
            return self._done >= attempt and not self.problem

    def say_finished(self) -> None:
        """Waits for the last copies, and says whether they were made."""
        if self.finish(AT_RESULTS):
            tracking.say(f"keep_in: everything is copied to {self.place}")
        else:
            reason = self.problem or "the disk is slow"
            tracking.say(
                f"ATTENTION: keep_in: not everything is copied to {self.place} ({reason}): run this cell again"
            )

    def close(self) -> None:
        """Makes the last copies, ends, and gives the place up."""
        if not self._ended:
            self.finish(AT_EXIT)
        self._ended = True
        self._wake.set()
        folder_lock.release(self.place)

    def _work(self) -> None:
        while not self._ended:
            self._begun += 1
            before, self.problem = self.problem, ""
            try:
                self._copy_all()
            except (folder_lock.FolderTaken, OSError, ValueError) as error:
                self.problem = str(error)
                self._ended = isinstance(error, folder_lock.FolderTaken)
                if not before:
                    again = "no more copies are made" if self._ended else "the copy is tried again"
                    tracking.say(
                        f"ATTENTION: keep_in: not copied to {self.place} ({error}). Training goes on, and {again}"
                    )
            with self._attempt:
                self._done = self._begun
                self._attempt.notify_all()
            self._wake.wait(PAUSE)
            self._wake.clear()

    def _copy_all(self) -> None:
        disk.require_mount("keep_in", self.place)
        folder_lock.check(self.place, "keep_in")
        (self.folder / RUN_FILE).stat()  # the folder may have gone
        units = _units(self.folder)
        copied = [unit for unit in units if self._copy_unit(unit)]
        for name in _files(self.folder):
            with contextlib.suppress(FileNotFoundError):  # it was replaced or removed meanwhile
                status = (self.folder / name).stat()
                stamp = status.st_size, status.st_mtime_ns
                if self._stamps.get(name) != stamp:
                    disk.copy(self.folder / name, self.place / name)
                    self._stamps[name] = stamp
        settled = [unit for unit in copied if time.monotonic() - self._since[unit] >= SETTLED]
        for old in _units(self.place) - units:
            if any(unit.parent == old.parent and _step(unit) > _step(old) for unit in settled):
                disk.remove(self.place / old, truncate=True)

    def _copy_unit(self, unit: Path) -> bool:
        """Whether the place has the folder; one that is removed here meanwhile, or is damaged, is not copied."""
        source, target = self.folder / unit, self.place / unit
        try:
            manifest = json.loads((source / checkpoint.MANIFEST).read_bytes())
            # The disk may have lost what came before its manifest.
            is_damaged = unit not in self._since and checkpoint.damage(target)
            if is_damaged or disk.read_json(target / checkpoint.MANIFEST) != manifest:
                disk.remove(target, truncate=True)
                for name in (*manifest, checkpoint.MANIFEST):
                    disk.copy(source / name, target / name)
        except (FileNotFoundError, json.JSONDecodeError):
            return False
        self._since.setdefault(unit, time.monotonic())
        return True
