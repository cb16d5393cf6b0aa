"""What happens to files: they are lost, cut off, or changed, by chance or by somebody who signs what was changed."""

import hashlib
import json
import os
from pathlib import Path

from helpers.run.checkpoint import MANIFEST


def remove(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def sign(folder: Path) -> None:
    """Writes the manifest of a checkpoint that fits what is there now."""
    names = json.loads((folder / MANIFEST).read_text())
    digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    (folder / MANIFEST).write_text(json.dumps(digests))
