"""A killed run, resumed, ends with the weights of the run that was never disturbed: bit for bit, dropout on."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
from pathlib import Path

import pytest

from helpers.machine import xla
from helpers.run import checkpoint

from . import harness

DRIVER = Path(__file__).with_name("training_run.py")
LAST_STEP = 12
ON_XLA = pytest.mark.skipif(not xla.installed(), reason="torch_xla is not installed")
KINDS = [pytest.param("cpu", marks=pytest.mark.once), pytest.param("xla", marks=ON_XLA)]
SLOW_ON_XLA = [KINDS[0], pytest.param("xla", marks=[ON_XLA, pytest.mark.slow])]


def run(output_dir: Path, fresh: bool = False, **options) -> subprocess.CompletedProcess:
    return harness.run(DRIVER, output_dir, json.dumps(options), xla=options.get("kind") == "xla", fresh=fresh)


def result(process: subprocess.CompletedProcess) -> dict:
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout.rsplit("RESULT ", 1)[1])


def fingerprint(output_dir: Path, step: int = LAST_STEP) -> dict[str, str]:
    """Bytes of everything that training continues from."""
    last = checkpoint.folder(output_dir, step)
    assert checkpoint.damage(last) is None
    names = ("model.safetensors", "optimizer.pt", "scheduler.pt")
    return {name: hashlib.sha256((last / name).read_bytes()).hexdigest() for name in names}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, tuple[Path, dict]]:
    runs = {}

    def of(kind: str):
        if kind not in runs:
            folder = tmp_path_factory.mktemp(kind)
            runs[kind] = folder, result(run(folder, kind=kind))
        return runs[kind]

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
    assert fingerprint(tmp_path) == fingerprint(folder)
    assert not list(tmp_path.glob(".staging*"))


@pytest.mark.once
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_a_random_file_operation_of_a_checkpoint_the_run_still_ends_identically(seed, undisturbed, tmp_path):
    folder, _ = undisturbed("cpu")
    killed = run(tmp_path, kill_write=random.Random(seed).randint(1, 60))
    assert killed.returncode == -signal.SIGKILL
    result(run(tmp_path))
    assert fingerprint(tmp_path) == fingerprint(folder)


@pytest.mark.once
def test_a_finished_run_is_not_trained_further(undisturbed, tmp_path):
    folder, reference = undisturbed("cpu")
    before = fingerprint(folder)
    again = result(run(folder))
    assert again["train"]["steps"] == LAST_STEP
    assert again["losses"] == reference["losses"]
    assert again["train"]["examples_per_second"] > 0
    assert fingerprint(folder) == before


def _missing(path: Path) -> None:
    path.unlink()


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.once
@pytest.mark.parametrize("harm", [_missing, _truncated, _flipped])
def test_a_damaged_newest_checkpoint_is_passed_over_with_its_reason(harm, undisturbed, tmp_path):
    folder, _ = undisturbed("cpu")
    killed = run(tmp_path, kill_step=10)
    assert killed.returncode == -signal.SIGKILL
    harm(tmp_path / "checkpoint-8" / "optimizer.pt")
    resumed = result(run(tmp_path))
    messages = resumed["train"]["messages"]
    assert messages[0].startswith("skipped checkpoint-8: optimizer.pt ")
    assert messages[0].endswith(" (kept as damaged-checkpoint-8)")
    assert not (tmp_path / "damaged-checkpoint-8").exists()  # kept until the run had passed its step
    assert messages[1] == "resuming from checkpoint-4"
    assert fingerprint(tmp_path) == fingerprint(folder)


@pytest.mark.once
def test_a_full_disk_stops_the_run_by_name_and_keeps_the_older_checkpoint(undisturbed, tmp_path):
    folder, _ = undisturbed("cpu")
    full = run(tmp_path, file_limit=50_000)
    assert full.returncode == 1
    assert "CheckpointNotWritten: checkpoint at step 4 was not written to output_dir=" in full.stderr
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["checkpoint-0", "sessions.json"]
    result(run(tmp_path))
    assert fingerprint(tmp_path) == fingerprint(folder)


@pytest.mark.once
@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP"])
def test_the_stop_button_and_a_closed_terminal_save_the_last_finished_step(name, undisturbed, tmp_path):
    folder, _ = undisturbed("cpu")
    stopped = run(tmp_path, signals=[(6, name)])
    assert f"Stopped: {name} at step 6: checkpoint-6 is written and whole" in stopped.stderr
    result(run(tmp_path))
    assert fingerprint(tmp_path) == fingerprint(folder)


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        pytest.param("cpu", 8, marks=pytest.mark.once),
        pytest.param("cpu", LAST_STEP, marks=pytest.mark.once),
        pytest.param("xla", 8, marks=[ON_XLA, pytest.mark.slow]),
    ],
)
def test_a_stop_inside_an_evaluation_does_not_wait_for_its_end_and_loses_nothing(kind, step, undisturbed, tmp_path):
    folder, reference = undisturbed(kind)
    stopped = run(tmp_path, kind=kind, evaluation_signal=(step, "SIGTERM"))
    assert f"Stopped: SIGTERM at step {step}: checkpoint-{step} is written and whole" in stopped.stderr
    resumed = result(run(tmp_path, kind=kind))
    assert resumed["eval_losses"] == reference["eval_losses"]
    assert resumed["best_step"] == reference["best_step"]
    assert fingerprint(tmp_path) == fingerprint(folder)


@pytest.mark.once
def test_at_the_end_of_its_time_budget_a_run_saves_and_stops(undisturbed, tmp_path):
    folder, _ = undisturbed("cpu")
    stopped = run(tmp_path, max_hours=1e-9)
    assert "Stopped: max_hours=1e-09 at step 1" in stopped.stderr
    assert checkpoint.step_of(checkpoint.newest_whole(tmp_path)[0]) == 1
    result(run(tmp_path))
    assert fingerprint(tmp_path) == fingerprint(folder)


@pytest.mark.parametrize(
    ("kind", "fault", "step", "what"),
    [
        pytest.param("cpu", "nan_gradient_step", 8, "a weight", marks=pytest.mark.once),
        pytest.param("cpu", "nan_moment_step", 8, "an optimizer state", marks=pytest.mark.once),
        pytest.param("cpu", "nan_step", 7, "loss", marks=pytest.mark.once),
        pytest.param("xla", "nan_moment_step", 8, "an optimizer state", marks=[ON_XLA, pytest.mark.slow]),
    ],
)
def test_what_is_no_number_is_in_no_checkpoint(kind, fault, step, what, tmp_path):
    failed = run(tmp_path, **{"kind": kind, "logging_steps": 5, fault: step})
    assert f"NonFiniteLoss: {what} is nan" in failed.stderr
    assert "The last good checkpoint is checkpoint-4" in failed.stderr
    assert [path.name for path in checkpoint.listed(tmp_path)] == ["checkpoint-4", "checkpoint-0"]
    resumed = result(run(tmp_path, kind=kind))
    assert resumed["finite_weights"] and resumed["train"]["resumed_from_step"] == 4


@pytest.mark.once
@pytest.mark.parametrize("workers", [0, 2])
def test_a_collator_that_draws_resumes_bit_for_bit_in_the_middle_of_an_epoch(workers, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    reference = result(run(whole, masking=True, model="llama", workers=workers))
    run(parts, masking=True, model="llama", workers=workers, kill_step=7)
    run(parts, masking=True, model="llama", workers=2 - workers, signals=[(9, "SIGTERM")])
    resumed = result(run(parts, masking=True, model="llama", workers=workers))
    assert resumed["train"]["resumed_from_step"] == 9
    assert resumed["losses"] == reference["losses"]
    assert fingerprint(parts) == fingerprint(whole)


@pytest.mark.once
def test_a_finished_run_goes_on_to_more_steps_and_its_schedule_follows(undisturbed, tmp_path):
    _, reference = undisturbed("cpu")
    result(run(tmp_path, steps=6))
    longer = result(run(tmp_path))
    assert longer["train"]["resumed_from_step"] == 6
    assert (
        "max_steps was 6 and is 12: from step 6 on the learning rate follows the cosine schedule of 12 steps"
        in (longer["train"]["messages"])
    )

    def rates(of: dict) -> list[float]:
        return [entry["learning_rate"] for entry in of["log_history"] if entry["step"] > 6 and "loss" in entry]

    assert rates(longer) == rates(reference)


@pytest.mark.parametrize(
    ("options", "most"),
    [
        pytest.param({}, 2, marks=pytest.mark.once, id="cpu"),
        pytest.param({"kind": "xla", "model": "llama", "batch_size": 16}, 8, marks=ON_XLA, id="xla"),
    ],
)
def test_out_of_memory_in_an_evaluation_saves_first_and_names_the_parameter_to_lower(options, most, tmp_path):
    options = {"steps": 4, "accumulation": 1, "save_steps": 2, **options}
    reference = result(run(tmp_path / "whole", **options))
    stopped = run(tmp_path / "stopped", **options, exhaust_evaluation_above=most)
    assert stopped.returncode == 1 and "Lower per_device_eval_batch_size=" in stopped.stderr
    assert checkpoint.newest_whole(tmp_path / "stopped")[0].name == "checkpoint-2"
    resumed = result(run(tmp_path / "stopped", **options))
    assert resumed["losses"] == reference["losses"] and resumed["eval_losses"] == reference["eval_losses"]
    assert fingerprint(tmp_path / "stopped", 4) == fingerprint(tmp_path / "whole", 4)
