"""Checkpoints that are whole or absent: staged, hashed, synced, renamed; verified before they are used.

A checkpoint is written to `.staging-N` beside its final place, the sha256 of every file goes into `manifest.json`, all is synced to
disk, and one rename makes it `checkpoint-N`. Whatever kills the process, a folder named `checkpoint-N` is whole or its
damage is found. (Stock Trainer writes in place, and resumes silently from half a checkpoint.)

Only what was read and differs is damage; a damaged counter costs no checkpoint. What could not be read (a dropped mount, a disk error, too many open files) raises
`CheckpointUnreadable`, renames nothing, and never leads to step 0.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from . import disk

MANIFEST = "manifest.json"
COUNTERS = ("meter.json", "training_args.bin")  # what training does not continue from
TRAINER_STATE_NAME = "trainer_state.json"  # as transformers calls it
DAMAGED = "damaged-"
ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)  # the disk answered that there is no such file


class CheckpointNotWritten(OSError):
    """A checkpoint could not be written; the older ones are untouched."""


class CheckpointUnreadable(OSError):
    """A checkpoint could not be read, so nobody knows whether it is whole; nothing was touched."""


def folder(output_dir: Path | str, step: int) -> Path:
    """Path of the checkpoint of an optimizer step."""
    return Path(output_dir) / f"checkpoint-{step}"


def staging_folder(output_dir: Path | str, step: int) -> Path:
    """Path where that checkpoint is written before it is published."""
    return Path(output_dir) / f".staging-{step}"


def step_of(checkpoint: Path | str) -> int:
    """The optimizer step of a checkpoint folder."""
    return int(Path(checkpoint).name.rpartition("-")[2])


def listed(output_dir: Path | str, prefix: str = "") -> list[Path]:
    """Folders named checkpoint-N, or links to them, newest first, whole or not.

    Raises CheckpointUnreadable if the disk does not answer, also for a link to a disk that is not there.
    """
    folders = [path for path in _folders(output_dir) if re.fullmatch(rf"{prefix}checkpoint-\d+", path.name)]
    for path in folders:
        if not path.exists():
            raise _unreadable(path, FileNotFoundError(f"it is a link to {path.readlink()}"))
    return sorted(folders, key=step_of, reverse=True)


def renamed(output_dir: Path | str) -> dict[Path, int]:
    """Checkpoints under another name than checkpoint-N, and their steps."""
    steps = {}
    for path in _folders(output_dir):
        is_usual = re.fullmatch(rf"\..*|({DAMAGED})?checkpoint-\d+", path.name)
        if not is_usual and (path / MANIFEST).is_file():
            state = disk.read_json(path / TRAINER_STATE_NAME)
            if isinstance(state, dict):
                steps[path] = state.get("global_step", 0)
    return steps


def _folders(output_dir: Path | str) -> list[Path]:
    try:
        with os.scandir(output_dir) as entries:  # Path.glob takes an unreadable folder for an empty one
            return [Path(entry.path) for entry in entries if entry.is_symlink() or entry.is_dir()]
    except ABSENT:
        return []
    except OSError as error:
        raise _unreadable(output_dir, error) from error


def _unreadable(path: Path | str, error: BaseException) -> CheckpointUnreadable:
    return CheckpointUnreadable(
        f"{str(path)!r} could not be read ({error!r}), so nobody knows whether it is whole; nothing was touched. Mount the disk again, "
        "or free memory and close files; then run the notebook again"
    )


def size(checkpoint: Path) -> int:
    """Bytes of its files."""
    return sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file())


@contextlib.contextmanager
def staged(output_dir: Path | str, step: int) -> Iterator[Path]:
    """Yields an empty folder; what the block writes into its `checkpoint-<step>` is published whole on leaving.

    Raises:
        CheckpointNotWritten: the block or the publishing failed (a full disk, for example); nothing is left behind.
    """
    output_dir = Path(output_dir)
    staging = staging_folder(output_dir, step)
    shutil.rmtree(staging, ignore_errors=True)
    try:
        staging.mkdir(parents=True)
        yield staging
        publish(folder(staging, step), folder(output_dir, step))
    except Exception as error:
        shutil.rmtree(staging, ignore_errors=True)
        last, _ = newest_whole(output_dir)
        raise CheckpointNotWritten(
            f"checkpoint at step {step} was not written to output_dir={str(output_dir)!r}: {error}. "
            f"The newest whole checkpoint is {last.name if last else 'none'}. Free space or choose another disk, "
            "then run again: the run continues from that checkpoint."
        ) from error
    shutil.rmtree(staging, ignore_errors=True)


def publish(source: Path, target: Path) -> None:
    """Hashes and syncs a finished folder, then renames it to its final name, replacing a damaged one there."""
    digests = {}
    paths = sorted(source.rglob("*"))
    for path in paths:
        if path.is_file():
            digests[path.relative_to(source).as_posix()] = _digest(path)
    disk.write_json(source / MANIFEST, digests)
    for path in (*paths, source):
        disk.sync(path)
    discarded = target.with_name(f".discarded-{target.name}")
    disk.remove(discarded)
    if target.exists():
        target.rename(discarded)
    source.rename(target)
    disk.remove(discarded)
    disk.sync(target.parent)


def damage(checkpoint: Path | str) -> str | None:
    """What differs from the bytes that were written, or None. Raises CheckpointUnreadable for what could not be read."""
    checkpoint = Path(checkpoint)
    try:
        return _difference(checkpoint)
    except (OSError, MemoryError) as error:
        raise _unreadable(checkpoint, error) from error


def _difference(checkpoint: Path) -> str | None:
    try:
        text = (checkpoint / MANIFEST).read_bytes()
    except ABSENT:
        return f"{MANIFEST} is missing" if checkpoint.exists() else "the folder is missing"
    try:
        digests = json.loads(text).items()
    except (ValueError, AttributeError, RecursionError) as error:
        return f"{MANIFEST} is no manifest: {error!r}"
    for name, written in digests:
        if name not in COUNTERS:
            problem = _change(checkpoint, name, written)
            if problem:
                return problem
    return None


def _change(checkpoint: Path, name: str, written: str) -> str | None:
    try:
        digest = _digest(checkpoint / name)
    except (*ABSENT, ValueError):  # no file, or a name that no file can have
        return f"{name} is missing"
    if digest != written:
        return f"{name} has changed since it was written"
    return None


def counter(checkpoint: Path, name: str) -> dict | None:
    """A file of counters in a whole checkpoint; None if it is damaged."""
    digests = disk.read_json(checkpoint / MANIFEST)
    if _change(checkpoint, name, digests.get(name, "")):
        return None
    return disk.read_json(checkpoint / name)


def newest_whole(output_dir: Path | str) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint, and for every newer one a line that says why it was skipped."""
    skipped: list[str] = []
    for checkpoint in listed(output_dir):
        problem = damage(checkpoint)
        if problem is None:
            return checkpoint, skipped
        skipped.append(f"skipped {checkpoint.name}: {problem}")
    return None, skipped


def set_aside(checkpoint: Path) -> Path:
    """Renames a damaged checkpoint, whose weights may still be of use until the run has passed it; returns its new path."""
    target = checkpoint.with_name(f"{DAMAGED}{checkpoint.name}")
    disk.remove(target)
    return checkpoint.rename(target)


def prune(output_dir: Path | str, keep: int, *, newest: int, protect: Path | str | None = None) -> None:
    """Deletes checkpoints that are not needed, and what killed processes left.

    Args:
        output_dir: the run's folder.
        keep: how many of the newest stay, counted from `newest` down.
        newest: the step just written; later ones, from before the run went back to an older checkpoint, are deleted.
        protect: one more checkpoint to keep.
    """
    protected = protect and Path(protect).resolve()
    newest_ones = [path for path in listed(output_dir) if step_of(path) <= newest][:keep]
    for checkpoint in listed(output_dir):
        if checkpoint not in newest_ones and checkpoint.resolve() != protected:
            disk.remove(checkpoint)
    for checkpoint in listed(output_dir, DAMAGED):
        if step_of(checkpoint) <= newest:
            disk.remove(checkpoint)
    sweep(output_dir)


def sweep(output_dir: Path | str) -> None:
    """Removes what killed processes left; first restores a folder that was moved away and never replaced."""
    for discarded in Path(output_dir).glob(".discarded-checkpoint-*"):
        target = discarded.with_name(discarded.name.removeprefix(".discarded-"))
        if not target.exists():
            discarded.rename(target)
    for pattern in (".staging-*", ".discarded-checkpoint-*"):
        for leftover in Path(output_dir).glob(pattern):
            shutil.rmtree(leftover, ignore_errors=True)
    disk.sweep(Path(output_dir))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
