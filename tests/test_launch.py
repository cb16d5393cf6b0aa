"""Notebooks and trainers in several real processes (gloo), as torchrun and as a kernel start them."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from helpers.batch import processes
from helpers.machine import runtime
from helpers.train import checkpoint

from .launched import MODELS, STEPS

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]
RESUMED = ("reservoir", "lejepa")  # the one with a state of its own beside stock's
SOON = 90  # seconds in which all must be over once a process is gone; collectives would wait for half an hour
TINY = {
    "data_source": "sample",
    "num_stories": 300,
    "max_steps": 8,
    "eval_steps": 4,
    "save_steps": 4,
    "logging_steps": 2,
    "batch_size": 16,
    "sequence_length": 32,
    "vocab_size": 400,
    "units": 32,
    "unit_blocks": 1,
    "input_codes": 16,
    "embedding_size": 16,
    "readout_blocks": 1,
    "readout_size": 32,
    "max_new_tokens": 8,
    "compare_transformer": False,
}


def start(target: str, processes: int, **parameters):
    """torchrun in a process group of its own."""
    given = [text for name, value in parameters.items() for text in ("-p", name, str(value))]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return subprocess.Popen(
        [*torchrun, "-m", "helpers.batch.processes", target, *given],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finished(process: subprocess.Popen, limit: float = 400) -> str:
    said, complaints = process.communicate(timeout=limit)
    assert process.returncode == 0, complaints[-3000:]
    return said


def failed(process: subprocess.Popen, limit: float = SOON) -> str:
    """What it says on stderr."""
    _, complaints = process.communicate(timeout=limit)
    assert process.returncode == 1, complaints[-3000:]
    return complaints


def wait_for(path: Path, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 200
    while not path.exists():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[1][-3000:]
        time.sleep(0.02)


def processes_of(launcher: subprocess.Popen) -> dict[int, psutil.Process]:
    """The launched, by rank."""
    found = [child for child in psutil.Process(launcher.pid).children() if "RANK" in child.environ()]
    return {int(child.environ()["RANK"]): child for child in found}


def losses(folder: Path) -> dict:
    return json.loads((folder / "losses.json").read_text())


# ---- equal losses


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """The five trainers in one process: `one` and, as each was after half of the steps, `half`."""
    folder = tmp_path_factory.mktemp("alone")
    finished(start("tests.launched:train", 1, folders=folder / "one", halfway=folder / "half"))
    return folder


@pytest.fixture(scope="module")
def together(alone, tmp_path_factory) -> Path:
    """The five in two processes, `two`, and some `resumed` from what one process left half way."""
    folder = tmp_path_factory.mktemp("together")
    for name in RESUMED:
        shutil.copytree(alone / "half" / name, folder / "resumed" / name)
    finished(start("tests.launched:train", 2, folders=f"{folder}/two {folder}/resumed"))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "name"), [("two", name) for name in MODELS.split()] + [("resumed", n) for n in RESUMED]
)
def test_two_processes_give_the_losses_and_gradients_of_one_also_from_its_checkpoint(run, name, alone, together):
    expected, found = losses(alone / "one")[name], losses(together / run)[name]
    assert len(expected["loss"]) == len(expected["grad_norm"]) == STEPS
    for key, values in expected.items():
        # transformers weighs a short last batch of evaluation by its own rule; the others are cut to whole ones.
        if (name, key) != ("tuning", "eval_loss"):
            assert found[key] == pytest.approx(values, rel=1e-5), key
    last = checkpoint.folder(together / run / name, STEPS)
    assert checkpoint.damage(last) is None
    assert {path.name for path in last.glob("rng_state*")} == {"rng_state_0.pth", "rng_state_1.pth"}


# ---- a notebook


@pytest.fixture(scope="module")
def notebook(tmp_path_factory) -> Path:
    spec = importlib.util.spec_from_file_location("build", ROOT / "notebooks" / "build.py")
    build = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(ROOT / "notebooks"))
    try:
        spec.loader.exec_module(build)
    finally:
        sys.path.remove(str(ROOT / "notebooks"))
    path = tmp_path_factory.mktemp("built") / "tinystories_reservoir.ipynb"
    path.write_bytes(build.written(build.notebook(ROOT / "notebooks" / "source" / "tinystories_reservoir.py", "gpu")))
    return path


@pytest.mark.slow
def test_a_notebook_of_which_one_process_is_killed_goes_on_to_its_end_and_only_the_first_speaks_and_writes(
    notebook, tmp_path
):
    output = tmp_path / "out"
    launcher = start(str(notebook), 2, output_dir=output, **TINY)
    wait_for(checkpoint.folder(output, 4), launcher)
    processes_of(launcher)[1].kill()
    assert "Signal 9 (SIGKILL)" in failed(launcher)
    assert not (output / "results.json").exists()
    said = finished(start(str(notebook), 2, output_dir=output, **TINY))
    assert said.count("tells the same story: True") == said.count("resuming from checkpoint-") == 1
    results = json.loads((output / "results.json").read_text())
    assert (results["plan"]["device_count"], results["plan"]["per_device_batch_size"]) == (2, 8)
    assert {path.name for path in output.iterdir()} >= {"checkpoint-8", "figures", "model", "run.json"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_processes_whose_launcher_is_killed_end_by_themselves(tmp_path):
    launcher = start("tests.launched:linger", 2, folder=tmp_path)
    wait_for(tmp_path / "here", launcher)
    orphans = list(processes_of(launcher).values())
    launcher.kill()
    _, alive = psutil.wait_procs(orphans, timeout=SOON)
    assert len(orphans) == 2 and not alive
    launcher.communicate()


def test_a_call_from_a_kernel_says_why_a_process_failed():
    said = r"training in 2 processes failed: process 1 failed: FileNotFoundError.*gone\.jsonl"
    with pytest.raises(RuntimeError, match=said):
        processes.call("tests.launched:fail", {"missing": "./gone.jsonl"}, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gone.ipynb"], "notebook='gone.ipynb': no such file"),
        (["{notebook}", "-p", "sead", "1"], "sead is not a parameter of this notebook: did you mean seed?"),
        (["{notebook}", "-p", "resume", "1"], "resume='1' is unknown"),
        (["{notebook}", "-p", "seed", "1", "-p", "seed", "2"], "seed: given twice"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(arguments, message, notebook, capsys):
    with pytest.raises(SystemExit) as caught:
        processes.main([each.format(notebook=notebook) for each in arguments])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_several_processes_or_hosts_on_a_tpu_are_refused(monkeypatch):
    monkeypatch.setattr("helpers.machine.xla.available", lambda: (True, "a TPU"))
    with pytest.raises(ValueError, match="num_processes=2: one process drives all chips of one host"):
        runtime.detect(True, num_processes=2)


def test_a_step_of_another_size_is_refused(tmp_path):
    from helpers.run import run_folder

    machine = runtime.detect(False)
    run_folder.begin_session(tmp_path, machine, "fp32", 0, 16)
    with pytest.raises(ValueError, match=r"batch_size=32 examples a step on 1 device\(s\), but this run began with 16"):
        run_folder.begin_session(tmp_path, machine, "fp32", 4, 32)
