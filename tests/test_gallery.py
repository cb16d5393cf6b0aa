"""Executed copies of the notebooks: a reader sees what was printed, and nothing of the machine that ran them."""

import re

import nbformat
import pytest

from .harness import ROOT, text_of

pytestmark = pytest.mark.once


@pytest.mark.parametrize("copy", [*(ROOT / "docs/gallery").glob("*.ipynb")], ids=lambda copy: copy.stem)
def test_a_copy_shows_what_was_printed_and_nothing_of_a_machine(copy):
    text = copy.read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    assert len(text_of(notebook)) > 2_000
    assert "helpers/notebook/unpacking.py" not in text and not re.search(r"/(home|root|work|tmp|Users)/", text)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert all(output.get("name") != "stderr" for output in outputs)
