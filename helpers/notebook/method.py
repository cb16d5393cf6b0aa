"""The file of a notebook's method: shown in a cell, edited there, and imported from the folder of the run.

A room's modules come from the payload or from a checkout; its method comes from the cell. `use` imports it in this process alone,
so that neither a checkout nor another notebook sees an edit.
"""

import hashlib
import importlib.util
import sys
from pathlib import Path

import helpers

# The line of the cell that shows the method. Before there is a `run`, IPython takes the text as it stands: its folder does not exist
# then, and nothing is written.
WRITTEN = '%%writefile "{run.method.parent}/{run.method.name}"'


def digest(text: str) -> str:
    """sha256 of a method's text; blank lines at its end do not count, since a cell has none."""
    return hashlib.sha256((text.rstrip() + "\n").encode()).hexdigest()


def shown() -> tuple[str, str]:
    """Module and digest of the file that this notebook shows, as it was built.

    Raises RuntimeError if the notebook shows none, or its setup cell has not run.
    """
    for file, built in getattr(helpers, "shown", {}).items():
        return file.removesuffix(".py").replace("/", "."), built
    raise RuntimeError("this notebook shows no method's file, or its first cell was not run: run all cells")


def room_of(module: str) -> Path:
    """The folder of the method's room, whose other modules a saved model may bring along."""
    return Path(importlib.import_module(module.rpartition(".")[0]).__path__[0])


def use(module: str, file: Path | str) -> None:
    """Makes `import module` find `file`, and imports the module's room anew.

    module: dotted name, `helpers.<room>.<name>`.

    Objects that were made from the room before keep their old classes. Raises FileNotFoundError if there is no such file.
    """
    room, _, name = module.rpartition(".")
    for other in [*sys.modules]:
        if f"{other}.".startswith(f"{room}."):
            del sys.modules[other]
    package = importlib.import_module(room)
    spec = importlib.util.spec_from_file_location(module, file)
    assert spec and spec.loader
    loaded = sys.modules[module] = importlib.util.module_from_spec(spec)
    setattr(package, name, loaded)
    spec.loader.exec_module(loaded)
