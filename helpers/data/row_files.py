"""The rows of a user's JSON Lines or Parquet file."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

MOST_BYTES, MOST_TIMES = 2**28, 100  # a file may unpack to this many bytes, or to this many times its size


class Row(NamedTuple):
    where: str  # file and line, with which an error begins
    number: int
    values: dict[str, Any]  # by column


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
    """The rows of a Parquet file. Raises ValueError if it cannot be read, or unpacks to far more than its size."""
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    number, size = 1, 0
    try:
        with ParquetFile(path) as table:
            for batch in table.iter_batches(256):
                size += batch.nbytes
                if size > max(MOST_BYTES, MOST_TIMES * path.stat().st_size):
                    raise ValueError(f"unpacks to more than {size:,} bytes")
                for values in batch.to_pylist():
                    yield Row(f"{file}, row {number}", number, values)
                    number += 1
    except (ArrowException, OSError, ValueError) as error:
        raise ValueError(f"{file}: not a readable parquet file ({error})") from error
