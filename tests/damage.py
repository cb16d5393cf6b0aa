"""What happens to files: they are lost, cut off, or changed."""

import os
from pathlib import Path


def remove(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)
