"""A .zip of a user, unpacked into a folder of its own that is named by the archive's digest."""

from __future__ import annotations

import hashlib
import shutil
import stat
import tempfile
import zipfile
import zlib
from pathlib import Path

from .listing import reason_against_name

LARGEST = 20 * 2**30  # bytes that an archive may unpack to
ENCRYPTED, MARKED_UTF8 = 0x1, 0x800  # bits of `ZipInfo.flag_bits`


def unpack(path: Path, *, source: str) -> Path:
    """The folder that holds the files of the archive, made once; where all of them are in one folder, that folder.

    source: the parameter and its value, with which an error begins.

    Raises ValueError for an archive that is broken, encrypted, enormous, or that holds a name twice.
    """
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        with zipfile.ZipFile(path, metadata_encoding=_encoding_of_names(path)) as archive:
            members = [info for info in archive.infolist() if not stat.S_ISLNK(info.external_attr >> 16)]
            _check(members, source)
            folder = _unpack_once(archive, members, digest, source)
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


def _unpack_once(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo], digest: str, source: str) -> Path:
    """Unpacks beside the folder's place and renames, so that an interrupted attempt is never taken for the whole."""
    folder = cache() / f"unpacked-{digest[:16]}"
    if folder.is_dir():
        return folder
    fresh = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    try:
        free = shutil.disk_usage(fresh).free
        total = sum(member.file_size for member in members)
        if total > free:
            raise ValueError(f"{source} unpacks to {total:,} bytes, and {fresh} has room for {free:,}: make room")
        archive.extractall(fresh, members)  # it leaves out `..` and roots
        return fresh.rename(folder)
    except OSError:  # another process was first
        if folder.is_dir():
            return folder
        raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def cache() -> Path:
    """A folder of the user that can be written, for what can be made again."""
    try:
        folder = Path.home() / ".cache" / "training-notebooks"
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, RuntimeError):  # a home that cannot be written, or none
        folder = Path(tempfile.mkdtemp(prefix="training-notebooks-"))
    return folder
