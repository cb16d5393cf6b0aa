"""helpers.run.run_folder: who owns an output folder, and results that are whole whatever happens."""

import hashlib
import json
import math
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch

import helpers
from helpers.machine import runtime
from helpers.notebook import method
from helpers.parameters import Parameters, parameter
from helpers.run import checkpoint, provenance, run_folder
from helpers.run.run_folder import RunFolder
from tests.harness import ROOT, finished, printed, read_json
from tests.test_checkpoint import write as add_checkpoint

pytestmark = pytest.mark.once


class More(Parameters):
    """Parameters with one that others lack."""

    lora_rank: int = parameter(8, "Of a room.")


def owned(
    path: Path | str, notebook: str = "legal_cot_sft", cls: type[Parameters] = Parameters, **changes
) -> RunFolder:
    return RunFolder.claim(notebook, cls(**{"seed": 7, "learning_rate": 1e-3, "output_dir": str(path)} | changes))


def claim(path: Path | str, *arguments, **changes) -> Path:
    return owned(path, *arguments, **changes).path


def tree(path: Path) -> dict[str, str]:
    """What a folder holds: hash of each file, by relative path."""
    files = (file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


# -- claiming --


def test_what_frontends_and_file_systems_leave_does_not_count_as_content(tmp_path):
    left = {".ipynb_checkpoints", ".DS_Store", ".gitkeep", ".nfs0001", "lost+found", "Thumbs.db"}
    for name in left:
        (tmp_path / name).mkdir()
    assert claim(tmp_path, resume=False) == tmp_path
    assert left < {path.name for path in tmp_path.iterdir()}


def test_where_no_home_is_known_the_parameter_is_named(without_home):
    with pytest.raises(ValueError, match=r"output_dir='~/run' is no path \(.*home directory.*\); write the path out"):
        claim("~/run")


def test_a_link_to_a_disk_that_is_not_there_is_refused(tmp_path):
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    with pytest.raises(ValueError, match=r"output_dir=.*is a link to .*disk', which is not there: mount its disk"):
        claim(tmp_path / "run")


def test_the_same_parameters_come_back_to_their_run(tmp_path):
    claim(tmp_path)
    add_checkpoint(tmp_path)
    before = tree(tmp_path)
    assert claim(tmp_path) == tmp_path
    assert tree(tmp_path) == before


def refused(path: Path, **arguments) -> str:
    """The message of a refused claim, after checking that it names the folder and that the folder is as before."""
    before = tree(path)
    with pytest.raises(ValueError) as raised:
        claim(path, **arguments)
    assert f"output_dir={str(path)!r}" in str(raised.value)
    assert tree(path) == before
    return str(raised.value)


def test_a_run_that_trained_is_kept_from_other_parameters_and_notebooks_with_both_values(tmp_path):
    claim(tmp_path)
    add_checkpoint(tmp_path)
    assert "seed=7 there, 8 here" in refused(tmp_path, seed=8)
    assert "notebook 'legal_cot_sft' there, 'lejepa_training' here" in refused(tmp_path, notebook="lejepa_training")


@pytest.mark.parametrize("left", ["nothing", "a figure", "the checkpoint of step 0"])
def test_a_run_that_trained_nothing_does_not_keep_its_folder(tmp_path, left):
    owned(tmp_path).same_data("a set whose name was mistyped")
    if left == "a figure":
        (tmp_path / "figures").mkdir()
    if left == "the checkpoint of step 0":
        run_folder.begin_session(tmp_path, runtime.detect(False), "fp32", 0, 32)
        add_checkpoint(tmp_path, step=0)
    owned(tmp_path, seed=8, batch_size=16).same_data("the right set")
    run = read_json(tmp_path / "run.json")
    assert (run["parameters"]["seed"], run["parameters"]["batch_size"], run["data"]) == (8, 16, "the right set")
    assert checkpoint.listed(tmp_path) == [] and run_folder.sessions(tmp_path) == []


def test_a_parameter_that_is_new_since_the_run_began_had_its_default_there(tmp_path):
    claim(tmp_path)
    add_checkpoint(tmp_path)
    assert claim(tmp_path, cls=More) == tmp_path
    claim(tmp_path, cls=More)
    assert "lora_rank=8 there, 16 here" in refused(tmp_path, cls=More, lora_rank=16)


def test_weights_of_another_text_of_the_method_are_never_gone_on_with(tmp_path, monkeypatch):
    text = "mine = 1\n"
    monkeypatch.setattr(helpers, "shown", {"helpers/reservoir/model.py": method.digest(text)}, raising=False)
    run = owned(tmp_path)
    add_checkpoint(tmp_path)
    known = read_json(tmp_path / "run.json")
    known["method"] = {"helpers.reservoir.model": "0" * 64}  # as a notebook of another version would have left it
    (tmp_path / "run.json").write_text(json.dumps(known))
    run.method.write_text(text)
    with pytest.raises(ValueError, match=r"belongs to another run .another text of the method's file"):
        run.use_method()


def test_a_checkpoint_or_results_without_resume_are_refused_and_nothing_of_both_is_not(tmp_path):
    for name in ("trained", "finished"):
        claim(tmp_path / name)
        claim(tmp_path / name, resume=False)
    add_checkpoint(tmp_path / "trained")
    owned(tmp_path / "finished").results(runtime.detect(False))
    for name in ("trained", "finished"):
        assert "resume=False" in refused(tmp_path / name, resume=False)


def test_files_that_are_no_run_are_refused_and_some_are_named(tmp_path):
    for name in "abcdef":
        (tmp_path / f"{name}.txt").write_text(name)
    message = refused(tmp_path)
    assert "a.txt, b.txt, c.txt, d.txt, ..." in message


@pytest.mark.parametrize("content", ["", "{", None])
def test_a_lost_run_file_is_taken_from_a_checkpoint_and_without_one_the_folder_is_refused(tmp_path, content):
    claim(tmp_path)
    run_folder.begin_session(tmp_path, runtime.detect(False), "fp32", 0, 32)
    with checkpoint.staged(tmp_path, 5) as staging:
        (staging / "checkpoint-5").mkdir()
        run_folder.copy_identity(tmp_path, staging / "checkpoint-5")
    for name in ("run.json", "sessions.json"):
        (tmp_path / name).unlink()
        if content is not None:
            (tmp_path / name).write_text(content)
    assert "seed=7 there, 8 here" in refused(tmp_path, seed=8)
    assert claim(tmp_path) == tmp_path
    assert run_folder.sessions(tmp_path)[0]["batch_size"] == 32
    for lost in (tmp_path / "run.json", tmp_path / "checkpoint-5/run.json"):
        lost.unlink()
    refused(tmp_path)


@pytest.mark.parametrize("path", ["/proc/nowhere/run", "/proc/self"])  # even root cannot write there
def test_a_folder_that_cannot_be_made_or_written_is_named(path):
    with pytest.raises(PermissionError, match=f"output_dir='{path}'"):
        claim(Path(path))


# -- results --


def written(folder: Path, **parts) -> Path:
    return owned(folder, notebook="tiny").results(runtime.detect(False), **parts)


def results_of(tmp_path: Path, results: dict) -> dict:
    return json.loads(written(tmp_path, **results).read_text())


def test_results_can_be_traced_to_parameters_code_libraries_and_sessions(tmp_path):
    owned(tmp_path, notebook="tiny")
    run_folder.begin_session(tmp_path, runtime.detect(False), "fp32", 0)
    found = results_of(tmp_path, {"data": {"source": "mine"}})
    assert (found["schema"], found["notebook"], found["seed"], found["data"]) == (2, "tiny", 7, {"source": "mine"})
    assert found["parameters"] == Parameters(output_dir=str(tmp_path), seed=7, learning_rate=1e-3).model_dump()
    assert len(found["code"]["payload_sha256"]) == 64
    assert found["versions"]["transformers"] == metadata.version("transformers")
    assert found["sessions"][0]["torch"] == found["versions"]["torch"] == metadata.version("torch")
    assert found["runtime"]["kind"] == "cpu"


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no checkout")
def test_a_checkout_says_its_commit_and_whether_files_differ_from_it():
    def git(*arguments: str) -> str:
        return finished("git", *arguments, check=True).stdout.strip()

    differs = "+" if git("status", "--porcelain", "helpers") else ""
    assert provenance.code()["commit"] == git("rev-parse", "HEAD") + differs


# -- sessions --


def test_a_session_under_other_conditions_is_said_in_one_line(tmp_path):
    cpu = runtime.detect(False)
    assert run_folder.begin_session(tmp_path, cpu, "fp32", 0) == ""
    assert run_folder.begin_session(tmp_path, cpu, "fp32", 4) == ""
    said = run_folder.begin_session(tmp_path, replace(cpu, kind="cuda", device_name="Tesla T4"), "fp16", 6)
    assert said.startswith("ATTENTION") and "precision fp32, now fp16" in said and "kind cpu, now cuda" in said
    assert [each["first_step"] for each in run_folder.sessions(tmp_path)] == [0, 4, 6]


def test_a_run_that_starts_anew_forgets_the_sessions_of_the_one_before(tmp_path):
    cpu = runtime.detect(False)
    for first in (0, 5, 5):
        run_folder.begin_session(tmp_path, cpu, "fp32", first)
    assert [each["first_step"] for each in run_folder.sessions(tmp_path)] == [0, 5, 5]
    run_folder.begin_session(tmp_path, cpu, "fp32", 0)
    assert [each["first_step"] for each in run_folder.sessions(tmp_path)] == [0]


def test_what_is_no_number_becomes_null_and_arrays_tensors_and_keys_plain_json(tmp_path):
    bad = [math.nan, -math.inf, np.float64("nan"), np.float16("inf"), np.array(math.nan), torch.tensor(math.nan)]
    assert results_of(tmp_path, {"eval": {"loss": bad}})["eval"] == {"loss": [None] * len(bad)}
    plain = [np.float32(0.5), np.int64(3), np.bool_(True), (1, 2), None, torch.tensor(0.5), {1: 0.5}]
    assert results_of(tmp_path, {"found": plain})["found"] == [0.5, 3, True, [1, 2], None, 0.5, {"1": 0.5}]


KILLED = """
import json, sys
from pathlib import Path
from helpers.machine import runtime
from helpers.parameters import Parameters
from helpers.run.run_folder import RunFolder
from tests.killing import killed
base, case = Path(sys.argv[1]), sys.argv[2]
machine = runtime.detect(False)

def work(path, count=2_000):
    params = Parameters(output_dir=str(path), seed=1)
    run = RunFolder.claim("notebook", params)
    if case == "results":
        run.results(machine, numbers=list(range(count)))

kills, bad = 0, []
while True:
    path = base / str(kills)
    if case == "results":
        path.mkdir(parents=True)
        work(path, 1)
    if not killed(lambda: work(path), kills + 1, within=str(base)):  # what reads the installed packages writes nothing
        break
    kills += 1
    try:
        if case == "results" and len(json.loads((path / "results.json").read_text())["numbers"]) not in (1, 2_000):
            bad.append(f"kill {kills}: another file")
        work(path)
    except ValueError as error:
        bad.append(f"kill {kills}: {error}")
print(json.dumps(dict(kills=kills, bad=bad)))
"""


@pytest.mark.parametrize("case", ["claim", "results"])
def test_a_kill_at_any_file_operation_leaves_the_old_file_or_the_new_and_can_be_repeated(tmp_path, case):
    seen = json.loads(printed("-c", KILLED, tmp_path, case).splitlines()[-1])
    assert seen["kills"] >= 5 and seen["bad"] == []


# -- the data of a run --


def test_checkpoints_of_other_data_are_not_gone_on_with(tmp_path):
    claim(tmp_path)
    owned(tmp_path).same_data("mine.csv, sha256 1")
    add_checkpoint(tmp_path)
    before = tree(tmp_path)
    with pytest.raises(
        ValueError, match=r"data_source: the data has changed.*sha256 1 there.*sha256 2 here.*new folder"
    ):
        owned(tmp_path).same_data("mine.csv, sha256 2")
    assert tree(tmp_path) == before
