"""The second place of a run: whole checkpoints and results are copied there, and a new machine continues from them.

The run itself stays on the local disk. A thread looks at its folder every few seconds and copies what is new: of a checkpoint the manifest
comes last, so that a copy without one, or whose files differ from it, does not count. Training neither waits for a copy nor fails by one.
A mounted Drive uploads later, and a machine that is taken away loses the last minutes of that in any order; therefore an old copy
goes only when the newer ones have been there for `SETTLED` seconds.
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

from helpers.parameters import DRIVE, expanded
from helpers.show import tracking

from . import checkpoint, disk, folder_lock

DRIVE_FOLDER = "MyDrive/kept_runs"
UPLOADED = "uploaded"  # the folder of a file that was uploaded as data
RUN_FILE, RESULTS_FILE = "run.json", "results.json"
PAUSE = 5.0  # seconds between two looks at the run's folder
SETTLED = 300.0  # seconds after which a copy is taken to be uploaded
AT_EXIT, AT_RESULTS = 60.0, 900.0  # seconds to wait for the last copies
BATCH = ("papermill", "nbconvert", "helpers.batch")


def place_of(keep_in: str, folder: Path) -> Path | None:
    """Where the copies of a run's folder are, None without `keep_in`; mounts Google Drive if that is asked for.

    Raises ValueError: no Drive here, or no disk at that place; the place and the folder are one, or in one another.
    """
    if not keep_in:
        return None
    if keep_in == DRIVE:
        return _mount_drive() / folder.name
    place = expanded("keep_in", keep_in).absolute() / folder.name
    disk.require_mount("keep_in", place)
    inner, outer = place.resolve(), folder.resolve()
    if inner.is_relative_to(outer) or outer.is_relative_to(inner):
        raise ValueError(
            f"keep_in={keep_in!r} would copy output_dir={str(folder)!r} into itself, or it onto itself: name a folder elsewhere"
        )
    return place


def _colab_drive():
    """The module that mounts Google Drive, None outside of Colab."""
    with contextlib.suppress(ImportError):
        from google.colab import drive

        return drive
    return None


def _mount_drive() -> Path:
    remedy = "name a folder that outlasts this machine, or leave keep_in empty"
    drive = _colab_drive()
    if not drive:
        raise ValueError(f"keep_in={DRIVE!r} is Google Drive in Colab, and this is not Colab: {remedy}")
    if not disk.is_mount(disk.COLAB_DRIVE):
        first = f"run drive.mount({str(disk.COLAB_DRIVE)!r}) in a notebook of this runtime first, or {remedy}"
        if any(name in " ".join(parent.cmdline()) for parent in psutil.Process().parents() for name in BATCH):
            raise ValueError(f"keep_in={DRIVE!r}: nobody can allow the access to Google Drive in a batch; {first}")
        try:
            drive.mount(str(disk.COLAB_DRIVE))
        except Exception as error:  # the classes differ by version, and by what the person did
            raise ValueError(
                f"keep_in={DRIVE!r}: Google Drive was not mounted ({error}). Run the cell again and allow it, {first}"
            ) from error
    disk.require_mount("keep_in", disk.COLAB_DRIVE / DRIVE_FOLDER)
    return disk.COLAB_DRIVE / DRIVE_FOLDER


def warn(folder: Path) -> None:
    """Says what becomes of a run without a second place where the platform deletes its disk."""
    if folder.is_relative_to(disk.COLAB_DRIVE):
        return
    if "KAGGLE_KERNEL_RUN_TYPE" in os.environ:
        tracking.say(
            "ATTENTION: this run goes with this session, since Kaggle deletes the disk: choose Persistence > Files only in the "
            "session options, or set keep_in to a folder that stays"
        )
    elif _colab_drive():
        tracking.say(
            f"ATTENTION: this run goes with this runtime, since Colab deletes the disk: set keep_in={DRIVE!r} to keep copies in your Google "
            "Drive, from which a new runtime continues"
        )


def restore(place: Path, folder: Path) -> None:
    """Copies to `folder` what it lacks: files, uploaded data, and the newest whole checkpoints where they are newer.

    Raises OSError if that fails.
    """
    try:
        _restore(place, folder)
    except OSError as error:
        raise OSError(
            f"keep_in: the copies in {str(place)!r} could not be brought to output_dir={str(folder)!r} ({error}); nothing was changed "
            "there. Mount the disk again, or free space, and run the cell again; with an empty keep_in the run goes on without them"
        ) from error


def _restore(place: Path, folder: Path) -> None:
    units, files = _contents(place)
    for name in files:
        source, target = place / name, folder / name
        lost = source.stat().st_size == 0 or (name.suffix == ".json" and disk.read_json(source) is None)
        if not target.exists() and not lost:
            disk.copy(source, target)
    for parent in {name.parent for name in units}:
        _restore_checkpoints(place / parent, folder / parent)
    if (place / UPLOADED).is_dir() and not (folder / UPLOADED).exists():
        _bring(place / UPLOADED, folder / UPLOADED)


def _restore_checkpoints(source: Path, target: Path) -> None:
    newest, _ = checkpoint.newest_whole(target)
    for copied in checkpoint.listed(source):
        if newest and checkpoint.step_of(copied) <= checkpoint.step_of(newest):
            return
        brought = checkpoint.folder(target, checkpoint.step_of(copied))
        if _bring(copied, brought):
            state = disk.read_json(brought / checkpoint.TRAINER_STATE_NAME)
            best = state and state.get("best_global_step")
            if (
                best is not None
                and not checkpoint.folder(target, best).exists()
                and checkpoint.folder(source, best).exists()
            ):
                _bring(checkpoint.folder(source, best), checkpoint.folder(target, best))
            return


def _bring(source: Path, target: Path) -> bool:
    """Copies a folder with a manifest, whole or not at all; says which."""
    staging = checkpoint.staging_folder(target.parent, 0) / target.name
    shutil.rmtree(staging.parent, ignore_errors=True)
    shutil.copytree(source, staging)
    problem = checkpoint.damage(staging)
    if problem:
        tracking.say(f"keep_in: skipped {source}: {problem}")
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging.rename(target)
        disk.sync(target.parent)
        tracking.say(f"keep_in: restored {target.name} from {source.parent}")
    shutil.rmtree(staging.parent, ignore_errors=True)
    return not problem


def _contents(folder: Path) -> tuple[list[Path], list[Path]]:
    """Folders that count as a whole (checkpoints, uploaded data), and all other files, relative to `folder`."""
    units, files = [], []
    for path, folders, names in os.walk(folder):
        here = Path(path).relative_to(folder)
        units += [here / name for name in folders if _is_unit(name)]
        folders[:] = [name for name in folders if not _is_unit(name) and not name.startswith((".", checkpoint.DAMAGED))]
        files += [here / name for name in names if not name.startswith(".") and name != folder_lock.LOCK_FILE]
    return units, files


def _is_unit(name: str) -> bool:
    return name == UPLOADED or bool(re.fullmatch(r"checkpoint-\d+", name))


_current: Mirror | None = None


def start(folder: Path, place: Path) -> Mirror:
    """Begins to copy a run's folder, in the place of the run that this process had before."""
    global _current
    close_current()
    _current = Mirror(folder, place)
    tracking.say(f"keep_in: checkpoints and results are copied to {place}")
    return _current


def close_current() -> None:
    """Ends the copies of the run that this process had before, if there was one."""
    global _current
    if _current:
        _current.close()
    _current = None


class Mirror:
    """The copies of the folder of a run, which this process owns, at a place that it owns as well."""

    def __init__(self, folder: Path, place: Path):
        self.folder, self.place = folder, place
        self.problem = ""  # why the last attempt copied not all
        self._stamps: dict[Path, tuple[int, int]] = {}  # size and time of the files that were copied
        self._manifests: dict[Path, bytes] = {}  # of the folders that were copied
        self._states: list[tuple[float, set[Path]]] = [(time.monotonic(), set(_contents(place)[0]))]
        self._ended = False
        self._passes = threading.Condition()
        self._begun = self._done = 0
        self._wake = threading.Event()
        threading.Thread(target=self._work, name="keep_in", daemon=True).start()
        atexit.register(self.close)

    def finish(self, patience: float) -> bool:
        """Whether all that is there now is copied, after at most so many seconds."""
        wanted = self._begun + 1
        self._wake.set()
        with self._passes:
            self._passes.wait_for(lambda: self._ended or self._done >= wanted, patience)
            return self._done >= wanted and not self.problem

    def say_finished(self) -> None:
        """Waits for the last copies, and says whether they were made."""
        if self.finish(AT_RESULTS):
            tracking.say(f"keep_in: everything is copied to {self.place}")
            return
        reason = self.problem or "the disk there is slow"
        tracking.say(
            f"ATTENTION: keep_in: not everything is copied to {self.place} ({reason}). Run this cell again, or copy {self.folder} there"
        )

    def close(self) -> None:
        """Makes the last copies, ends, and gives the place up."""
        atexit.unregister(self.close)
        self.finish(AT_EXIT)
        self._ended = True
        self._wake.set()
        folder_lock.release(self.place)

    def _work(self) -> None:
        while not self._ended:
            self._begun += 1
            self._try()
            with self._passes:
                self._done = self._begun
                self._passes.notify_all()
            self._wake.wait(PAUSE)
            self._wake.clear()

    def _try(self) -> None:
        before, self.problem = self.problem, ""
        try:
            self._copy_all()
        except folder_lock.FolderTaken as taken:
            self.problem, self._ended = str(taken), True
            tracking.say(
                f"ATTENTION: keep_in: no more copies are made, since another machine goes on with this run: {taken}"
            )
        except (OSError, ValueError) as error:
            self.problem = str(error)
            if not before:
                tracking.say(
                    f"ATTENTION: keep_in: not copied to {self.place} ({error}). Training goes on, and the copy is tried again"
                )
        if before and not self.problem:
            tracking.say(f"keep_in: copied to {self.place} again")

    def _copy_all(self) -> None:
        disk.require_mount("keep_in", self.place)
        folder_lock.check(self.place, "keep_in")
        if not (self.folder / RUN_FILE).exists():
            raise FileNotFoundError(f"{self.folder} has gone")
        units, files = _contents(self.folder)
        results = [name for name in files if name.name == RESULTS_FILE]
        for name in files:
            if name not in results:
                self._copy_file(name)
        copied = {name for name in units if self._copy_unit(name)}
        for name in results:
            self._copy_file(name)
        self._remove_old(copied)

    def _copy_file(self, name: Path) -> None:
        source = self.folder / name
        with contextlib.suppress(FileNotFoundError):  # it was replaced or removed meanwhile
            status = source.stat()
            stamp = status.st_size, status.st_mtime_ns
            if self._stamps.get(name) != stamp:
                disk.copy(source, self.place / name)
                self._stamps[name] = stamp

    def _copy_unit(self, name: Path) -> bool:
        """Whether the place has the folder; one that was removed or damaged here is not copied."""
        source, target = self.folder / name, self.place / name
        try:
            manifest = (source / checkpoint.MANIFEST).read_bytes()
            if self._manifests.get(name) != manifest and not _is_copy(source, target):
                disk.remove(target, truncate=True)
                for file in (*json.loads(manifest), checkpoint.MANIFEST):
                    disk.copy(source / file, target / file)
        except (FileNotFoundError, ValueError):
            return False
        self._manifests[name] = manifest
        return True

    def _remove_old(self, copied: set[Path]) -> None:
        """Removes checkpoints that the run has not had for `SETTLED` seconds and is past."""
        now = time.monotonic()
        if copied != self._states[-1][1]:
            self._states.append((now, copied))
        settled = [number for number, (since, _) in enumerate(self._states) if now - since >= SETTLED]
        self._states = self._states[settled[-1] if settled else 0 :]
        kept = set().union(*(units for _, units in self._states))
        for name in set(_contents(self.place)[0]) - kept:
            if any(unit.parent == name.parent and _step(unit) > _step(name) for unit in copied):
                disk.remove(self.place / name, truncate=True)


def _step(unit: Path) -> int:
    return -1 if unit.name == UPLOADED else checkpoint.step_of(unit)


def _is_copy(source: Path, target: Path) -> bool:
    """Whether `target` has the manifest of `source` and files of its sizes."""
    if disk.read_json(target / checkpoint.MANIFEST) != disk.read_json(source / checkpoint.MANIFEST):
        return False
    files = disk.read_json(source / checkpoint.MANIFEST)
    return all(
        (target / name).is_file() and (target / name).stat().st_size == (source / name).stat().st_size for name in files
    )
