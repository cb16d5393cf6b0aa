"""Parameters of the legal notebooks, and the recipe behind their zeros."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from helpers.parameters import SAMPLE, Parameters, in_range, not_negative, one_of, positive, source_path
from helpers.plan import ModelSize, Recipe

EPOCHS = 3


@dataclass(frozen=True, kw_only=True)
class LegalParameters(Parameters):
    """What `legal_cot_sft` and its TPU twin are told."""

    not_identity: ClassVar[frozenset[str]] = frozenset(
        {"questions", "test_records", "max_new_tokens", "prompt", "logging_steps"}
    )

    num_records: int  # rows; 0 = all there are, 600 of the sample
    set_aside_broken: (
        bool  # leave out records whose steps or answers are broken; empty fields and duplicates always are
    )
    base_model: str  # hub id, local path, or "sample"
    layout: str  # "chat" (the model's template) or "instruction" (plain text)
    method: str  # "lora" or "full"
    lora_rank: int
    lora_alpha: int
    max_length: (
        int  # tokens of an example and a block, a multiple of 128; 0 = the data's 99th percentile, and blocks of 1,024
    )
    packing: str  # "bfd" (no example is cut), "wrapped" or "padded" (one example a block)
    gradient_checkpointing: bool  # False: only where one block does not fit without
    num_processes: int  # that train together, one a GPU; 0 = one for every visible GPU. A TPU's chips share one
    questions: str  # TSV or JSONL of labelled legal questions to be tested on before and after; "" for none
    test_records: int  # held-out records that are answered before and after
    max_new_tokens: int  # of an answer
    prompt: str  # what the last cell asks
    patience: int  # evaluations without improvement before the run stops; 0 = never
    logging_steps: int
    eval_steps: int
    save_steps: int

    def __post_init__(self):
        super().__post_init__()
        path = source_path("base_model", self.base_model)
        if path is not None and not path.is_dir():
            raise ValueError(
                f"base_model={self.base_model!r} is a file: give the folder of a model, a hub id or {SAMPLE!r}"
            )
        one_of("layout", self.layout, ("chat", "instruction"))
        one_of("method", self.method, ("lora", "full"))
        one_of("packing", self.packing, ("bfd", "wrapped", "padded"))
        in_range("lora_rank", self.lora_rank, 1, 4096)
        if self.max_length:
            in_range("max_length", self.max_length, 128, 1_000_000)
        for name in ("num_records", "num_processes", "patience"):
            not_negative(name, getattr(self, name))
        for name in ("lora_alpha", "test_records", "max_new_tokens", "logging_steps", "eval_steps", "save_steps"):
            positive(name, getattr(self, name))
        if self.questions:
            file = Path(self.questions).expanduser()
            if not file.is_file():
                raise FileNotFoundError(
                    f"questions={self.questions!r}: nothing at {file.resolve()}; "
                    "give a .tsv or .jsonl of labelled questions, or '' for none"
                )
            object.__setattr__(self, "questions", str(file))
        if not self.prompt.strip():
            raise ValueError("prompt='' is empty: give a legal question")


def recipe(blocks: int, max_length: int, method: str, devices: int = 1) -> Recipe:
    """The recipe for so many blocks: three passes, 16 blocks a step, fewer where there are few, as many on each device."""
    batch_size = max(1, min(16, blocks // 8) // devices) * devices
    return Recipe(
        batch_size=batch_size,
        learning_rate=2e-4 if method == "lora" else 2e-5,
        max_steps=max(1, EPOCHS * blocks // batch_size),
        sequence_length=max_length,
        warmup_fraction=0.05,
        weight_decay=0.01,
        tpu_batch_factor=1,  # a block is full of tokens as it is
        tpu_learning_rate_factor=1.0,
    )


def model_size(model) -> ModelSize:
    """Memory of a language model: what it trains, what it freezes, and what backward keeps a token.

    A layer keeps some 14 vectors of its width H and 4 of its inner width. Logits exist for one tile of tokens at a time.
    """
    config, weights = model.config.get_text_config(), list(model.parameters())
    return ModelSize(
        trainable=sum(weight.numel() for weight in weights if weight.requires_grad),
        frozen=sum(weight.numel() for weight in weights if not weight.requires_grad),
        activations=config.num_hidden_layers * (14 * config.hidden_size + 4 * config.intermediate_size),
    )
