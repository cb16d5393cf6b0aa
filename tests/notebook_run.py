"""Runs a notebook as users do: copied alone into an empty folder, headless, without a token or a way to a hub."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import nbformat
import papermill
import pytest
from jupyter_client.manager import run_kernel
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"


def run(name: str, folder: Path, parameters: dict, notebooks: Path = NOTEBOOKS) -> tuple[nbformat.NotebookNode, dict]:
    """Copies one notebook into `folder`, runs all of it there, and returns what was executed and its results."""
    shutil.copy(notebooks / f"{name}.ipynb", folder)
    output = folder / "out"
    executed = papermill.execute_notebook(
        f"{name}.ipynb", "executed.ipynb", {"output_dir": str(output), **parameters}, progress_bar=False
    )
    results = json.loads((output / "results.json").read_text())
    # What the run was bound to before training, so that a changed file is not trained on from these checkpoints.
    assert results["data"]["sha256"][:16] in json.loads((output / "run.json").read_text())["data"]
    assert {"source", "revision"} <= results["data"].keys()
    shown = [part for cell in executed.cells for part in cell.get("outputs", []) if "image/png" in part.get("data", {})]
    assert len(shown) >= len([*output.glob("figures/*.png")])  # what is drawn is also seen
    assert results["schema"] == 2 and results["sessions"][-1]["last_step"] == results["train"]["steps"]
    return executed, results


def refused(name: str, folder: Path, parameters: dict) -> str:
    """What a notebook says that refuses to run."""
    with pytest.raises(papermill.PapermillExecutionError) as caught:
        run(name, folder, parameters)
    return caught.value.evalue


def assert_refuses(name: str, folder: Path, common: dict, wrong: Sequence[tuple[dict, str]]) -> None:
    """A notebook's error for each of `wrong`, parameters beside the `common` ones, holds the text; nothing is written.

    In one kernel: what comes before the parameters runs once, then for each the cells from there to the error.
    """
    shutil.copy(NOTEBOOKS / f"{name}.ipynb", folder)
    notebook, output = load_notebook_node(f"{name}.ipynb"), folder / "out"
    begun = False
    with run_kernel() as kernel:
        for parameters, message in wrong:
            parameterize_notebook(notebook, {"output_dir": str(output), **common, **parameters})
            cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
            if begun:
                cells = cells[next(i for i, cell in enumerate(cells) if "parameters" in cell.metadata.tags) :]
            begun = True
            for cell in cells:
                reply = kernel.execute_interactive(cell.source, output_hook=lambda _: None, timeout=300)["content"]
                if reply["status"] == "error":
                    break
            assert reply["status"] == "error" and message in reply["evalue"], (parameters, reply)
    assert not output.exists()


def text_of(executed: nbformat.NotebookNode) -> str:
    """All that a notebook printed and displayed, as text."""
    outputs = [output for cell in executed.cells for output in cell.get("outputs", [])]
    return "\n".join(output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in outputs)
