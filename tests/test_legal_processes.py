"""Two processes launched by accelerate's notebook_launcher: the losses of one, one whole checkpoint, killed and resumed."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers import checkpoint
from helpers.legal import processes
from helpers.legal.parameters import LegalParameters

from .xla_process import cpu_here

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]
STEPS, SAVED = 8, 4
PARAMS = LegalParameters(
    data_source="sample",
    num_records=60,
    base_model="sample",
    layout="instruction",
    method="full",  # an adapter's dropout is each process's own
    max_length=384,
    num_processes=2,
    output_dir="unset",
    precision="fp32",
    max_steps=STEPS,
    batch_size=4,
    learning_rate=0.01,
    test_records=1,
    max_new_tokens=8,
    logging_steps=1,
    eval_steps=SAVED,
    save_steps=SAVED,
)


def start(folder: Path, count: int) -> subprocess.Popen:
    """What a notebook starts, in a process group of its own."""
    folder.mkdir(exist_ok=True)
    job = folder / processes.JOB_FILE
    parameters = PARAMS.model_dump() | {"output_dir": str(folder)}
    job.write_text(json.dumps({"num_processes": count, "parameters": parameters}))
    return subprocess.Popen(
        [sys.executable, "-m", "helpers.legal.processes", str(job)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def trained(folder: Path, count: int) -> dict:
    process = start(folder, count)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said[-3000:]
    return json.loads((folder / processes.MEASURED_FILE).read_text())


def history(folder: Path) -> dict[str, list[float]]:
    last = checkpoint.folder(folder, STEPS)
    assert checkpoint.damage(last) is None
    logged = json.loads((last / "trainer_state.json").read_text())["log_history"]
    return {name: [entry[name] for entry in logged if name in entry] for name in ("loss", "grad_norm", "eval_loss")}


def fingerprint(folder: Path) -> dict[str, str]:
    last = checkpoint.folder(folder, STEPS)
    names = ("model.safetensors", "optimizer.pt", "scheduler.pt")
    return {name: hashlib.sha256((last / name).read_bytes()).hexdigest() for name in names}


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("two")
    return folder, trained(folder, 2)


def test_two_processes_give_the_losses_and_gradients_of_one_and_one_whole_checkpoint(two, tmp_path):
    folder, measured = two
    alone = trained(tmp_path / "one", 1)
    assert measured["plan"]["batch_size"] == alone["plan"]["batch_size"] == PARAMS.batch_size
    assert (measured["plan"]["per_device_batch_size"], alone["plan"]["per_device_batch_size"]) == (2, 4)
    ours, theirs = history(folder), history(tmp_path / "one")
    assert len(ours["loss"]) == STEPS and len(ours["eval_loss"]) == STEPS // SAVED
    for name, values in ours.items():
        assert values == pytest.approx(theirs[name], rel=1e-4), name
    states = {path.name for path in checkpoint.folder(folder, STEPS).glob("rng_state*")}
    assert states == {"rng_state_0.pth", "rng_state_1.pth"}


def test_two_processes_that_were_killed_end_with_identical_weights_and_optimizer(two, tmp_path):
    process = start(tmp_path, 2)
    deadline = time.monotonic() + 300
    while not checkpoint.folder(tmp_path, SAVED).exists():
        assert process.poll() is None and time.monotonic() < deadline, process.stdout.read()[-3000:]
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not checkpoint.folder(tmp_path, STEPS).exists()
    assert trained(tmp_path, 2)["train"]["resumed_from_step"] == SAVED
    assert fingerprint(tmp_path) == fingerprint(two[0])


def test_a_process_that_fails_says_why(tmp_path):
    run = processes.Processes(2, "asked for", None)
    job = tmp_path / processes.JOB_FILE
    parameters = PARAMS.model_dump() | {"output_dir": str(tmp_path), "data_source": "./gone.jsonl"}
    job.write_text(json.dumps({"num_processes": 2, "parameters": parameters}))
    with pytest.raises(RuntimeError, match=r"training in 2 processes failed: FileNotFoundError.*gone\.jsonl"):
        processes._launch(job, run)


@pytest.mark.parametrize(("wanted", "count"), [(0, 1), (1, 1), (2, 2)])
def test_without_a_gpu_several_processes_are_started_only_if_asked_for(wanted, count):
    cpu_here()
    machine, found = processes.detect(PARAMS.model_copy(update={"num_processes": wanted}))
    if machine.kind == "cpu":
        assert (found.count, machine.device_count) == (count, count)


def test_the_recipes_batch_is_a_multiple_of_the_devices():
    from helpers.legal.parameters import recipe

    assert [recipe(blocks, 512, "lora", 2).batch_size for blocks in (1, 24, 40, 1000)] == [2, 2, 4, 16]
    assert [recipe(blocks, 512, "lora").batch_size for blocks in (1, 24, 40, 1000)] == [1, 3, 5, 16]
