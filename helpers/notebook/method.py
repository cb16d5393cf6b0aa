"""The file of a notebook's method: shown in a cell, edited there, and imported from the folder of the run.

A room's modules come from the payload or from a checkout; its method comes from the cell. `use` imports it in this process alone,
so that neither a checkout nor another notebook sees an edit.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path

import helpers

# The line of the cell that shows the method. Before there is a `run`, IPython takes the text as it stands: its folder does not exist
# then, and nothing is written.
WRITTEN = '%%writefile "{run.method.parent}/{run.method.name}"'
_used: dict[str, str] = {}  # module of a method -> file that this process imports it from


def digest(text: str) -> str:
    """sha256 of a method's text; blank lines at its end do not count, since a cell has none."""
    return hashlib.sha256((text.rstrip() + "\n").encode()).hexdigest()


def shown() -> tuple[str, str]:
    """Module and digest of the file that this notebook shows, as it was built.

    Raises RuntimeError if the notebook shows none, or its setup cell has not run.
    """
    files = getattr(helpers, "shown", {})
    if len(files) != 1:
        raise RuntimeError("this notebook shows no method's file, or its first cell was not run: run all cells")
    ((file, built),) = files.items()
    return file.removesuffix(".py").replace("/", "."), built


def write_silently(file: Path) -> None:
    """Lets `%%writefile` write this file without printing its path, which is of no use to a reader."""
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    if shell:
        write = shell.find_cell_magic("writefile")

        def writefile(line: str, cell: str) -> None:
            if str(file) in line:
                file.write_text(cell, encoding="utf-8")
            else:
                write(line, cell)

        shell.register_magic_function(writefile, "cell")


def room_of(module: str) -> Path:
    """The folder of the method's room, whose other modules a saved model may bring along."""
    return Path(importlib.import_module(module.rpartition(".")[0]).__path__[0])


def used() -> dict[str, str]:
    """Modules of methods, and the files that this process imports them from: for the processes that it starts."""
    return dict(_used)


def use(module: str, file: Path | str) -> None:
    """Makes `import module` find `file`, and imports the module's room anew.

    module: dotted name, `helpers.<room>.<name>`; `file` must be called `<name>.py`.

    Objects that were made from the room before keep their old classes.

    Raises FileNotFoundError if there is no such file.
    """
    file = Path(file).resolve(strict=True)
    room, _, name = module.rpartition(".")
    assert file.name == f"{name}.py", f"{file} cannot be imported as {module}"
    for other in [*sys.modules]:
        if other == room or other.startswith(f"{room}."):
            del sys.modules[other]
    package = importlib.import_module(room)
    spec = importlib.util.spec_from_file_location(module, file)
    assert spec and spec.loader
    loaded = sys.modules[module] = importlib.util.module_from_spec(spec)
    setattr(package, name, loaded)
    spec.loader.exec_module(loaded)
    _used[module] = str(file)
