"""docs/gallery.py on a notebook that was executed: what a reader of the copy sees, and what stays behind."""

from __future__ import annotations

import base64
import io
import sys
from pathlib import Path

import nbformat
import papermill
import pytest
from PIL import Image

from helpers.batch import grid

from .harness import START

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))
import gallery  # noqa: E402

CELLS = [
    nbformat.v4.new_code_cell("PAYLOAD = 'c0ffee'\nprint('unpacked')", metadata={"tags": ["setup"]}),
    nbformat.v4.new_markdown_cell(
        '# Title\n\n<img alt="Loss" src="data:image/png;base64,b2xk">\n\n*Loss: of an earlier copy.*\n\n## What it drew'
    ),
    nbformat.v4.new_code_cell(
        "import os, sys, time\nprint(os.getcwd() + '/result', flush=True)\ntime.sleep(0.5)\nprint('a later line')\nprint('a library', 'warns', file=sys.stderr)"
    ),
    nbformat.v4.new_code_cell(
        "from IPython.display import Image, display\nimport base64\n"
        "pixel = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='\n"
        "display(Image(base64.b64decode(pixel)))"
    ),
]


@pytest.fixture
def published(tmp_path, monkeypatch) -> Path:
    """The gallery's folder with one executed notebook in it."""
    monkeypatch.setattr(gallery, "GALLERY", tmp_path / "gallery")
    monkeypatch.chdir(tmp_path)
    source, executed = tmp_path / "source.ipynb", tmp_path / "executed.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=CELLS), source)
    papermill.execute_notebook(source, executed, kernel_name="python3", progress_bar=False, start_timeout=START)
    gallery.publish(executed, "probe", {str(tmp_path): "outputs"})
    return tmp_path / "gallery"


def test_a_copy_shows_what_was_printed_and_nothing_of_this_machine(published):
    text = (published / "probe.ipynb").read_text()
    assert "outputs/result" in text
    assert "earlier copy" not in text and "b2xk" not in text and "Title" in text
    assert "c0ffee" not in text and "unpacked" not in text and gallery.LEFT_OUT in text
    assert "a library warns" not in text and str(published.parent) not in text


def test_what_was_printed_line_after_line_is_one_output(published):
    cells = nbformat.read(published / "probe.ipynb", as_version=4).cells
    (printed,) = next(cell for cell in cells if "a later line" in cell.source).outputs
    assert printed.text == "outputs/result\na later line\n"


def test_the_last_figure_is_a_picture_of_its_own_and_is_described(published):
    notebook = nbformat.read(published / "probe.ipynb", as_version=4)
    (figure,) = gallery.figures(notebook)
    assert (published / "probe.png").read_bytes() == base64.b64decode(figure.data["image/png"])
    assert figure.metadata["image/png"] == {"alt": "Figure: What it drew"}
    assert "[probe](probe.ipynb)" in (published / "README.md").read_text()


def test_the_small_picture_has_the_figures_shape_and_few_colours_and_bytes(published, tmp_path):
    import matplotlib.pyplot as plt
    import numpy as np

    assert Image.open(published / "probe_small.png").size == (1, 1)
    figure, axes = plt.subplots(figsize=(12, 4))
    axes.barh(["start", "tuned"], [1, 2])
    figure.savefig(tmp_path / "figure.png", dpi=100)
    plt.close(figure)
    picture = gallery.small((tmp_path / "figure.png").read_bytes())
    read = Image.open(io.BytesIO(picture))
    assert (read.size, read.mode) == ((480, 160), "P")
    assert len(read.getcolors()) <= 16 and len(picture) < 3_000
    assert (0x1F, 0x77, 0xB4) in {color for _, color in read.convert("RGB").getcolors()}, "the bars' own blue"
    noise = np.random.default_rng(0).integers(0, 256, (300, 600, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    picture = gallery.small((tmp_path / "noise.png").read_bytes())
    assert len(picture) <= 9_000 and Image.open(io.BytesIO(picture)).width < 300


def test_a_copy_is_stale_when_a_code_cell_of_its_notebook_changes(published, tmp_path, monkeypatch):
    (tmp_path / "notebooks").mkdir()
    monkeypatch.setattr(gallery, "ROOT", tmp_path)
    notebook = nbformat.read(tmp_path / "source.ipynb", as_version=4)
    nbformat.write(notebook, tmp_path / "notebooks/probe.ipynb")
    assert not gallery.stale("probe")
    notebook.cells[2].source += "\nprint('more')"
    nbformat.write(notebook, tmp_path / "notebooks/probe.ipynb")
    assert gallery.stale("probe")


@pytest.mark.parametrize("name", gallery.PARAMETERS)
def test_a_notebook_has_the_parameters_that_it_is_run_with_and_each_has_one_value(name, tmp_path):
    values = {"data_source": "sample"} | gallery.PARAMETERS[name]
    given = grid.parse([f"{key}={value}" for key, value in values.items()])
    (run,) = grid.plan(ROOT / f"notebooks/{name}.ipynb", tmp_path, given)
    assert not run.varied and run.parameters.keys() == {"output_dir", *values}
