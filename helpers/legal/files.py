"""Rows of a local JSONL, CSV, TSV or Parquet file with their numbers, and errors that name the file and the line."""

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

DELIMITERS = {".csv": ",", ".tsv": "\t"}
Row = tuple[int, dict[str, Any]]  # line of the file (of a Parquet file the row's number), values by column


def read_rows(name: str, path: Path, suffixes: Sequence[str]) -> list[Row]:
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
    if path.suffix == ".parquet":
        return _parquet(file, path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            return list(_jsonl(file, lines) if path.suffix == ".jsonl" else _separated(file, lines, path.suffix))
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 ({error}); save the file as UTF-8") from error


def _jsonl(file: str, lines) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{file}: line {number} is not JSON ({error})") from error
        if not isinstance(values, dict):
            raise ValueError(f"{file}: line {number} is not a JSON object")
        yield number, values


def _separated(file: str, lines, suffix: str) -> Iterator[Row]:
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


def _parquet(file: str, path: Path) -> list[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        return [*enumerate(pyarrow.parquet.read_table(path).to_pylist(), 1)]
    except pyarrow.ArrowException as error:
        raise ValueError(f"{file}: not a readable parquet file ({error})") from error
