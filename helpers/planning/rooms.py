"""The rooms that this copy of the package holds.

A room is found by its module `workload`, which names its notebook and builds its training step with nothing downloaded:
NOTEBOOK, and planned(asked, machine, weights=False) -> (Recipe, Workload).
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from types import ModuleType

from helpers.parameters import did_you_mean


def rooms() -> dict[str, ModuleType]:
    """The `workload` module of each room that this copy of the package holds, by its notebook's name."""
    import helpers

    found = {}
    for room in pkgutil.iter_modules(helpers.__path__):
        if room.ispkg and importlib.util.find_spec(f"helpers.{room.name}.workload"):
            module = importlib.import_module(f"helpers.{room.name}.workload")
            found[module.NOTEBOOK] = module
    return found


def room(notebook: str) -> ModuleType:
    """The `workload` module of a notebook's room. Raises ValueError for an unknown notebook, naming those there are."""
    known = rooms()
    if notebook not in known:
        raise ValueError(f"notebook={notebook!r}: unknown; {did_you_mean(notebook, known)}there are {', '.join(known)}")
    return known[notebook]
