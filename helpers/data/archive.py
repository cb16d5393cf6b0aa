"""A .zip of a user, unpacked into a folder of its own that is named by the archive's digest."""

from __future__ import annotations

import hashlib
import shutil
import stat
import zipfile
import zlib
from pathlib import Path

from helpers.notebook import unpacking

from .listing import reason_against_name

LARGEST = 20 * 2**30  # bytes that an archive may unpack to
ENCRYPTED, MARKED_UTF8 = 0x1, 0x800  # bits of `ZipInfo.flag_bits`


def unpack(path: Path, *, source: str) -> Path:
    """The folder that holds the files of the archive, made once; where all of them are in one folder, that folder.

    source: the parameter and its value, with which an error begins.

    Raises ValueError for an archive that is broken, encrypted, enormous, or that holds a name twice.
    """

    def unpack_all(folder: Path) -> None:
        total, free = sum(member.file_size for member in members), shutil.disk_usage(folder).free
        if total > free:
            raise ValueError(f"{source} unpacks to {total:,} bytes, and {folder} has room for {free:,}: make room")
        archive.extractall(folder, members)  # it leaves out `..` and roots

    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        with zipfile.ZipFile(path, metadata_encoding=_encoding_of_names(path)) as archive:
            members = [info for info in archive.infolist() if not stat.S_ISLNK(info.external_attr >> 16)]
            _check(members, source)
            folder = unpacking.made_once(f"unpacked-{digest[:16]}", unpack_all, Path.is_dir)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, UnicodeError) as error:
        raise ValueError(f"{source} is not a whole .zip ({error}): make it or upload it again") from error
    except OSError as error:
        raise ValueError(f"{source} cannot be unpacked ({error}): unpack it yourself, and give the folder") from error
    entries = [entry for entry in folder.iterdir() if not reason_against_name(entry.name)]
    if len(entries) == 1 and entries[0].is_dir():
        return entries[0]
    return folder


def _encoding_of_names(path: Path) -> str | None:
    """UTF-8 where the names are that and do not say so, as a Mac writes them."""
    with zipfile.ZipFile(path) as archive:
        filenames = [member.orig_filename for member in archive.infolist() if not member.flag_bits & MARKED_UTF8]
    try:
        "".join(filenames).encode("cp437").decode("utf-8")
        return "utf-8"
    except UnicodeError:
        return None


def _check(members: list[zipfile.ZipInfo], source: str) -> None:
    """Raises ValueError for what should not be unpacked."""
    remedy = "unpack it yourself, and give the folder"
    if any(member.flag_bits & ENCRYPTED for member in members):
        raise ValueError(f"{source} is encrypted: {remedy}")
    total = sum(member.file_size for member in members)
    if total > LARGEST:
        raise ValueError(f"{source} unpacks to {total:,} bytes; at most {LARGEST:,} are unpacked here: {remedy}")
    filenames = set()
    for member in members:
        if member.filename in filenames:
            raise ValueError(f"{source} holds {member.filename!r} twice: {remedy}")
        filenames.add(member.filename)
