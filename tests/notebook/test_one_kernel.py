"""A notebook's cells in one kernel, where a reader edits the method, changes settings and stops the training."""

import hashlib
import json
from pathlib import Path

import pytest
from jupyter_client.manager import run_kernel
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

from helpers.notebook import method
from tests.harness import ROOT, START, printed

from .test_notebooks import TINY

pytestmark = pytest.mark.once

SMALL = {**TINY, "max_steps": 4, "eval_steps": 2, "output_dir": "out"}
LINE, EDITED = "torch.tanh(torch.baddbmm", "torch.sin(torch.baddbmm"
STOP = """
import os, transformers
class Stop(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 1:
            os.kill(os.getpid(), 2)
trainer.add_callback(Stop())
"""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory) -> Path:
    """The notebook as this checkout builds it."""
    folder = tmp_path_factory.mktemp("notebooks")
    printed("tools/notebooks.py", "--out", folder)
    return folder / "tinystories_reservoir.ipynb"


class Live:
    """The code cells of a notebook in a kernel."""

    def __init__(self, kernel, notebook: Path, parameters: dict):
        self.kernel = kernel
        cells = parameterize_notebook(load_notebook_node(str(notebook)), parameters).cells
        self.cells = [cell.source for cell in cells if cell.cell_type == "code"]

    def run(self, code: str) -> str:
        """What a cell prints, with its error."""
        printed_parts = []

        def collect(message):
            printed_parts.append(message["content"].get("text", ""))

        reply = self.kernel.execute_interactive(code, output_hook=collect, timeout=600)["content"]
        if reply["status"] != "ok":
            printed_parts.append(f"{reply['ename']}: {reply['evalue']}")
        return "".join(printed_parts)

    def run_all(self) -> None:
        for code in self.cells:
            output = self.run(code)
            assert "Error: " not in output, output

    def place_of(self, text: str) -> int:
        """The place of the only cell with this text."""
        [place] = [place for place, code in enumerate(self.cells) if text in code]
        return place


def saved(folder: str | Path) -> tuple[dict, str]:
    """Results of a run, which describe what its folder says was trained, and the digest of the weights that it saved."""
    folder = Path(folder)
    results, run = (json.loads((folder / name).read_text()) for name in ("results.json", "run.json"))
    assert results["run"] == run
    for name in run.keys() & results["parameters"].keys():
        assert results["parameters"][name] == run[name]
    assert method.digest((folder / "method/model.py").read_text()) == run["method_file"]
    weights = folder / "model/model.safetensors"
    return results, hashlib.sha256(weights.read_bytes()).hexdigest()


def test_an_edited_method_is_trained_in_a_folder_of_its_own(notebook, alone):
    with run_kernel(startup_timeout=START) as kernel:
        live = Live(kernel, notebook, SMALL)
        live.run_all()
        results, weights = saved("out")
        assert results["finished"]
        training = live.cells[live.place_of("\ntrainer.train(")]
        live.run("units = 256")
        assert "`units` was changed after the settings cell: run it again" in live.run(training)
        place = live.place_of(LINE)
        live.cells[place] = live.cells[place].replace(LINE, EDITED)
        live.run_all()
    [folder] = alone.glob("out-edited-*")
    assert saved(folder)[1] != weights
    assert EDITED in (folder / "model/model.py").read_text()  # what loads it elsewhere
    # Neither a second notebook with the same payload nor the checkout sees the edit.
    assert not [*(alone.parent / "home/.cache").rglob("model.py")]
    assert EDITED not in (ROOT / "helpers/reservoir/model.py").read_text()


def test_results_and_verdict_of_a_stopped_training_say_so(notebook, alone):
    with run_kernel(startup_timeout=START) as kernel:
        live = Live(kernel, notebook, SMALL)
        place = live.place_of("\ntrainer.train(")
        for code in live.cells[:place]:
            live.run(code)
        stopped = live.cells[place].replace("\ntrainer.train(", f"{STOP}trainer.train(")
        assert "Stopped: " in live.run(stopped)
        for code in live.cells[place + 1 :]:
            live.run(code)
    results, _ = saved("out")
    assert results["finished"] is False and results["train"]["steps"] == 2
    assert results["eval"]["verdict"].startswith("step 2 of 4: ")


WRONG = [
    ({"max_stepz": 3}, "max_stepz"),
    ({"resume": "false"}, "resume='false'"),
    ({"data_source": "no/such/stories.txt"}, "data_source='no/such/stories.txt'"),
]


def test_a_wrong_parameter_is_named_before_anything_is_written(notebook, alone):
    with run_kernel(startup_timeout=START) as kernel:
        for parameters, message in WRONG:
            live = Live(kernel, notebook, {**SMALL, **parameters})
            outputs = map(live.run, live.cells)
            assert message in next(output for output in outputs if "Error: " in output)
    assert not Path("out").exists()
