"""benchmarks/gpu.py with the CPU in a card's place: what the file says that it leaves. Without a card: tests/notebook/test_runtime_report.py."""

import json
import os

import pytest

from tests.harness import ROOT, printed, write

pytestmark = [pytest.mark.once, pytest.mark.slow]


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
def test_on_a_t4_a_notebook_trains_in_fp16_with_its_mfu_and_memory(name, tmp_path):
    write(tmp_path, {"ipython/profile_default/startup/card.py": PRETEND})
    output = tmp_path / "gpu.json"
    environment = os.environ | {"IPYTHONDIR": str(tmp_path / "ipython")}
    printed("-c", PRETEND + COMMAND, "--small", "--output", output, "--only", name, env=environment)
    found = json.loads(output.read_text())
    part = found["parts"][name]
    assert found["machine"]["device"] == "Tesla T4" and part["status"] == "done", part
    assert part["precision"] == "fp16" and part["tokens_per_second"] > 0
    assert part["mfu"] is not None  # of so small a model it is rounded to nothing
    assert part["peak_memory_bytes"] == 2**30  # what the stand-in says
    assert part["planned_memory_bytes"] > 0
