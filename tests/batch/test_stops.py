"""Signals to a batch: the command line in its own process, real kernels, real checkpoints."""

import signal

import pytest

from helpers.batch.execution import execute
from helpers.batch.grid import plan

from . import notebook as small
from .notebook import ended, held, is_gone, losses, process_of, said, table, wait_for

pytestmark = pytest.mark.once


@pytest.mark.slow
def test_sigterm_saves_every_live_run_and_the_same_command_ends_as_if_nothing_had_been(notebook, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert ended(small.command(notebook, whole, "ending=train", "seed=0,1", "--jobs", "2"), whole) == 0

    small.hold(notebook, True)
    stopped = small.command(notebook, cut, "ending=train", "seed=0,1", "--jobs", "2")
    for run in ("seed=0", "seed=1"):
        held(cut, run, stopped)
    stopped.send_signal(signal.SIGTERM)
    assert ended(stopped, cut) == 128 + signal.SIGTERM
    assert [row["status"] for row in table(cut)] == ["stopped", "stopped"]
    assert all(row["error"].startswith("Stopped: SIGTERM at step 6") for row in table(cut))
    assert "stopped by SIGTERM: the same command again" in said(cut).splitlines()[-1]
    assert all(is_gone(process_of(cut, run)) for run in ("seed=0", "seed=1"))

    small.hold(notebook, False)
    assert ended(small.command(notebook, cut, "ending=train", "seed=0,1", "--jobs", "2"), cut) == 0
    assert [(row["status"], row["train.resumed_from_step"]) for row in table(cut)] == [("done", "6")] * 2
    assert losses(cut) == losses(whole)


def test_kernels_that_do_not_train_or_ignore_the_first_signal_are_stopped_with_what_they_started(notebook, tmp_path):
    folder = tmp_path / "grid"
    process = small.command(notebook, folder, "ending=sleep,deaf,good", "--jobs", "2")
    for run in ("ending=sleep", "ending=deaf"):
        held(folder, run, process)
    process.send_signal(signal.SIGTERM)
    wait_for(lambda: "ending=sleep: stopped" in said(folder), process, folder)
    process.send_signal(signal.SIGTERM)
    assert ended(process, folder) == 128 + signal.SIGTERM
    assert [row["status"] for row in table(folder)] == ["stopped", "stopped", "not run"]
    for run in ("ending=sleep", "ending=deaf"):
        assert is_gone(process_of(folder, run)) and is_gone(int((folder / run / "output" / "held").read_text()))


def test_a_kernel_that_starts_after_the_others_were_stopped_is_stopped_too(notebook, tmp_path):
    (run,) = plan(notebook, tmp_path / "grid", {"ending": ["sleep"]})
    asked = iter([0])  # nothing when the run begins, and SIGTERM before its kernel is there
    outcome = execute(run, lambda: next(asked, signal.SIGTERM))
    assert outcome["status"] == "stopped"


def test_a_notebook_that_was_edited_since_the_command_began_is_refused(notebook, tmp_path):
    (run,) = plan(notebook, tmp_path / "grid", {})
    small.edit(notebook, "what it prints", "what else it prints")
    with pytest.raises(ValueError, match="was edited since this command began: give the command again"):
        execute(run, lambda: 0)
