"""Signals to a batch: the command line in its own process, real kernels, real checkpoints."""

import signal

import pytest

from helpers.batch.execution import execute
from helpers.batch.grid import plan

from . import notebook as small
from .notebook import ended, held, is_gone, losses, process_of, said, table, wait_for

pytestmark = pytest.mark.once


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
        assert is_gone(process_of(folder, run)) and is_gone(int((folder / run / "output/held").read_text()))


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


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_two_jobs_that_train_are_stopped_and_end_like_undisturbed_ones_by_the_same_command(notebook, tmp_path, number):
    folder, undisturbed = tmp_path / "grid", tmp_path / "undisturbed"
    given, runs = ("ending=train", "seed=0,1", "--jobs", "2"), ("seed=0", "seed=1")
    assert ended(small.command(notebook, undisturbed, *given), undisturbed) == 0
    small.hold(notebook, True)
    process = small.command(notebook, folder, *given)
    for run in runs:
        held(folder, run, process)
    kernels = [process_of(folder, run) for run in runs]
    process.send_signal(number)
    assert ended(process, folder) in (128 + number, -number)
    assert all(map(is_gone, kernels))
    small.hold(notebook, False)
    assert ended(small.command(notebook, folder, *given), folder) == 0
    assert losses(folder) == losses(undisturbed)
    assert all(int(row["train.resumed_from_step"]) >= 5 for row in table(folder))
