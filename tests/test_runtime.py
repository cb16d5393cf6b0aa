"""helpers.machine.runtime and helpers.machine.hardware: what the machine is, what is refused, what falls back and says so."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.machine import hardware, runtime

ROOT = Path(__file__).resolve().parents[1]
needs_torch_xla = pytest.mark.skipif(
    importlib.util.find_spec("torch_xla") is None, reason="torch_xla is not installed (requirements-tpu.txt)"
)
CLEARED = ("PJRT_DEVICE", "CPU_NUM_DEVICES", "USE_TORCH_XLA", "XLA_USE_BF16", "XLA_DOWNCAST_BF16")

DETECT = """
import json, os, sys, warnings
from helpers.machine import runtime
for module in {imported!r}:
    __import__(module)
answers = []
for arguments in {calls!r}:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found, error = runtime.detect(*arguments), None
            found = dict(text=str(found), reason=found.reason, precision_reason=found.precision_reason, **found.results())
        except (RuntimeError, ValueError, OSError) as raised:
            found, error = {{}}, f"{{type(raised).__name__}}: {{raised}}"
    ours = [str(warning.message) for warning in caught if "use_tpu" in str(warning.message)]
    answers.append(dict(found, error=error, warnings=ours))
environment = {{name: os.environ.get(name) for name in ("USE_TORCH_XLA", "PJRT_DEVICE")}}
print("\\n" + json.dumps(dict(answers=answers, environment=environment, torch_loaded="torch" in sys.modules)))
"""


def detect(*calls: tuple, imported: tuple[str, ...] = (), **environment: str) -> dict:
    """`runtime.detect(*call)` for each call, one after the other in one fresh process without a GPU."""
    clean = {name: value for name, value in os.environ.items() if name not in CLEARED}
    finished = subprocess.run(
        [sys.executable, "-c", DETECT.format(imported=imported, calls=calls)],
        env=clean | {"CUDA_VISIBLE_DEVICES": "", "TPU_SKIP_MDS_QUERY": "1"} | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    return json.loads(finished.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def without_tpu():
    """A TPU wished twice where there is none."""
    return detect((True,), (True,))


@pytest.fixture(scope="module")
def on_cpu():
    return detect((False,), (False, "fp16"), (False, "bf16"), (False, "fp8"))["answers"]


@pytest.fixture(scope="module")
def rehearsal():
    """The TPU's graphs on eight virtual CPU devices."""
    calls = (True,), (True, "fp16"), (True,)
    return detect(*calls, PJRT_DEVICE="CPU", CPU_NUM_DEVICES="8", XLA_USE_BF16="0")


# -- precision --


@pytest.mark.parametrize(
    ("kind", "name", "capability", "expected"),
    [
        ("cuda", "Tesla T4", (7, 5), "fp16"),
        ("cuda", "Tesla V100-SXM2-16GB", (7, 0), "fp16"),
        ("cuda", "NVIDIA A100-SXM4-40GB", (8, 0), "bf16"),
        ("cuda", "NVIDIA L4", (8, 9), "bf16"),
        ("cuda", "NVIDIA H200", (9, 0), "bf16"),
        ("cuda", "NVIDIA RTX PRO 6000", (12, 0), "bf16"),
        ("cpu", "x86_64", None, "fp32"),
        ("xla", "TPU v5litepod", None, "bf16"),
    ],
)
def test_precision_follows_what_the_device_multiplies_natively(kind, name, capability, expected):
    assert runtime.choose_precision(kind, name, capability)[0] == expected


def test_bf16_is_refused_where_the_gpu_only_emulates_it():
    with pytest.raises(ValueError, match=r"precision='bf16'.*Tesla T4.*fp32"):
        runtime.choose_precision("cuda", "Tesla T4", (7, 5), "bf16")


def test_fp16_on_a_cpu_is_refused_naming_precision(on_cpu):
    assert on_cpu[1]["error"].startswith("ValueError: precision='fp16' needs a CUDA GPU")


def test_bf16_on_a_cpu_is_taken_when_asked_for_and_says_what_auto_were(on_cpu):
    assert on_cpu[2]["precision"] == "bf16"
    assert "asked for" in on_cpu[2]["precision_reason"] and "fp32" in on_cpu[2]["precision_reason"]


# -- which device --


def test_a_tpu_that_is_not_there_is_warned_of_once_and_the_run_goes_on(without_tpu):
    first = without_tpu["answers"][0]
    assert first["kind"] == "cpu" and first["error"] is None
    (warning,) = first["warnings"]
    assert "going on without a TPU" in warning and "Change runtime type" in warning


@needs_torch_xla
def test_a_rehearsal_spans_all_virtual_devices(rehearsal):
    first = rehearsal["answers"][0]
    assert (first["kind"], first["device_count"], first["precision"]) == ("xla", 8, "bf16")
    assert first["warnings"] == [] and rehearsal["environment"]["USE_TORCH_XLA"] == "1"


@needs_torch_xla
@pytest.mark.parametrize("flag", ["XLA_USE_BF16", "XLA_DOWNCAST_BF16"])
def test_weights_in_bf16_are_refused_before_anything_is_loaded(flag):
    seen = detect((True,), **{flag: "1"})
    assert seen["answers"][0]["error"].startswith(f"RuntimeError: {flag}=1 stores the weights")
    assert not seen["torch_loaded"]


def test_a_torch_xla_of_another_torch_is_refused_with_both_versions(tmp_path):
    (tmp_path / "torch_xla").mkdir()
    (tmp_path / "torch_xla/__init__.py").write_text("")
    (tmp_path / "torch_xla-2.8.0.dist-info").mkdir()
    (tmp_path / "torch_xla-2.8.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch_xla\nVersion: 2.8.0\n"
    )
    seen = detect((True,), PYTHONPATH=str(tmp_path))
    error = seen["answers"][0]["error"]
    assert error.startswith("RuntimeError: torch 2.") and "torch_xla 2.8.0 do not fit together" in error
    assert not seen["torch_loaded"]


@needs_torch_xla
def test_a_wish_that_changes_after_transformers_came_asks_for_a_restart():
    (answer,) = detect((False,), imported=("transformers",))["answers"]
    assert answer["error"].startswith("RuntimeError: transformers already run for a TPU")
    assert "Restart" in answer["error"]


# -- the catalogue --


@pytest.mark.parametrize(
    ("reported", "entry"),
    [
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("TPU v5litepod-8", "TPU v5e"),
        ("TPU v5 lite", "TPU v5e"),
        ("TPU v6 lite", "TPU v6e"),
    ],
)
def test_a_reported_name_finds_its_datasheet(reported, entry):
    assert hardware.find(reported).name == entry


@pytest.mark.parametrize(
    "reported",
    [
        "NVIDIA H100 PCIe",  # 756 dense bf16 TFLOP/s and 2.0 TB/s, the SXM board 989 and 3.35
        "NVIDIA H100 NVL",  # 94 GB
        "NVIDIA H200 NVL",  # 835 dense bf16 TFLOP/s
        "Tesla V100-SXM2-32GB",  # twice the memory of the entry
        "Tesla V100-PCIE-16GB",  # 112 fp16 TFLOP/s, the SXM2 board 125
        "NVIDIA GeForce RTX 4090 D",  # 14592 cores instead of 16384
        "NVIDIA GeForce RTX 4090 Laptop GPU",  # 16 GB, another chip
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",  # one seventh of the board
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
    ],
)
def test_a_sibling_with_another_datasheet_does_not_borrow_this_one(reported):
    assert hardware.find(reported) is None


@pytest.mark.parametrize("entry", hardware.CATALOGUE, ids=lambda entry: entry.name)
def test_the_precision_a_device_trains_in_has_a_peak(entry):
    precision, _ = runtime.choose_precision(entry.kind, entry.name, entry.compute_capability)
    assert entry.peak_for(precision) > 0


@needs_torch_xla
def test_an_import_that_sets_pjrt_device_is_not_taken_for_the_users_wish():
    code = (
        "import torch_xla, os; assert os.environ['PJRT_DEVICE'] == 'CPU'\n"
        "from helpers.machine import runtime; print(runtime.detect(True).kind)"
    )
    clean = {name: value for name, value in os.environ.items() if name not in ("PJRT_DEVICE", "CPU_NUM_DEVICES")}
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=clean, capture_output=True, text=True)
    assert process.stdout.split() == ["cpu"], process.stderr
    assert "going on without a TPU" in process.stderr


def test_bm25_is_imported_without_jax(tmp_path):
    """bm25s calls JAX while it is imported: on a GPU that takes most of its memory."""
    (tmp_path / "jax.py").write_text("raise SystemExit('JAX was imported')")
    script = "from helpers.data.bm25 import import_bm25s; import_bm25s().BM25(); print('done')"
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    process = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert process.stdout.strip().endswith("done"), process.stderr[-2000:]
