"""A small notebook for the tests of batches: what its run does is a parameter, so that one grid holds runs of every kind."""

import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pandas
from nbformat.v4 import new_code_cell, new_notebook

ROOT = Path(__file__).resolve().parents[2]
# `hold` has a prefix, since a parameter that names a file makes another run when the file comes or goes.
PARAMETERS = """data_source: str = "sample"
output_dir: str = "out"
learning_rate: float = 0.0
seed: int = 0
resume: bool = True
max_hours: float = 0.0
keep_in: str = ""
prompt: str = "Once"
ending: str = "good"
hold: str = "file:hold"
hold_when: str = "step"
"""
RUN = f"""import json, os, pathlib, signal, sys, time
sys.path.insert(0, {str(ROOT)!r})
folder = pathlib.Path(output_dir)
folder.mkdir(parents=True, exist_ok=True)
(folder / "kernel").write_text(str(os.getpid()))
if ending == "raise":
    raise RuntimeError("out of luck")
if ending == "exit":
    sys.exit(0)
if ending == "kill":
    os.kill(os.getpid(), 9)
if ending == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (folder / "held").touch()
    time.sleep(1000)
"""
RESULTS = """train = {"loss_last": 0.5}
if ending == "train":
    from tests import training_run
    options = {"hold": hold.removeprefix("file:"), "hold_when": hold_when, "max_hours": max_hours, "width": 16}
    train = training_run.main(output_dir, training_run.DEFAULTS | options | {"learning_rate": 3e-3 / (1 + seed)})["train"]
(folder / "results.json").write_text(json.dumps({"passed": {"seed": seed, "resume": resume}, "train": train, "run": {}}))
"""


def write(path, **defaults):
    code = PARAMETERS + "\n".join(f"{name} = {value!r}" for name, value in defaults.items())
    tagged = new_code_cell(code, metadata={"tags": ["parameters"]})
    notebook = new_notebook(cells=[tagged, *map(new_code_cell, (RUN, RESULTS))])
    notebook.metadata.kernelspec = {"name": "python3", "language": "python", "display_name": "Python 3"}
    nbformat.write(notebook, path)
    return path


def command(notebook, folder, *arguments):
    """The command line in its own process, started in the notebook's folder; its output goes to `<folder>.log`."""
    with folder.with_suffix(".log").open("a") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "helpers.batch", notebook, "--output-dir", folder, *arguments],
            cwd=notebook.parent,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=log,
        )


def wait_for(condition, process):
    """Fails if a process ends before."""
    while not condition():
        assert process.poll() is None
        time.sleep(0.1)


def columns(folder, *names):
    """Of the table of a grid."""
    table = pandas.read_csv(folder / "results.csv", dtype=str, keep_default_na=False)
    return table[[*names]].values.tolist()
