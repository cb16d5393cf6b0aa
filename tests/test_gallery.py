"""docs/gallery.py on a notebook that was executed: what a reader of the copy sees, and what stays behind."""

import json
import sys
from pathlib import Path

import nbformat
import papermill
import pytest
from PIL import Image

from helpers.batch import grid

from .harness import ROOT, START

pytestmark = pytest.mark.once

sys.path.insert(0, str(ROOT / "docs"))
import gallery  # noqa: E402

METADATA = {
    "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
    "language_info": {"name": "python"},
}
CELLS = [
    nbformat.v4.new_code_cell("PAYLOAD = 'c0ffee'\nprint('unpacked')", metadata={"tags": ["setup"]}),
    nbformat.v4.new_markdown_cell(
        '# Title\n\n<img alt="Loss" src="data:image/png;base64,b2xk">\n\n*Loss: of an earlier copy.*\n\n## What it drew'
    ),
    nbformat.v4.new_code_cell("steps: int = 3", metadata={"tags": ["parameters"]}),
    nbformat.v4.new_code_cell(
        "import os, sys, time\nprint(os.getcwd() + '/result', flush=True)\ntime.sleep(0.5)\nprint('a later line')\nprint('a library', 'warns', file=sys.stderr)"
    ),
    nbformat.v4.new_code_cell(
        "import matplotlib.pyplot as plt\nfigure, axes = plt.subplots(figsize=(12, 4))\nbars = axes.barh(['start', 'tuned'], [1, 2])"
    ),
]


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    """A folder with a notebook, and its executed copy in the gallery."""
    folder = tmp_path_factory.mktemp("gallery")
    source, executed = folder / "notebooks/probe.ipynb", folder / "executed/probe.ipynb"
    for name in ("notebooks", "executed", "gallery"):
        (folder / name).mkdir()
    nbformat.write(nbformat.v4.new_notebook(cells=CELLS, metadata=METADATA), source)
    run = {"kernel_name": "python3", "progress_bar": False, "start_timeout": START, "cwd": folder}
    papermill.execute_notebook(source, executed, {"steps": 5}, **run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gallery, "GALLERY", folder / "gallery")
        gallery.publish(executed, {str(folder): "outputs"})
    return folder


def test_a_copy_shows_what_was_printed_and_nothing_of_this_machine(published):
    text = (published / "gallery/probe.ipynb").read_text()
    assert "earlier copy" not in text and "b2xk" not in text and "Title" in text
    assert "c0ffee" not in text and "unpacked" not in text and gallery.LEFT_OUT in text
    assert "a library warns" not in text and str(published) not in text
    cells = nbformat.reads(text, as_version=4).cells
    (printed,) = next(cell for cell in cells if "a later line" in cell.source).outputs
    assert printed.text == "outputs/result\na later line\n", "lines that were printed one after another are one output"


def test_the_figure_is_a_picture_of_its_own_with_its_shape_and_few_colours_and_bytes(published):
    file = published / "gallery/probe.png"
    picture = Image.open(file)
    assert (picture.mode, picture.width) == ("P", 720) and 230 < picture.height < 260
    assert len(picture.getcolors()) <= 32 and file.stat().st_size < 6_000
    near = [abs(r - 0x1F) + abs(g - 0x77) + abs(b - 0xB4) for _, (r, g, b) in picture.convert("RGB").getcolors()]
    assert min(near) < 12, "the bars' own blue"


def test_a_copy_is_stale_when_a_code_cell_of_its_notebook_changes_and_an_absent_one_never(published, monkeypatch):
    for name, folder in (("NOTEBOOKS", "notebooks"), ("GALLERY", "gallery")):
        monkeypatch.setattr(gallery, name, published / folder)
    assert not gallery.stale("probe") and not gallery.stale("absent")
    source = published / "notebooks/probe.ipynb"
    notebook = nbformat.read(source, as_version=4)
    notebook.cells[0].source = "PAYLOAD = 'beef'"
    nbformat.write(notebook, source)
    assert not gallery.stale("probe"), "the packed files are not compared"
    notebook.cells[3].source += "\nprint('more')"
    nbformat.write(notebook, source)
    assert gallery.stale("probe")


@pytest.mark.parametrize("name", gallery.PARAMETERS)
def test_a_notebook_has_the_parameters_that_it_is_run_with_and_each_has_one_value(name, tmp_path):
    values = {"data_source": "sample"} | gallery.PARAMETERS[name]
    given = grid.parse(
        [f"{key}={json.dumps(value) if isinstance(value, str) else value}" for key, value in values.items()]
    )
    (run,) = grid.plan(ROOT / f"notebooks/{name}.ipynb", tmp_path, given)
    assert run.folder.name == "run" and run.parameters.keys() == {*values, "output_dir"}
