"""What tuning changes about a training run, as one value."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass


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
    padding: str = (
        "dynamic"  # to the longest of a batch; "grouped": so, with texts of like length; "fixed": to `length`
    )
    attention: str = "sdpa"  # or "eager": written out
    compiled: bool = False
    start_batch_size: int = 0  # what the learning rate is for; 0 = batch_size

    @property
    def learning_rate_factor(self) -> float:
        """Square root of how many times the batch has grown, which suits Adam (Malladi et al. 2022)."""
        return math.sqrt(self.batch_size / (self.start_batch_size or self.batch_size))

    def differences(self, other: Settings) -> dict[str, tuple]:
        """Field -> (here, there)."""
        there = asdict(other)
        return {name: (value, there[name]) for name, value in asdict(self).items() if value != there[name]}

    def changes(self, start: Settings) -> list[dict]:
        """`differences`, for `tables.show`."""
        found = self.differences(start).items()
        rows = [{"changed": name, "from": there, "to": here} for name, (here, there) in found]
        return rows or [{"changed": "nothing"}]
