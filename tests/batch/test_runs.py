"""Batches on real papermill kernels: what a run gives, what is skipped and resumed, and the failures that papermill hides."""

import json
import os
import sys

import pytest

from helpers.batch import command, execution

from . import notebook as small
from .notebook import ended, said, table

pytestmark = pytest.mark.once


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
    assert [(row["run"], row["seed"], row["status"]) for row in rows] == [(f"seed={n}", n, "done") for n in "01"]
    assert [row["train.examples_per_second"] for row in rows] == ["10.0", "20.0"]
    assert [row["eval.after.perplexity"] for row in rows] == ["", "3.25"], "only seed 1 has it: the union of columns"
    assert rows[1]["output_dir"] == str(folder / "seed=1" / "output")

    stamps = [path.stat().st_mtime_ns for path in sorted(folder.glob("*/tiny.ipynb"))]
    assert main(notebook, folder, *given) == 0
    assert [(row["status"], row["train.loss_last"]) for row in table(folder)] == [("done before", "0.5")] * 2
    assert [path.stat().st_mtime_ns for path in sorted(folder.glob("*/tiny.ipynb"))] == stamps


def test_failures_that_papermill_hides_are_recorded_and_the_same_command_goes_on_with_what_is_not_done(
    notebook, tmp_path
):
    folder, given = tmp_path / "grid", "ending=raise,once,exit,kill,nan,silent,good"
    assert main(notebook, folder, given) == 1
    rows = {row["ending"]: row for row in table(folder)}
    assert {ending: row["status"] for ending, row in rows.items() if row["status"] != "failed"} == {"good": "done"}
    assert rows["raise"]["error"] == "RuntimeError: out of luck (In [3])"  # after the parameters and what was passed
    # RESULTS never ran; the empty cell after it is not one that should have.
    assert rows["exit"]["error"] == "the notebook stopped early (sys.exit?), 1 code cells never ran"
    assert rows["kill"]["error"].startswith("DeadKernelError")
    assert "train.loss_last" in rows["nan"]["error"]
    assert "cannot be read" in rows["silent"]["error"]

    cut = folder / "ending=good" / "tiny.ipynb"  # as by a batch that was killed
    cut.write_text(cut.read_text()[:500])
    assert main(notebook, folder, "ending=once,good") == 0
    assert "out of luck" in (folder / "ending=once" / "tiny.attempt1.ipynb").read_text()
    assert len(cut.with_suffix(".attempt1.ipynb").read_text()) == 500


def test_two_jobs_share_the_cores_and_the_gpus_and_their_lines_are_marked(notebook, tmp_path, monkeypatch):
    folder = tmp_path / "grid"
    process = small.command(notebook, folder, "seed=1,0", "--jobs", "2", OMP_NUM_THREADS="")
    assert ended(process, folder) == 0
    assert [row["run"] for row in table(folder)] == ["seed=1", "seed=0"]
    assert {"seed=0: what it prints", "seed=1: what it prints"} <= {*said(folder).splitlines()}
    kernel = small.told(folder, "seed=0")
    assert kernel["threads"] == str(max(1, os.cpu_count() // 2)) and kernel["directory"] == str(tmp_path)

    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7")
    assert [share["CUDA_VISIBLE_DEVICES"] for share in execution.shares(2)] == ["3", "5"]
    assert execution.shares(1) == [{}]  # the run sees the whole machine
    with pytest.raises(ValueError, match=r"jobs=3, but there are 2 GPU\(s\).*at most 2.*CUDA_VISIBLE_DEVICES="):
        execution.LocalRuns(jobs=3)
