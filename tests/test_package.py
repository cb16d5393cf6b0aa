"""The package as a whole: cheap to import, and no unsafe loading."""

import ast
import json

import pytest

from tests.harness import ROOT, printed

pytestmark = pytest.mark.once

HELPERS = sorted((ROOT / "helpers").rglob("*.py"))
SOURCES = sorted((ROOT / "notebooks/source").glob("*.py"))
HEAVY = ("torch", "torch_xla", "transformers", "numpy", "pandas", "matplotlib", "datasets")


def heavy_modules_of(statement: str) -> list[str]:
    """Which heavy modules a statement loads in a new process."""
    code = f"import json, sys\n{statement}\nprint(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    return json.loads(printed("-c", code))


def imported_modules(tree: ast.AST) -> set[str]:
    """Absolute names of every module that a file imports, at any level."""
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules.add(node.module)
    return modules


@pytest.mark.parametrize(
    "module",
    [
        "helpers",
        "helpers.notebook.setup",
        "helpers.parameters",
        "helpers.batch",
        "helpers.plan",
        "helpers.plan.__main__",
    ],
)
def test_importing_a_light_module_loads_no_heavy_library(module):
    assert heavy_modules_of(f"import {module}") == []


@pytest.mark.parametrize("path", HELPERS + SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nothing_is_loaded_that_can_run_foreign_code(path):
    tree = ast.parse(path.read_text())
    assert not {module.split(".")[0] for module in imported_modules(tree)} & {"pickle", "cloudpickle", "dill", "joblib"}
    keywords = [node for node in ast.walk(tree) if isinstance(node, ast.keyword)]
    for name, safe in (("trust_remote_code", "False"), ("weights_only", "True")):
        assert {ast.unparse(keyword.value) for keyword in keywords if keyword.arg == name} <= {safe}
