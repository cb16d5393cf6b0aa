"""Imports point one way: rooms know no other room, the shared part knows no room, the planner is a leaf, nothing is a circle."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tools.closure import imports, module_file

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]
HELPERS = ROOT / "helpers"
ROOMS = {path.parent.name for path in HELPERS.glob("*/parameters.py")}
# Each package imports only what stands before it; rooms stand after all of them.
ORDER = ("parameters", "notebook", "machine", "data", "show", "run", "plan", "train", "batch")


def arrows() -> dict[str, set[str]]:
    """Module -> modules that it imports, inside functions as well; what only a type checker or a command line runs is left out."""
    found = {}
    for path in HELPERS.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        package = ".".join(parts[:-1])
        targets = (module_file(name, ROOT) for name in imports(ast.parse(path.read_bytes()), package))
        found[named(path)] = {named(target) for target in targets if target} - {named(path), "helpers"}
    return found


def named(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


ARROWS = arrows()


def test_a_module_imports_its_own_room_and_what_stands_below_it():
    assert "helpers.plan.memory" in ARROWS["helpers.plan.settings"]  # imported in a function
    wrong = []
    for module in ARROWS.keys() - {"helpers"}:
        part = module.split(".")[1]
        above = {*ORDER[ORDER.index(part) + 1 :], *ROOMS} if part in ORDER else ROOMS - {part}
        wrong += [(module, target) for target in ARROWS[module] if target.split(".")[1] in above]
    assert wrong == []


def test_there_is_no_circle():
    assert [*TopologicalSorter(ARROWS).static_order()]
