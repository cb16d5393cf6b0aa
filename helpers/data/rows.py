"""The rows of a user's file. A row that cannot be used is set aside with its line and its reason, and counted.

set_aside = SetAside(place.source)
rows = read_rows(place.path, SUFFIXES, set_aside)
texts = list(set_aside.convert(rows, read_text))  # read_text(row) raises Unusable for a row that cannot be used
set_aside.check()                                 # raises ValueError where most rows are set aside, or none was read
print(set_aside)
"""

from __future__ import annotations

import codecs
import csv
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, TypeVar

from .text import check_lines, fitting_encoding, read_text

SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")  # that `read_rows` can read
DELIMITERS = (",", ";", "\t")
EXCEL = "sep="  # begins Excel's own line about the delimiter
LONGEST_FIELD = 2**31 - 1  # characters; Python's csv refuses more than 131,072 by default
# A field of several lines, each with as many fields as a row, may be rows that an unclosed quote swallowed. It is taken for
# that where its lines repeat short values of their columns, such as labels, or where they hold so many delimiters.
SHORT, MOST_VALUES, MANY_DELIMITERS = 40, 1000, 8
SHOWN_REASONS = 10

T = TypeVar("T")


class Unusable(ValueError):
    """Why a row cannot be used."""


class Row(NamedTuple):
    where: str  # source, file and line, with which an error begins
    number: int
    values: dict[str, Any]  # by column

    def text(self, column: str, kinds: type | UnionType = str) -> str:
        """The value of a column as text, "" where there is none. Raises Unusable for one that is not of `kinds`."""
        value = self.values.get(column)
        if value is None:
            return ""
        if not isinstance(value, kinds):
            raise Unusable(f"column `{column}` holds a {type(value).__name__} and not text; write it as a string")
        return str(value)

    def column(self, names: Sequence[str], remedy: str) -> str:
        """The first of the columns `names` that the row has. Raises Unusable, with the remedy, if it has none."""
        for name in names:
            if name in self.values:
                return name
        choices = " or ".join(f"`{name}`" for name in names)
        columns = ", ".join(map(str, self.values)) or "none"
        raise Unusable(f"no column {choices} (its columns: {columns[:500]}); {remedy}")


@dataclass
class SetAside:
    """The rows of a source that cannot be used.

    source: the parameter and its value, with which an error begins. read: how many rows there were, with those set aside.
    """

    source: str
    rows: list[tuple[str, str]] = field(default_factory=list)  # where, reason
    read: int = 0

    def add(self, row: Row, reason: str) -> None:
        self.rows.append((self.place(row), reason))

    def extend(self, other: SetAside) -> None:
        self.rows += other.rows
        self.read += other.read

    def place(self, row: Row) -> str:
        """File and line of a row, without the source."""
        return row.where.removeprefix(f"{self.source}, ")

    def convert(self, rows: Iterable[Row], convert: Callable[[Row], T]) -> Iterator[T]:
        """What `convert` makes of each row. A row for which it raises Unusable is set aside."""
        for row in rows:
            try:
                converted = convert(row)
            except Unusable as reason:
                self.add(row, str(reason))
            else:
                yield converted

    def check(self) -> None:
        """Raises ValueError if there was no row, or if most of the rows are set aside."""
        if not self.read:
            raise ValueError(f"{self.source} holds no rows")
        if 2 * len(self.rows) > self.read:
            raise ValueError(
                f"{self.source}: {len(self.rows):,} of {self.read:,} rows cannot be used\n{self.reasons()}"
            )

    def __str__(self) -> str:
        """How many rows are set aside and a line for each reason; "" if none is."""
        if not self.rows:
            return ""
        return f"{len(self.rows):,} of {self.read:,} rows cannot be used and are set aside\n{self.reasons()}"

    def reasons(self) -> str:
        """A line for each reason, the most frequent first, with the first row that it is true of."""
        counts: Counter[str] = Counter()
        first: dict[str, str] = {}
        for where, reason in self.rows:
            counts[reason] += 1
            first.setdefault(reason, where)
        lines = [f"  {count:,}, first {first[reason]}: {reason}" for reason, count in counts.most_common(SHOWN_REASONS)]
        return "\n".join(lines)


def read_rows(path: Path, suffixes: Sequence[str], set_aside: SetAside, *, source: str = "") -> Iterator[Row]:
    """The rows of a .jsonl, .json (an array, or an object a line), .csv, .tsv or .parquet file, as they are read.

    suffixes: those of SUFFIXES that the caller takes. source: with which an error begins; that of `set_aside` by default.

    Raises ValueError for another suffix, another encoding, an unclosed quote that swallows rows, and a file that cannot be parsed.
    """
    source, suffix = source or set_aside.source, path.suffix.lower()
    if suffix not in suffixes:
        raise ValueError(f"{source}: cannot read {suffix or 'a file without a suffix'}; use {', '.join(suffixes)}")
    if suffix in (".csv", ".tsv"):
        return read_separated(path, set_aside, source=source)
    if suffix == ".parquet":
        return _parquet(path, source, set_aside)
    return _json(path, source, set_aside)


def number_rows(
    source: str, rows: Iterable[dict], set_aside: SetAside, features: Mapping[str, Any] | None = None
) -> Iterator[Row]:
    """Rows of a source without lines, such as a data set of the hub, whose class labels become their names; -1 is none."""
    features = features or getattr(rows, "features", None) or {}
    labels = {column: kind for column, kind in features.items() if hasattr(kind, "int2str")}
    for number, values in enumerate(rows, 1):
        set_aside.read += 1
        values = dict(values)
        for column, kind in labels.items():
            label = values[column]
            values[column] = None if label in (None, -1) else kind.int2str(label)
        yield Row(f"{source}, row {number}", number, values)


# ---- JSON


def _json(path: Path, source: str, set_aside: SetAside) -> Iterator[Row]:
    """The objects of a JSON array, or one from each line; what is none is set aside."""
    with path.open("rb") as lines:
        items: Iterable[Any] = lines
        unit = "line"
        if path.suffix.lower() == ".json" and lines.read(1000).lstrip(codecs.BOM_UTF8 + b" \t\r\n").startswith(b"["):
            items, unit = _array(path, source), "row"
        else:
            check_lines(path, source)
        lines.seek(0)
        for number, item in enumerate(items, 1):
            if isinstance(item, bytes) and not item.strip():
                continue
            set_aside.read += 1
            row = Row(f"{source}, {unit} {number}", number, {})
            try:
                yield row._replace(values=_json_object(item))
            except Unusable as reason:
                set_aside.add(row, str(reason))


def _array(path: Path, source: str) -> list:
    try:
        text = read_text(path)
    except ValueError as error:
        raise ValueError(f"{source} {error}") from error
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{source} is not JSON ({error}); correct it there") from error


def _json_object(item: Any) -> dict[str, Any]:
    """The object in a line, or what an array holds. Raises Unusable."""
    try:
        values = json.loads(item.decode("utf-8-sig")) if isinstance(item, bytes) else item
    except UnicodeDecodeError:
        raise Unusable(_not_utf8(item)) from None
    except (ValueError, RecursionError) as error:  # also a number of 5,000 digits, a list in a list in a list
        raise Unusable(f"it is not JSON ({getattr(error, 'msg', error)})") from None
    if not isinstance(values, dict):
        raise Unusable("it is not a JSON object; write one for each row")
    if not isinstance(item, bytes) or b"\\u" in item:
        try:
            json.dumps(values, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise Unusable("it holds half of a character (a surrogate without its pair)") from None
    return values


# ---- text with delimiters


def read_separated(path: Path, set_aside: SetAside, *, source: str = "", columns: Sequence[str] = ()) -> Iterator[Row]:
    """Rows of a file whose fields are between `,` `;` or tabs, as its first line has them; None for a missing field.

    columns: names for a file whose first line does not hold them.

    Raises ValueError for another encoding and for an unclosed quote that swallows rows.
    """
    source = source or set_aside.source
    check_lines(path, source)
    csv.field_size_limit(LONGEST_FIELD)
    # What is not UTF-8 goes through as surrogates, so that it costs its own row alone.
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
        first = lines.readline()
        while first and (not first.strip() or first.lower().startswith(EXCEL)):
            first = lines.readline()
        delimiter = max(DELIMITERS, key=first.count)
        if path.suffix.lower() == ".tsv":
            delimiter = "\t"
        options: dict[str, Any] = {"delimiter": delimiter, "skipinitialspace": True, "strict": True}
        lines.seek(0)
        reader = csv.reader(lines, **options)
        try:
            header = next((fields for fields in reader if fields and not fields[0].lower().startswith(EXCEL)), [])
        except csv.Error as error:
            raise ValueError(f"{source}: the header is not CSV ({error}); correct it there") from error
        header = [name.strip() for name in header]
        if not {*columns} <= {*header}:
            lines.seek(0)
            header, reader = list(columns), csv.reader(lines, **options)
        for name, count in Counter(header).items():
            if name and count > 1:
                raise ValueError(f"{source}: the header names {name!r} twice; give each column a name of its own")
        yield from _records(reader, header, delimiter, source, set_aside)


def _records(reader, header: list[str], delimiter: str, source: str, set_aside: SetAside) -> Iterator[Row]:
    short_values: list[set[str]] = [set() for _ in header]
    suspects = []
    while True:
        begin = reader.line_num + 1
        row = Row(f"{source}, line {begin}", begin, {})
        try:
            fields = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            if reader.line_num > begin:
                raise ValueError(_unclosed(source, begin, reader.line_num)) from error
            set_aside.read += 1
            set_aside.add(row, f"its double quotes do not match ({error})")
            continue
        if not fields:
            continue
        set_aside.read += 1
        swallowed = _lines_like_rows(fields, len(header), delimiter)
        if swallowed:
            suspects.append((begin, reader.line_num, swallowed))
        try:
            _check_fields(fields, header)
        except Unusable as reason:
            set_aside.add(row, str(reason))
            continue
        if not swallowed:
            for value, values in zip(fields, short_values, strict=False):
                if len(value) <= SHORT and len(values) < MOST_VALUES:
                    values.add(value)
        missing = [None] * (len(header) - len(fields))
        yield row._replace(values=dict(zip(header, [*fields, *missing], strict=True)))
    for begin, end, swallowed in suspects:
        is_suspect = len(swallowed) * (len(header) - 1) >= MANY_DELIMITERS
        for line in swallowed:
            for value, values in zip(line, short_values, strict=True):
                is_suspect |= value in values
        if is_suspect:
            raise ValueError(_unclosed(source, begin, end))


def _check_fields(fields: list[str], header: list[str]) -> None:
    if len(fields) > len(header):
        raise Unusable("more fields than the header; put a field that holds a delimiter in double quotes")
    joined = "".join(fields)
    if "\0" in joined:
        raise Unusable("it holds a NUL byte")
    try:
        joined.encode()
    except UnicodeEncodeError:
        raise Unusable(_not_utf8(joined.encode("utf-8", "surrogateescape"))) from None


def _lines_like_rows(fields: list[str], columns: int, delimiter: str) -> list[list[str]]:
    """The inner lines of a field, split, where each of them has the fields of a row; else []."""
    for text in fields:
        lines = [line.split(delimiter) for line in text.splitlines()[1:-1]]
        if columns > 1 and lines and all(len(line) == columns for line in lines):
            return lines
    return []


def _unclosed(source: str, begin: int, end: int) -> str:
    return (
        f"{source}, line {begin}: a double quote opens a field in this row and is not closed before line {end}, so that the rows between "
        "would be lost. Close it there, or write two double quotes for one that belongs to the text; lines that belong to one field "
        "are safer in a .jsonl file"
    )


def _not_utf8(line: bytes) -> str:
    encoding = fitting_encoding(line)
    fits = f"; its bytes fit {encoding}" if encoding else ""
    return f"it is not UTF-8{fits}; save the file as UTF-8"


# ---- Parquet


def _parquet(path: Path, source: str, set_aside: SetAside) -> Iterator[Row]:
    """Raises ValueError for a file that cannot be read."""
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    features = {}
    try:
        with ParquetFile(path) as table:
            if b"huggingface" in (table.schema_arrow.metadata or {}):  # written by the library datasets
                import datasets

                features = datasets.Features.from_arrow_schema(table.schema_arrow)
            rows = itertools.chain.from_iterable(batch.to_pylist() for batch in table.iter_batches(256))
            yield from number_rows(source, rows, set_aside, features)
    except (ArrowException, OSError, ValueError) as error:
        raise ValueError(f"{source}: not a readable parquet file ({error})") from error
