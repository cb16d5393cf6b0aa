"""Batches on real papermill kernels: what a run gives, what is skipped and resumed, and the failures that papermill hides."""

import csv
import json
import signal
import sys
from pathlib import Path

import pytest

from helpers.batch import command, execution
from tests.harness import write

from . import notebook as small
from .notebook import ended, held, said, table

pytestmark = pytest.mark.once


def main(notebook, folder, *arguments):
    return command.main([str(notebook), "--output-dir", str(folder), *arguments])


def test_a_grid_runs_typed_writes_one_table_and_is_skipped_the_second_time(notebook, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stories.txt").write_text("once")
    folder = tmp_path / "grid {braces}"
    given = ("data_source=stories.txt", "learning_rate=2e-5", "resume=false", 'prompt="=a, b"')
    assert main(notebook, folder, "seed=0,1", *given) == 0

    wrote = json.loads((folder / "seed=1/output/results.json").read_text())
    source = str(tmp_path / "stories.txt")
    passed = {"data_source": source, "learning_rate": 2e-5, "seed": 1, "resume": False, "prompt": "=a, b"}
    assert wrote["passed"] == passed and wrote["interpreter"] == sys.executable
    rows = table(folder)
    assert [(row["run"], row["seed"], row["status"]) for row in rows] == [(f"seed={n}", n, "done") for n in "01"]
    assert [row["train.examples_per_second"] for row in rows] == ["10.0", "20.0"]
    assert [row["eval.after.perplexity"] for row in rows] == ["", "3.25"], "only seed 1 has it: the union of columns"
    assert rows[1]["output_dir"] == str(folder / "seed=1/output")
    assert rows[1]["prompt"] == rows[1]["passed.prompt"] == "'=a, b", "a spreadsheet would compute it"

    stamps = {path: path.stat().st_mtime_ns for path in folder.glob("*/*") if path.name != "owner.lock"}
    assert main(notebook, folder, "seed=1", *given, "max_hours=2") == 0  # a narrower grid, another time limit
    assert [(row["run"], row["status"], row["train.loss_last"]) for row in table(folder)] == [
        ("seed=1", "done before", "0.5"),
        ("seed=0", "done", "0.5"),
    ]
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*/*")} == stamps


def test_an_edited_notebook_or_other_data_is_another_run_in_a_folder_of_its_own(notebook, tmp_path, capsys, caplog):
    caplog.set_level("INFO", "helpers.batch")
    folder, data = tmp_path / "grid", write(tmp_path / "texts", {"one.txt": "once"})
    small.edit(notebook, 'data_source: str = "sample"', f"data_source: str = {str(data)!r}")  # as in the form
    assert main(notebook, folder, "seed=0") == 0
    first = (folder / "run/output/results.json").read_bytes()

    (data / "one.txt").write_text("twice")
    assert main(notebook, folder, "seed=0", "--jobs", "2") == 0
    assert "run: content of data_source changed since the earlier run" in caplog.text
    small.edit(notebook, "else 0.5", "else 0.1")
    assert main(notebook, folder, "seed=0", "--jobs", "2") == 0
    assert "run: notebook and content of data_source changed since the earlier run" in caplog.text
    rows = table(folder)
    assert [row["train.loss_last"] for row in rows] == ["0.1", "0.5", "0.5"]
    assert (folder / "run/output/results.json").read_bytes() == first

    (data / "one.txt").write_text("once")
    small.edit(notebook, "else 0.1", "else 0.5")
    assert main(notebook, folder, "seed=0") == 0
    assert table(folder)[0]["run"] == "run" and table(folder)[0]["status"] == "done before"


def test_a_run_goes_on_in_its_folder_with_more_steps_and_an_edited_method_is_read_where_it_wrote(notebook, tmp_path):
    folder = tmp_path / "grid"
    assert main(notebook, folder, "seed=0,1", "max_steps=1") == 0
    small.edit(
        notebook, "pathlib.Path(output_dir)", "pathlib.Path(output_dir + '-edited-0badcafe')"
    )  # as RunFolder does
    assert main(notebook, folder, "seed=0", "max_steps=1") == 0
    assert main(notebook, folder, "seed=0", "max_steps=2") == 0
    rows = [(row["run"], row["max_steps"], row["status"], Path(row["output_dir"]).name) for row in table(folder)]
    assert rows == [
        ("run", "2", "done", "output-edited-0badcafe"),
        ("seed=0", "1", "done", "output"),
        ("seed=1", "1", "done", "output"),
    ]


def test_a_run_in_the_hands_of_another_command_is_left_alone(notebook, tmp_path):
    folder = tmp_path / "grid"
    first = small.command(notebook, folder, "ending=good,sleep")
    held(folder, "ending=sleep", first)
    assert main(notebook, folder, "ending=good,sleep") == 0
    assert [(row["run"], row["status"]) for row in table(folder)] == [
        ("ending=good", "done before"),
        ("ending=sleep", "in use"),
    ]
    assert len([*folder.glob("*/*.ipynb")]) == 2
    first.send_signal(signal.SIGTERM)
    assert ended(first, folder) == 128 + signal.SIGTERM
    assert [row["status"] for row in table(folder)] == ["done", "stopped"]


def test_where_the_table_cannot_be_written_the_runs_go_on_and_it_is_written_beside(notebook, tmp_path):
    folder = tmp_path / "grid"
    (folder / "results.csv").mkdir(parents=True)
    process = small.command(notebook, folder, "seed=0,1", "keep_in=second", "--jobs", "2")
    assert ended(process, folder) == 0
    (beside,) = folder.glob("results-*.csv")
    assert "the table cannot be written to" in said(folder) and f"table: {beside}" in said(folder)
    with beside.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["status"] for row in rows] == ["done", "done"]
    names = [Path(row["output_dir"]).name for row in rows]
    assert names == ["grid,seed=0", "grid,seed=1"], "in the second place they lie beside each other"


def test_failures_that_papermill_hides_are_recorded_and_the_same_command_goes_on_with_what_is_not_done(
    notebook, tmp_path
):
    folder, given = tmp_path / "grid", "ending=raise,once,exit,kill,nan,silent,good"
    theirs = folder / "ending=good/run.json"  # of a notebook that a person ran there
    write(folder, {"ending=good/run.json": '{"notebook": "mine", "parameters": {}}'})
    assert main(notebook, folder, given) == 1
    assert theirs.read_text() == '{"notebook": "mine", "parameters": {}}' and len([*theirs.parent.iterdir()]) == 1
    rows = {row["ending"]: row for row in table(folder)}
    assert {ending: row["status"] for ending, row in rows.items() if row["status"] != "failed"} == {"good": "done"}
    assert rows["raise"]["error"] == "RuntimeError: out of luck (In [3])"  # after the parameters and what was passed
    # RESULTS never ran; the empty cell after it is not one that should have.
    assert rows["exit"]["error"] == "the notebook stopped early (sys.exit?), 1 code cells never ran"
    assert rows["kill"]["error"].startswith("DeadKernelError")
    assert "train.loss_last" in rows["nan"]["error"]
    assert "cannot be read" in rows["silent"]["error"]

    assert main(notebook, folder, "ending=once,good") == 0
    assert '"evalue": "out of luck"' in (folder / "ending=once/tiny.ipynb").read_text()
    assert '"evalue"' not in (folder / "ending=once/tiny.2.ipynb").read_text()
    assert [row["status"] for row in table(folder)] == ["done", "done before", *["failed"] * 5]


def test_two_jobs_have_a_gpu_each_and_their_lines_are_marked(notebook, tmp_path, monkeypatch):
    folder = tmp_path / "grid"
    process = small.command(notebook, folder, "seed=1,0", "--jobs", "2")
    assert ended(process, folder) == 0
    assert [row["run"] for row in table(folder)] == ["seed=1", "seed=0"]
    assert {"seed=0: what it prints", "seed=1: what it prints"} <= {*said(folder).splitlines()}
    assert small.told(folder, "seed=0")["directory"] == str(tmp_path)

    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7")
    assert [share["CUDA_VISIBLE_DEVICES"] for share in execution.shares(2)] == ["3", "5"]
    assert execution.shares(1) == [{}]  # the run sees the whole machine
    with pytest.raises(ValueError, match=r"jobs=3, but there are 2 GPU\(s\).*at most 2.*CUDA_VISIBLE_DEVICES="):
        execution.LocalRuns(jobs=3)
