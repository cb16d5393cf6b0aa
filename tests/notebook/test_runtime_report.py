"""The report of a machine, as someone with a card runs it: alone in an empty folder, here on the CPU with samples."""

import json
import sys
from pathlib import Path

import nbformat
import papermill
import pytest

from tests.harness import ROOT, text_of
from tools import notebooks

pytestmark = [pytest.mark.once, pytest.mark.slow]

PARTS = ("tinystories_reservoir", "lejepa_training", "resume")


def test_the_report_runs_notebooks_and_kills_and_resumes_one(alone):
    source = ROOT / "notebooks/source/runtime_report.py"
    Path("runtime_report.ipynb").write_bytes(notebooks.written(notebooks.notebook(source, "gpu")))
    parameters = {"parts": ", ".join(PARTS), "minutes": 30.0}
    papermill.execute_notebook("runtime_report.ipynb", "executed.ipynb", parameters, progress_bar=False)
    report = json.loads(Path("runtime_report.json").read_text())
    assert report["small"] and report["parts"].keys() == {*PARTS}
    for name in PARTS[:2]:
        part = report["parts"][name]
        assert part["status"] == "done" and part["steps"] == 4 and part["first_step_seconds"] > 0, part
    resumed = report["parts"]["resume"]
    assert resumed["status"] == "done" and resumed["equal"] and resumed["resumed_from"] == 20, resumed
    text = text_of(nbformat.read("executed.ipynb", 4))
    for row in ("| tinystories_reservoir | fp32 |", "| the same weights, bit for bit |"):
        assert row in text
    assert str(ROOT) not in json.dumps(report), sys.path
