"""A small notebook for the tests of batches: what its run does is a parameter, so that one grid holds runs of every kind."""

import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
import psutil
from nbformat.v4 import new_code_cell, new_notebook

ROOT = Path(__file__).resolve().parents[2]
PARAMETERS = """data_source: str = "sample"
output_dir: str = "out"
learning_rate: float = 0.0
seed: int = 0
max_steps: int = 0
resume: bool = True
max_hours: float = 0.0
keep_in: str = ""
prompt: str = "Once"
ending: str = "good"
hold: str = "file:hold"
hold_when: str = "step"
"""  # the file of `hold` comes and goes: a parameter that names a file is digested with its content
RUN = f"""import json, os, pathlib, signal, subprocess, sys, time
sys.path.insert(0, {str(ROOT)!r})
folder = pathlib.Path(output_dir)
again = folder.exists()
folder.mkdir(parents=True, exist_ok=True)
(folder / "kernel.json").write_text(json.dumps({{"process": os.getpid(), "directory": os.getcwd()}}))
print("what it prints")
if ending == "raise" or (ending == "once" and not again):
    raise RuntimeError("out of luck")
if ending == "exit":
    sys.exit(0)
if ending == "kill":
    os.kill(os.getpid(), 9)
if ending == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if ending in ("sleep", "deaf"):
    (folder / "held").write_text(str(subprocess.Popen(["sleep", "1000"]).pid))
    time.sleep(1000)
"""
RESULTS = """train = {"loss_last": float("nan") if ending == "nan" else 0.5, "examples_per_second": 10.0 * (1 + seed)}
if ending == "train":
    from tests import training_run
    options = {"hold": hold.removeprefix("file:"), "hold_when": hold_when, "learning_rate": 3e-3 / (1 + seed), "width": 16}
    train = training_run.main(output_dir, training_run.DEFAULTS | options)["train"]
passed = {"data_source": data_source, "learning_rate": learning_rate, "seed": seed, "resume": resume, "prompt": prompt}
results = {"interpreter": sys.executable, "passed": passed, "train": train}
if seed:
    results["eval"] = {"after": {"perplexity": 3.25}, "list": [1]}
if ending != "silent":
    (folder / "results.json").write_text(json.dumps(results))
"""


def write(path: Path) -> Path:
    tagged = new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]})
    made = new_notebook(cells=[tagged, *map(new_code_cell, (RUN, RESULTS, ""))])
    made.metadata.kernelspec = {"name": "python3", "language": "python", "display_name": "Python 3"}
    nbformat.write(made, path)
    return path


def edit(notebook: Path, before: str, after: str) -> None:
    made = nbformat.read(notebook, as_version=4)
    for cell in made.cells:
        cell.source = cell.source.replace(before, after)
    nbformat.write(made, notebook)


def hold(notebook: Path, held: bool) -> None:
    """Whether runs with `ending=train` stand still after their fifth step, until they are let go or asked to stop."""
    (notebook.parent / "hold").touch() if held else (notebook.parent / "hold").unlink()


def command(notebook: Path, folder: Path, *arguments: str, **environment: str) -> subprocess.Popen:
    """The command line in its own process, started in the notebook's folder; its output goes to `<folder>.log`."""
    with folder.with_suffix(".log").open("a") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "helpers.batch", str(notebook), "--output-dir", str(folder), *arguments],
            cwd=notebook.parent,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def ended(process: subprocess.Popen, folder: Path) -> int:
    """The exit status; the limit only keeps a test that hangs from hanging for ever."""
    try:
        return process.wait(600)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(said(folder)) from None


def held(folder: Path, run: str, running: subprocess.Popen) -> None:
    """Waits until a run stands still; fails with what the batch said if that ends before."""
    wait_for((folder / run / "output/held").exists, running, folder)


def wait_for(condition: Callable[[], object], running: subprocess.Popen, folder: Path) -> None:
    """Fails where the process ends before with what it said: in a log beside the folder, or in its pipe."""
    deadline = time.monotonic() + 600
    while not condition():
        ended = running.poll() is not None or time.monotonic() > deadline
        assert not ended, running.stderr.read() if running.stderr else said(folder)
        time.sleep(0.1)


def said(folder: Path) -> str:
    return folder.with_suffix(".log").read_text()


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def losses(folder: Path) -> list[tuple[str, str, str]]:
    return [(row["run"], row["train.loss_first"], row["train.loss_last"]) for row in table(folder)]


def told(folder: Path, run: str) -> dict:
    """What the run's kernel said of itself."""
    return json.loads((folder / run / "output/kernel.json").read_text())


def process_of(folder: Path, run: str) -> int:
    return told(folder, run)["process"]


def is_gone(process: int) -> bool:
    """Whether a process ends; a dead one may stay in the list until its parent has looked."""
    try:
        found = psutil.Process(process)
        deadline = time.monotonic() + 100
        while found.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            time.sleep(0.1)
        return found.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
