"""Files of a user's texts, read line by line: what is wrong with one is said with its place.

Every function takes the parameter that named the file, and yields a place such as `data_source='a.jsonl', line 7`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
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


def fields(name: str, path: Path, **dialect) -> Iterator[tuple[str, list[str]]]:
    """(place, fields) of each row of a .csv or, with a `dialect` of the csv module, a .tsv that is not blank.

    Raises ValueError for what is no CSV.
    """
    reader = csv.reader(lines(name, path), strict=True, **dialect)
    try:
        for row in reader:
            if row:
                yield f"{name}={str(path)!r}, line {reader.line_num}", row
    except csv.Error as error:
        raise ValueError(f"{name}={str(path)!r}, line {reader.line_num}: not CSV ({error})") from error


def table(name: str, path: Path) -> Iterator[tuple[str, dict[str, str | None]]]:
    """(place, column -> field) of each row of a .csv under its header. Raises ValueError as `fields` does."""
    rows = fields(name, path)
    _, header = next(rows, ("", []))
    for where, row in rows:
        if len(row) > len(header):
            raise ValueError(f"{where} has more fields than the header; put fields that hold a comma in double quotes")
        yield where, dict.fromkeys(header) | dict(zip(header, row, strict=False))
