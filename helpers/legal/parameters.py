"""Parameters of the legal notebooks, and the recipe behind their zeros."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from helpers.data.data_source import ModelSource, existing_file
from helpers.parameters import MACHINE, Parameters, Source, Text, in_range, parameter
from helpers.plan.settings import Recipe

NOTEBOOK = "legal_cot_sft"
EPOCHS = 3
RECORDS, TRAINING, EXAMINATION = "Records", "Model and training", "Questions before and after"


class LegalParameters(Parameters):
    """What `legal_cot_sft` and its TPU twin are told."""

    data_source: Source = parameter(
        "rzeraat/law",
        "Hub data set; path to your own `.jsonl`, `.csv` or `.parquet` with `question` and `answer` (and `reasoning`, `topic`, "
        "`difficulty`, `case_citation`), `prompt` and `completion`, or `messages`; or 'sample', fictional records.",
    )
    base_model: ModelSource = parameter(
        "Qwen/Qwen2.5-0.5B-Instruct", "Language model: hub id, local path, or 'sample' for a tiny random one."
    )
    method: Literal["lora", "qlora", "full"] = parameter(
        "lora", "Train adapters beside frozen weights, beside frozen weights in 4 bits (GPU, CPU), or all weights."
    )
    output_dir: str = parameter(
        "outputs/legal_cot_sft",
        "Folder for checkpoints, results and the trained model.",
        identity=False,
        tpu="outputs/legal_cot_sft_tpu",
    )

    num_records: int = parameter(0, "Records; 0 takes all there are, 600 of the sample.", group=RECORDS, low=0)
    set_aside_broken: bool = parameter(
        True,
        "Leave out records whose steps are out of order; those without question or answer and repeated ones always are.",
        group=RECORDS,
    )
    layout: Literal["chat", "instruction"] = parameter(
        "chat", "The model's own chat template, or plain text.", group=RECORDS
    )
    max_length: int = parameter(
        0,
        "Tokens of a record and a block, a multiple of 128; 0 takes the longest record, at most 1,024. Longer ones are set aside.",
        group=RECORDS,
        low=0,
    )
    packing: Literal["bfd", "padded"] = parameter(
        "bfd", "Several whole records in a block (best-fit decreasing), or one.", group=RECORDS
    )

    lora_rank: int = parameter(32, "Rank of the adapters.", group=TRAINING, low=1, high=4096)
    lora_alpha: int = parameter(64, "Their update is scaled by lora_alpha / lora_rank.", group=TRAINING, low=1)
    gradient_checkpointing: bool = parameter(
        False,
        "Recompute activations in backward; where one block does not fit without it is done anyway.",
        group=TRAINING,
    )
    num_processes: int = parameter(
        1,
        "Processes that train together, one a GPU; 0 takes every visible GPU. A TPU's chips share one.",
        group=TRAINING,
        low=0,
        identity=False,
    )
    patience: int = parameter(
        0, "Evaluations without improvement before the run stops; 0 never stops.", group=TRAINING, low=0
    )
    eval_steps: int = parameter(50, "Optimizer steps between two evaluations.", group=TRAINING, low=1, identity=False)
    save_steps: int = parameter(50, "Optimizer steps between two checkpoints.", group=MACHINE, low=1, identity=False)
    logging_steps: int = parameter(5, "Optimizer steps between two logs.", group=MACHINE, low=1, identity=False)

    questions: str = parameter(
        "",
        "Labelled questions for lm-evaluation-harness, before and after: its tasks (legalbench,mmlu_professional_law), or "
        "your own .tsv or .jsonl with text and answer; empty for none.",
        group=EXAMINATION,
        identity=False,
    )
    test_records: int = parameter(
        40, "Held-out records that are answered before and after.", group=EXAMINATION, low=1, identity=False
    )
    max_new_tokens: int = parameter(512, "Tokens of an answer.", group=EXAMINATION, low=1, identity=False)
    prompt: Text = parameter(
        "Can an employer withhold final pay until company property is returned?",
        "What the last cell asks.",
        group=EXAMINATION,
        identity=False,
    )

    @field_validator("max_length")
    @classmethod
    def _is_long_enough(cls, value: int) -> int:
        if value:
            in_range("max_length", value, 128, 1_000_000)
        return value

    @field_validator("questions")
    @classmethod
    def _is_a_file(cls, value: str) -> str:
        remedy = "give a .tsv or .jsonl of labelled questions, names of tasks, or '' for none"
        return existing_file("questions", value, remedy) if value.endswith((".tsv", ".jsonl")) else value


def recipe(blocks: int, max_length: int, method: str, devices: int = 1) -> Recipe:
    """The recipe for so many blocks: three passes, 16 blocks a step, fewer where there are few, as many on each device."""
    batch_size = max(1, min(16, blocks // 8) // devices) * devices
    return Recipe(
        batch_size=batch_size,
        learning_rate=2e-5 if method == "full" else 2e-4,
        max_steps=max(1, EPOCHS * blocks // batch_size),
        sequence_length=max_length,
        warmup_fraction=0.05,
        weight_decay=0.01,
        tpu_batch_factor=1,  # a block is full of tokens as it is
        tpu_learning_rate_factor=1.0,
    )
