"""A small notebook that trains for real, with checkpoints, and waits where a test wants to stop it."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
import psutil
from nbformat.v4 import new_code_cell, new_notebook

ROOT = Path(__file__).resolve().parents[1]
PARAMETERS = """output_dir: str = "out"
seed: int = 0
ending: str = "train"
"""
# Everything but `train` is something that no training notebook should do, and a batch has to live with.
TRAIN = f"""import json, os, pathlib, signal, subprocess, sys, time
sys.path.insert(0, {str(ROOT)!r})
folder = pathlib.Path(output_dir)
folder.mkdir(parents=True, exist_ok=True)
(folder / "kernel.json").write_text(json.dumps({{"process": os.getpid(), "directory": os.getcwd(),
    "threads": os.environ.get("OMP_NUM_THREADS"), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}}))
print("first line\\nsecond line")
if ending == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if ending == "raise":
    raise RuntimeError("out of luck")
if ending != "train":
    (folder / "waits").write_text(str(subprocess.Popen(["sleep", "300"]).pid))
    time.sleep(300)
"""
# A file beside the notebook says how long an evaluation pauses: a parameter would make it another run.
RESULTS = """from tests import training_run
options = {"evaluation_pause": float(pathlib.Path("pause").read_text()), "learning_rate": 3e-3 / (1 + seed), "width": 16}
got = training_run.main(output_dir, {**training_run.DEFAULTS, **options})
(folder / "results.json").write_text(json.dumps({"train": got["train"]}))
"""


def write(path: Path) -> Path:
    pause(path, 0)
    tagged = new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]})
    made = new_notebook(cells=[tagged, new_code_cell(TRAIN), new_code_cell(RESULTS)])
    made.metadata.kernelspec = {"name": "python3", "language": "python", "display_name": "Python 3"}
    nbformat.write(made, path)
    return path


def pause(notebook: Path, seconds: float) -> None:
    (notebook.parent / "pause").write_text(str(seconds))


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


def said(folder: Path) -> str:
    return folder.with_suffix(".log").read_text()


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def losses(folder: Path) -> list[tuple[str, str, str]]:
    return [(row["run"], row["train.loss_first"], row["train.loss_last"]) for row in table(folder)]


def alive(process: int, seconds: float = 5) -> bool:
    """Whether a process still runs in some seconds; a dead one may stay in the list until its parent has looked."""
    try:
        found = psutil.Process(process)
        deadline = time.monotonic() + seconds
        while found.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            time.sleep(0.1)
        return found.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(condition: Callable[[], object], running: subprocess.Popen, folder: Path, seconds: float = 120) -> None:
    """Waits for something that a batch does; fails with what it said when it ends before, or does not come to it."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert running.poll() is None and time.monotonic() < deadline, said(folder)
        time.sleep(0.1)
