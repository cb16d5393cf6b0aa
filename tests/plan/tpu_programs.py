"""Training steps of TPU notebooks at a small size, compiled by the TPU compiler, in a process of their own.

python tests/plan/tpu_programs.py FOLDER HARDWARE NAME ...    prints one line of JSON a step
"""

import importlib
import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

tpu = importlib.import_module("tpu_step")
described = importlib.import_module("tpu_compiler").described
LENGTH, EXAMPLES = 128, 8  # of a chip
SMALL = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 2}


def steps(folder: Path) -> dict[str, tuple[str, dict]]:
    """(notebook, options of `notebook_step`) by a name."""
    from transformers import BertConfig, Qwen2Config

    Qwen2Config(vocab_size=2000, num_key_value_heads=1, **SMALL).save_pretrained(folder / "qwen")
    BertConfig(vocab_size=2000, **SMALL).save_pretrained(folder / "bert")
    bert = {"model": str(folder / "bert"), "length": LENGTH}
    return {
        "reservoir": ("tinystories_reservoir", {"model": "384"}),
        "lejepa": ("lejepa_training", bert),
        "legal": ("legal_cot_sft", {"model": str(folder / "qwen"), "length": LENGTH}),
        "tuning": ("hardware_tuning", bert),
    }


def compiled(step, hardware: str) -> dict:
    """What the compiler says of it, and beside it: bytes of weights and moments, and of random numbers."""
    chips = tpu.runtime_of(hardware).device_count
    traced = tpu.trace(step, EXAMPLES * chips, chips=chips, precision="bf16")
    found = tpu.compile_step(traced, hardware)
    return described(found) | {
        "held": sum(12 * weight.numel() for weight in step.model.parameters() if weight.requires_grad),
        "drawn": sum(map(tpu.size, re.findall(r"= (\S+) rng-bit-generator\(", found.program))),
    }


def main(folder: Path, hardware: str, names: list[str]) -> None:
    tpu.begin()
    runtime, notebooks = tpu.runtime_of(hardware), steps(folder)
    for name in names:
        notebook, options = notebooks[name]
        _, step = tpu.notebook_step(notebook, runtime, **options)
        found = compiled(step, hardware)
        print("STEP " + json.dumps({"step": name, **found}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
