"""helpers.run.run_folder: whose an output folder is, an edited method, and results."""

import math
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch

import helpers
from helpers.machine import runtime
from helpers.notebook import method
from helpers.parameters import Parameters
from helpers.run.run_folder import RunFolder
from tests.harness import read_json
from tests.run.test_checkpoint import write as add_checkpoints

pytestmark = pytest.mark.once


def claim(path: Path, notebook: str = "legal_cot_sft", **changes) -> RunFolder:
    return RunFolder.claim(notebook, Parameters(**{"seed": 7, "output_dir": str(path)} | changes))


def refused(path: Path, **changes) -> str:
    with pytest.raises(ValueError) as raised:
        claim(path, **changes)
    return str(raised.value)


def tree(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_run_that_trained_is_kept_from_others_with_both_values(tmp_path):
    claim(tmp_path)
    add_checkpoints(tmp_path, 5)
    before = tree(tmp_path)
    assert claim(tmp_path).path == tmp_path
    assert f"output_dir={str(tmp_path)!r} holds another run (seed=7 there, 8 here)" in refused(tmp_path, seed=8)
    assert "notebook='legal_cot_sft' there, 'lejepa_training' here" in refused(tmp_path, notebook="lejepa_training")
    assert "another run (resume=True there, False here)" in refused(tmp_path, resume=False)
    assert tree(tmp_path) == before
    (tmp_path / "run.json").unlink()
    assert "seed=None there" in refused(tmp_path)


def test_a_run_that_trained_nothing_does_not_keep_its_folder(tmp_path):
    claim(tmp_path).note(data="a set whose name was mistyped")
    add_checkpoints(tmp_path, 0)
    claim(tmp_path, seed=8, resume=False).note(data="the right set")
    run = read_json(tmp_path / "run.json")
    assert (run["seed"], run["data"]) == (8, "the right set")


def test_checkpoints_of_other_data_are_not_gone_on_with(tmp_path):
    claim(tmp_path).note(data="mine.csv, sha256 1")
    add_checkpoints(tmp_path, 5)
    run = claim(tmp_path)
    run.note(data="mine.csv, sha256 1", examples_a_step=32)  # a new fact
    with pytest.raises(ValueError, match=r"another run .data='mine.csv, sha256 1' there, 'mine.csv, sha256 2' here"):
        run.note(data="mine.csv, sha256 2")


def test_an_edited_method_is_trained_in_a_folder_of_its_own(tmp_path, monkeypatch):
    text = Path("helpers/reservoir/model.py").read_text()
    monkeypatch.setattr(helpers, "shown", {"helpers/reservoir/model.py": method.digest(text)}, raising=False)
    run = claim(tmp_path / "run")
    run.note(data="mine")
    with pytest.raises(RuntimeError, match="run the cell that shows the method first"):
        run.use_method()
    run.method.write_text(text)
    run.use_method()
    assert run.path == tmp_path / "run" and (run.path / "method/counts.py").exists()
    run.method.write_text(f"{text}\nEDITED = 1\n")
    run.use_method()
    from helpers.reservoir import model

    assert run.path.name.startswith("run-edited-") and model.EDITED == 1
    recorded = read_json(run.path / "run.json")
    assert recorded["data"] == "mine" and recorded["method_file"] == method.digest(f"{text}\nEDITED = 1\n")
    method.use("helpers.reservoir.model", "helpers/reservoir/model.py")


def test_results_keep_the_folder_and_name_code_and_libraries(tmp_path):
    values = [math.nan, np.float64("inf"), torch.tensor(math.nan), np.int64(3), torch.ones(2), {1: 0.5}]
    results = read_json(claim(tmp_path).results(runtime.detect(False), values=values))
    assert results["values"] == [None, None, None, 3, [1.0, 1.0], {"1": 0.5}]
    assert results["parameters"]["seed"] == results["run"]["seed"] == 7
    assert results["code"]["helpers_version"] == helpers.__version__
    assert results["versions"]["torch"] == metadata.version("torch")
    assert "seed=7 there, 8 here" in refused(tmp_path, seed=8)
