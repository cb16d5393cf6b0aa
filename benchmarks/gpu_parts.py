"""What a part of `gpu.py` is given, and how it says that it cannot be run here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Here:
    """Where a part runs, and how large."""

    kind: str  # "cuda" or "cpu"
    small: bool  # tiny sizes, which a CPU can do
    folder: Path  # empty, and thrown away after the part
    seconds: float  # after which the part is ended
    keep: Callable[[dict], None]  # writes what is known so far, for the case that the part does not end


class NotHere(Exception):
    """The part cannot be run on this machine; the message says why."""
