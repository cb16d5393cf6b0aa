"""The files of a user's folder: which are read, and why the others are not. No other module lists a folder of a user.

listing = list_files(place.path, (".md", ".txt"), source=place.source)
for file in listing.files:
    try:
        text = read_text(file)
    except ValueError as error:
        listing.skip(file, str(error))
print(listing)
"""

from __future__ import annotations

import json
import operator
import os
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

RUN_FILE = "run.json"  # in the folder of a run of this project
OF_A_SYSTEM = frozenset({"__MACOSX", "Thumbs.db", "desktop.ini", "Icon\r", "lost+found", "$RECYCLE.BIN"})
OF_INSTALLED_CODE = frozenset({"node_modules", "site-packages", "dist-packages", "__pycache__", "__pypackages__"})
SHOWN_NAMES = 12  # in the printed list


class Skipped(NamedTuple):
    path: str  # below the folder
    reason: str
    junk: bool = False  # what nobody wants to be read, or a file of another kind


@dataclass
class Listing:
    """The files of a folder that are read, by their path, and what is skipped."""

    folder: Path
    files: list[Path] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    def name(self, path: Path) -> str:
        """The path below the folder, with forward slashes, in characters that can be printed."""
        below = path.relative_to(self.folder).as_posix()
        return os.fsencode(below).decode(errors="replace")

    def skip(self, path: Path, reason: str) -> None:
        """Takes a file out of those that are read."""
        self.files.remove(path)
        self.note(path, reason)

    def note(self, path: Path, reason: str, junk: bool = False) -> None:
        """Notes a path that is not read."""
        self.skipped.append(Skipped(self.name(path), reason, junk))

    def __str__(self) -> str:
        """How many files are read, and a line for each reason why others are not, junk last."""
        names = defaultdict(list)
        for skipped in sorted(self.skipped, key=operator.attrgetter("junk")):
            names[skipped.reason].append(skipped.path)
        lines = [f"files that are read from the folder {self.folder}: {len(self.files):,}"]
        for reason, paths in names.items():
            shown = ", ".join(paths[:SHOWN_NAMES])
            rest = len(paths) - SHOWN_NAMES
            if rest > 0:
                shown += f" and {rest:,} more"
            lines.append(f"  not read: {shown}: {reason}")
        return "\n".join(lines)


def list_files(
    folder: Path,
    suffixes: Sequence[str] | None,
    *,
    source: str,
    names: Collection[str] = (),
    without: Collection[str] = (),
) -> Listing:
    """The files below a folder whose suffix, in small letters, is one of `suffixes`, or whose name is one of `names`.

    With None for `suffixes` it lists files of every kind, and there may be none.

    What is hidden, belongs to an operating system, is installed code or is a run of this project is skipped, as are links, which
    may leave the folder, and folders whose name is one of `without`.

    source: the parameter and its value, with which an error begins.

    Raises ValueError if no file is left.
    """
    root = folder.resolve()
    listing = Listing(root)

    def note_unreadable(error: OSError) -> None:
        listing.note(Path(error.filename), f"cannot be opened ({error.strerror})")

    for inside, folders, files in os.walk(root, onerror=note_unreadable):
        below = Path(inside)
        for name in sorted(folders):
            reason = _reason_against_folder(below / name, without)
            if reason:
                folders.remove(name)
                listing.note(below / name, reason, junk=True)
        folders.sort()
        for name in sorted(files):
            path = below / name
            reason = reason_against_name(name)
            if not reason and suffixes is not None and name not in names and path.suffix.lower() not in suffixes:
                reason = f"{path.suffix or 'no suffix'} is not one of {', '.join(suffixes)}"
            if reason:
                listing.note(path, reason, junk=True)
            elif path.is_symlink():
                listing.note(path, "a link")
            elif path.is_file():
                listing.files.append(path)
            else:
                listing.note(path, "neither a file nor a folder")
    listing.files.sort(key=listing.name)
    if not listing.files and suffixes is not None:
        raise ValueError(f"{source}: the folder has no file that can be read here ({', '.join(suffixes)}).\n{listing}")
    return listing


def reason_against_name(name: str) -> str:
    """Why nobody wants a file or folder of this name to be read; "" if it may be."""
    if name in OF_A_SYSTEM or name.startswith("~$"):
        return "of an operating system or an editor"
    if name.startswith("."):
        return "hidden"
    return ""


def _reason_against_folder(path: Path, without: Collection[str]) -> str:
    if path.is_symlink():
        return "a link"
    if path.name in OF_INSTALLED_CODE or (path / "pyvenv.cfg").is_file():
        return "installed or generated code"
    if is_run(path):
        return "a run of this project"
    if path.name in without:
        return "left out by its name"
    return reason_against_name(path.name)


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a run of this project, or of a run of a batch."""
    try:
        run = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(run, dict) and ({"notebook", "parameters"} <= run.keys() or "identity" in run)
