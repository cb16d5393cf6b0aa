"""The files of a user: those of a folder or an archive, and their texts. No other module lists a folder of a user."""

import os
import re
import tempfile
import zipfile
from collections import Counter
from pathlib import Path

from charset_normalizer import from_bytes

RUN_FILE = "run.json"  # in the folder of a run of this project
# What is hidden, belongs to an operating system or an editor, or is installed code.
JUNK = re.compile(
    r"[.~].*|__(MACOSX|py.*)|Thumbs.db|desktop.ini|lost\+found|\$RECYCLE.BIN|node_modules|(site|dist)-packages"
)
FOREIGN = re.compile("[\0\udc80-\udcff]")  # NUL, and what "surrogateescape" makes of a byte that is not UTF-8
unpacked: list[tempfile.TemporaryDirectory] = []  # until this process ends


def list_files(folder: Path, suffixes, source: str, *, without=()) -> tuple[list[Path], Counter[str]]:
    """The files below a folder, by their path, and how many of which suffix or name are passed over.

    Read are files whose suffix, in small letters, is one of `suffixes`. Passed over are files of another kind, junk, links, which may
    leave the folder, what may not be opened, runs of this project, and what is named in `without`.

    source: the parameter and its value, with which an error begins. Raises ValueError if no file is left.
    """
    paths: list[Path] = []
    passed_over: Counter[str] = Counter()
    for inside, folders, files in os.walk(folder):
        for name in folders + files:
            path = Path(inside, name)
            is_junk = name in without or JUNK.fullmatch(name) or path.is_symlink() or not os.access(path, os.R_OK)
            if is_junk or os.access(path / RUN_FILE, os.F_OK):
                passed_over[name] += 1
                if name in folders:
                    folders.remove(name)
            elif path.is_file() and path.suffix.lower() in suffixes:
                paths.append(path)
            elif name in files:
                passed_over[path.suffix or name] += 1
    if not paths:
        raise ValueError(
            f"{source}: no file that can be read here ({', '.join(suffixes)}); passed over: {dict(passed_over)}"
        )
    return sorted(paths, key=str), passed_over


def read_text(path: Path, *, tolerant: bool = False) -> str:
    """The text of a file in UTF-8, with or without a byte order mark, or in UTF-16 with one; each line ends with a line feed.

    tolerant: bytes that are not UTF-8 become surrogates, unless most lines have some.

    Raises ValueError for another encoding and for what is no text. The message begins with a verb: put the file's name before it.
    """
    content = path.read_bytes()
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    lines = re.split("\r\n|[\r\n]", content.decode(encoding, "surrogateescape"))
    foreign = list(filter(FOREIGN.search, lines))
    if foreign and (not tolerant or 2 * len(foreign) > len(lines)):
        guess = getattr(from_bytes(content[:100_000]).best(), "encoding", "unknown")
        raise ValueError(f"is not UTF-8 ({len(foreign):,} lines; encoding perhaps {guess}): save it as UTF-8")
    return "\n".join(lines)


def unpack(path: Path, source: str) -> Path:
    """A folder with the files of a .zip, until this process ends. Raises ValueError for an archive that is broken or encrypted."""
    folder = tempfile.TemporaryDirectory()
    unpacked.append(folder)
    try:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder.name)  # never beside it, whatever the names
    except Exception as error:  # what is damaged or encrypted ends in errors of many kinds
        raise ValueError(f"{source} cannot be unpacked ({error}): unpack it yourself, and give the folder") from error
    return Path(folder.name)
