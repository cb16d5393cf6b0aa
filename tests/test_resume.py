"""A killed run, resumed, ends with the weights of the run that was never disturbed: bit for bit, dropout on."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import checkpoint, xla

DRIVER = Path(__file__).with_name("training_run.py")
LAST_STEP = 12
KINDS = [
    pytest.param("cpu", marks=pytest.mark.once),
    pytest.param("xla", marks=pytest.mark.skipif(not xla.installed(), reason="torch_xla is not installed")),
]


def run(output_dir: Path, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(DRIVER), str(output_dir), json.dumps(options)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
    )


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
def test_a_run_killed_three_ways_ends_with_identical_weights(kind, undisturbed, tmp_path):
    folder, reference = undisturbed(kind)
    chance = random.Random(20261120)

    killed = run(tmp_path, kind=kind, kill_step=chance.randint(5, 7))
    assert killed.returncode == -signal.SIGKILL
    assert checkpoint.newest_whole(tmp_path)[0].name == "checkpoint-4"

    killed = run(tmp_path, kind=kind, kill_write=chance.randint(2, 20))
    assert killed.returncode == -signal.SIGKILL
    assert checkpoint.newest_whole(tmp_path)[0].name in ("checkpoint-4", "checkpoint-8")

    preempted = run(tmp_path, kind=kind, sigterm_step=10)
    assert preempted.returncode == 1
    assert "Preempted: SIGTERM at step 10: checkpoint-10 is written and whole" in preempted.stderr
    assert checkpoint.newest_whole(tmp_path)[0].name == "checkpoint-10"

    resumed = result(run(tmp_path, kind=kind))
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
    assert (tmp_path / "damaged-checkpoint-8" / "model.safetensors").is_file()
    assert messages[1] == "resuming from checkpoint-4"
    assert fingerprint(tmp_path) == fingerprint(folder)


@pytest.mark.once
def test_with_every_checkpoint_damaged_the_run_starts_fresh_and_says_so(undisturbed, tmp_path):
    folder, _ = undisturbed("cpu")
    run(tmp_path, kill_step=10)
    for damaged in checkpoint.listed(tmp_path):
        (damaged / "model.safetensors").unlink()
    messages = result(run(tmp_path))["train"]["messages"]
    assert messages[2] == "no whole checkpoint: starting from step 0"
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
