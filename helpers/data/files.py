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
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
unpacked: list[tempfile.TemporaryDirectory] = []  # until this process ends


def list_files(folder: Path, suffixes, source: str, *, names=(), without=()) -> tuple[list[Path], Counter[str]]:
    """The files below a folder, by their path, and how many of which suffix or name are passed over.

    Read are files whose suffix, in small letters, is one of `suffixes`, or whose name is one of `names`. Passed over are files of another
    kind, junk, links, which may leave the folder, what may not be opened (by its path), runs of this project, and what is named in `without`.

    source: the parameter and its value, with which an error begins. Raises ValueError if no file is left.
    """
    paths: list[Path] = []
    passed_over: Counter[str] = Counter()
    for inside, folders, files in os.walk(folder):
        for name in folders + files:
            path = Path(inside, name)
            is_wanted, kind = False, name
            if not os.access(path, os.R_OK):
                kind = path.relative_to(folder).as_posix()
            elif name in without or JUNK.fullmatch(name) or path.is_symlink():
                pass
            elif name in folders:
                is_wanted = not os.access(path / RUN_FILE, os.F_OK)
            else:
                kind = path.suffix or name
                is_wanted = path.is_file() and (name in names or path.suffix.lower() in suffixes)
            if not is_wanted:
                passed_over[kind] += 1
                folders[:] = [other for other in folders if other != name]
            elif name in files:
                paths.append(path)
    if not paths:
        raise ValueError(
            f"{source}: no file that can be read here ({', '.join(suffixes)}); {dict(passed_over)} are passed over"
        )
    return sorted(paths, key=str), passed_over


def read_text(path: Path, *, tolerant: bool = False) -> str:
    """The text of a file in UTF-8, with or without a byte order mark, or in UTF-16 with one; each line ends with a line feed.

    tolerant: bytes that are not UTF-8 become surrogates, unless most lines have some.

    Raises ValueError for another encoding and for what is no text. The message begins with a verb: put the file's name before it.
    """
    content = path.read_bytes()
    encoding = "utf-16" if content[:2] in UTF_16 else "utf-8-sig"
    text = content.decode(encoding, "surrogateescape").replace("\r\n", "\n").replace("\r", "\n")
    foreign = list(filter(FOREIGN.search, text.split("\n")))
    if foreign and (not tolerant or 2 * len(foreign) > text.count("\n")):
        best = from_bytes("\n".join(foreign)[:100_000].encode("utf-8", "surrogateescape")).best()
        guess = getattr(best, "encoding", "unknown")
        raise ValueError(f"is not UTF-8 ({len(foreign):,} lines; encoding perhaps {guess}): save it as UTF-8")
    return text


def unpack(path: Path, source: str) -> Path:
    """A folder with the files of a .zip, until this process ends; where all of them are in one folder, that folder.

    Raises ValueError for an archive that is broken or encrypted, or would write beside its folder.
    """
    unpacked.append(tempfile.TemporaryDirectory())
    folder = Path(unpacked[-1].name).resolve() / path.stem
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if not (folder / name).resolve().is_relative_to(folder):
                    raise ValueError(f"{name!r} leaves its folder")
            archive.extractall(folder)
    except Exception as error:  # what is damaged or encrypted ends in errors of many kinds
        raise ValueError(f"{source} cannot be unpacked ({error}): unpack it yourself, and give the folder") from error
    entries = [*folder.glob("[!._]*")]
    return entries[0] if len(entries) == 1 and entries[0].is_dir() else folder
