"""Checkpoints that count only once they are sealed: `sealed.json`, which is written last, has the size of every other file.

The stock trainer writes `checkpoint-N` in place, and would resume from the highest N, whole or not. Here `seal` comes after every file is on the
disk; `newest` passes over a folder that has no seal, or a file of another size than the seal says.
"""

import shutil
from pathlib import Path

from helpers.show.tracking import say_once

from . import disk

SEAL = "sealed.json"
KEPT = 2  # newest checkpoints that stay

copied: Path | None = None  # the checkpoint that is being copied to a second place: it is not rotated


class CheckpointNotWritten(OSError):
    """A checkpoint could not be written; the older ones are untouched."""


def step_of(checkpoint: Path) -> int:
    """The optimizer step of a checkpoint folder."""
    return int(checkpoint.name.removeprefix("checkpoint-"))


def listed(output_dir: Path | str) -> list[Path]:
    """Folders named checkpoint-N, the highest step first, whole or not."""
    paths = Path(output_dir).glob("checkpoint-*")
    numbered = [path for path in paths if path.name.removeprefix("checkpoint-").isdigit()]
    return sorted(numbered, key=step_of, reverse=True)


def seal(checkpoint: Path) -> None:
    """Says that the folder is whole, once every file of it is on the disk."""
    sizes = {}
    for path in checkpoint.rglob("*"):
        if path.is_file():
            disk.sync(path)
            sizes[str(path.relative_to(checkpoint))] = path.stat().st_size
    disk.write_json(checkpoint / SEAL, sizes)


def is_whole(checkpoint: Path) -> bool:
    """Whether the folder is sealed and has every file in its size. Raises OSError, which names the file, if the disk does not answer."""
    sizes = disk.read_json(checkpoint / SEAL)
    try:
        return bool(sizes) and all((checkpoint / name).stat().st_size == size for name, size in sizes.items())
    except FileNotFoundError:
        return False


def newest(output_dir: Path | str) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint, and the names of newer ones, which are not whole and are passed over."""
    passed_over: list[str] = []
    for checkpoint in listed(output_dir):
        if is_whole(checkpoint):
            return checkpoint, passed_over
        passed_over.append(checkpoint.name)
    return None, passed_over


def rotate(output_dir: Path | str, best: int | None) -> None:
    """Deletes all checkpoints but the newest whole ones, that of the step `best`, and the one that is being copied."""
    checkpoints = listed(output_dir)
    newest_whole = [*filter(is_whole, checkpoints)][:KEPT]
    for checkpoint in {*checkpoints} - {*newest_whole, Path(output_dir, f"checkpoint-{best}")}:
        if checkpoint == copied:
            say_once(
                "ATTENTION: keep_in: a copy takes longer than the run until its next checkpoint: set save_steps or eval_steps higher"
            )
        else:
            shutil.rmtree(checkpoint, ignore_errors=True)
