"""What is trained, on which machine, with which settings, and the plan of a run with them."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from helpers.machine import ranks
from helpers.machine.runtime import Runtime
from helpers.plan import settings as planner
from helpers.plan.settings import Plan
from helpers.plan.workloads import Workload

from .classifier import load_classifier
from .data import LabelledTexts
from .parameters import TuningParameters, recipe
from .workload import workload

Encoded = list[dict]  # input_ids, attention_mask, labels
PROCESSOR, WALL = "processor time", "wall time"
TUNED = ("batch_size", "per_device_batch_size", "gradient_checkpointing")


def encode(rows: Sequence[tuple[str, int]], tokenizer, length: int) -> Encoded:
    """Rows as token ids, cut to `length` tokens, not padded."""
    if not rows:
        return []
    found = tokenizer([text for text, _ in rows], truncation=True, max_length=length)
    return [{**{name: ids[i] for name, ids in found.items()}, "labels": label} for i, (_, label) in enumerate(rows)]


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

    def changes(self, start: Settings) -> list[dict]:
        """Fields that differ, for `tables.show`."""
        both = ((name, vars(start)[name], value) for name, value in vars(self).items())
        rows = [{"changed": name, "from": before, "to": after} for name, before, after in both if before != after]
        return rows or [{"changed": "nothing"}]


@dataclass(frozen=True)
class Task:
    """Texts, a model with its tokeniser, the parameters and the machine."""

    texts: LabelledTexts
    model: object  # the first weights; every run trains a copy
    tokenizer: object
    weights: np.ndarray | None  # of the labels
    params: TuningParameters
    runtime: Runtime

    @functools.cached_property
    def step(self) -> Workload:
        """One training step, for the planner."""
        return workload(self.model, self.params.base_model, self.params.max_length)

    @property
    def start(self) -> Settings:
        """A stock Trainer: what `TrainingArguments()` and the library choose, at least one example a device.

        XLA cannot have all of it: the fused kernel crashes there, and each length would be compiled.
        """
        kind, devices = self.runtime.kind, self.runtime.device_count
        batch = -(-self.params.start_batch_size // devices) * devices
        return Settings(
            batch_size=batch,
            length=self.params.max_length,
            start_batch_size=batch,
            attention=self.model.config._attn_implementation,
            pin_memory=kind == "cuda",  # which the loader does where there is an accelerator to copy to
            **{"optimizer": "adamw_torch", "padding": "fixed"} if kind == "xla" else {},
        )

    def encoded(self, split: str, length: int) -> Encoded:
        """The rows of "train", "validation" or "test", cut to `length` tokens."""
        return encode(getattr(self.texts, split), self.tokenizer, length)

    def labels(self, split: str) -> list[int]:
        return [label for _, label in getattr(self.texts, split)]

    def lengths(self) -> dict[str, int]:
        """Tokens of the training texts, cut to `max_length`: median, 95th and 99th percentile, longest."""
        found = [len(row["input_ids"]) for row in self.encoded("train", self.params.max_length)]
        shares = {"median": 50, "95 %": 95, "99 %": 99, "longest": 100}
        return {name: int(np.percentile(found, share)) for name, share in shares.items()}

    def weight_rows(self) -> list[dict[str, str | float]]:
        """For `tables.show`, of labels that do not weigh the same."""
        weights = zip(self.texts.labels, self.weights.tolist(), strict=True)
        return [{"label": name, "weight in the loss": weight} for name, weight in weights]

    def untrained(self, seed: int):
        """A copy of the first weights; with another seed than the parameters' a new head, of a sample model all is new."""
        if seed == self.params.seed:
            return copy.deepcopy(self.model)
        texts = (text for text, _ in self.texts.train)
        return load_classifier(self.params.base_model, self.texts.labels, texts=texts, seed=seed)[0]

    def plan(self, settings: Settings, steps: int = 0) -> Plan:
        """The plan of a run with these settings.

        steps: 0 for as many as see the examples that the start would see, whatever the batch.

        Nothing is accumulated: which batch the memory holds is found out by trying.
        """
        params = self.params
        wanted = dataclasses.replace(
            recipe(len(self.texts.train), self.start.batch_size, params.max_length, params.max_steps),
            micro_batch_size=settings.batch_size // self.runtime.device_count,
            gradient_checkpointing=settings.gradient_checkpointing,
        )
        factor, learning_rate = settings.learning_rate_factor, params.learning_rate or wanted.learning_rate
        planned = planner.plan(
            wanted,
            self.step,
            dataclasses.replace(self.runtime, precision=settings.precision),
            batch_size=settings.batch_size,
            learning_rate=learning_rate * factor,
            max_steps=steps,
        )
        own = {name: getattr(settings, name) for name in ("precision", "optimizer", "dataloader_workers", "pin_memory")}
        why = dict.fromkeys((*own, *TUNED), "a setting that is tuned") | {
            "max_steps": f"as many examples as {wanted.max_steps:,} steps of {wanted.batch_size}",
            "learning_rate": f"{learning_rate:.3g} for a batch of {wanted.batch_size}, x {factor:.3g}: the square root of its growth",
        }
        return dataclasses.replace(planned, sequence_length=settings.length, reasons=planned.reasons | why, **own)


def load_task(params: TuningParameters, texts: LabelledTexts, runtime: Runtime) -> Task:
    """The model for these labels. Raises ValueError for more tokens than it has positions for."""
    from sklearn.utils.class_weight import compute_class_weight

    train = (text for text, _ in texts.train)
    model, tokenizer = load_classifier(params.base_model, texts.labels, texts=train, seed=params.seed)
    longest = min(getattr(model.config, "max_position_embeddings", None) or math.inf, tokenizer.model_max_length)
    if params.max_length > longest:
        raise ValueError(f"max_length={params.max_length}: {params.base_model!r} reads {longest} tokens at most")
    labels = [label for _, label in texts.train]
    weights = compute_class_weight("balanced", classes=np.unique(labels), y=labels) if params.class_weights else None
    return Task(texts, model, tokenizer, weights, params, runtime)


def clock(runtime: Runtime) -> str:
    """What speeds are measured in, PROCESSOR or WALL.

    One thread of a CPU is timed in processor time, which other programs on the machine do not stretch. Several threads are
    not: they may use processor time without being faster, and neither is a device that works beside the processor.
    """
    import torch

    one = runtime.kind == "cpu" and torch.get_num_threads() == 1 and ranks.count() == 1
    return PROCESSOR if one else WALL
