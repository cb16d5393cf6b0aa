"""The rows of a user's file, by its suffix, or of a data set of the hub."""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Row(NamedTuple):
    where: str  # file and line, with which an error begins
    number: int
    values: dict[str, Any]  # by column


def rows(name: str, path: Path, suffixes: Sequence[str]) -> Iterator[Row]:
    """Rows of the file that the parameter `name` names; fields of a .csv are between `,` `;` or tabs, as its header has them.

    Raises ValueError if it has none of `suffixes` or cannot be parsed.
    """
    file, suffix = f"{name}={str(path)!r}", path.suffix.lower()
    if suffix not in suffixes:
        raise ValueError(f"{file}: cannot read {suffix or 'a file without a suffix'}; use {', '.join(suffixes)}")
    if suffix in (".jsonl", ".parquet"):
        return {".jsonl": jsonl, ".parquet": parquet}[suffix](file, path)
    with path.open(encoding="utf-8-sig", errors="replace") as lines:
        header = lines.readline(10**6)  # a line without an end is refused where the fields are read
    return separated(file, path, "\t" if suffix == ".tsv" else max(",;\t", key=header.count))


def separated(file: str, path: Path, delimiter: str = ",", columns: Sequence[str] = ()) -> Iterator[Row]:
    """Rows of a file with a header, or with `columns` where its first row does not hold them all; None for a missing field."""
    options = {"delimiter": delimiter, "strict": True}
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, **options)
        try:
            if not {*columns} <= {*(reader.fieldnames or ())}:
                lines.seek(0)
                reader = csv.DictReader(lines, columns, **options)
            for values in reader:
                where = f"{file}, line {reader.line_num}"
                if None in values:
                    raise ValueError(
                        f"{where} has more fields than the header; put a field that holds a comma or tab in double quotes"
                    )
                yield Row(where, reader.line_num, values)
        except UnicodeDecodeError as error:
            raise ValueError(f"{file}: not UTF-8 ({error}); save the file as UTF-8") from error
        except csv.Error as error:
            raise ValueError(f"{file}, line {reader.reader.line_num} is not CSV ({error}); correct it there") from error


def numbered(source: str, rows: Iterable[dict]) -> Iterator[Row]:
    """Rows of a source without lines, such as a data set of the hub, whose class labels become their names; -1 is none."""
    labels = {name: kind for name, kind in getattr(rows, "features", {}).items() if hasattr(kind, "int2str")}
    for number, values in enumerate(rows, 1):
        classes = [(name, kind, values[name]) for name, kind in labels.items()]
        names = {name: None if label in (None, -1) else kind.int2str(label) for name, kind, label in classes}
        yield Row(f"{source}, row {number}", number, values | names)


def text(row: Row, column: str, kinds: type = str) -> str:
    """The value as text, "" where there is none. Raises ValueError for one that is not of `kinds`."""
    value = row.values.get(column)
    if not isinstance(value, kinds | None):
        raise ValueError(
            f"{row.where}, column `{column}` holds a {type(value).__name__}, not text; write it as a string"
        )
    return "" if value is None else str(value)


def jsonl(file: str, path: Path) -> Iterator[Row]:
    """The objects of a JSON Lines file. Raises ValueError, beginning with `file`, for any other line that is not blank."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            where = f"{file}, line {number}"
            try:
                values = json.loads(text := line.decode("utf-8-sig"))
                if "\\u" in text:
                    json.dumps(values, ensure_ascii=False).encode()  # no half surrogate pair
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{where} is not JSON in UTF-8 ({error})") from error
            if not isinstance(values, dict):
                raise ValueError(f"{where} is not a JSON object: write one in each line")
            yield Row(where, number, values)


def parquet(file: str, path: Path) -> Iterator[Row]:
    """The rows of a Parquet file. Raises ValueError if it cannot be read."""
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    number = 1
    try:
        with ParquetFile(path) as table:
            for batch in table.iter_batches(256):
                for values in batch.to_pylist():
                    yield Row(f"{file}, row {number}", number, values)
                    number += 1
    except (ArrowException, OSError, ValueError) as error:
        raise ValueError(f"{file}: not a readable parquet file ({error})") from error
