"""The package as a whole: cheap to import, and no unsafe loading."""

import ast

import pytest

from tests.harness import ROOT, printed

pytestmark = pytest.mark.once

HELPERS = sorted((ROOT / "helpers").rglob("*.py"))
SOURCES = sorted((ROOT / "notebooks/source").glob("*.py"))
HEAVY = ("torch", "torch_xla", "transformers", "numpy", "pandas", "matplotlib", "datasets")


@pytest.mark.parametrize(
    "module",
    [
        "helpers",
        "helpers.notebook.setup",
        "helpers.parameters",
        "helpers.batch",
        "helpers.plan.settings",
    ],
)
def test_importing_a_light_module_loads_no_heavy_library(module):
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    assert printed("-c", code).strip() == "[]"


@pytest.mark.parametrize("path", HELPERS + SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nothing_is_loaded_that_can_run_foreign_code(path):
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    assert not {name.partition(".")[0] for name in imported} & {"pickle", "cloudpickle", "dill", "joblib"}
    keywords = [node for node in nodes if isinstance(node, ast.keyword)]
    for name, safe in (("trust_remote_code", "False"), ("weights_only", "True")):
        assert {ast.unparse(keyword.value) for keyword in keywords if keyword.arg == name} <= {safe}
