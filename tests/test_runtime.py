"""helpers.machine.runtime and helpers.machine.hardware: what the machine is, what is refused, what falls back and says so."""

import importlib.util
import json
import os
import re
import sys
from pathlib import Path

import pytest

from helpers.machine import hardware, runtime, xla
from tests.harness import ROOT, finished, namespaces, printed
from tests.train.test_trainer import ON_XLA

needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
CLEARED = ("PJRT_DEVICE", "CPU_NUM_DEVICES", "USE_TORCH_XLA", "XLA_USE_BF16")

DETECT = """
import json, os, sys, warnings
from helpers.machine import runtime
for module in {imported!r}:
    __import__(module)
answers, set_by_an_import = [], os.environ.get("PJRT_DEVICE")
for arguments in {calls!r}:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found, error = runtime.detect(*arguments).results(), None
        except (RuntimeError, ValueError, OSError) as raised:
            found, error = {{}}, f"{{type(raised).__name__}}: {{raised}}"
    ours = [str(warning.message) for warning in caught if "use_tpu" in str(warning.message)]
    answers.append(dict(found, error=error, warnings=ours))
print("\\n" + json.dumps(dict(answers=answers, set_by_an_import=set_by_an_import)))
"""


# A /dev of this process alone, with further files. A process that runs meanwhile holds "$1": the lock of libtpu and the device.
ATTACH = """
mount -t tmpfs none "$0"
for name in null zero random urandom full tty; do touch "$0/$name"; mount --bind "/dev/$name" "$0/$name"; done
ln -s /proc/self/fd "$0/fd"; mkdir "$0/shm" "$0/vfio"
for name in $2; do touch "$0/$name"; done
mount --rbind "$0" /dev
touch "$0/../lock" /tmp/libtpu_lockfile; mount --bind "$0/../lock" /tmp/libtpu_lockfile
if [ -n "$1" ]; then "$3" -c "
import fcntl, sys, time
lock, device = open('/tmp/libtpu_lockfile', 'w'), open('$1')
fcntl.lockf(lock, fcntl.LOCK_EX); print('holder', flush=True); time.sleep(600)" & read -t 1 nothing; fi
"$3" -c "$4"; status=$?; kill %1 2>/dev/null; exit $status
"""


def attached(folder: Path, files: str, code: str, held: str = "") -> list[str]:
    """The command that runs Python code where these device files exist, in a mount namespace."""
    namespace = namespaces("--map-root-user", "--mount")
    (folder / "dev").mkdir()
    return [*namespace, "bash", "-c", ATTACH, str(folder / "dev"), held, files, sys.executable, code]


def detect(*calls: tuple, imported: tuple[str, ...] = (), folder=None, files="", held="", **environment: str) -> dict:
    """`runtime.detect(*call)` for each call, one after the other in one fresh process without a GPU.

    files: device files that this process sees, for which it needs a `folder`. held: the one that another process has open.
    """
    clean = {name: value for name, value in os.environ.items() if name not in CLEARED}
    code = DETECT.format(imported=imported, calls=calls)
    command = attached(folder, files, code, held) if folder else [sys.executable, "-c", code]
    answered = finished(*command, env=clean | {"CUDA_VISIBLE_DEVICES": "", "TPU_SKIP_MDS_QUERY": "1"} | environment)
    assert answered.returncode == 0, answered.stderr[-2000:]
    return json.loads(answered.stdout.splitlines()[-1])


# -- precision --


@pytest.mark.parametrize(
    ("kind", "name", "capability", "expected"),
    [
        ("cuda", "Tesla T4", (7, 5), "fp16"),
        ("cuda", "NVIDIA A100-SXM4-40GB", (8, 0), "bf16"),
        ("cuda", "NVIDIA RTX PRO 6000", (12, 0), "bf16"),
        ("cpu", "x86_64", None, "fp32"),
        ("xla", "TPU v5litepod", None, "bf16"),
    ],
)
def test_precision_follows_what_the_device_multiplies_natively(kind, name, capability, expected):
    assert runtime.choose_precision(kind, name, capability)[0] == expected


@pytest.mark.parametrize(
    ("kind", "capability", "refused", "allowed"),
    [("cuda", (7, 5), "bf16", "fp32"), ("cpu", None, "fp16", "bf16"), ("xla", None, "fp16", "fp32")],
)
def test_a_precision_that_the_device_only_emulates_is_refused(kind, capability, refused, allowed):
    with pytest.raises(ValueError, match=f"precision='{refused}' is emulated and slow on mine; use 'auto'"):
        runtime.choose_precision(kind, "mine", capability, refused)
    chosen, reason = runtime.choose_precision(kind, "mine", capability, allowed)
    assert chosen == allowed and reason.startswith("set by you; 'auto' would be")


# -- which device --


@needs_libtpu
def test_a_tpu_that_another_process_holds_is_named_with_that_process(tmp_path):
    (seen,) = detect((True,), folder=tmp_path, files="accel0 vfio/0", held="/dev/accel0", PJRT_DEVICE="TPU")["answers"]
    expected = r"RuntimeError: .*/dev/accel0.* cannot be used: .*The TPU is already in use by process with pid \d+\..*end that process.*use_tpu=False"
    assert re.match(expected, seen["error"]), seen


@needs_libtpu
@pytest.mark.parametrize("files", ["accel0", ""])
def test_a_chip_that_does_not_start_stops_the_run(files, tmp_path):
    kaggle = {"PJRT_DEVICE": "TPU", "TPU_PROCESS_ADDRESSES": "local"}
    (seen,) = detect((True,), folder=tmp_path, files=files, **kaggle)["answers"]
    if files:
        assert "No ba16c7433 device found" in seen["error"] and "(/dev/accel0)" in seen["error"], seen
        assert "restart this session" in seen["error"]
    else:
        assert seen["kind"] == "cpu" and "No ba16c7433 device found" in seen["warnings"][0]


@pytest.mark.skipif(xla.installed(), reason="torch_xla is installed here")
def test_a_chip_without_a_library_that_drives_it_stops_the_run(tmp_path):
    (seen,) = detect((True,), folder=tmp_path, files="accel0")["answers"]
    assert "(/dev/accel0) cannot be used: torch_xla is not installed" in seen["error"], seen


def test_all_processes_of_a_cpu_are_one():
    assert detect((False, "fp32", 0))["answers"][0]["device_count"] == 1


@ON_XLA
def test_weights_in_bf16_are_refused():
    (answer,) = detect((True,), XLA_USE_BF16="1")["answers"]
    assert answer["error"].startswith("RuntimeError: XLA_USE_BF16=1 stores the weights")


def test_a_torch_xla_of_another_torch_is_refused_with_both_versions(tmp_path):
    (tmp_path / "torch_xla").mkdir()
    (tmp_path / "torch_xla/__init__.py").write_text("raise ImportError('undefined symbol')")
    (tmp_path / "torch_xla-2.8.0.dist-info").mkdir()
    (tmp_path / "torch_xla-2.8.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch_xla\nVersion: 2.8.0\n"
    )
    (answer,) = detect((True,), PYTHONPATH=str(tmp_path))["answers"]
    expected = r"RuntimeError: torch 2\S+ and torch_xla 2.8.0 do not fit together \(undefined symbol\)"
    assert re.match(expected, answer["error"])


@ON_XLA
def test_a_wish_that_changes_after_transformers_came_asks_for_a_restart():
    (answer,) = detect((False,), imported=("transformers",))["answers"]
    assert answer["error"].startswith("RuntimeError: transformers was imported in this kernel for a TPU")
    assert "Restart" in answer["error"]


# -- the catalogue --


@pytest.mark.parametrize(
    ("reported", "entry"),
    [
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100"),
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
        "NVIDIA GeForce RTX 3050 6GB",
        "A100-SXM-64GB",
    ],
)
def test_a_sibling_with_another_datasheet_does_not_borrow_this_one(reported):
    assert hardware.find(reported) is None


@pytest.mark.parametrize("entry", hardware.CATALOGUE, ids=lambda entry: entry.name)
def test_the_precision_a_device_trains_in_has_a_peak(entry):
    precision, _ = runtime.choose_precision(entry.kind, entry.name, entry.compute_capability)
    assert entry.peak_for(precision) == 1e12 * entry.teraflops[precision]


@ON_XLA
def test_an_import_that_sets_pjrt_device_is_not_taken_for_the_users_wish():
    seen = detect((True,), imported=("torch_xla",))
    assert seen["set_by_an_import"] == "CPU"
    assert seen["answers"][0]["kind"] == "cpu" and "going on without a TPU" in seen["answers"][0]["warnings"][0]


KEPT = """
import json, sys
from pathlib import Path
import helpers
from helpers.machine import runtime
from helpers.notebook import method
from helpers.parameters import Parameters
from helpers.run.run_folder import RunFolder
from torch_xla.debug import metrics
text = Path("helpers/reservoir/model.py").read_text()
helpers.shown = {"helpers/reservoir/model.py": method.digest(text)}
machine = runtime.detect(True)
run = RunFolder.claim("tiny", Parameters(output_dir=f"{sys.argv[1]}/run", keep_in=sys.argv[2]))
restored = [path.name for path in run.path.glob("compiled/*")]
run.method.write_text(text)
run.use_method()
import torch
(torch.ones(8, 8, device=machine.device) @ torch.ones(8, 8, device=machine.device)).sum().item()
run.mirror.copy()
misses = metrics.counter_value("PersistentCacheMiss") or 0
print(json.dumps(dict(restored=restored, misses=misses, written=[path.name for path in run.path.glob("compiled/*")])))
"""


@ON_XLA
def test_compiled_programs_are_brought_to_a_new_machine(tmp_path):
    """A CPU's programs are written and looked for, but XLA can load only those of a TPU."""
    environment = os.environ | {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "2", "TF_CPP_MIN_LOG_LEVEL": "2"}
    seen = []
    for machine in ("first", "second"):
        output = printed("-c", KEPT, tmp_path / machine, tmp_path / "kept", env=environment)
        seen.append(json.loads(output.splitlines()[-1]))
    first, second = seen
    assert first["restored"] == [] and first["misses"] == len(first["written"]) == 1
    assert second["restored"] == first["written"] and second["misses"] == 0


def test_bm25_is_imported_without_jax(tmp_path):
    """bm25s calls JAX while it is imported: on a GPU that takes most of its memory."""
    (tmp_path / "jax.py").write_text("raise SystemExit('JAX was imported')")
    script = "from helpers.data.bm25 import import_bm25s; import_bm25s().BM25(); print('done')"
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    assert printed("-c", script, env=environment).strip().endswith("done")
