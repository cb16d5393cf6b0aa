"""Everything that the documents behind this project ask for is there: each name in docs/coverage.md is looked up."""

import ast
import re

import pytest

from helpers.graphmer.configuration import paths, read_configuration
from tests.harness import ROOT

pytestmark = pytest.mark.once

ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs/coverage.md").read_text().partition("## Licences")[0].splitlines()
    if line.startswith("| ") and not line.startswith(("| document", "| package"))
]
FILES = (".py", ".ipynb", ".md", ".txt", ".json", ".yaml")


def in_backticks(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def defined(body: list[ast.stmt]) -> set[str]:
    """Names of functions, classes and variables of a module or a class."""
    names = set()
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(target.id for target in targets if isinstance(target, ast.Name))
    return names


def names_of_helpers() -> set[str]:
    """`module.name`, `folder/module.name` and `Class.member` for all of helpers; a package has its folder's name.

    Also the keys of GraphMER's configuration.
    """
    names = set(paths(read_configuration("rtx3050")))
    for path in (ROOT / "helpers").rglob("*.py"):
        body = ast.parse(path.read_bytes()).body
        module = path.parent if path.name == "__init__.py" else path.with_suffix("")
        for name in defined(body):
            names |= {f"{module.name}.{name}", f"{module.parent.name}/{module.name}.{name}"}
        for node in body:
            if isinstance(node, ast.ClassDef):
                names.update(f"{node.name}.{member}" for member in defined(node.body))
    return names


def test_what_was_asked_for_is_given_by_something_that_exists():
    known = names_of_helpers()
    given = [name for row in ROWS for name in in_backticks(row[2])]
    assert len(ROWS) > 70 and all(in_backticks(row[2]) for row in ROWS)
    assert [name for name in given if not ((ROOT / name).is_file() if name.endswith(FILES) else name in known)] == []


def test_the_packages_of_the_fixed_list_are_required():
    packages = {in_backticks(row[0])[0] for row in ROWS if in_backticks(row[0])}
    assert len(packages) == 12
    for twin, absent in (("gpu", {"torch_xla"}), ("tpu", set())):
        lines = (ROOT / f"requirements-{twin}.txt").read_text()
        assert packages - {*re.findall(r"^[\w-]+(?=[>=<])", lines, flags=re.MULTILINE)} == absent
