"""Parameters of the legal notebooks, and the recipe behind their zeros."""

from typing import Any, Literal

from helpers.parameters import MACHINE, NO_NETWORK, Parameters, Source, parameter
from helpers.plan.settings import Recipe

EPOCHS, MOST_EPOCHS = 3, 8  # passes over the records; the latter where they are few
STEPS = 150  # of the optimizer, where so many passes give them: benchmarks/legal.py trained with 140 to 196
BATCH = 16  # blocks of a step at most
MEASURED_WIDTH = 576  # of SmolLM2-135M, which was trained with HIGHEST_RATE
HIGHEST_RATE, LOWEST_RATE = (
    1e-3,
    2e-4,
)  # of adapters; the latter is QLoRA's for 7 and 13 billion weights (arXiv 2305.14314)
FULL_FACTOR = 0.1  # of all weights (Schulman 2025, "LoRA Without Regret")


class LegalParameters(Parameters):
    """What `legal_cot_sft` and its TPU twin are told."""

    data_source: Source = parameter(
        "sample",
        "Hub data set; path to your own .jsonl, .json, .csv or .parquet with question and answer, text and label, prompt and "
        f"completion, or messages; or 'sample', invented law with its reasoning. {NO_NETWORK}",
    )
    base_model: Source = parameter(
        "Qwen/Qwen2.5-0.5B-Instruct", "Language model: hub id, local path, or 'sample' for a tiny random one."
    )
    method: Literal["lora", "qlora", "full"] = parameter(
        "lora",
        "What is trained: adapters beside frozen weights (lora), adapters beside frozen 4-bit weights (qlora, not on a TPU), or all weights (full).",
    )
    output_dir: str = parameter(
        "outputs/legal_cot_sft",
        "Folder for checkpoints, results and the trained model.",
        identity=False,
        tpu="outputs/legal_cot_sft_tpu",
    )
    max_length: int = parameter(
        0,
        "Tokens of a record, a multiple of 128; 0 takes the longest record, at most 4,096 and what the model can read. Longer "
        "records are set aside and counted.",
        group="Training",
        low=0,
    )
    lora_rank: int = parameter(16, "Rank of the adapters.", group="Training", low=1, high=4096)
    gradient_checkpointing: bool = parameter(
        False,
        "Save memory by computing activations again in the backward pass, which makes a step slower.",
        group="Training",
    )
    num_processes: int = parameter(
        1,
        "Processes that train together, one for each GPU; 0 takes every visible GPU. All chips of a TPU are in one process.",
        group=MACHINE,
        low=0,
        identity=False,
    )
    save_steps: int = parameter(
        50, "Optimizer steps between two evaluations, each with a checkpoint.", group=MACHINE, low=1, identity=False
    )

    def logged(self) -> dict[str, Any]:
        """Fields of SFTConfig: when to log, evaluate and save, and the seed of data order and dropout."""
        fields = self.model_dump(include={"seed", "save_steps", "report_to"})
        return fields | {"eval_steps": self.save_steps, "logging_steps": 5}


def recipe(blocks: int, max_length: int, method: str, width: int, devices: int = 1) -> Recipe:
    """The recipe for so many blocks: three passes, 16 blocks a step; fewer a step, and more passes, where few steps would be left.

    width: hidden size of the model; Adam's best rate falls with it (Yang et al., arXiv 2203.03466). Each device has as many blocks
        of a step.
    """
    rate = min(HIGHEST_RATE, max(LOWEST_RATE, HIGHEST_RATE * MEASURED_WIDTH / width))
    if method == "full":
        rate *= FULL_FACTOR
    batch_size = min(BATCH, EPOCHS * blocks // STEPS)
    batch_size = max(1, batch_size // devices) * devices
    steps = min(STEPS, MOST_EPOCHS * blocks // batch_size)
    steps = max(1, steps, EPOCHS * blocks // batch_size)
    return Recipe(
        batch_size=batch_size,
        learning_rate=rate,
        max_steps=steps,
        sequence_length=max_length,
        warmup_fraction=0.1,
        tpu_batch_factor=1,  # a block is full of tokens as it is
        tpu_learning_rate_factor=1.0,
    )
