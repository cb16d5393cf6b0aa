"""Each TPU notebook's training step at its real size, compiled by Google's TPU compiler: memory, FLOPs, bytes, collectives.

    python benchmarks/tpu_compiler.py                     # every step for v5e-1 and v5e-8; two hours on two cores, no TPU
    python benchmarks/tpu_compiler.py 'legal*/v5e-1'      # the named ones; the rest of the file stays

The model, the length and the micro-batch are those that the notebook would take on that slice. Nothing is executed.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import tpu_step as tpu  # noqa: E402
from report import machine as this_machine  # noqa: E402
from report import write  # noqa: E402

from helpers.notebook.setup import version  # noqa: E402
from helpers.plan.counting import count  # noqa: E402
from helpers.plan.forecast import ADAMW_BYTES  # noqa: E402
from helpers.plan.machines import machine, runtime_of  # noqa: E402
from helpers.plan.settings import DoesNotFit, plan  # noqa: E402
from helpers.plan.workloads import Asked, room  # noqa: E402

HARDWARE = ("v5e-1", "v5e-8")
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")
COLLECTIVE = re.compile(rf"\s+(?:ROOT )?%\S+ = (.+?) ({'|'.join(COLLECTIVES)})(?:-start)?\(")


@dataclass(frozen=True)
class Case:
    """A notebook's step, as a person may ask for it."""

    name: str
    notebook: str
    asked: Asked = field(default_factory=Asked)
    length: int = 0  # 0: the notebook's


CASES = (
    Case("reservoir", "tinystories_reservoir"),
    Case("tuning BERT-base", "hardware_tuning"),
    Case("LeJEPA MPNet", "lejepa_training"),
    Case("LeJEPA EmbeddingGemma-300M", "lejepa_training", Asked(model="google/embeddinggemma-300m")),
    Case("legal Qwen2.5-0.5B LoRA", "legal_cot_sft"),
    Case("legal Qwen2.5-0.5B full", "legal_cot_sft", Asked(method="full")),
    Case("GraphMER-SE 80M, 512 tokens", "graphmer_se", length=512),
    Case("GraphMER-SE 80M, 768 tokens", "graphmer_se", length=768),
)


def by_planner(workload, step: dict) -> dict:
    """What the planner says of a step: memory, and the bytes that it cannot do without.

    These are all weights read in each pass, the update's, and what is kept for backward, written once and read once.
    """
    how = {name: step[name] for name in ("precision", "length", "checkpointing", "accumulating")}
    counted = count(workload, step["examples_a_chip"], kind="xla", **how)
    program = workload
    if workload.program and step["accumulating"]:
        program = replace(workload, loss=workload.program)
    sent = count(program, step["examples_a_chip"], kind="xla", **how)
    weights = (3 if step["checkpointing"] else 2) * sent.weights
    update = ADAMW_BYTES * sent.trained + (1 + step["accumulating"]) * sent.gradients
    least = weights + update + 2 * sent.activations
    return {"planned_peak": counted.peak, "least_moved": round(least)}


def compiled(case: Case, hardware: str) -> dict:
    """What the compiler says of the step, and the planner."""
    chips = machine(hardware)
    runtime = runtime_of(chips)
    recipe, workload = room(case.notebook).planned(case.asked, runtime)
    planned = plan(recipe, workload, runtime)
    step = {
        "precision": planned.precision,
        "length": case.length or workload.length,
        "checkpointing": planned.gradient_checkpointing,
        "accumulating": planned.gradient_accumulation_steps > 1,
    }
    about = {"case": case.name, "examples_a_chip": planned.per_device_batch_size, **step}
    about |= by_planner(workload, about)
    traced, began = tpu.trace(workload, planned.micro_batch_size, chips=chips.count, **step), time.perf_counter()
    try:
        made = tpu.compile_step(traced, hardware)
    except DoesNotFit as error:
        return about | {"problem": str(error)}
    about |= {"hardware": hardware, "chips": chips.count, "examples": planned.micro_batch_size}
    return about | described(made) | {"seconds": round(time.perf_counter() - began, 1)}


def described(made: tpu.Compiled) -> dict:
    """A compiled step in numbers, for a results file."""
    numbers = {name: value for name, value in asdict(made).items() if name != "program"}
    return numbers | {"peak": made.peak, "moved": tpu.moved(made.program), "collectives": collectives(made.program)}


def collectives(program: str) -> dict[str, dict[str, int]]:
    """Kind: count and bytes of what an optimised HLO module in text sends between chips."""
    found: dict[str, dict[str, int]] = {}
    for shape, name in (match.groups() for match in map(COLLECTIVE.match, program.splitlines()) if match):
        kind = found.setdefault(name, {"count": 0, "bytes": 0})
        kind["count"] += 1
        kind["bytes"] += tpu.size(shape)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("only", nargs="*", default=["*"])
    given = parser.parse_args()
    tpu.begin()
    about = this_machine("cpu")
    packages = ("torch", "transformers", "torch_xla", "libtpu", "jax")
    made_with = {"date": date.today().isoformat(), **{name: version(name) for name in packages if version(name)}}
    output = ROOT / "docs/results/tpu_compiler_steps.json"
    steps = json.loads(output.read_text(encoding="utf-8"))["steps"] if output.exists() else {}
    names = {case.name for case in CASES}
    steps = {name: step for name, step in steps.items() if name.partition("/")[0] in names}
    for hardware in HARDWARE:
        for case in CASES:
            name = f"{case.name}/{hardware}"
            if any(fnmatch.fnmatch(name, pattern) for pattern in given.only):
                steps[name] = compiled(case, hardware) | {"versions": made_with}
                write(output, about, steps=steps)
                print(name, steps[name])


if __name__ == "__main__":
    main()
