"""The rows of a user's file. A row that cannot be used is set aside with its line and its reason, and counted.

set_aside = SetAside(place.source)
rows = read_rows(place.path, SUFFIXES, place.source)
texts = list(set_aside.convert(rows, read_text))  # read_text(row) raises Unusable for a row that cannot be used
set_aside.check()                                 # raises ValueError where most rows are set aside, or none was read
print(set_aside)
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .files import read_text

SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")  # that `read_rows` can read


class Unusable(ValueError):
    """Why a row cannot be used."""


class Row(NamedTuple):
    where: str  # file and line
    values: Any  # by column, in small letters; no dict where the row cannot be read

    def text(self, column: str) -> str:
        """The text or number of a column as text, "" where there is none. Raises Unusable for another value."""
        value = self.values.get(column)
        if not isinstance(value, str | int | float | None):
            raise Unusable(f"column `{column}` holds a {type(value).__name__} and not text")
        return "" if value is None else str(value)

    def column(self, names: Iterable[str], remedy: str) -> str:
        """The first of the columns `names`, in any case, that the row has. Raises Unusable, with the remedy, if it has none."""
        for name in map(str.lower, names):
            if name in self.values:
                return name
        raise Unusable(f"no column `{'` or `'.join(names)}` among {[*self.values][:50]}; {remedy}")


@dataclass
class SetAside:
    """The rows of a source that cannot be used.

    source: the parameter and its value, with which an error begins. read: how many rows there were, with those set aside.
    """

    source: str
    rows: list[tuple[str, str]] = field(default_factory=list)  # where, reason
    read: int = 0

    def convert(self, rows: Iterable[Row], convert) -> Iterator[Any]:
        """What `convert` makes of each row. A row for which it raises Unusable is set aside."""
        for where, values in rows:
            self.read += 1
            try:
                if not isinstance(values, dict) or None in values:
                    raise Unusable("not a JSON object, or more fields than the header: quote what holds a delimiter")
                json.dumps(values, ensure_ascii=False, default=repr).encode()
                yield convert(Row(where, {name.strip().lower(): value for name, value in values.items()}))
            except UnicodeEncodeError:
                self.rows.append((where, "bytes that are not UTF-8, or half of a character"))
            except Unusable as reason:
                self.rows.append((where, str(reason)))

    def check(self) -> None:
        """Prints how many rows are set aside, and a line for each reason with its first row, the most frequent first.

        Raises ValueError if there was no row, or if most of the rows are set aside.
        """
        first = {reason: where for where, reason in reversed(self.rows)}
        lines = [f"{self.source}: {len(self.rows):,} of {self.read:,} rows cannot be used"]
        for reason, count in Counter(reason for _, reason in self.rows).most_common(10):
            lines.append(f"  {count:,}, first {first[reason]}: {reason}")
        if not self.read or 2 * len(self.rows) > self.read:
            raise ValueError("\n".join(lines))
        print(*lines, sep="\n")


def read_rows(path: Path, suffixes: Iterable[str], source: str) -> list[Row]:
    """The rows of a .jsonl, .json (an array, or an object a line), .csv, .tsv or .parquet file.

    suffixes: those of SUFFIXES that the caller takes. source: with which an error begins.

    Raises ValueError for another suffix or encoding, an unclosed quote, and a file that cannot be parsed.
    """
    suffix = path.suffix.lower()
    if suffix not in suffixes:
        raise ValueError(f"{source}: cannot read {suffix or 'a file without a suffix'}; use {', '.join(suffixes)}")
    try:
        if suffix == ".parquet":
            import datasets
            from pyarrow.parquet import ParquetFile

            # A data set has the names of class labels.
            return list(number_rows(datasets.Dataset(ParquetFile(path).read()), path.name))
        text = read_text(path, tolerant=True)
        items = _objects(text)
        if suffix in (".csv", ".tsv"):
            items = _separated(text)
        elif suffix == ".json" and text.lstrip().startswith("["):
            items = enumerate(json.loads(text), 1)
        return [Row(f"{path.name} line {number}", values) for number, values in items]
    except (ValueError, RuntimeError, OSError, csv.Error) as error:
        raise ValueError(f"{source}: {error}") from error


def number_rows(rows: Iterable[dict], name: str = "") -> Iterator[Row]:
    """Rows of a source without lines, such as a data set of the hub, whose class labels become their names; -1 is none."""
    features = getattr(rows, "features", None) or {}
    labels = {column: dict(enumerate(kind.names)) for column, kind in features.items() if hasattr(kind, "names")}
    for number, values in enumerate(rows, 1):
        for column, names in labels.items():
            values[column] = names.get(values[column])
        yield Row(f"{name} row {number}", values)


def _objects(text: str) -> Iterator[tuple[int, Any]]:
    """Line and object of each row."""
    for number, line in enumerate(text.split("\n"), 1):
        try:
            if line.strip():
                yield number, json.loads(line)
        except (ValueError, RecursionError):  # also a number of 5,000 digits, a list in a list in a list
            yield number, None


def _separated(text: str) -> Iterator[tuple[int, Any]]:
    """Line and fields of each row; the first line tells whether `,` `;` or tabs are between them; None for a missing field."""
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    csv.field_size_limit(2**31 - 1)  # Python's csv refuses more than 131,072 characters by default
    rows = csv.DictReader(io.StringIO(text), delimiter=delimiter, skipinitialspace=True, strict=True)
    lines = rows.reader
    while rows.fieldnames:
        begin = lines.line_num + 1
        try:
            yield begin, next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            if lines.line_num > begin:
                raise ValueError(f"a double quote in line {begin} is not closed") from error
            yield begin, None
