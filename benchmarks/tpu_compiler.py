"""Each TPU notebook's training step at its real size, compiled by Google's TPU compiler: memory, FLOPs, collectives.

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
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import tpu_step as tpu  # noqa: E402
from report import machine as this_machine  # noqa: E402
from report import write  # noqa: E402

from helpers.notebook.setup import version  # noqa: E402
from helpers.plan.settings import DoesNotFit, plan  # noqa: E402

HARDWARE = ("v5e-1", "v5e-8")
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")
COLLECTIVE = re.compile(rf"\s+(?:ROOT )?%\S+ = (.+?) ({'|'.join(COLLECTIVES)})(?:-start)?\(")


@dataclass(frozen=True)
class Case:
    """A notebook's step, with a model, a method or a length."""

    name: str
    notebook: str
    options: dict = field(default_factory=dict)  # of `notebook_step`


CASES = (
    Case("reservoir", "tinystories_reservoir"),
    Case("tuning BERT-base", "hardware_tuning"),
    Case("LeJEPA MPNet", "lejepa_training"),
    Case("LeJEPA EmbeddingGemma-300M", "lejepa_training", {"model": tpu.GEMMA}),
    Case("legal Qwen2.5-0.5B LoRA", "legal_cot_sft"),
    Case("legal Qwen2.5-0.5B full", "legal_cot_sft", {"method": "full"}),
    Case("GraphMER-SE 80M, 512 tokens", "graphmer_se", {"length": 512}),
    Case("GraphMER-SE 80M, 768 tokens", "graphmer_se", {"length": 768}),
)


def compiled(case: Case, hardware: str) -> dict:
    """What the compiler says of the step, and the plan."""
    runtime = tpu.runtime_of(hardware)
    recipe, step = tpu.notebook_step(case.notebook, runtime, **case.options)
    planned = plan(recipe, step.model, step.loss, step.batch, runtime)
    how = {
        "precision": planned.precision,
        "checkpointing": planned.gradient_checkpointing,
        "accumulating": planned.gradient_accumulation_steps > 1,
    }
    about = {"case": case.name, "examples_a_chip": planned.per_device_batch_size, "length": step.length, **how}
    about["planned"] = sum(planned.memory.values())
    chips = runtime.device_count
    traced, began = tpu.trace(step, planned.micro_batch_size, chips=chips, **how), time.perf_counter()
    try:
        made = tpu.compile_step(traced, hardware)
    except DoesNotFit as error:
        return about | {"problem": str(error)}
    about |= {"hardware": hardware, "chips": chips, "examples": planned.micro_batch_size}
    return about | described(made) | {"seconds": round(time.perf_counter() - began, 1)}


def described(made: tpu.Compiled) -> dict:
    """A compiled step in numbers, for a results file."""
    numbers = {name: value for name, value in asdict(made).items() if name != "program"}
    return numbers | {"peak": made.peak, "collectives": collectives(made.program)}


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
