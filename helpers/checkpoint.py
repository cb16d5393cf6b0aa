"""Checkpoints that are whole or absent: staged, hashed, synced, renamed; verified before they are used.

A checkpoint is written to `.staging-N` beside its final place, every file is hashed into `manifest.json` and synced to
disk, and one rename makes it `checkpoint-N`. Whatever kills the process, a folder named `checkpoint-N` holds all of it
or its damage shows. (Stock Trainer writes in place and resumes in silence from a half.)
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

MANIFEST = "manifest.json"
SCHEMA = 1
_FOLDER = re.compile(r"checkpoint-(\d+)")


class CheckpointNotWritten(OSError):
    """A checkpoint could not be written; the older ones are untouched."""


def folder(output_dir: Path | str, step: int) -> Path:
    """Where the checkpoint of an optimizer step lives."""
    return Path(output_dir) / f"checkpoint-{step}"


def step_of(checkpoint: Path | str) -> int:
    """The optimizer step of a checkpoint folder."""
    return int(_FOLDER.fullmatch(Path(checkpoint).name).group(1))


def listed(output_dir: Path | str) -> list[Path]:
    """Folders named checkpoint-N, newest first, whole or not."""
    output_dir = Path(output_dir)
    if not output_dir.is_dir():
        return []
    folders = [path for path in output_dir.iterdir() if path.is_dir() and _FOLDER.fullmatch(path.name)]
    return sorted(folders, key=step_of, reverse=True)


@contextlib.contextmanager
def staged(output_dir: Path | str, step: int) -> Iterator[Path]:
    """Yields an empty folder; what the block writes into its `checkpoint-<step>` is published whole on leaving.

    Raises:
        CheckpointNotWritten: the block or the publishing failed (disk full, say). Nothing is left behind, the newest
            whole checkpoint is named.
    """
    output_dir = Path(output_dir)
    staging = output_dir / f".staging-{step}"
    shutil.rmtree(staging, ignore_errors=True)
    try:
        staging.mkdir(parents=True)
        yield staging
        publish(staging / f"checkpoint-{step}", folder(output_dir, step))
    except Exception as error:
        shutil.rmtree(staging, ignore_errors=True)
        last, _ = newest_whole(output_dir)
        free = shutil.disk_usage(output_dir).free / 2**30
        raise CheckpointNotWritten(
            f"checkpoint at step {step} was not written to output_dir={str(output_dir)!r} ({free:.2f} GiB free there): "
            f"{error}. The newest whole checkpoint is {last.name if last else 'none'}. Free space or choose another disk, "
            "then run again: the run goes on from that checkpoint."
        ) from error
    shutil.rmtree(staging, ignore_errors=True)


def publish(source: Path, target: Path) -> None:
    """Hashes and syncs a finished folder, then renames it to its final name, replacing a damaged one there."""
    files = sorted(path for path in source.rglob("*") if path.is_file())
    manifest = {
        "schema": SCHEMA,
        "step": step_of(target),
        "files": {path.relative_to(source).as_posix(): _fingerprint(path) for path in files},
    }
    (source / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    for path in [*files, source / MANIFEST]:
        _sync(path)
    for directory in [*(path for path in source.rglob("*") if path.is_dir()), source]:
        _sync(directory)
    if target.exists():
        discarded = target.with_name(f".discarded-{target.name}")
        shutil.rmtree(discarded, ignore_errors=True)
        target.rename(discarded)
        source.rename(target)
        shutil.rmtree(discarded)
    else:
        source.rename(target)
    _sync(target.parent)


def damage(checkpoint: Path | str) -> str | None:
    """What is wrong with a checkpoint, or None when every file is there with the bytes that were written."""
    checkpoint = Path(checkpoint)
    try:
        manifest = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
        files, step = manifest["files"], manifest["step"]
    except FileNotFoundError:
        return f"{MANIFEST} is missing" if any(checkpoint.iterdir()) else "the folder is empty"
    except (ValueError, KeyError, TypeError) as error:
        return f"{MANIFEST} cannot be read: {error}"
    if manifest.get("schema") != SCHEMA:
        return f"{MANIFEST} has schema {manifest.get('schema')}, this version reads {SCHEMA}"
    if step != step_of(checkpoint):
        return f"{MANIFEST} is of step {step}"
    for name, expected in files.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != expected["bytes"]:
            return f"{name} has {path.stat().st_size} bytes instead of {expected['bytes']}"
        if _fingerprint(path)["sha256"] != expected["sha256"]:
            return f"{name} has changed since it was written"
    return None


def newest_whole(output_dir: Path | str) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that verifies, and one line for every newer one that was passed over and why."""
    skipped = []
    for checkpoint in listed(output_dir):
        problem = damage(checkpoint)
        if problem is None:
            return checkpoint, skipped
        skipped.append(f"skipped {checkpoint.name}: {problem}")
    return None, skipped


def prune(output_dir: Path | str, keep: int, protect: Path | str | None = None) -> None:
    """Deletes all but the `keep` newest checkpoints and the protected one, and what killed writers left behind."""
    protected = protect and Path(protect).resolve()
    for checkpoint in listed(output_dir)[keep:]:
        if checkpoint.resolve() != protected:
            shutil.rmtree(checkpoint)
    sweep(output_dir)


def sweep(output_dir: Path | str) -> None:
    """Removes staging folders of writers that were killed."""
    for pattern in (".staging-*", ".discarded-checkpoint-*"):
        for leftover in Path(output_dir).glob(pattern):
            shutil.rmtree(leftover, ignore_errors=True)


def _fingerprint(path: Path) -> dict:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # A mounted Drive or bucket has no directories to sync; its files were synced.
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP)):
            raise
    finally:
        os.close(descriptor)
