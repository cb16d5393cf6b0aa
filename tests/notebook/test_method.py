"""The method's file in a notebook: a reader edits the cell, runs all again in the same kernel, and trains what they wrote."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import run_kernel
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

from helpers.notebook import method
from tests.harness import START

from .test_notebooks import TINY

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
NAME = "tinystories_reservoir"
SHOWN = "helpers/reservoir/model.py"
LINE, EDITED = "torch.tanh(torch.baddbmm", "torch.sin(torch.baddbmm"


@pytest.fixture(scope="module")
def notebooks(tmp_path_factory) -> Path:
    """The notebooks as this checkout builds them."""
    folder = tmp_path_factory.mktemp("notebooks")
    subprocess.run([sys.executable, "notebooks/build.py", "--out", str(folder)], cwd=ROOT, check=True)
    return folder


@pytest.fixture
def alone(tmp_path, monkeypatch) -> Path:
    """An empty folder far from the checkout, with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path


def opened(notebooks: Path) -> nbformat.NotebookNode:
    notebook = load_notebook_node(str(notebooks / f"{NAME}.ipynb"))
    return parameterize_notebook(notebook, {**TINY, "max_steps": 4, "eval_steps": 2, "output_dir": "out"})


def edit(notebook: nbformat.NotebookNode, before: str, after: str) -> None:
    (cell,) = [cell for cell in notebook.cells if "method" in cell.metadata.get("tags", ())]
    assert before in cell.source
    cell.source = cell.source.replace(before, after)


def run_all(kernel, notebook: nbformat.NotebookNode) -> str:
    """What the notebook prints when all its cells run in this kernel. Fails with the error of a cell."""
    printed = []

    def hear(message) -> None:
        printed.append(message["content"].get("text", ""))

    for cell in notebook.cells:
        if cell.cell_type == "code":
            reply = kernel.execute_interactive(cell.source, output_hook=hear, timeout=600)["content"]
            assert reply["status"] == "ok", "\n".join(reply.get("traceback", []))
    return "".join(printed)


def results(folder: str) -> dict:
    return json.loads(Path(folder, "results.json").read_text(encoding="utf-8"))


def test_an_edited_cell_trains_in_the_same_kernel_in_a_folder_of_its_own(notebooks, alone):
    notebook = opened(notebooks)
    shipped = method.digest((ROOT / SHOWN).read_text(encoding="utf-8"))
    with run_kernel(startup_timeout=START) as kernel:
        assert "model.py is trained as it was shown" in run_all(kernel, notebook)
        first = results("out")
        assert first["code"]["method"] == {"file": "method/model.py", "sha256": shipped, "edited": False}

        edit(notebook, LINE, EDITED)
        said = run_all(kernel, notebook)
        (folder,) = alone.glob("out-edited-*")
        assert f"model.py was edited: this run trains your version, in a folder of its own, {folder}" in said
        second = results(folder)
        assert second["code"]["method"]["edited"] and second["code"]["method"]["sha256"][:8] == folder.name[-8:]
        assert second["train"]["resumed_from_step"] is None
        assert "data" in json.loads((folder / "run.json").read_text(encoding="utf-8"))
        assert second["train"]["loss_first"] != first["train"]["loss_first"]
        assert EDITED in (folder / "method/model.py").read_text(encoding="utf-8")
        assert EDITED in (folder / "model/model.py").read_text(encoding="utf-8")  # what loads it elsewhere

        # Neither a second notebook with the same payload nor the checkout sees the edit.
        assert not [*(alone / "home" / ".cache").rglob("model.py")]
        assert EDITED not in (ROOT / SHOWN).read_text(encoding="utf-8")

        edit(notebook, EDITED, LINE)
        assert "the run is finished" in run_all(kernel, notebook)
    assert results("out")["train"]["loss_last"] == first["train"]["loss_last"]
    assert len([*alone.glob("out*")]) == 2


@pytest.mark.slow
def test_an_edited_notebook_trains_in_two_processes(notebooks, alone):
    notebook = opened(notebooks)
    edit(notebook, LINE, EDITED)
    nbformat.write(notebook, "edited.ipynb")
    values = [word for name, value in {**TINY, "output_dir": "out"}.items() for word in ("-p", name, str(value))]
    shutil.copytree(ROOT / "helpers", alone / "helpers")
    (alone / SHOWN).unlink()  # as in a payload
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "helpers.batch.processes", "edited.ipynb", *values]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (folder,) = alone.glob("out-edited-*")
    assert results(folder)["code"]["method"]["edited"]
