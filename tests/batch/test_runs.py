"""Batches on real papermill kernels: what a run gives, what is skipped and resumed, and the failures that papermill hides."""

import json
import os
import sys

import pytest

from helpers.batch import command, execution
from helpers.batch.grid import plan

from . import notebook as small
from .notebook import ended, said, table

pytestmark = pytest.mark.once


@pytest.fixture
def notebook(tmp_path):
    return small.write(tmp_path / "tiny.ipynb")


def main(notebook, folder, *arguments):
    return command.main([str(notebook), "--output-dir", str(folder), *arguments])


def test_a_grid_runs_typed_writes_one_table_and_is_skipped_the_second_time(notebook, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stories.txt").write_text("once")
    folder = tmp_path / "grid {braces}"
    given = ("data_source=stories.txt", "seed=0,1", "learning_rate=1e-3", "resume=false", 'prompt="a, b"')
    assert main(notebook, folder, *given) == 0

    wrote = json.loads((folder / "seed=1" / "output" / "results.json").read_text())
    source = str(tmp_path / "stories.txt")
    passed = {"data_source": source, "learning_rate": 0.001, "seed": 1, "resume": False, "prompt": "a, b"}
    assert wrote["passed"] == passed and wrote["interpreter"] == sys.executable
    rows = table(folder)
    assert [(row["run"], row["seed"], row["status"]) for row in rows] == [
        ("seed=0", "0", "done"),
        ("seed=1", "1", "done"),
    ]
    assert [row["train.examples_per_second"] for row in rows] == ["10.0", "20.0"]
    assert [row["eval.after.perplexity"] for row in rows] == ["", "3.25"], "only seed 1 has it: the union of columns"
    assert rows[1]["output_dir"] == str(folder / "seed=1" / "output")

    stamps = [path.stat().st_mtime_ns for path in sorted(folder.glob("*/tiny.ipynb"))]
    assert main(notebook, folder, *given) == 0
    assert [(row["status"], row["train.loss_last"]) for row in table(folder)] == [("done before", "0.5")] * 2
    assert [path.stat().st_mtime_ns for path in sorted(folder.glob("*/tiny.ipynb"))] == stamps


def test_every_failure_that_papermill_hides_is_recorded_and_the_grid_goes_on(notebook, tmp_path):
    assert main(notebook, tmp_path / "grid", "ending=raise,exit,kill,nan,silent,good") == 1
    rows = {row["ending"]: row for row in table(tmp_path / "grid")}
    assert {ending: row["status"] for ending, row in rows.items() if row["status"] != "failed"} == {"good": "done"}
    assert rows["raise"]["error"] == "RuntimeError: out of luck (In [3])"  # after the parameters and what was passed
    # RESULTS never ran; the empty cell after it is not one that should have.
    assert rows["exit"]["error"] == "the notebook stopped early (sys.exit?), 1 code cells never ran"
    assert rows["kill"]["error"].startswith("DeadKernelError")
    assert "train.loss_last" in rows["nan"]["error"]
    assert "there is no" in rows["silent"]["error"]


def test_a_failed_run_is_resumed_in_its_folder_and_its_traceback_kept(notebook, tmp_path):
    runs = plan(notebook, tmp_path / "grid", {}, {"ending": "once"})
    statuses = [command.run(runs)[0]["status"] for _ in range(2)]
    assert statuses == ["failed", "done"]
    assert "out of luck" in (tmp_path / "grid" / "run" / "tiny.attempt1.ipynb").read_text()


def test_one_executed_notebook_that_is_cut_short_does_not_hold_up_the_batch(notebook, tmp_path):
    assert main(notebook, tmp_path / "grid", "seed=0,1") == 0
    executed = tmp_path / "grid" / "seed=0" / "tiny.ipynb"
    executed.write_text(executed.read_text()[:500])
    assert main(notebook, tmp_path / "grid", "seed=0,1") == 0
    assert [row["status"] for row in table(tmp_path / "grid")] == ["done", "done before"]
    assert len(executed.with_suffix(".attempt1.ipynb").read_text()) == 500


def test_two_jobs_share_the_cores_and_the_gpus_and_their_lines_are_marked(notebook, tmp_path, monkeypatch):
    folder = tmp_path / "grid"
    process = small.command(notebook, folder, "seed=1,0", "--jobs", "2", OMP_NUM_THREADS="")
    assert ended(process, folder) == 0
    assert [row["run"] for row in table(folder)] == ["seed=1", "seed=0"]
    assert {"seed=0: what it prints", "seed=1: what it prints"} <= {*said(folder).splitlines()}
    kernel = json.loads((folder / "seed=0" / "output" / "kernel.json").read_text())
    assert kernel["threads"] == str(max(1, os.cpu_count() // 2)) and kernel["directory"] == str(tmp_path)

    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7")
    assert [share["CUDA_VISIBLE_DEVICES"] for share in execution.shares(2)] == ["3", "5"]
    assert execution.shares(1) == [{}]  # the run sees the whole machine
    with pytest.raises(ValueError, match=r"jobs=3, but there are 2 GPU\(s\).*at most 2.*CUDA_VISIBLE_DEVICES="):
        execution.LocalRuns(jobs=3)
