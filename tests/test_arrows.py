"""Imports point one way: rooms know no other room, the shared part knows no room, the planner is a leaf, nothing is a circle."""

import ast
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "notebooks"))

from closure import imports, module_file

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted((ROOT / "helpers").rglob("*.py"))
ROOMS = {path.parent.name for path in (ROOT / "helpers").glob("*/parameters.py")}
# Each package imports only what stands before it; rooms stand after all of them.
ORDER = ("parameters", "notebook", "machine", "data", "show", "run", "plan", "train", "batch")


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def arrows() -> dict[str, set[str]]:
    """Module -> modules that it imports, inside functions as well; what only a type checker or a command line runs is left out."""
    found = {}
    for path in MODULES:
        name = name_of(path)
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        targets = (module_file(each, ROOT) for each in imports(ast.parse(path.read_bytes()), package))
        found[name] = {name_of(target) for target in targets if target} - {name, "helpers"}
    return found


ARROWS = arrows()


def room_of(module: str) -> str:
    """The folder of a module, "" for the shared part."""
    parts = module.split(".")
    return parts[1] if len(parts) > 2 or (ROOT / "helpers" / parts[-1]).is_dir() else ""


def test_the_walk_sees_the_imports_inside_functions():
    assert "helpers.plan.counting" in ARROWS["helpers.plan.settings"]  # imported where it is needed
    assert {"reservoir", "lejepa", "legal", "graphmer", "tuning"} == ROOMS


def test_the_shared_part_and_the_planner_import_no_room():
    assert [
        (module, target)
        for module, targets in ARROWS.items()
        for target in targets
        if room_of(module) not in ROOMS and room_of(target) in ROOMS
    ] == []


def test_a_room_imports_no_other_room():
    assert [
        (module, target)
        for module, targets in ARROWS.items()
        for target in targets
        if room_of(module) in ROOMS and room_of(target) in ROOMS - {room_of(module)}
    ] == []


def test_each_package_of_the_shared_part_imports_only_those_below_it():
    place = {name: at for at, name in enumerate(ORDER)}
    upwards = [
        (module, target)
        for module, targets in ARROWS.items()
        for target in targets
        if (above := place.get(module.split(".")[1:2][0] if "." in module else "")) is not None
        and place.get(target.split(".")[1], len(ORDER)) > above
    ]
    assert upwards == []


def test_there_is_no_circle():
    colours: dict[str, str] = {}

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert colours.get(module) != "open", " -> ".join([*way[way.index(module) :], module])
        if module not in colours:
            colours[module] = "open"
            for target in sorted(ARROWS[module]):
                visit(target, (*way, module))
            colours[module] = "done"

    for module in sorted(ARROWS):
        visit(module, ())


def test_a_notebook_is_imported_by_nothing():
    text = "\n".join(path.read_text() for path in MODULES)
    assert "import notebooks" not in text and "from notebooks" not in text
