"""The memory of each notebook's default training step, and the micro-batch that each machine gets: arithmetic, nothing runs.

python benchmarks/memory.py          writes docs/results/memory.json; a minute
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import tpu_step as tpu  # noqa: E402
from report import machine, write  # noqa: E402

from helpers.plan.memory import activations, state  # noqa: E402
from helpers.plan.settings import DoesNotFit, plan  # noqa: E402

STEPS = {
    "tinystories_reservoir": ("tinystories_reservoir", {}),
    "hardware_tuning, BERT-base": ("hardware_tuning", {}),
    "lejepa_training, mpnet": ("lejepa_training", {}),
    "legal_cot_sft, 0.5B LoRA": ("legal_cot_sft", {}),
    "legal_cot_sft, 0.5B full": ("legal_cot_sft", {"method": "full"}),
    "graphmer_se, 80M encoder": ("graphmer_se", {}),
}
MACHINES = ("T4", "L4", "A100 40GB", "RTX 3050", "V100", "A10", "v5e-1", "v5e-8", "v2-8", "v3-8")


def memory_of(notebook: str, options: dict) -> dict[str, int]:
    """Bytes of state, and of a further example in half precision."""
    recipe, step = tpu.notebook_step(notebook, tpu.runtime_of("A100 40GB"), **options)
    least = recipe.smallest
    saved = [activations(step.model, step.loss, step.batch(number * least), "bf16", False) for number in (1, 2)]
    return {**state(step.model), "example": (saved[1] - saved[0]) // least}


def choice(notebook: str, hardware: str, options: dict) -> dict:
    runtime = tpu.runtime_of(hardware)
    recipe, step = tpu.notebook_step(notebook, runtime, **options)
    try:
        planned = plan(recipe, step.model, step.loss, step.batch, runtime)
    except DoesNotFit as error:
        return {"problem": str(error)}
    return {
        "precision": planned.precision,
        "devices": planned.device_count,
        "micro_batch": planned.per_device_batch_size,
        "parts": planned.gradient_accumulation_steps,
        "recomputed": planned.gradient_checkpointing,
        "bytes": sum(planned.memory.values()),
    }


def main() -> None:
    about, steps = machine("cpu", ("torch", "transformers")), {}
    for name, (notebook, options) in STEPS.items():
        choices = {hardware: choice(notebook, hardware, options) for hardware in MACHINES}
        steps[name] = {"memory": memory_of(notebook, options), "machines": choices}
    write(ROOT / "docs/results/memory.json", about, steps=steps)


if __name__ == "__main__":
    main()
