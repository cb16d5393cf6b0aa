"""The real trainer in what happens to people: an edited notebook, a changed folder, no evaluation."""

from __future__ import annotations

import os

import pytest

from helpers.run import checkpoint
from tests.test_resume import result, run

pytestmark = pytest.mark.once

SHORT = {"steps": 4, "save_steps": 2, "accumulation": 1}


def test_a_new_run_from_trained_weights_is_refused(tmp_path):
    again = run(tmp_path / "one", **SHORT, twice=str(tmp_path / "two"))
    assert again.returncode == 1 and "Run the cell that makes the model again" in again.stderr
    assert not checkpoint.listed(tmp_path / "two")


def test_the_run_stays_in_its_folder_when_the_directory_changes_and_evaluates_only_if_it_is_to(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    relative = os.path.relpath(tmp_path / "run")
    ended = result(run(relative, **SHORT, elsewhere=str(tmp_path / "elsewhere"), eval_strategy="no"))
    assert ended["eval_losses"] == []
    assert checkpoint.newest_whole(tmp_path / "run")[0].name == "checkpoint-4"
    assert not any((tmp_path / "elsewhere").iterdir())
