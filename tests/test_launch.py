"""Notebooks and trainers in several real processes (gloo), on one machine and on two that loopback pretends to be."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from helpers import checkpoint, launch, processes, runtime

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


def start(target: str, *options: str, before: tuple = (), environment: dict | None = None, **parameters):
    """The command line in a process group of its own."""
    given = [text for name, value in parameters.items() for text in ("-p", name, str(value))]
    return subprocess.Popen(
        [*before, sys.executable, "-m", "helpers.launch", target, *options, *given],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **(environment or {})},
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
    """What it says last on stderr."""
    _, complaints = process.communicate(timeout=limit)
    assert process.returncode == 1, complaints[-3000:]
    return complaints.strip().splitlines()[-1]


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


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


# ---- equal losses


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """The five trainers in one process: `one` and, as each was after half of the steps, `half`."""
    folder = tmp_path_factory.mktemp("alone")
    finished(start("tests.launched:train", "--processes", "1", folders=folder / "one", halfway=folder / "half"))
    return folder


@pytest.fixture(scope="module")
def together(alone, tmp_path_factory) -> Path:
    """The five in two processes, `two`, and some `resumed` from what one process left half way."""
    folder = tmp_path_factory.mktemp("together")
    for name in RESUMED:
        shutil.copytree(alone / "half" / name, folder / "resumed" / name)
    finished(start("tests.launched:train", "--processes", "2", folders=f"{folder}/two {folder}/resumed"))
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


@pytest.mark.slow
def test_four_processes_that_slurm_started_give_them_too_after_what_one_has_trained(alone, tmp_path):
    shutil.copytree(alone / "half" / "lejepa", tmp_path / "four" / "lejepa")
    started, port = [], str(free_port())
    for rank in map(str, range(4)):
        environment = {"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_STEP_NUM_TASKS": "4"}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        started.append(start("tests.launched:train", environment=environment, folders=tmp_path / "four"))
    said = [finished(each) for each in started]
    assert "resuming from checkpoint-2" in said[0] and said[1:] == ["", "", ""]
    found, expected = losses(tmp_path / "four")["lejepa"], losses(alone / "one")["lejepa"]
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    ndcg = "eval_retrieval_cosine_ndcg@10"
    assert found[ndcg] == pytest.approx(expected[ndcg], rel=1e-5)


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
    launcher = start(str(notebook), "--processes", "2", output_dir=output, **TINY)
    wait_for(checkpoint.folder(output, 4), launcher)
    processes_of(launcher)[1].kill()
    assert "process 1 failed: Signal 9 (SIGKILL)" in failed(launcher)
    assert not (output / "results.json").exists()
    said = finished(start(str(notebook), "--processes", "2", output_dir=output, **TINY))
    assert said.count("tells the same story: True") == said.count("resuming from checkpoint-") == 1
    results = json.loads((output / "results.json").read_text())
    assert (results["plan"]["device_count"], results["plan"]["per_device_batch_size"]) == (2, 8)
    assert {path.name for path in output.iterdir()} >= {"checkpoint-8", "figures", "model", "run.json"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


# ---- machines


def machines(function: str, *, before: tuple = ((), ()), **parameters) -> list[subprocess.Popen]:
    port = free_port()
    given = ("--machines", "2", "--processes", "1", "--address", f"127.0.0.1:{port}")
    return [
        start(f"tests.launched:{function}", *given, "--rank", str(rank), before=before[rank], **parameters)
        for rank in range(2)
    ]


@pytest.mark.slow
def test_two_machines_of_which_one_is_killed_end_and_one_goes_on_to_the_losses_of_one_process(alone, tmp_path):
    first, second = machines("train", folders=tmp_path / "run", models="reservoir", pause=2)
    wait_for(checkpoint.folder(tmp_path / "run" / "reservoir", STEPS // 2), first)
    for child in processes_of(second).values():
        child.kill()
    os.killpg(second.pid, signal.SIGKILL)
    assert "a process of another machine is gone" in failed(first)
    second.communicate()
    finished(start("tests.launched:train", "--processes", "1", folders=tmp_path / "run", models="reservoir"))
    found, expected = losses(tmp_path / "run")["reservoir"], losses(alone / "one")["reservoir"]
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)


@pytest.mark.slow
def test_machines_that_share_no_disk_are_refused_and_do_not_hang(tmp_path):
    (tmp_path / "run").mkdir()
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("needs a mount namespace: root, or CAP_SYS_ADMIN")
    hide = f'mount -t tmpfs none {tmp_path / "run"} && exec "$@"'
    both = machines("share", before=((), ("unshare", "-m", "sh", "-c", hide, "sh")), folder=tmp_path / "run")
    for each in both:
        assert "on a disk that all machines share" in failed(each)


def test_processes_whose_launcher_is_killed_end_by_themselves(tmp_path):
    launcher = start("tests.launched:linger", "--processes", "2", folder=tmp_path)
    wait_for(tmp_path / "here", launcher)
    orphans = list(processes_of(launcher).values())
    launcher.kill()
    _, alive = psutil.wait_procs(orphans, timeout=SOON)
    assert len(orphans) == 2 and not alive
    launcher.communicate()


# ---- from a notebook's kernel, from a scheduler, and what is refused


def test_fsdp_is_refused_where_accelerate_would_ignore_it(tmp_path):
    config = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: 'no'\nfsdp_config: {fsdp_version: 2}"
    (tmp_path / "fsdp.yaml").write_text(config)
    options = ("--processes", "2", "--config", str(tmp_path / "fsdp.yaml"))
    assert "--config asks for FSDP: accelerate ignores it on a CPU" in failed(
        start("tests.launched:share", *options, folder=tmp_path)
    )


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
        (["{notebook}", "--machines", "2"], "--address='': give HOST:PORT of machine 0"),
        (["{notebook}", "--machines", "2", "--address", "a:1", "--rank", "2"], "--rank=2: give 0 to 1"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(arguments, message, notebook, capsys):
    with pytest.raises(SystemExit) as caught:
        launch.main([each.format(notebook=notebook) for each in arguments])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_more_processes_than_gpus_are_refused(monkeypatch, capsys, notebook):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(SystemExit):
        launch.main([str(notebook), "--processes", "3"])
    assert "--processes=3: torch sees 2 GPU(s)" in capsys.readouterr().err


def test_several_processes_or_hosts_on_a_tpu_are_refused(monkeypatch):
    monkeypatch.setattr("helpers.xla.available", lambda: (True, "a TPU"))
    with pytest.raises(ValueError, match="num_processes=2: one process drives all chips of one host"):
        runtime.detect(True, num_processes=2)


def test_a_step_of_another_size_is_refused(tmp_path):
    from helpers import run_folder

    machine = runtime.detect(False)
    run_folder.begin_session(tmp_path, machine, "fp32", 0, 16)
    with pytest.raises(ValueError, match=r"batch_size=32 examples a step on 1 device\(s\), but this run began with 16"):
        run_folder.begin_session(tmp_path, machine, "fp32", 4, 32)
