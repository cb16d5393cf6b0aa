"""benchmarks/gpu.py on the CPU, by the code that runs on a GPU, at tiny sizes: every part, and the file that it leaves."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from helpers.machine import xla

if xla.installed():  # the benchmark says, where it is loaded, that there is no TPU
    pytest.skip(
        "accelerate would take XLA in this process; the tests with requirements-gpu.txt run it", allow_module_level=True
    )

from benchmarks import gpu, gpu_kernels, gpu_steps
from benchmarks.gpu_parts import Here, NotHere
from helpers.machine.hardware import cpu_name

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the command itself is to be run"),
]

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def here(tmp_path) -> Iterator[Here]:
    yield Here(kind="cpu", small=True, folder=tmp_path, seconds=60, keep=json.dumps)
    torch.use_deterministic_algorithms(False)  # which GraphMER-SE's trainer asks for


def measured(output: Path, *arguments: str) -> tuple[subprocess.CompletedProcess, dict]:
    """The command, and the file that it wrote."""
    command = [sys.executable, "benchmarks/gpu.py", "--device", "cpu", "--small", "--output", output, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    return done, json.loads(output.read_text()) if output.exists() else {}


def test_a_file_says_what_each_part_found_and_where_it_comes_from(tmp_path):
    output = tmp_path / "gpu.json"
    before = {"attention": {"status": "done"}, "recurrence": {"status": "failed"}}
    output.write_text(json.dumps({"small": True, "machine": {"device": cpu_name()}, "parts": before}))
    done, found = measured(output, "--missing", "--only", "attention", "recurrence", "steps/*/fp16", "out_of_memory")
    assert done.returncode == 0, done.stderr
    assert {"machine", "code", "versions"} <= found.keys() and found["small"] is True
    parts = found["parts"]
    assert parts["attention"] == {"status": "done"}  # it was not missing
    assert parts["recurrence"]["status"] == "done"
    assert parts["recurrence"]["code"] == found["code"]["payload_sha256"][:12]
    for name in ("out_of_memory", *(f"steps/{each}/fp16" for each in gpu.NOTEBOOKS)):
        assert (parts[name]["status"], parts[name]["reason"]) == ("not here", "needs CUDA")
    lines = [line.split()[0] for line in done.stdout.splitlines()[:-1]]
    assert lines == [name for name in gpu.PARTS if name in parts and name != "attention"]  # in order of worth
    page = evidence().device(found | {"parts": parts | {"attention": {"status": "no time left"}}})
    assert "| out_of_memory | not here: needs CUDA |" in page


def evidence():
    """What makes the tables of docs/gpu.md."""
    spec = importlib.util.spec_from_file_location("evidence_gpu", ROOT / "docs/evidence/gpu.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_fails_and_what_has_no_end_is_recorded_and_keeps_what_it_found(tmp_path, monkeypatch):
    given = gpu.argparse.Namespace(device="cpu", small=True)
    module = tmp_path / "stuck.py"
    module.write_text(
        "import time\n"
        "def fails(here):\n    here.keep({'first': 1})\n    raise MemoryError('no more')\n"
        "def stays(here):\n    here.keep({'first': 1})\n    time.sleep(60)\n"
        "def dies(here):\n    import os\n    print('last words', flush=True)\n    os.abort()\n"
    )
    # The command itself with three more parts, which are found by name as the others are.
    monkeypatch.setattr(gpu, "__file__", str(tmp_path / "more.py"))
    extra = {name: f"gpu.Part('stuck:{name}')" for name in ("fails", "stays", "dies")}
    (tmp_path / "more.py").write_text(
        f"import sys\nsys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]\n"
        "import stuck\nfrom benchmarks import gpu\nsys.modules['benchmarks.stuck'] = stuck\n"
        + "".join(f"gpu.PARTS[{name!r}] = {part}\n" for name, part in extra.items())
        + "raise SystemExit(gpu.main())\n"
    )
    for name in extra:
        monkeypatch.setitem(gpu.PARTS, name, gpu.Part(f"stuck:{name}"))
    failed = gpu.run("fails", 60, given)
    assert failed["status"] == "failed" and failed["error"] == "MemoryError: no more"
    assert failed["first"] == 1 and "raise MemoryError" in failed["output"]
    stuck = gpu.run("stays", 3, given)
    assert (stuck["status"], stuck["error"], stuck["first"]) == ("out of time", "ended after 3 s", 1)
    dead = gpu.run("dies", 60, given)
    assert dead["status"] == "failed" and "status -6" in dead["error"] and "last words" in dead["output"]


@pytest.mark.parametrize("notebook", gpu.NOTEBOOKS)
def test_steps_of_every_notebook_are_measured_beside_the_plan(notebook, here):
    found = gpu_steps.steps(notebook, "bf16", here)
    assert found["precision"] == "bf16" and found["steps"] == gpu_steps.LEAST_STEPS - 2
    assert found["loss_first"] > 0 and found["loss_last"] > 0 and not found["messages"]
    assert found["tokens_per_second"] == pytest.approx(found["tokens"] / found["step_seconds"], rel=0.01)
    assert found["counted_bytes"] > 0 and found["flops"] > 0 and found["process_peak_bytes"] > 0
    assert found["forecast"]["peak_memory_bytes"]["low"] > 0


def test_what_a_precision_needs_is_said(here):
    with pytest.raises(NotHere, match="precision='fp16' needs a CUDA GPU"):
        gpu_steps.steps("hardware_tuning", "fp16", here)


def test_fused_attention_agrees_with_the_mask_alone_and_in_a_model(here):
    found = gpu_kernels.attention(here)
    assert {"mask", "one segment after the other"} == found["operator"].keys()
    assert all(side["equal"] and side["milliseconds"] > 0 for side in found["operator"].values())
    assert found["model"]["chosen"] == "packed_segments"
    assert found["model"]["packed_segments"]["equal"] and found["model"]["mask"]["equal"]


def test_every_form_of_sigreg_agrees_with_the_formula_in_fp64(here):
    found = gpu_kernels.sigreg(here)
    assert len(found["sides"]) == 5 and all(side["equal"] for side in found["sides"].values()), found


def test_the_loader_of_the_legal_notebook_gives_adapters_that_train(here):
    found = gpu_steps.adapters("lora", here)
    assert found["method"] == "lora" and found["loss_last"] < 10 and found["step_seconds"] > 0


def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(here):
    found = gpu_steps.resume("tinystories_reservoir", here)
    assert found["resumed_from"] == "checkpoint-3"
    assert found["equal"] and set(found["sha256"]["killed"]) >= {"model.safetensors", "optimizer.pt"}


def test_real_sizes_are_for_a_gpu_and_small_ones_for_no_results_file(tmp_path):
    for arguments, message in (
        (["--device", "cpu"], "real sizes are for a GPU"),
        (["--device", "cpu", "--small"], "no measurements"),
        (["--only", "step"], "no such part; there are machine, steps/"),
    ):
        command = [sys.executable, "benchmarks/gpu.py", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2 and message in done.stderr
