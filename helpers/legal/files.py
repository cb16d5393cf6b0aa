"""Rows of a local JSONL, CSV, TSV or Parquet file with their numbers, and errors that name the file and the line."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers import row_files

DELIMITERS = {".csv": ",", ".tsv": "\t"}


def read_rows(name: str, path: Path, suffixes: Sequence[str]) -> list[row_files.Row]:
    """All rows of the file; blank lines are none.

    name: the parameter that names the file, for messages.
    suffixes: what the file may be, of `.jsonl`, `.csv`, `.tsv` and `.parquet`.

    Raises ValueError for another suffix, a file that is not UTF-8, and a row that cannot be parsed.
    """
    file = f"{name}={str(path)!r}"
    if path.suffix not in suffixes:
        raise ValueError(f"{file}: cannot read {path.suffix or 'no suffix'}; use {', '.join(suffixes)}")
    if read := {".parquet": row_files.parquet, ".jsonl": row_files.jsonl}.get(path.suffix):
        return list(read(f"{file}:", path))
    rows: list[row_files.Row] = []
    reader = None
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines, delimiter=DELIMITERS[path.suffix], strict=True)
            for values in reader:
                if None in values:
                    raise ValueError(
                        f"{file}: line {reader.line_num} has more fields than the header; put a field that holds a "
                        "comma or tab in double quotes"
                    )
                rows.append((reader.line_num, values))
    except (csv.Error, UnicodeDecodeError) as error:
        where = f"line {reader.line_num}" if reader else "its header"
        raise ValueError(f"{file}: {where} is not {path.suffix[1:].upper()} in UTF-8 ({error})") from error
    return rows


def as_text(where: str, column: str, value: Any) -> str:
    """A cell as text, an absent one as "". Raises ValueError, which begins with `where`, for what is no text or number."""
    if not isinstance(value, str | int | float | None):
        raise ValueError(f"{where}, column `{column}` holds a {type(value).__name__}, not text")
    return "" if value is None else str(value)
