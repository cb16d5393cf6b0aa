"""A few cells of the fault table for real, and that the others had a good end when `make faults` ran them."""

import json
import sys
from pathlib import Path

import pytest

from tests.harness import namespaces
from tools import faults

pytestmark = pytest.mark.once

# What no other test does: an end that Jupyter, a batch or a person makes of a run.
CELLS = (
    *(pytest.param(faults.Cell("helpers.batch", "step", how), marks=pytest.mark.slow) for how in faults.ENDS),
    faults.Cell("notebook kernel", "step", "SIGINT"),
    *(
        pytest.param(faults.Cell("single fault", "", fault), marks=pytest.mark.slow)
        for fault in ("two owners", "Drive loses the last minute")
    ),
)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: "-".join(cell[:3]))
def test_a_disturbed_run_ends_as_an_undisturbed_one(cell, tmp_path, monkeypatch):
    if "Drive" in cell.how:
        namespaces("--mount")  # in which Colab's mount point is made; this needs root
    monkeypatch.setattr(faults, "PYTHONS", {"cpu": Path(sys.executable)})
    assert faults.outcome(cell, tmp_path / "work")["outcome"] == "identical"


def test_every_cell_that_was_run_exists_and_survived():
    found = json.loads(faults.RESULTS.read_text())["cells"]
    assert found.keys() <= {cell.name for cell in faults.cells()}
    assert {name: cell["outcome"] for name, cell in found.items() if cell["outcome"] != "identical"} == {}
