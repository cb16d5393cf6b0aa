"""Everything that only a GPU can tell, in order of worth and within a time: run it first thing where there is one.

    python benchmarks/gpu.py --minutes 25                    # docs/results/gpu_<device>.json, whole after every part
    python benchmarks/gpu.py --only attention 'steps/*/fp16' # replaces these parts, the rest of the file stays
    python benchmarks/gpu.py --minutes 9 --missing           # goes on where an earlier call ended
    python benchmarks/gpu.py --device cpu --small --output /tmp/dry.json      # the same code at tiny sizes, where it can

Nothing is downloaded: weights and texts are random, models have their real architecture and size. Each part runs in a process
of its own with a time limit; one that fails is recorded with its error, and the next begins.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks import report  # noqa: E402
from benchmarks.gpu_parts import Here, NotHere  # noqa: E402

NOTEBOOKS = ("tinystories_reservoir", "legal_cot_sft", "lejepa_training", "graphmer_se", "hardware_tuning")
LEAST = 15  # seconds in which a process may begin to be of use
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
TAIL = 3_000  # characters of what a failed part printed


@dataclass(frozen=True)
class Part:
    """What runs under a name."""

    function: str  # module:function of this folder
    arguments: tuple[str, ...] = ()
    seconds: int = 180  # at most
    needs_cuda: bool = False


PARTS = {  # in order of worth
    "machine": Part("gpu:machine"),
    **{f"steps/{name}/bf16": Part("gpu_steps:steps", (name, "bf16")) for name in NOTEBOOKS},
    **{f"steps/{name}/fp16": Part("gpu_steps:steps", (name, "fp16"), needs_cuda=True) for name in NOTEBOOKS},
    "attention": Part("gpu_kernels:attention"),
    "sigreg": Part("gpu_kernels:sigreg", seconds=240),
    "recurrence": Part("gpu_kernels:recurrence"),
    "adapters/lora": Part("gpu_steps:adapters", ("lora",)),
    "adapters/qlora": Part("gpu_steps:adapters", ("qlora",), needs_cuda=True),
    "out_of_memory": Part("gpu_steps:ladder", needs_cuda=True),
    **{f"resume/{name}": Part("gpu_steps:resume", (name,), 400) for name in NOTEBOOKS[:2]},
    "two_processes": Part("gpu_steps:together", seconds=240),
    **{f"notebook/{name}": Part("gpu_steps:notebook", (name,), 300, needs_cuda=True) for name in NOTEBOOKS},
}


def machine(here: Here) -> dict:
    """The device, and which of the optional kernels are installed."""
    import torch

    from helpers.run import provenance

    found = report.machine(here.kind, ("torch", "transformers", "flash-attn", "bitsandbytes", "triton", "nvidia-ml-py"))
    found["helpers"] = provenance.code()
    if here.kind == "cuda":
        about = torch.cuda.get_device_properties(0)
        found |= {
            "gpus": torch.cuda.device_count(),
            "compute_capability": [about.major, about.minor],
            "memory_bytes": about.total_memory,
            "cuda": torch.version.cuda,
        }
    return found


def run(name: str, seconds: float, given: argparse.Namespace) -> dict:
    """What a part found, in a process of its own: `status` is done, failed, not here, or out of time."""
    if given.device == "cpu" and PARTS[name].needs_cuda:
        return {"status": "not here", "reason": "needs CUDA"}
    with tempfile.TemporaryDirectory(prefix="gpu-", ignore_cleanup_errors=True) as folder:
        found, log = Path(folder, "found.json"), Path(folder, "log.txt")
        told = {"kind": given.device, "small": given.small, "folder": folder, "seconds": seconds}
        command = [sys.executable, __file__, "--run", name, json.dumps(told)]
        environment = os.environ | OFFLINE | (NO_GPU if given.device == "cpu" else {})
        began = time.monotonic()
        with log.open("w") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, cwd=ROOT, env=environment, start_new_session=True
            )
            try:
                code, ended = process.wait(seconds), ""
            except subprocess.TimeoutExpired:
                code, ended = None, f"ended after {seconds:.0f} s"
            finally:
                _kill(process)
        part = json.loads(found.read_text(encoding="utf-8")) if found.exists() else {"status": "running"}
        if part["status"] == "running":  # it did not come to its own end
            part |= {"status": "failed" if code is not None else "out of time"}
            part |= {"error": ended or f"the process ended with status {code}"}
        if part["status"] in ("failed", "out of time"):
            part["output"] = log.read_text(encoding="utf-8", errors="replace")[-TAIL:]
        return part | {"seconds": round(time.monotonic() - began, 1)}


def _kill(process: subprocess.Popen) -> None:
    """The process, and those that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def take_part(name: str, told: dict) -> None:
    """In the process of a part: runs it, and writes what it found, and what it has found so far."""
    asked, folder = PARTS[name], Path(told["folder"])

    def keep(found: dict, status: str = "running") -> None:
        staged = folder / ".found.json"
        staged.write_text(json.dumps({"status": status, **found}), encoding="utf-8")
        staged.replace(folder / "found.json")

    scratch = folder / "scratch"
    scratch.mkdir()
    so_far: dict = {}

    def kept(found: dict) -> None:
        so_far.update(found)
        keep(so_far)

    module, _, function = asked.function.partition(":")
    try:
        part = getattr(importlib.import_module(f"benchmarks.{module}"), function)
        keep(part(*asked.arguments, Here(**told | {"folder": scratch, "keep": kept})), "done")
    except NotHere as reason:
        keep({"reason": str(reason)}, "not here")
    except Exception as error:
        traceback.print_exc()
        keep(so_far | {"error": f"{type(error).__name__}: {error}"}, "failed")


def chosen(patterns: list[str]) -> list[str]:
    """Parts whose names, or the beginnings of whose names, match. Raises ValueError for a pattern that none does."""

    def meant(pattern: str) -> set[str]:
        found = {name for name in PARTS if fnmatch.fnmatch(name, pattern) or name.startswith(f"{pattern}/")}
        if not found:
            raise ValueError(f"--only {pattern}: no such part; there are {', '.join(PARTS)}")
        return found

    names = set.union(*map(meant, patterns)) - {"machine"}  # which comes first in any case
    return [name for name in PARTS if name in names]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=25.0, help="after which no part begins, and the last is ended")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PART", help=f"of {', '.join(PARTS)}; or patterns")
    parser.add_argument(
        "--missing", action="store_true", help="leave out what the file says is done, or cannot be here"
    )
    parser.add_argument("--small", action="store_true", help="tiny sizes: shows that the code works, measures nothing")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--output", type=Path, help="default: docs/results/gpu_<device>.json")
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        take_part(given.run[0], json.loads(given.run[1]))
        return 0
    try:
        names = chosen(given.only)
    except ValueError as error:
        parser.error(str(error))
    if given.device == "cpu" and not given.small:
        parser.error("--device cpu: real sizes are for a GPU; add --small")
    if given.small and not given.output:
        parser.error("--small: what it writes are no measurements; give an --output outside of docs/results")
    until = time.monotonic() + 60 * given.minutes
    first = run("machine", PARTS["machine"].seconds, given)
    if first["status"] != "done":
        parser.exit(1, f"no GPU to be measured: {first['error']}\n{first.get('output', '')}\n")
    about = {name: value for name, value in first.items() if name not in ("status", "seconds", "helpers")}
    device = re.sub(r"\W+", "_", about["device"].lower()).strip("_")
    output = given.output or ROOT / f"docs/results/gpu_{device}.json"
    before = json.loads(output.read_text(encoding="utf-8")) if output.exists() else {}
    same = before and before["small"] == given.small and before["machine"]["device"] == about["device"]
    parts = before["parts"] if same else {}
    settled = {name for name in parts if given.missing and parts[name]["status"] in ("done", "not here")}
    for name in (each for each in names if each not in settled):
        left = until - time.monotonic()
        if left < LEAST:
            parts.setdefault(name, {"status": "no time left"})
        else:
            parts[name] = run(name, min(left, PARTS[name].seconds), given) | {
                "code": first["helpers"]["payload_sha256"][:12]
            }
        report.write(output, about, small=given.small, parts=parts)
        short = {key: parts[name][key] for key in ("status", "reason", "error", "seconds") if key in parts[name]}
        print(name, json.dumps(short), flush=True)
    print(output)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
