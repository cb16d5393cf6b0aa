"""A killed run, resumed, ends with the weights of the run that was never disturbed: bit for bit, dropout on."""

import errno
import functools
import math
import random
import signal
from pathlib import Path

import pytest

from helpers.machine import xla
from helpers.run import checkpoint

from . import harness
from .damage import flip_a_bit
from .harness import fingerprint, result

LAST_STEP = 12
ON_XLA = pytest.mark.skipif(not xla.installed(), reason="torch_xla is not installed")
KINDS = [pytest.param("cpu", marks=pytest.mark.once), pytest.param("xla", marks=ON_XLA)]
SLOW_ON_XLA = [KINDS[0], pytest.param("xla", marks=[ON_XLA, pytest.mark.slow])]


run = functools.partial(harness.train, "tests.training_run")


def assert_same_end(folder: Path, other: Path) -> None:
    assert fingerprint(folder, LAST_STEP) == fingerprint(other, LAST_STEP)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, tuple[Path, dict]]:
    @functools.cache
    def of(kind: str):
        folder = tmp_path_factory.mktemp(kind)
        return folder, result(run(folder, kind=kind))

    return of


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_killed_and_stopped_ends_with_identical_weights(kind, undisturbed, tmp_path):
    folder, reference = undisturbed(kind)
    chance = random.Random(20261120)

    killed = run(tmp_path, kind=kind, kill_step=chance.randint(5, 7))
    assert killed.returncode == -signal.SIGKILL
    assert checkpoint.newest_whole(tmp_path)[0].name == "checkpoint-4"

    if kind == "cpu":  # what a disk holds does not hang on the device
        killed = run(tmp_path, kind=kind, kill_write=chance.randint(2, 20))
        assert killed.returncode == -signal.SIGKILL
        assert checkpoint.newest_whole(tmp_path)[0].name in ("checkpoint-4", "checkpoint-8")

    preempted = run(tmp_path, kind=kind, signals=[(10, "SIGTERM")])
    assert preempted.returncode == 1
    assert "Stopped: SIGTERM at step 10: checkpoint-10 is written and whole" in preempted.stderr
    assert checkpoint.newest_whole(tmp_path)[0].name == "checkpoint-10"

    resumed = result(run(tmp_path, fresh=kind == "cpu", kind=kind))
    assert resumed["train"]["resumed_from_step"] == 10
    assert resumed["losses"] == reference["losses"]
    assert_same_end(tmp_path, folder)
    assert not list(tmp_path.glob(".staging*"))


@pytest.mark.once
def test_a_run_that_is_stopped_in_every_way_ends_identically_and_later_cells_evaluate_what_it_had(
    undisturbed, tmp_path
):
    folder, reference = undisturbed("cpu")

    def stopped(said: str, **options):
        process = run(tmp_path, **options)
        assert process.returncode == 1 and said in process.stderr, process.stderr[-3000:]
        return process

    evaluated = stopped(
        "Stopped: SIGINT at step 2: checkpoint-2 is written", signals=[(2, "SIGINT")], then_evaluate=True
    )
    assert math.isfinite(float(evaluated.stdout.rsplit("EVALUATED", 1)[1].split()[0]))
    stopped("Stopped: max_hours=1e-09 at step 3", max_hours=1e-9)
    for step in (8, LAST_STEP):  # an evaluation is not waited for
        stopped(f"Stopped: SIGTERM at step {step}: checkpoint-{step}", evaluation_signal=(step, "SIGTERM"))
    ended = result(run(tmp_path))
    assert_same_end(tmp_path, folder)
    for what in ("losses", "eval_losses", "best_step"):
        assert ended[what] == reference[what]
    seconds = [entry["training_seconds"] for entry in ended["log_history"] if "training_seconds" in entry]
    assert len(seconds) == LAST_STEP + 3 and seconds == sorted(seconds) and seconds[0] > 0  # counted over all sessions

    again = result(run(tmp_path))  # is not trained further
    assert again["losses"] == reference["losses"] and again["train"]["examples_per_second"] > 0
    assert_same_end(tmp_path, folder)


@pytest.mark.once
def test_a_disk_that_does_not_answer_costs_nothing_and_a_damaged_checkpoint_is_passed_over_with_its_reason(
    undisturbed, tmp_path
):
    folder, _ = undisturbed("cpu")
    assert run(tmp_path, kill_step=10).returncode == -signal.SIGKILL
    before = kept(tmp_path)
    refused = run(tmp_path, unreadable=errno.ENOTCONN)
    assert refused.returncode == 1 and "CheckpointUnreadable" in refused.stderr
    assert kept(tmp_path) == before
    flip_a_bit(tmp_path / "checkpoint-8/optimizer.pt")
    messages = result(run(tmp_path))["train"]["messages"]
    assert messages[0] == (
        "skipped checkpoint-8: optimizer.pt has changed since it was written (kept as damaged-checkpoint-8)"
    )
    assert messages[1] == "resuming from checkpoint-4"
    assert not (tmp_path / "damaged-checkpoint-8").exists()  # kept until the run had passed its step
    assert_same_end(tmp_path, folder)


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "owner.lock")


@pytest.mark.once
def test_a_full_disk_stops_the_run_by_name_and_keeps_the_older_checkpoint(undisturbed, tmp_path):
    folder, _ = undisturbed("cpu")
    full = run(tmp_path, file_limit=50_000)
    assert full.returncode == 1
    assert f"CheckpointNotWritten: checkpoint at step 4 was not written to output_dir={str(tmp_path)!r}" in full.stderr
    assert "File too large" in full.stderr and "newest whole checkpoint is checkpoint-0" in full.stderr
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["checkpoint-0", "sessions.json"]
    result(run(tmp_path))
    assert_same_end(tmp_path, folder)


@pytest.mark.once
def test_a_collator_that_draws_resumes_bit_for_bit_in_the_middle_of_an_epoch(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    reference = result(run(whole, masking=True, model="llama"))
    run(parts, masking=True, model="llama", signals=[(9, "SIGTERM")])
    resumed = result(run(parts, masking=True, model="llama"))
    assert resumed["train"]["resumed_from_step"] == 9
    assert resumed["losses"] == reference["losses"]
    assert_same_end(parts, whole)


@pytest.mark.once
def test_a_finished_run_goes_on_to_more_steps_and_its_schedule_follows(undisturbed, tmp_path):
    _, reference = undisturbed("cpu")
    result(run(tmp_path, steps=6))
    longer = result(run(tmp_path))
    assert longer["train"]["resumed_from_step"] == 6
    said = "max_steps was 6 and is 12: from step 6 on the learning rate follows the cosine schedule of 12 steps"
    assert said in longer["train"]["messages"]

    def rates(of: dict) -> list[float]:
        return [entry["learning_rate"] for entry in of["log_history"] if entry["step"] > 6 and "loss" in entry]

    assert rates(longer) == rates(reference)


@pytest.mark.once
def test_out_of_memory_in_an_evaluation_saves_first_and_names_the_parameter_to_lower(undisturbed, tmp_path):
    folder, reference = undisturbed("cpu")
    stopped = run(tmp_path, exhaust_evaluation_above=2)
    assert stopped.returncode == 1 and "Lower per_device_eval_batch_size=" in stopped.stderr
    assert checkpoint.newest_whole(tmp_path)[0].name == "checkpoint-4"
    resumed = result(run(tmp_path))
    assert resumed["losses"] == reference["losses"] and resumed["eval_losses"] == reference["eval_losses"]
    assert_same_end(tmp_path, folder)
