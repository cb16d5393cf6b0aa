"""A whole notebook in a Colab runtime that is taken away with its disk: a new one goes on from the Drive and ends with the same weights."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.run import checkpoint
from tests.colab import Drive
from tests.harness import NOTEBOOKS, ROOT

from .test_one_kernel import SMALL, saved

pytestmark = pytest.mark.once

RUN = f"""
import json, sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook
from helpers.batch.processes import run_cells
from tests import colab
notebook, values, drive, hold = sys.argv[1:]
if drive:
    colab.pretend(Path(drive))
cells = parameterize_notebook(load_notebook_node(notebook), json.loads(values)).cells
sources = [cell.source for cell in cells if cell.cell_type == "code"]
list(run_cells(source.replace("\\ntrainer.train(", f"{{hold}}\\ntrainer.train(") for source in sources))
"""
HOLD = """
import time, transformers
class Hold(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        while state.global_step == 5:
            time.sleep(0.1)
trainer.add_callback(Hold())
"""


def start(folder: Path, drive: Path | str = "", hold: str = "") -> subprocess.Popen:
    """The notebook from its first to its last cell, on a machine of which `folder` is the disk."""
    folder.mkdir()
    values = SMALL | {"max_steps": 8, "keep_in": "drive" if drive else ""}
    arguments = [NOTEBOOKS / "tinystories_reservoir.ipynb", json.dumps(values), drive, hold]
    machine = ["unshare", "--mount"] if drive else []
    environment = os.environ | {"HOME": str(folder), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("w") as log:
        command = [*machine, sys.executable, "-c", RUN, *map(str, arguments)]
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)


def finish(folder: Path, **options) -> str:
    assert start(folder, **options).wait(900) == 0, (folder / "log").read_text()[-3000:]
    return (folder / "log").read_text()


@pytest.mark.slow
@pytest.mark.skipif(
    bool(subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode), reason="a mount needs root"
)
@pytest.mark.parametrize("number", [0, 1])
def test_a_machine_that_is_taken_away_costs_no_weight(tmp_path, number):
    drive = Drive(tmp_path / "drive")
    running = start(tmp_path / "one", drive.folder, HOLD)
    copy = drive.mounted / "MyDrive/kept_runs/out/checkpoint-4" / checkpoint.SEAL
    while not copy.exists():
        assert running.poll() is None, (tmp_path / "one/log").read_text()[-3000:]
        time.sleep(0.1)
    drive.upload()
    running.kill()
    running.wait()
    drive.upload(random.Random(number))  # what was copied since then is there in part
    drive.new_machine()
    shutil.rmtree(tmp_path / "one")
    log = finish(tmp_path / "two", drive=drive.folder)
    assert "resuming from checkpoint-4" in log and "everything is copied" in log
    finish(tmp_path / "undisturbed")
    (results, weights), (expected, expected_weights) = (
        saved(tmp_path / name / "out") for name in ("two", "undisturbed")
    )
    assert weights == expected_weights and results["train"]["resumed_from_step"] == 4
    assert results["eval"]["baselines"] == expected["eval"]["baselines"]
