"""Early stopping: the real trainer, killed, resumed and run again after its end."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from helpers.run import checkpoint

from .test_resume import SLOW_ON_XLA, fingerprint, result, run

EVERY, PATIENCE, STEPS = 2, 3, 24
# Tokens at random: what is learned of them soon makes the loss of other tokens worse.
OVERFITS = {"steps": STEPS, "save_steps": EVERY, "learning_rate": 3e-2, "accumulation": 1, "dropout": 0.0}


# -- the real trainer --


@pytest.fixture(scope="module")
def to_the_end(tmp_path_factory) -> dict:
    """A run without early stopping."""
    return result(run(tmp_path_factory.mktemp("end"), **OVERFITS))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Folder and result of an undisturbed run that stops early, by kind."""
    runs: dict[str, tuple[Path, dict]] = {}

    def of(kind: str) -> tuple[Path, dict]:
        if kind not in runs:
            folder = tmp_path_factory.mktemp(kind)
            runs[kind] = folder, result(run(folder, kind=kind, patience=PATIENCE, **OVERFITS))
        return runs[kind]

    return of


def stop_of(losses: list[float]) -> int:
    """The evaluation at which a run with these losses must stop, counted from 1."""
    best, since = float("inf"), 0
    for count, loss in enumerate(losses, start=1):
        best, since = (loss, 0) if loss < best else (best, since + 1)
        if since == PATIENCE:
            return count
    raise AssertionError(f"never stops: {losses}")


@pytest.mark.once
def test_the_run_stops_at_the_right_evaluation_and_is_the_same_until_there(to_the_end, stopped):
    _, early = stopped("cpu")
    evaluations = stop_of(to_the_end["eval_losses"])
    assert PATIENCE + 1 < evaluations < STEPS // EVERY  # neither at once nor at the end
    assert early["train"]["steps"] == evaluations * EVERY
    assert early["eval_losses"] == to_the_end["eval_losses"][:evaluations]
    assert early["losses"] == to_the_end["losses"][: evaluations * EVERY]
    assert early["best_step"] == (evaluations - PATIENCE) * EVERY
    assert f"loaded checkpoint-{early['best_step']}, the best evaluation" in early["train"]["messages"][-1]


@pytest.mark.parametrize("kind", SLOW_ON_XLA)
def test_a_resumed_run_stops_where_the_undisturbed_one_does(kind, stopped, tmp_path):
    folder, early = stopped(kind)
    last = early["train"]["steps"]
    killed = run(tmp_path, kind=kind, patience=PATIENCE, **OVERFITS, kill_step=last - 1)
    assert killed.returncode == -signal.SIGKILL
    resumed = result(run(tmp_path, kind=kind, patience=PATIENCE, **OVERFITS))
    assert resumed["train"]["resumed_from_step"] == last - EVERY
    assert resumed["train"]["steps"] == last
    assert resumed["eval_losses"] == early["eval_losses"]
    assert fingerprint(tmp_path, last) == fingerprint(folder, last)


@pytest.mark.once
def test_a_run_that_stopped_early_is_not_trained_further(stopped, tmp_path):
    folder, early = stopped("cpu")
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    again = result(run(tmp_path, patience=PATIENCE, **OVERFITS))
    last = early["train"]["steps"]
    assert f"the run is finished: checkpoint-{last} is its last step" in again["train"]["messages"]
    assert (again["train"]["steps"], again["best_step"]) == (last, early["best_step"])
    assert (again["losses"], again["eval_losses"]) == (early["losses"], early["eval_losses"])
    assert again["train"]["examples_per_second"] > 0
    assert fingerprint(tmp_path, last) == fingerprint(folder, last)


@pytest.mark.once
def test_after_sigterm_at_the_step_that_stops_the_evaluation_is_made_up_and_the_run_is_finished(stopped, tmp_path):
    folder, early = stopped("cpu")
    last = early["train"]["steps"]
    preempted = run(tmp_path, patience=PATIENCE, **OVERFITS, signals=[(last, "SIGTERM")])
    assert f"Stopped: SIGTERM at step {last}" in preempted.stderr
    ended = result(run(tmp_path, patience=PATIENCE, **OVERFITS))
    assert ended["train"]["steps"] == last and ended["best_step"] == early["best_step"]
    assert fingerprint(tmp_path, last) == fingerprint(folder, last)


@pytest.mark.parametrize("kind", SLOW_ON_XLA)
def test_training_that_only_makes_it_worse_ends_with_the_weights_of_the_start(kind, tmp_path):
    worse = dict(kind=kind, model="llama", learning_rate=0.3, steps=8, save_steps=2, eval_on_start=True)
    killed = run(tmp_path, **worse, kill_step=8)
    assert killed.returncode == -signal.SIGKILL
    ended = result(run(tmp_path, **worse))
    assert ended["train"]["resumed_from_step"] == 6
    assert len(ended["eval_losses"]) == 5  # the start once, though the run began twice
    assert min(ended["eval_losses"]) == ended["eval_losses"][0] and ended["best_step"] == 0
    assert "loaded checkpoint-0, the best evaluation" in ended["train"]["messages"][-1]
    assert not checkpoint.damage(checkpoint.folder(tmp_path, 0))
