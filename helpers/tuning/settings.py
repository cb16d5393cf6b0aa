"""What tuning changes about a training run, as one value."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

PADDINGS = (
    "fixed",
    "dynamic",
    "grouped",
)  # to `length`; to the longest of a batch; so with texts of like length together


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a run computes. The defaults are those of transformers' `TrainingArguments`, data collator and models."""

    batch_size: int  # examples an optimizer step over all devices
    length: int  # tokens at most, and with fixed padding exactly
    precision: str = "fp32"
    optimizer: str = "adamw_torch_fused"
    dataloader_workers: int = 0
    pin_memory: bool = True
    tf32: bool = False
    gradient_checkpointing: bool = False
    padding: str = "dynamic"
    attention: str = "sdpa"  # or "eager": written out
    compiled: bool = False
    start_batch_size: int = 0  # what the learning rate is for; 0 = batch_size

    def __post_init__(self):
        if self.padding not in PADDINGS:
            raise ValueError(f"padding={self.padding!r}: must be one of {', '.join(PADDINGS)}")

    @property
    def learning_rate_factor(self) -> float:
        """Square root of how many times the batch has grown, which suits Adam (Malladi et al. 2022)."""
        return math.sqrt(self.batch_size / (self.start_batch_size or self.batch_size))

    @property
    def sampling(self) -> str:
        """`train_sampling_strategy` of `TrainingArguments`."""
        return "group_by_length" if self.padding == "grouped" else "random"

    def differences(self, other: Settings) -> dict[str, tuple]:
        """Field -> (here, there)."""
        there = asdict(other)
        return {name: (value, there[name]) for name, value in asdict(self).items() if value != there[name]}
