"""What a GPU makes of the notebooks: their own trainers at real sizes, one command, one file that grows with each part.

    python benchmarks/gpu.py --minutes 25                    # all parts in order of worth; needs the built notebooks
    python benchmarks/gpu.py --minutes 9 --missing           # goes on where an earlier call ended
    python benchmarks/gpu.py --only legal_cot_sft "legal_cot_sft stock"   # ours and the stock trainer
    python benchmarks/gpu.py --device cpu --small --output FILE   # the same code at sample size, which measures nothing
    python benchmarks/gpu.py --device tpu            # the TPU twins; notebooks/runtime_report.ipynb is a front for all of this

A part runs a built notebook with papermill in an empty folder, for few steps with the notebook's own batch, length and model, and
reads what its results.json says: time, MFU, memory. Where no hub answers, `--models DIR` names a folder with the
models by the last part of their ids. A part that fails, or that no time is left for, is named with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from report import machine, write  # noqa: E402

from helpers.run import checkpoint, provenance  # noqa: E402

STEPS = 30  # of a run; enough for a steady rate after the first
PART_MINUTES = 8  # that one part may take
SMALL = {"data_source": "sample", "base_model": "sample", "max_steps": 4}
QWEN, MINILM = "Qwen/Qwen2.5-0.5B-Instruct", "sentence-transformers/all-MiniLM-L6-v2"


@dataclass(frozen=True)
class Part:
    """A notebook with parameters; `resumed`: killed and run again, `cards`: how many GPUs it needs."""

    notebook: str
    parameters: dict = field(default_factory=dict)
    cards: int = 1
    resumed: bool = False
    stock: bool = False  # benchmarks/stock.py instead


PARTS = {
    "legal_cot_sft": Part("legal_cot_sft", {"base_model": QWEN}),
    "lejepa_training": Part("lejepa_training", {"base_model": MINILM}),
    "graphmer_se": Part("graphmer_se", {"base_model": MINILM}),
    "tinystories_reservoir": Part("tinystories_reservoir"),
    "hardware_tuning": Part("hardware_tuning", {"base_model": "google-bert/bert-base-uncased", "tuning_minutes": 4.0}),
    "legal_cot_sft qlora": Part("legal_cot_sft", {"base_model": QWEN, "method": "qlora"}),
    "legal_cot_sft 7B qlora": Part(
        "legal_cot_sft", {"base_model": "Qwen/Qwen2.5-7B-Instruct", "method": "qlora", "max_steps": 10}
    ),
    "legal_cot_sft full": Part("legal_cot_sft", {"base_model": QWEN, "method": "full"}),
    "legal_cot_sft two cards": Part("legal_cot_sft", {"base_model": QWEN, "num_processes": 0}, cards=2),
    "resume": Part("tinystories_reservoir", resumed=True),
}
for _name, _model in (("legal_cot_sft", QWEN), ("lejepa_training", MINILM)):
    PARTS[f"{_name} stock"] = Part(_name, {"base_model": _model}, stock=True)


class NotHere(RuntimeError):
    """This machine cannot run a part."""


def model_of(name: str, given) -> str:
    """A model of the hub, or its folder where no hub can be reached."""
    return str(given.models / name.rpartition("/")[2]) if given.models and "/" in name else name


def start(part: Part, folder: Path, given, **more) -> subprocess.Popen:
    """papermill with the notebook, in `folder`."""
    file = ROOT / f"notebooks/{part.notebook}{'_tpu' if given.device == 'tpu' else ''}.ipynb"
    known = file.read_text(encoding="utf-8")
    told = {"data_source": "sample", "max_steps": STEPS} | part.parameters | (SMALL if given.small else {}) | more
    told |= {"base_model": model_of(told.get("base_model", ""), given), "output_dir": str(folder / "out")}
    parameters = []
    for name, value in told.items():
        if f"\\n{name}: " in known or f'"{name}: ' in known:  # not each notebook has a base model or processes
            parameters += ["-y", f"{name}: {json.dumps(value)}"]
    command = [sys.executable, "-m", "papermill", str(file), "executed.ipynb", *parameters, "--no-progress-bar"]
    # In the payload of a notebook the parts have none of their own, and find helpers here.
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment, **options)


def kill(papermill: subprocess.Popen) -> None:
    """Ends it and its kernel at once: one that trains would save its step first, and hold the device's memory during the next part."""
    ended = [*psutil.Process(papermill.pid).children(recursive=True), papermill]
    for process in ended:
        process.kill()
    psutil.wait_procs(ended[:-1])


def execute(part: Part, folder: Path, given, **more) -> dict:
    """The results.json of the notebook, run to its end in `folder`. Raises RuntimeError with what it printed last."""
    with start(part, folder, given, **more) as papermill:
        try:
            _, errors = papermill.communicate(timeout=60 * PART_MINUTES)
        except subprocess.TimeoutExpired:
            kill(papermill)
            raise
    if papermill.returncode:
        raise RuntimeError(errors.strip()[-1500:])
    return json.loads((folder / "out/results.json").read_text(encoding="utf-8"))


def stock(part: Part, given, batch: int) -> dict:
    """The stock trainer of a notebook in a process of its own. Raises RuntimeError with what it printed last."""
    model = model_of(part.parameters["base_model"], given)
    command = [sys.executable, str(ROOT / "benchmarks/stock.py"), part.notebook, model, str(batch), str(STEPS)]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=60 * PART_MINUTES, check=False
        )
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-1500:])
    return json.loads(done.stdout.splitlines()[-1])


def short(results: dict) -> dict:
    """What is kept of a run: its settings, time, memory and MFU."""
    train, plan = results["train"], results["plan"]
    return {
        "device": results["runtime"]["device_name"],
        "precision": plan["precision"],
        "batch": plan["batch_size"],
        "micro_batch": plan["per_device_batch_size"],
        "checkpointing": plan["gradient_checkpointing"],
        "steps": train["steps"],
        "first_step_seconds": train["first_step_seconds"],
        "step_seconds": train["seconds"] / max(1, train["steps"]),
        "peak_memory_bytes": train["peak_memory_bytes"],
        "planned_memory_bytes": sum(plan["memory"].values()),
        "tokens_per_second": train["tokens_per_second"],
        "mfu": train["mfu"],
        "loss": [train["loss_first"], train["loss_last"]],
    }


def run(part: Part, given) -> dict:
    """One part in a folder of its own."""
    import torch

    if torch.cuda.device_count() < part.cards and not (part.cards == 1 and (given.small or given.device == "tpu")):
        raise NotHere(f"needs {part.cards} GPU(s), and torch sees {torch.cuda.device_count()}")
    with tempfile.TemporaryDirectory() as folder:
        if not part.resumed:
            return short(execute(part, Path(folder), given))
        return resumed(part, Path(folder), given)


def resumed(part: Part, folder: Path, given) -> dict:
    """A run that is killed once half of its steps are saved, and run again, against an undisturbed one: are the weights the same?"""
    from safetensors.torch import load_file

    steps = 40 if given.small else STEPS
    how = {"given": given, "max_steps": steps, "eval_steps": steps // 2}
    weights = []
    for name in ("whole", "killed"):
        (folder / name).mkdir()
        if name == "killed":
            saved = folder / name / f"out/checkpoint-{steps // 2}" / checkpoint.SEAL
            with start(part, folder / name, **how) as papermill:
                while papermill.poll() is None and not saved.exists():
                    time.sleep(0.01)
                if papermill.poll() is not None:
                    raise RuntimeError(papermill.stderr.read().strip()[-1500:] or "ended before it could be killed")
                kill(papermill)
        results = execute(part, folder / name, **how)
        weights.append(load_file(next((folder / name / "out").glob("model/*.safetensors"))))
    same = all(weights[0][name].equal(weights[1][name]) for name in weights[0])
    farthest = max(float((weights[0][name].float() - weights[1][name].float()).abs().max()) for name in weights[0])
    return {"equal": same, "farthest": farthest, "resumed_from": results["train"]["resumed_from_step"]}


def parts(given, kept: dict[str, dict]) -> Iterator[tuple[str, dict]]:
    """(name, what was found or why not), one after the other."""
    deadline = time.monotonic() + 60 * given.minutes
    for name in given.only or PARTS:
        if PARTS[name].stock and (given.small or given.device == "tpu"):
            continue
        left = deadline - time.monotonic()
        if left < 30:
            yield name, {"status": "no time left"}
            continue
        began = time.monotonic()
        try:
            part = PARTS[name]
            batch = kept.get(part.notebook, {}).get("batch", 8)  # ours, if there is one
            found = {"status": "done"} | (stock(part, given, batch) if part.stock else run(part, given))
        except NotHere as error:
            found = {"status": "not here", "reason": str(error)}
        except subprocess.TimeoutExpired:
            found = {"status": "out of time", "reason": f"{PART_MINUTES} minutes"}
        except (RuntimeError, OSError, KeyError, StopIteration) as error:
            found = {"status": "failed", "reason": f"{type(error).__name__}: {error}"[-1500:]}
        code = str(provenance.code()["payload_sha256"])[:12]
        yield name, found | {"seconds": round(time.monotonic() - began, 1), "code": code}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda", "tpu"), default="cuda")
    parser.add_argument("--output", type=Path, help="default: a file of this device in docs/results")
    parser.add_argument("--minutes", type=float, default=60, help="for all parts together")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="these parts")
    parser.add_argument("--missing", action="store_true", help="only parts that the file does not have as done")
    parser.add_argument("--models", type=Path, help="folder with models, where no hub answers")
    parser.add_argument("--small", action="store_true", help="samples; measures nothing")
    given = parser.parse_args()
    about = machine(given.device, ("torch", "transformers"))
    given.output = given.output or ROOT / f"docs/results/gpu_{about['device'].replace(' ', '_')}.json"
    kept = json.loads(given.output.read_text(encoding="utf-8"))["parts"] if given.output.exists() else {}
    if given.missing:
        given.only = [name for name in given.only or PARTS if kept.get(name, {}).get("status") != "done"]
        if not given.only:
            return 0
    for name, found in parts(given, kept):
        kept[name] = found
        about["device"] = found.get("device", about["device"])
        write(given.output, about, small=given.small, parts=kept)
        print(name, json.dumps(found), flush=True)
    return int(any(kept[name]["status"] == "failed" for name in given.only or kept))


if __name__ == "__main__":
    raise SystemExit(main())
