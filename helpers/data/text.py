"""The text of a user's file, or an error that names the encoding that fits; nothing is replaced in silence."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

MARKS = {  # first bytes of a file; those of UTF-32 begin with those of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# What programs write that do not write UTF-8: Western Europe (nearly latin-1), Russian, Chinese (two), Japanese, Korean.
USUAL = ("cp1252", "cp1251", "gb18030", "big5", "cp932", "cp949")
ENOUGH = 200_000  # bytes that decide which encoding fits
SYSTEMATIC = 3  # lines in another encoding are no accident


def read_text(path: Path) -> str:
    """The text of a file in UTF-8, with or without a byte order mark; each line ends with a line feed.

    Raises ValueError for another encoding, with the one that fits and how to convert the file, for a file that is no text, and
    for one that cannot be opened. The message begins with a verb: put the file's name before it.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot be opened ({error.strerror})") from error
    encoding = _marked(data[:200])
    if encoding:
        raise ValueError(f"is not UTF-8; {conversion(encoding, path)}")
    place = data.find(b"\0")
    if place >= 0:
        line = data.count(b"\n", 0, place) + 1
        raise ValueError(f"is not a text (there is a NUL byte in line {line:,})")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        encoding = fitting_encoding(data[max(0, error.start - ENOUGH) : error.start + ENOUGH])
        raise ValueError(f"is not UTF-8 (line {line:,}); {conversion(encoding, path)}") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def check_lines(path: Path, source: str) -> None:
    """Raises ValueError for a file in another encoding than UTF-8. Single lines in another one are the reader's to set aside."""
    wrong, right = [], 0
    with path.open("rb") as lines:
        encoding = _marked(lines.read(200))
        if encoding:
            raise ValueError(f"{source} is not UTF-8; {conversion(encoding, path)}")
        lines.seek(0)
        for line in lines:
            if line.isascii():
                continue
            try:
                line.decode()
                right += 1
            except UnicodeDecodeError:
                wrong.append(line[:ENOUGH])
    if len(wrong) >= SYSTEMATIC and len(wrong) > right:
        encoding = fitting_encoding(b"".join(wrong)[:ENOUGH])
        raise ValueError(f"{source} is not UTF-8 ({len(wrong):,} lines); {conversion(encoding, path)}")


def conversion(encoding: str, path: Path) -> str:
    """What to do with a file in another encoding; "" is one that is not known."""
    if not encoding:
        return "save it as UTF-8 in the program that wrote it"
    name = path.name
    return (
        f"its bytes fit {encoding}: save it as UTF-8 in the program that wrote it, or convert it in Python with "
        f"open({f'utf8-{name}'!r}, 'w', encoding='utf-8').write(open({name!r}, encoding={encoding!r}).read())"
    )


def fitting_encoding(data: bytes) -> str:
    """The usual encoding that fits the bytes, "" if none does."""
    from charset_normalizer import from_bytes

    try:
        data.decode("utf-8")
        return "utf-8"
    except UnicodeDecodeError:
        pass
    runs = re.findall(rb"[\x80-\xff]+", data)
    if sum(map(len, runs)) < 1.5 * len(runs):  # single letters between ASCII, where Russian or Chinese has whole words
        return "cp1252"
    best = from_bytes(data, cp_isolation=list(USUAL)).best()
    return best.encoding if best else ""


def _marked(start: bytes) -> str:
    """UTF-32 or UTF-16 of the first bytes of a file, by their mark."""
    for mark, encoding in MARKS.items():
        if start.startswith(mark):
            return encoding
    return ""
