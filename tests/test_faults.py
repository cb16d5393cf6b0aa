"""The fault table: a few of its cells for real, and that what docs/interruptions.md says was tried is good."""

from __future__ import annotations

import json

import pytest

from helpers.machine import xla
from tests import fault_places, faults, moments, single_faults
from tests.faults import Cell

# What no other test does: others are in test_resume, test_kernel_stops, test_batch_stops, test_launch and test_ray_runs.
ON_A_CPU = (Cell("single fault", "", "W&B refuses"),)
ON_XLA = (Cell("bare script", "compile", "SIGTERM", "reservoir", "xla"),)


@pytest.fixture
def survives(tmp_path, monkeypatch):
    monkeypatch.setattr(fault_places, "PYTHONS", {})  # this half's own interpreter

    def outcome(cell: Cell) -> dict:
        return faults.outcome(cell, faults.References(), tmp_path / "work")

    return outcome


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize("cell", ON_A_CPU, ids=lambda cell: cell.name)
def test_a_disturbed_run_ends_as_an_undisturbed_one(cell, survives):
    assert survives(cell)["outcome"] == "identical"


@pytest.mark.slow
@pytest.mark.skipif(not xla.installed(), reason="torch_xla is not installed")
@pytest.mark.parametrize("cell", ON_XLA, ids=lambda cell: cell.name)
def test_a_run_that_is_stopped_while_it_compiles_ends_as_an_undisturbed_one(cell, survives):
    found = survives(cell)
    assert found["outcome"] == "identical" and found["saved"] >= 1


@pytest.mark.once
def test_the_cells_are_the_product_that_exists():
    found = faults.cells()
    assert len({cell.name for cell in found}) == len(found)
    there = {cell[:3] for cell in found if cell.model == "reservoir" and cell.kind == "cpu" and cell.when}
    product = {(where, when, how) for where in fault_places.PLACES for when in faults.MOMENTS for how in faults.SIGNALS}
    absent = {(where, how) for where, _, how in product - there}
    assert absent == {
        ("Stop button", "SIGTERM"),
        ("Stop button", "SIGKILL"),
        ("kernel shutdown", "SIGINT"),
        ("Ray node", "SIGINT"),
    }
    bare = {(cell.model, cell.kind, cell.when) for cell in found if cell.where == "bare script"}
    assert bare == {
        (model, kind, when)
        for model in moments.DRIVERS
        for kind in ("cpu", "xla")
        for when in (*faults.MOMENTS, *(["compile"] if kind == "xla" else []))
    }
    assert {(cell.how, cell.kind) for cell in found if not cell.when} == {*single_faults.listed()}


@pytest.mark.once
def test_every_cell_has_a_result_and_survived():
    found = json.loads(faults.RESULTS.read_text(encoding="utf-8"))["cells"]
    assert found.keys() == {cell.name for cell in faults.cells()}
    assert {name: cell["outcome"] for name, cell in found.items() if cell["outcome"] not in faults.GOOD} == {}
