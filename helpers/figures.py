"""What all pictures have in common."""

from __future__ import annotations

from pathlib import Path


def saved(figure, path: str | Path):
    """The figure, written to `path`, whose folder is made where there is none."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return figure
