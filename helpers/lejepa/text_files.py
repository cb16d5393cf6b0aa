"""Files of a user's texts, read line by line; `name` is the parameter that named the file, for what is wrong with it."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from helpers import row_files


def lines(name: str, path: Path) -> Iterator[str]:
    """Lines of a UTF-8 file, each with its end. Raises ValueError for another encoding."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            yield from file
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}={str(path)!r}: not UTF-8 ({error}); save the file as UTF-8") from error


def objects(name: str, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, object) of each line of a .jsonl that is not blank. Raises ValueError for a line that is none."""
    for number, values in row_files.jsonl(f"{name}={str(path)!r},", path):
        yield f"{name}={str(path)!r}, line {number}", values


def table(name: str, path: Path, columns: Sequence[str] | None = None) -> Iterator[tuple[str, dict[str, str | None]]]:
    """(place, column -> field) of each row of a .csv that is not blank, None for a field that is missing.

    columns: the header of a file whose first row does not hold them all. Raises ValueError for what is no CSV.
    """
    reader = csv.DictReader(lines(name, path), strict=True)
    try:
        if columns and not set(columns) <= set(reader.fieldnames or ()):
            reader = csv.DictReader(lines(name, path), columns, strict=True)
        for row in reader:
            where = f"{name}={str(path)!r}, line {reader.line_num}"
            if None in row:
                raise ValueError(
                    f"{where} has more fields than the header; put fields that hold a comma in double quotes"
                )
            yield where, row
    except csv.Error as error:
        raise ValueError(f"{name}={str(path)!r}, line {reader.reader.line_num}: not CSV ({error})") from error
