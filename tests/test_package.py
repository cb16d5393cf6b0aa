"""The package as a whole: cheap to import, one file each for torch_xla and ray, no unsafe loading, nothing that libraries removed."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.removed_api import findings

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]
HELPERS = sorted((ROOT / "helpers").rglob("*.py"))
SOURCES = sorted((ROOT / "notebooks/source").glob("*.py"))
LINTED = [
    path
    for folder in ("helpers", "notebooks", "benchmarks", "tests")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".ipynb")
]
HEAVY = ("torch", "torch_xla", "transformers", "numpy", "pandas", "matplotlib", "datasets")


def in_fresh_interpreter(statement: str) -> tuple[float, list[str]]:
    """Seconds that a statement takes in a new process, and which heavy modules it loaded."""
    code = (
        "import json, sys, time\nbegin = time.perf_counter()\n"
        f"{statement}\nseconds = time.perf_counter() - begin\n"
        f"print(json.dumps([seconds, [name for name in {HEAVY!r} if name in sys.modules]]))"
    )
    output = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(json.loads(output))


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


def test_importing_helpers_takes_less_than_three_tenths_of_a_second():
    assert min(in_fresh_interpreter("import helpers")[0] for _ in range(3)) < 0.3


@pytest.mark.parametrize(
    "module",
    [
        "helpers",
        "helpers.notebook.setup",
        "helpers.parameters",
        "helpers.batch",
        "helpers.plan",
        "helpers.plan.outlook",
    ],
)
def test_importing_a_light_module_loads_no_heavy_library(module):
    assert in_fresh_interpreter(f"import {module}")[1] == []


KNOWN_TO = {  # library: the files that import it
    "torch_xla": ["helpers/machine/xla.py"],
    "jax": ["helpers/plan/tpu_compiler.py"],
    "jaxlib": ["helpers/plan/tpu_compiler.py"],
    "libtpu": ["helpers/plan/tpu_compiler.py"],
    "ray": ["helpers/batch/ray_runs.py"],
}


@pytest.mark.parametrize("path", HELPERS + SOURCES, ids=named)
def test_libraries_of_one_purpose_are_imported_where_they_belong(path):
    libraries = {name.split(".")[0] for name in imported_modules(ast.parse(path.read_text(encoding="utf-8")))}
    for library, files in KNOWN_TO.items():
        assert (library in libraries) == (path in [ROOT / file for file in files]), library


@pytest.mark.parametrize("path", HELPERS + SOURCES, ids=named)
def test_nothing_is_loaded_that_can_run_foreign_code(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not {module.split(".")[0] for module in imported_modules(tree)} & {"pickle", "cloudpickle", "dill", "joblib"}
    keywords = [keyword for node in ast.walk(tree) if isinstance(node, ast.Call) for keyword in node.keywords]
    for keyword in keywords:
        if keyword.arg == "trust_remote_code":
            assert isinstance(keyword.value, ast.Constant) and keyword.value.value is False, keyword.value.lineno
        if keyword.arg == "weights_only":
            assert isinstance(keyword.value, ast.Constant) and keyword.value.value is True, keyword.value.lineno


@pytest.mark.parametrize("path", HELPERS + SOURCES, ids=named)
def test_no_error_is_swallowed_unnamed(path):
    handlers = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ExceptHandler)]
    assert [handler.lineno for handler in handlers if handler.type is None] == []
    silent = [handler.lineno for handler in handlers if all(isinstance(line, ast.Pass) for line in handler.body)]
    assert silent == []


@pytest.mark.parametrize("path", LINTED, ids=named)
def test_no_removed_api_is_used(path):
    assert findings(path) == []


BANNED = [
    ("TrainingArguments(output_dir='x', warmup_ratio=0.1)", "warmup_ratio"),
    ("SFTConfig(evaluation_strategy='steps')", "evaluation_strategy"),
    ("trl.SFTTrainer(model, tokenizer=t)", "tokenizer"),
    ("Trainer(model, tokenizer=t)", "tokenizer"),
    ("SFTConfig(max_seq_length=8)", "max_seq_length"),
    ("TrainingArguments(tpu_num_cores=8)", "tpu_num_cores"),
    ("fields = {'warmup" + "_ratio': 0.1}", "warmup_ratio"),
    ("device = xm.xla_device()", "xla_device"),
    ("torch_xla.core.xla_model.mark_step()", "mark_step"),
    ("xm.mark_step()", "mark_step"),
    ("from torch_xla.core.xla_model import mark_step", "mark_step"),
    ("xmp.spawn(main, nprocs=8)", "spawn"),
]


@pytest.mark.parametrize(("line", "name"), BANNED)
def test_the_lint_finds_each_removed_name_in_a_file(tmp_path, line, name):
    path = tmp_path / "train.py"
    path.write_text(f"import os\n\n{line}\n", encoding="utf-8")
    (found,) = findings(path)
    assert found.startswith(f"{path}:3: {name} is removed")


@pytest.mark.parametrize(("line", "name"), BANNED)
def test_the_lint_finds_each_removed_name_in_a_notebook_beside_magics(tmp_path, line, name):
    path = tmp_path / "train.ipynb"
    cells = [
        {"cell_type": "markdown", "source": ["xm.mark_step() was once the way"]},
        {"cell_type": "code", "source": ["%pip install x\n", "if True:\n", "    !ls\n", line]},
    ]
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    (found,) = findings(path)
    assert found.startswith(f"{path}[cell 1]:4: {name} is removed")


def test_the_lint_lets_living_names_pass(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "Trainer(model, processing_class=t, warmup_steps=3)\ncollate(tokenizer=t)\nmodel.max_seq_length = 8\n"
        "multiprocessing.spawn.freeze_support()\nxm.get_memory_info('xla:0')\n",
        encoding="utf-8",
    )
    assert findings(path) == []


def test_the_lint_reports_what_it_cannot_parse(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("def f(:\n", encoding="utf-8")
    (found,) = findings(path)
    assert found.startswith(f"{path}:1: cannot be parsed")


def test_the_lint_as_a_script_fails_with_the_finding(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/train.py").write_text("xm.mark_step()\n", encoding="utf-8")
    command = [sys.executable, str(ROOT / "tests/removed_api.py"), str(tmp_path)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 1
    assert "train.py:1: mark_step is removed" in finished.stdout
