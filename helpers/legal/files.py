"""Rows of a local JSONL, CSV, TSV or Parquet file with their numbers, and errors that name the file and the line."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from helpers import row_files

DELIMITERS = {".csv": ",", ".tsv": "\t"}


def read_rows(name: str, path: Path, suffixes: Sequence[str]) -> list[row_files.Row]:
    """All rows of the file; blank lines are none.

    Args:
        name: the parameter that names the file, for messages.
        path: what it names.
        suffixes: what the file may be, of `.jsonl`, `.csv`, `.tsv` and `.parquet`.

    Raises ValueError for another suffix, a file that is not UTF-8, and a row that cannot be parsed.
    """
    file = f"{name}={str(path)!r}"
    if path.suffix not in suffixes:
        raise ValueError(f"{file}: cannot read {path.suffix or 'no suffix'}; use {', '.join(suffixes)}")
    if read := {".parquet": row_files.parquet, ".jsonl": row_files.jsonl}.get(path.suffix):
        return list(read(f"{file}:", path))
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            return list(_separated(file, lines, path.suffix))
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 ({error}); save the file as UTF-8") from error


def _separated(file: str, lines, suffix: str) -> Iterator[row_files.Row]:
    reader = csv.DictReader(lines, delimiter=DELIMITERS[suffix], strict=True)
    try:
        for values in reader:
            if None in values:
                raise ValueError(
                    f"{file}: line {reader.line_num} has more fields than the header; put fields that hold a "
                    f"{'comma' if suffix == '.csv' else 'tab'} in double quotes"
                )
            yield reader.line_num, values
    except csv.Error as error:
        raise ValueError(f"{file}: line {reader.line_num} is not {suffix[1:].upper()} ({error})") from error


def as_text(where: str, column: str, value: Any) -> str:
    """A cell as text, an absent one as "". Raises ValueError, which begins with `where`, for what is no text or number."""
    if not isinstance(value, str | int | float | None):
        raise ValueError(f"{where}, column `{column}` holds a {type(value).__name__}, not text")
    return "" if value is None else str(value)
