"""Signals and several runs at once: the command line in its own process, real kernels, real checkpoints."""

import json
import os
import signal

import pytest

from helpers.batch import command as batch
from helpers.batch import local_runs
from helpers.batch.execution import execute
from helpers.batch.kernels import Kernels
from helpers.batch.local_runs import LocalRuns
from tests import batch_training
from tests.batch_training import alive, command, losses, said, table, wait_for

pytestmark = pytest.mark.once


@pytest.fixture
def notebook(tmp_path):
    return batch_training.write(tmp_path / "tiny.ipynb")


def kernel(folder, run):
    return json.loads((folder / run / "output" / "kernel.json").read_text())


@pytest.mark.slow
def test_sigterm_saves_every_live_run_and_the_same_command_ends_as_if_nothing_had_been(notebook, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert command(notebook, whole, "seed=0,1", "--jobs", "2").wait(180) == 0, said(whole)

    batch_training.pause(notebook, 5)
    stopped = command(notebook, cut, "seed=0,1", "--jobs", "2")
    for run in ("seed=0", "seed=1"):
        wait_for((cut / run / "output" / "checkpoint-4").is_dir, stopped, cut)
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait(60) == 128 + signal.SIGTERM, said(cut)
    assert [row["status"] for row in table(cut)] == ["stopped", "stopped"]
    assert all(row["error"].startswith("Stopped: SIGTERM at step") for row in table(cut))
    assert "stopped by SIGTERM: the same command again" in said(cut).splitlines()[-1]
    assert not any(alive(kernel(cut, run)["process"]) for run in ("seed=0", "seed=1"))

    batch_training.pause(notebook, 0)
    again = command(notebook, cut, "seed=0,1", "--jobs", "2")
    assert again.wait(180) == 0, said(cut)
    assert [row["status"] for row in table(cut)] == ["done", "done"]
    assert all(int(row["train.resumed_from_step"]) > 4 for row in table(cut))
    assert losses(cut) == losses(whole)


@pytest.mark.parametrize(("ending", "number"), [("sleep", signal.SIGTERM), ("deaf", signal.SIGINT)])
def test_kernel_that_does_not_train_or_does_not_listen_is_stopped_within_the_grace(notebook, tmp_path, ending, number):
    folder = tmp_path / "grid"
    process = command(notebook, folder, f"ending={ending}", "seed=0,1", "--grace", "2")
    wait_for((folder / "seed=0" / "output" / "waits").exists, process, folder)
    process.send_signal(number)
    assert process.wait(30) == 128 + number, said(folder)
    assert [row["status"] for row in table(folder)] == ["stopped", "not run"]
    launched = int((folder / "seed=0" / "output" / "waits").read_text())
    assert not any(map(alive, (kernel(folder, "seed=0")["process"], launched)))


def test_kernel_that_starts_after_the_others_were_stopped_is_stopped_too(notebook, tmp_path):
    (run,) = batch.plan(notebook, tmp_path / "grid", {}, {"ending": "sleep"})
    kernels = Kernels()
    kernels.stop()
    outcome, _ = execute(run, "python3", kernels)
    assert outcome["status"] == "stopped" and outcome["seconds"] < 60


def test_second_interrupt_does_not_wait_for_the_grace(notebook, tmp_path):
    folder = tmp_path / "grid"
    process = command(notebook, folder, "ending=deaf", "--grace", "200")
    wait_for((folder / "run" / "output" / "waits").exists, process, folder)
    process.send_signal(signal.SIGINT)
    wait_for(lambda: "waiting up to 200 s" in said(folder), process, folder)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 128 + signal.SIGINT, said(folder)


def test_python_callers_get_their_table_and_their_handlers_back(notebook, tmp_path, monkeypatch):
    monkeypatch.setattr(
        LocalRuns, "going", lambda self, going=LocalRuns.going: os.kill(os.getpid(), signal.SIGTERM) or going(self)
    )
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(batch.Stopped) as stopped:
        batch.run(notebook, tmp_path / "grid", {"seed": [0, 1]}, {"ending": "sleep"})
    assert stopped.value.code == 143
    assert {row["status"] for row in stopped.value.rows} <= {"stopped", "not run"}
    assert signal.getsignal(signal.SIGTERM) is before


def test_two_jobs_run_at_once_with_their_lines_marked_and_the_table_in_grid_order(notebook, tmp_path):
    folder = tmp_path / "grid"
    process = command(notebook, folder, "ending=exit,raise", "--jobs", "2", OMP_NUM_THREADS="")
    assert process.wait(300) == 1, said(folder)
    assert [(row["run"], row["status"]) for row in table(folder)] == [
        ("ending=exit", "failed"),
        ("ending=raise", "failed"),
    ]
    lines = said(folder).splitlines()
    assert {"ending=raise: first line", "ending=raise: second line"} <= set(lines)
    assert "stopped by" not in lines[-1]
    cores = max(1, os.cpu_count() // 2)
    assert kernel(folder, "ending=raise")["threads"] == str(cores)
    assert kernel(folder, "ending=raise")["directory"] == str(tmp_path)


def test_each_of_two_jobs_gets_a_gpu_of_its_own_and_more_are_refused(notebook, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7")
    grid = {"seed": [0, 1]}
    rows = batch.run(notebook, tmp_path / "grid", grid, {"ending": "raise"}, place=LocalRuns(jobs=2))
    assert [row["status"] for row in rows] == ["failed", "failed"]
    assert {kernel(tmp_path / "grid", f"seed={seed}")["gpus"] for seed in (0, 1)} == {"3", "5"}
    with pytest.raises(ValueError, match=r"jobs=3, but there are 2 GPU\(s\).*at most 2.*CUDA_VISIBLE_DEVICES="):
        LocalRuns(jobs=3)


def test_one_job_changes_nothing_for_its_kernel():
    assert local_runs._shares(1) == [{}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--jobs", "0"), "jobs=0: give 1 or more"),
        (("--gpus", "1"), "gpus=1: these need --ray"),
        (("--jobs", "2", "--ray", "auto"), "not allowed with argument --jobs"),
    ],
)
def test_wrong_options_are_refused_before_any_kernel_starts(notebook, tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        batch.main([str(notebook), "--output-dir", str(tmp_path / "grid"), *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "grid").exists()
