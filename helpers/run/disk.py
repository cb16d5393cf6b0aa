"""Files that are whole or not there at all, whatever ends the process or the machine."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from pydantic_core import to_json


@contextlib.contextmanager
def replacing(path: Path):
    """Yields a temporary file, which then takes the place of `path`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def sync(file: Path) -> None:
    """Waits until the content of a file is on the disk."""
    with file.open("rb+") as content:
        os.fsync(content)


def write_json(path: Path, value: Any) -> None:
    """Writes JSON. Arrays and tensors become lists or numbers; NaN and infinities become null."""
    with replacing(path) as temporary:
        temporary.write_bytes(to_json(value, indent=2, inf_nan_mode="null", fallback=lambda array: array.tolist()))


def read_json(path: Path) -> Any:
    """The value, or None if there is no such file or it holds no JSON. Raises OSError, which names the file, if the disk does not answer."""
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    except OSError as error:
        error.filename = str(path)
        raise
