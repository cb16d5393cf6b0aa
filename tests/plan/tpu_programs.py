"""Training steps of TPU notebooks at a small size, compiled by the TPU compiler, in a process of their own.

python tests/plan/tpu_programs.py FOLDER HARDWARE NAME ...    prints one line of JSON a step
"""

import importlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import torch

from helpers.plan.machines import machine, runtime_of
from helpers.plan.settings import DoesNotFit
from helpers.plan.workloads import Asked, Workload, room
from tests.workloads import stack

tpu = importlib.import_module("tpu_step")
described = importlib.import_module("tpu_compiler").described
LENGTH, EXAMPLES = 128, 8  # of a chip
SMALL = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 2}


def steps(folder: Path) -> dict[str, tuple[str, Asked]]:
    """(notebook, what is asked of it) by a name."""
    from transformers import BertConfig, Qwen2Config

    Qwen2Config(vocab_size=2000, num_key_value_heads=1, **SMALL).save_pretrained(folder / "qwen")
    BertConfig(vocab_size=2000, **SMALL).save_pretrained(folder / "bert")
    return {
        "reservoir": ("tinystories_reservoir", Asked(model="384")),
        "lejepa": ("lejepa_training", Asked(model=str(folder / "bert"), length=LENGTH)),
        "legal": ("legal_cot_sft", Asked(model=str(folder / "qwen"), length=LENGTH)),
        "tuning": ("hardware_tuning", Asked(model=str(folder / "bert"), length=LENGTH)),
    }


def compiled(step: Workload, hardware: str, **how) -> dict:
    """What the compiler says of it, and beside it: bytes of weights and moments, and of random numbers."""
    chips = machine(hardware).count
    traced = tpu.trace(step, EXAMPLES * chips, chips=chips, **how)
    found = tpu.compile_step(traced, hardware)
    return described(found) | {
        "held": sum(12 * weight.numel() for weight in step.model.parameters() if weight.requires_grad),
        "products": traced.products,
        "drawn": sum(map(tpu.size, re.findall(r"= (\S+) rng-bit-generator\(", found.program))),
    }


def gathering() -> Workload:
    """A step whose loss needs every example of the batch on every chip, wide as a model."""
    step = stack(2)

    def loss(model, ids):
        states = model(ids).flatten(1)
        return (states @ states.T).exp().mean() + step.loss(model, ids)

    return replace(step, loss=loss)


def huge() -> Workload:
    """A step whose weights and moments alone are more than a chip holds."""
    with torch.device("meta"):
        return stack(1, width=40_000)


def main(folder: Path, hardware: str, names: list[str]) -> None:
    tpu.begin()
    runtime = runtime_of(machine(hardware))
    own = {"stack": lambda: stack(2), "gathering": gathering, "huge": huge}
    for name, make in own.items():
        if name in names:
            _say(name, make(), hardware)
    for name, (notebook, asked) in steps(folder).items():
        if name in names:
            _, step = room(notebook).planned(asked, runtime)
            _say(name, step, hardware)
    if "tuning in fp32" in names:
        notebook, asked = steps(folder)["tuning"]
        _say("tuning in fp32", room(notebook).planned(asked, runtime)[1], hardware, precision="fp32")


def _say(name: str, step: Workload, hardware: str, **how) -> None:
    try:
        found = compiled(step, hardware, **how)
    except DoesNotFit as error:
        found = {"problem": str(error)}
    print("STEP " + json.dumps({"step": name, **found}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
