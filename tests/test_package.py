"""The package as a whole: cheap to import, one file each for torch_xla and ray, no unsafe loading."""

import ast
import json
from pathlib import Path

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


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


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


KNOWN_TO = {  # library: the files that import it
    "torch_xla": ["helpers/machine/xla.py"],
    "jax": [],
    "jaxlib": [],
    "libtpu": [],
    "ray": ["helpers/batch/ray_runs.py"],
    "bm25s": ["helpers/data/bm25.py", "helpers/lejepa/standalone.py"],
}


@pytest.mark.parametrize("path", HELPERS + SOURCES, ids=named)
def test_libraries_of_one_purpose_are_imported_where_they_belong(path):
    libraries = {name.split(".")[0] for name in imported_modules(ast.parse(path.read_text()))}
    for library, files in KNOWN_TO.items():
        assert (library in libraries) == (path in [ROOT / file for file in files]), library


@pytest.mark.parametrize("path", HELPERS + SOURCES, ids=named)
def test_nothing_is_loaded_that_can_run_foreign_code(path):
    tree = ast.parse(path.read_text())
    assert not {module.split(".")[0] for module in imported_modules(tree)} & {"pickle", "cloudpickle", "dill", "joblib"}
    keywords = [keyword for node in ast.walk(tree) if isinstance(node, ast.Call) for keyword in node.keywords]
    for keyword in keywords:
        if keyword.arg == "trust_remote_code":
            assert isinstance(keyword.value, ast.Constant) and keyword.value.value is False, keyword.value.lineno
        if keyword.arg == "weights_only":
            assert isinstance(keyword.value, ast.Constant) and keyword.value.value is True, keyword.value.lineno
