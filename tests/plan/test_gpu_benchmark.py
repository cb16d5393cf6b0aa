"""benchmarks/gpu.py on the CPU and with the CPU in a card's place: its parts, and the file that it leaves."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.harness import ROOT, printed, python

pytestmark = [pytest.mark.once, pytest.mark.slow]


def measured(output: Path, *arguments: str) -> tuple[subprocess.CompletedProcess, dict]:
    """The command, and the file that it wrote."""
    done = python("benchmarks/gpu.py", "--device", "cpu", "--small", "--output", output, *arguments)
    return done, json.loads(output.read_text()) if output.exists() else {}


def test_a_part_is_a_notebook_run_to_its_end_beside_its_forecast(tmp_path):
    output = tmp_path / "gpu.json"
    done, found = measured(output, "--only", "tinystories_reservoir", "legal_cot_sft two cards")
    assert done.returncode == 0, done.stdout + done.stderr
    run, two = found["parts"].values()
    assert run["status"] == "done" and run["steps"] == 4 and run["forecast_memory_bytes"] is None  # of a CPU
    assert two == two | {"status": "not here", "reason": "needs 2 GPU(s), and torch sees 0"}
    done, again = measured(output, "--missing", "--only", "tinystories_reservoir")
    assert done.returncode == 0 and again["parts"] == found["parts"]


# First thing in the process of the benchmark, and, as a start-up file of IPython, in the kernel of each notebook.
PRETEND = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.machine.cuda_stand_in import pretend
sys.path.remove({str(ROOT)!r})
pretend("T4")
"""
COMMAND = "import runpy; sys.argv[0] = 'benchmarks/gpu.py'; runpy.run_path(sys.argv[0], run_name='__main__')"


@pytest.mark.parametrize("name", ["legal_cot_sft", "lejepa_training", "tinystories_reservoir"])
def test_on_a_t4_a_notebook_trains_in_fp16_and_has_its_mfu_and_memory_beside_the_forecast(name, tmp_path):
    startup = tmp_path / "ipython/profile_default/startup/card.py"
    startup.parent.mkdir(parents=True)
    startup.write_text(PRETEND)
    output = tmp_path / "gpu.json"
    environment = os.environ | {"IPYTHONDIR": str(tmp_path / "ipython")}
    printed("-c", PRETEND + COMMAND, "--small", "--output", output, "--only", name, env=environment)
    found = json.loads(output.read_text())
    part = found["parts"][name]
    assert found["machine"]["device"] == "Tesla T4" and part["status"] == "done", part
    assert part["precision"] == "fp16" and part["tokens_per_second"] > 0
    assert part["mfu"] is not None  # of so small a model it is rounded to nothing
    assert part["peak_memory_bytes"] == 2**30  # what the stand-in says
    assert part["forecast_memory_bytes"]["high"] > 0


def test_no_time_left_is_said_for_each_part(tmp_path):
    done, found = measured(tmp_path / "gpu.json", "--minutes", "0")
    assert done.returncode == 0 and {part["status"] for part in found["parts"].values()} == {"no time left"}
