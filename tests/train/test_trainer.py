"""The real trainer in what happens to people: a stopped cell, an edited notebook, a disk that is gone, fp16 that overflows."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path

import pytest

from helpers.run import checkpoint
from tests.test_resume import fingerprint, result, run

pytestmark = pytest.mark.once

SHORT = {"steps": 4, "save_steps": 2, "accumulation": 1}


def test_after_a_stop_later_cells_evaluate_what_was_trained(tmp_path):
    stopped = run(tmp_path, **SHORT, signals=[(2, "SIGINT")], then_evaluate=True)
    assert "Stopped: SIGINT at step 2" in stopped.stderr
    assert math.isfinite(float(stopped.stdout.rsplit("EVALUATED", 1)[1].split()[0]))


def test_a_new_run_from_trained_weights_is_refused(tmp_path):
    again = run(tmp_path / "one", **SHORT, twice=str(tmp_path / "two"))
    assert again.returncode == 1 and "Run the cell that makes the model again" in again.stderr
    assert not checkpoint.listed(tmp_path / "two")


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "owner.lock")


def test_a_disk_that_cannot_be_read_costs_no_checkpoint(tmp_path):
    whole = tmp_path / "whole"
    reference = result(run(whole, **SHORT))
    folder = tmp_path / "run"
    run(folder, **SHORT, kill_step=4)
    before = kept(folder)
    for code in (errno.EIO, errno.ENOTCONN):
        refused = run(folder, **SHORT, unreadable=code)
        assert refused.returncode == 1 and "CheckpointUnreadable" in refused.stderr
        assert kept(folder) == before
    assert result(run(folder, **SHORT))["losses"] == reference["losses"]
    assert fingerprint(folder, 4) == fingerprint(whole, 4)


def test_without_an_eval_strategy_nothing_is_evaluated(tmp_path):
    assert result(run(tmp_path, **SHORT, eval_strategy="no"))["eval_losses"] == []


def test_the_run_stays_in_its_folder_when_the_working_directory_changes(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    relative = os.path.relpath(tmp_path / "run")
    result(run(relative, **SHORT, elsewhere=str(tmp_path / "elsewhere")))
    assert checkpoint.newest_whole(tmp_path / "run")[0].name == "checkpoint-4"
    assert not any((tmp_path / "elsewhere").iterdir())


# -- fp16: a real GradScaler and fused AdamW, on the CPU --


def rates(of: dict) -> list[float]:
    return [entry["learning_rate"] for entry in of["log_history"] if "loss" in entry]


def test_skipped_steps_are_counted_and_the_learning_rate_waits_for_them_also_after_a_kill(tmp_path):
    options = {"steps": 8, "save_steps": 4, "accumulation": 1, "scale": 1024.0}
    plain = result(run(tmp_path / "plain", **options))
    skips = options | {"overflows": [3, 5]}
    skipped = result(run(tmp_path / "skipped", **skips))
    assert (plain["train"]["skipped_steps"], skipped["train"]["skipped_steps"]) == (0, 2)
    expected = rates(plain)
    # Rates of a schedule that stands still in the steps 3 and 5.
    assert rates(skipped) == pytest.approx([expected[at] for at in (0, 1, 2, 2, 3, 3, 4, 5)])
    assert run(tmp_path / "killed", **skips, kill_step=7).returncode == -9
    assert result(run(tmp_path / "killed", **skips))["train"]["skipped_steps"] == 2
    assert fingerprint(tmp_path / "killed", 8) == fingerprint(tmp_path / "skipped", 8)


@pytest.mark.parametrize(("scale", "stops_at"), [(2.0, 3), (2.0**40, 21)])
def test_a_run_that_learns_nothing_stops_and_says_what_to_change(tmp_path, scale, stops_at):
    overflows = list(range(2, 41))
    stopped = run(tmp_path, steps=40, save_steps=40, accumulation=1, blocks=80, scale=scale, overflows=overflows)
    assert stopped.returncode == 1
    assert f"at step {stops_at}: gradients overflow" in stopped.stderr and "precision='fp32'" in stopped.stderr
