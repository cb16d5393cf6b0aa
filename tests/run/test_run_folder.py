"""helpers.run.run_folder: whose an output folder is, an edited method, and results that are whole whatever happens."""

import json
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
from tests.harness import printed, read_json
from tests.run.test_checkpoint import write as add_checkpoints

pytestmark = pytest.mark.once


def claim(path: Path | str, notebook: str = "legal_cot_sft", **changes) -> RunFolder:
    return RunFolder.claim(notebook, Parameters(**{"seed": 7, "output_dir": str(path)} | changes))


def tree(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def refused(path: Path, **arguments) -> str:
    """The message of a refused claim, after checking that it names the folder and that the folder is as before."""
    before = tree(path)
    with pytest.raises(ValueError) as raised:
        claim(path, **arguments)
    assert f"output_dir={str(path)!r} holds" in str(raised.value) and tree(path) == before
    return str(raised.value)


# ---- claiming


def test_a_run_that_trained_is_kept_from_others_with_both_values(tmp_path):
    claim(tmp_path)
    add_checkpoints(tmp_path, 5)
    before = tree(tmp_path)
    assert claim(tmp_path).path == tmp_path and tree(tmp_path) == before
    assert "another run (seed=7 there, 8 here)" in refused(tmp_path, seed=8)
    assert "notebook='legal_cot_sft' there, 'lejepa_training' here" in refused(tmp_path, notebook="lejepa_training")
    assert "this run, and resume=False" in refused(tmp_path, resume=False)
    (tmp_path / "run.json").unlink()
    assert "seed=None there" in refused(tmp_path)


def test_a_run_that_trained_nothing_does_not_keep_its_folder(tmp_path):
    claim(tmp_path).note(data="a set whose name was mistyped")
    add_checkpoints(tmp_path, 0)
    claim(tmp_path, seed=8, resume=False).note(data="the right set")
    run = read_json(tmp_path / "run.json")
    assert (run["seed"], run["data"]) == (8, "the right set")


def test_results_keep_their_folder_too(tmp_path):
    claim(tmp_path).results(runtime.detect(False))
    assert "resume=False" in refused(tmp_path, resume=False)


def test_checkpoints_of_other_data_are_not_gone_on_with(tmp_path):
    claim(tmp_path).note(data="mine.csv, sha256 1")
    add_checkpoints(tmp_path, 5)
    before = tree(tmp_path)
    claim(tmp_path).note(data="mine.csv, sha256 1", examples_a_step=32)  # is new, and noted
    with pytest.raises(ValueError, match=r"another run .data='mine.csv, sha256 1' there, 'mine.csv, sha256 2' here"):
        claim(tmp_path).note(data="mine.csv, sha256 2")
    with pytest.raises(ValueError, match="examples_a_step=32 there, 16 here"):
        claim(tmp_path).note(examples_a_step=16)
    assert tree(tmp_path).keys() == before.keys()


def test_a_folder_that_cannot_be_used_is_named(without_home):
    with pytest.raises(ValueError, match=r"output_dir='~/run' is no path \(.*home directory.*\); write the path out"):
        claim("~/run")
    with pytest.raises(OSError, match="/proc/nowhere"):
        claim("/proc/nowhere/run")


# ---- the method


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
    add_checkpoints(run.path, 5)
    run.method.write_text(f"{text}\nEDITED = 1\n")
    run.use_method()
    from helpers.reservoir import model

    assert run.path.name.startswith("run-edited-") and model.EDITED == 1
    recorded = read_json(run.path / "run.json")
    assert recorded["data"] == "mine" and recorded["method_file"] == method.digest(f"{text}\nEDITED = 1\n")
    method.use("helpers.reservoir.model", "helpers/reservoir/model.py")


def test_weights_of_another_text_of_the_method_are_not_gone_on_with(tmp_path, monkeypatch):
    text = "mine = 1\n"
    monkeypatch.setattr(helpers, "shown", {"helpers/reservoir/model.py": method.digest(text)}, raising=False)
    run = claim(tmp_path)
    run.note(method_file="of a notebook of another version")
    add_checkpoints(tmp_path, 5)
    run.method.write_text(text)
    with pytest.raises(ValueError, match=r"another run .method_file='of a notebook of another version' there"):
        run.use_method()


# ---- results


def test_results_can_be_traced_to_parameters_code_and_libraries(tmp_path):
    run = claim(tmp_path, notebook="tiny")
    results = read_json(run.results(runtime.detect(False), data={"source": "mine"}))
    assert (results["schema"], results["notebook"], results["seed"]) == (3, "tiny", 7)
    assert results["parameters"] == run.params.model_dump() and results["run"]["seed"] == 7
    assert results["code"]["helpers_version"] == helpers.__version__
    assert results["versions"]["torch"] == metadata.version("torch") and results["runtime"]["kind"] == "cpu"


def test_what_is_no_number_becomes_null_and_arrays_become_lists(tmp_path):
    bad = [math.nan, -math.inf, np.float64("nan"), np.array(math.nan), torch.tensor(math.nan)]
    plain = [np.float32(0.5), np.int64(3), np.bool_(True), (1, 2), None, torch.tensor(0.5), {1: 0.5}]
    results = read_json(claim(tmp_path).results(runtime.detect(False), bad=bad, plain=plain))
    assert results["bad"] == [None] * 5 and results["plain"] == [0.5, 3, True, [1, 2], None, 0.5, {"1": 0.5}]


KILLED = """
import json, sys
from pathlib import Path
from helpers.machine import runtime
from helpers.parameters import Parameters
from helpers.run.run_folder import RunFolder
from tests.killing import killed
path, machine = Path(sys.argv[1]), runtime.detect(False)

def work(count=2_000):
    run = RunFolder.claim("notebook", Parameters(output_dir=str(path), seed=1))
    run.results(machine, numbers=list(range(count)))

kills, lengths = 0, set()
while True:
    if not killed(work, kills + 1, within=str(path)):  # what reads the installed packages writes nothing
        break
    kills += 1
    if (path / "results.json").exists():
        lengths.add(len(json.loads((path / "results.json").read_text())["numbers"]))
print(json.dumps([kills, sorted(lengths)]))
"""


def test_a_kill_at_any_file_operation_leaves_whole_results(tmp_path):
    kills, lengths = json.loads(printed("-c", KILLED, tmp_path).splitlines()[-1])
    assert kills >= 5 and lengths == [2_000]
