"""tools/notebooks.py and the setup cell that it writes, run in processes and kernels of their own."""

import ast
import json
import os
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import nbformat
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from papermill import inspect_notebook

from helpers.notebook.method import WRITTEN
from tests.harness import ROOT, python
from tools import closure, notebooks

pytestmark = pytest.mark.once

REPORT_SOURCE = ROOT / "notebooks/source/runtime_report.py"  # which runs the others, and has no room
SOURCES = sorted({*(ROOT / "notebooks/source").glob("*.py")} - {REPORT_SOURCE})
TINY = """\
# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Tiny

# %% [markdown] tags=["tpu"]
# For a TPU.

# %% tags=["setup"]
# requirements: matplotlib

# %% tags=["parameters"]
# parameters: helpers.parameters.Parameters

# %% tags=["gpu"]
device = "cuda"

# %%
where = "a GPU"  # gpu only
where = "a TPU"  # tpu only
import helpers.parameters

print(helpers.__file__, use_tpu)
"""
REPORT = "import json, helpers; print(json.dumps([helpers.__file__, hasattr(helpers, 'stranger')]))"


@pytest.fixture
def tiny(tmp_path):
    source = tmp_path / "source/tiny.py"
    source.parent.mkdir()
    source.write_text(TINY)
    return source


def command_line(*arguments: object, cwd: Path = ROOT, hash_seed: str = "0") -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    return python(ROOT / "tools/notebooks.py", *arguments, cwd=cwd, env=environment)


# ---- the notebooks ----


def test_twins_differ_in_tagged_cells_and_marked_lines_alone(tiny):
    gpu, tpu = ({cell.id: cell for cell in notebooks.twin_cells(tiny, twin)} for twin in ("gpu", "tpu"))
    assert list(gpu) == ["00", "02", "03", "04", "05"]
    assert list(tpu) == ["00", "01", "02", "03", "05"]
    assert gpu["04"].source == 'device = "cuda"'
    assert tpu["01"].source == "For a TPU."
    assert {cell_id for cell_id in gpu.keys() & tpu.keys() if gpu[cell_id] != tpu[cell_id]} == {"03", "05"}
    assert gpu["05"].source.startswith('where = "a GPU"\nimport')
    assert tpu["05"].source.startswith('where = "a TPU"\nimport')
    lines = set(gpu["03"].source.splitlines()) ^ set(tpu["03"].source.splitlines())
    assert lines == {f'use_tpu: bool = {value}  # @param {{type:"boolean"}}' for value in (False, True)}


def test_check_passes_on_what_was_built_and_names_what_differs(tiny, tmp_path):
    arguments = ("--source", tiny.parent, "--out", tmp_path)
    assert command_line(*arguments).returncode == 0
    assert command_line("--check", *arguments, cwd=tmp_path, hash_seed="1").returncode == 0

    stale = tmp_path / "tiny_tpu.ipynb"
    stale.write_bytes(stale.read_bytes().replace(b"For a TPU.", b"For a TPU!"))
    (tmp_path / "tiny.ipynb").rename(tmp_path / "renamed.ipynb")
    finished = command_line("--check", *arguments)
    assert finished.returncode == 1
    assert finished.stderr.splitlines() == [
        "missing: tiny.ipynb",
        "stale: tiny_tpu.ipynb",
        "extra: renamed.ipynb (it has no source; delete it)",
        "run `make notebooks`",
    ]


# ---- what a notebook needs ----


WHERE_NEEDED = {  # what the setup cell leaves out: each is asked for by what needs it, or comes with the runtime
    "IPython",  # these three are the notebook's own
    "ipykernel",
    "traitlets",
    "bitsandbytes",
    "google",  # Colab's
    "kaggle_secrets",
    "libtpu",
    "nbformat",  # with papermill
    "lm_eval",
    "papermill",  # for notebooks that a command line names
    "tomli",
    "torch_xla",
    "triton",
}


# What others may cease to bring: a notebook that imports it names it.
NAMED = {"charset_normalizer": "charset-normalizer", "scipy": "scipy"}


@cache
def brought(name: str) -> set[str]:
    """Distributions that come with one, itself included."""
    names = {canonicalize_name(name)}
    for requirement in map(Requirement, requires(name) or ()):
        if not requirement.marker or requirement.marker.evaluate({"extra": ""}):
            names |= brought(requirement.name)
    return names


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_the_setup_cell_installs_what_the_notebook_imports(source):
    """On a machine that has nothing: scikit-learn, say, is in no requirements file of ours, and comes with another package."""
    names = re.search(r"^# requirements: (.+)$", source.read_text(), re.MULTILINE)[1].split()
    installed = set().union(*map(brought, names))
    cells = [cell.source for cell in notebooks.twin_cells(source, "gpu") if cell.cell_type == "code"]
    cells = [cell.removeprefix(f"{WRITTEN}\n") for cell in cells]
    files = closure.reachable(cells, ROOT)
    roots = set()
    for code in [*cells, *(content for name, content in files.items() if name.endswith(".py"))]:
        for node in closure._running(ast.parse(code)):
            if isinstance(node, ast.Import):
                roots |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                roots.add(node.module.partition(".")[0])
    assert {NAMED[root] for root in roots & {*NAMED}} <= {*names}
    modules = packages_distributions()
    for root in roots - sys.stdlib_module_names - WHERE_NEEDED - {"helpers"}:
        assert installed & {*map(canonicalize_name, modules[root])}, root


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_the_form_says_every_parameter_and_papermill_reads_its_default(source, tmp_path):
    for twin, suffix in notebooks.SUFFIX.items():
        notebook, path = notebooks.notebook(source, twin), tmp_path / "notebook.ipynb"
        nbformat.write(notebook, path)
        [cell] = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
        assert notebooks.WHERE_OWN_DATA_ARE in notebook.cells[notebook.cells.index(cell) - 1].source
        parameters = inspect_notebook(str(path))
        for name, parameter in parameters.items():
            line = rf"^# @markdown .+\n{name}: {re.escape(parameter['inferred_type_name'])} = .+# @param "
            assert re.search(line, cell.source, re.MULTILINE)
        assert parameters["use_tpu"]["default"] == str(twin == "tpu")
        assert parameters["output_dir"]["default"] == json.dumps(f"outputs/{source.stem}{suffix}")


# ---- the setup cell, run ----


class Machine:
    """An otherwise empty folder to run a setup cell in, with a temporary folder of its own."""

    def __init__(self, folder: Path, cell: str):
        self.cwd, self.temp, self.cell = folder / "empty", folder / "temp", folder / "cell.txt"
        self.cwd.mkdir()
        self.temp.mkdir()
        self.cell.write_text(cell)

    def run(self, *lines: str) -> subprocess.CompletedProcess:
        """Run a script in which `setup()` runs the cell, as plain exec does: with no `__name__`."""
        script = f"def setup():\n    exec(open({str(self.cell)!r}, encoding='utf-8').read(), {{}})\n"
        environment = os.environ | {"TMPDIR": str(self.temp), "HOME": str(self.temp)}
        environment.pop("PYTHONPATH", None)
        return python("-c", script + "\n".join(lines), cwd=self.cwd, env=environment)


@pytest.fixture
def machine(tiny, tmp_path):
    return Machine(tmp_path, notebooks.twin_cells(tiny, "gpu")[1].source)


def test_setup_cell_alone_in_an_empty_folder_imports_the_payload(machine):
    compare = f"""
import pathlib
for path in pathlib.Path(helpers.__file__).parents[1].rglob("*.py"):
    below = path.relative_to(pathlib.Path(helpers.__file__).parents[1])
    assert path.read_bytes() == (pathlib.Path({str(ROOT)!r}) / below).read_bytes()
before = helpers
setup()
assert before is sys.modules["helpers"], "the same cell again leaves everything as it is"
"""
    finished = machine.run("setup()", REPORT, f"import sys{compare}")
    assert finished.returncode == 0, finished.stderr
    first, *_, report = finished.stdout.splitlines()
    unpacked = Path(json.loads(report)[0]).parent
    assert unpacked.is_relative_to(machine.temp) and list(machine.cwd.iterdir()) == []
    assert re.fullmatch(rf"helpers \S+, payload [0-9a-f]{{12}}: the code .* is in {unpacked}", first)


@pytest.mark.parametrize("damage", ["truncated", "other content"])
def test_setup_cell_refuses_a_damaged_payload(machine, damage):
    cell = machine.cell.read_text()
    good = re.search(r'^    "(.{1000,})"$', cell, re.MULTILINE).group(1)
    other = notebooks.payload({"helpers/__init__.py": b"stranger = True\n"})
    bad = good[: len(good) // 2] if damage == "truncated" else other
    machine.cell.write_text(cell.replace(good, bad))
    finished = machine.run("setup()")
    assert finished.returncode == 1
    assert finished.stderr.splitlines()[-1].startswith("RuntimeError: The payload is damaged")
    assert not [*machine.temp.glob("**/helpers-*")]
