"""sentence-transformers' trainer with this suite's reliability, and the rows that it trains on.

It adds what the stock trainer lacks: exact resume with the same slices of SIGReg, the terms of the loss in the logs, and one
shape for all batches on XLA.
"""

from __future__ import annotations

import functools
import math
import random
from pathlib import Path

from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.sampler import BatchSamplers
from torch import nn

from helpers.lejepa.data import Collection
from helpers.lejepa.model import on_cpu
from helpers.lejepa.parameters import EmbeddingParameters
from helpers.machine import xla
from helpers.machine.runtime import Runtime
from helpers.plan.settings import Plan
from helpers.train.arguments import training_arguments
from helpers.train.trainer import TrainerMixin

SPARE = 1.2  # rows beyond what the steps need: batches without duplicates leave some over


def pairs(collection: Collection, views, rows: int, seed: int) -> Dataset:
    """At least `rows` rows (anchor, positive): pass after pass over the training texts, each pass with its own crops.

    views: `loss.views`. One long epoch: a resumed run skips to its place in it.
    """
    found: list[tuple[str, str]] = []
    for number in range(math.ceil(rows * SPARE / len(collection.training))):
        for place, (heading, body) in enumerate(collection.training):
            found.append(views(heading, body, random.Random(f"{seed} {number} {place}")))
    anchors, positives = zip(*found, strict=True)
    return Dataset.from_dict({"anchor": anchors, "positive": positives})


class LeJEPATrainer(TrainerMixin, SentenceTransformerTrainer):
    """`SentenceTransformerTrainer` for a loss that holds its model; see `new_trainer`.

    A loss's `step` is set to that of the run, and its `read_terms()` are merged into the logs. It gets the whole batch of a
    step at once: the plan's micro-batch is its `mini_batch_size`, and nothing is accumulated.
    """

    def __init__(self, model: SentenceTransformer, *, length: int, runtime: Runtime, **kwargs) -> None:
        _embed_in_parts(kwargs["loss"], kwargs["args"])
        super().__init__(model=model, runtime=runtime, **kwargs)
        self.data_collator.preprocess_fn = padded(model, length, one=runtime.family == "xla")

    def trained_module(self) -> nn.Module:
        return self.loss

    def transformer(self) -> nn.Module:
        return self.model.transformers_model

    def add_model_card_callback(self, default_args_dict) -> None:
        """No callback: the stock one counts the tokens of a thousand texts and prints some of them on the card."""

    def get_train_dataloader(self):
        loader = super().get_train_dataloader()
        return xla.shard_loader(loader) if self.runtime.kind == "xla" else loader

    def seed_step(self) -> None:
        if self.runtime.kind == "xla" and hasattr(self.loss, "start_terms"):
            self.loss.start_terms(self.args.device)  # before the seed, which a sync moves on
        super().seed_step()

    def training_step(self, *args, **kwargs):
        self.loss.step = self.state.global_step  # chooses SIGReg's slices, of a resumed run too
        return super().training_step(*args, **kwargs)

    def _shrink_micro_batch(self, error: Exception) -> None:
        self.args.gradient_accumulation_steps = self.plan.gradient_accumulation_steps
        self.args.per_device_train_batch_size //= self.plan.gradient_accumulation_steps
        super()._shrink_micro_batch(error)
        _embed_in_parts(self.loss, self.args)
        self._train_batch_size = self.args.per_device_train_batch_size

    def log(self, logs: dict, start_time: float | None = None) -> None:
        if "loss" in logs and hasattr(self.loss, "read_terms"):
            logs = logs | self.loss.read_terms()
            if self.runtime.kind == "xla":
                xla.sync()  # zeroed sums become data as they are between logs, not constants of a new graph
        super().log(logs, start_time)

    def _save(self, output_dir: str | None = None, state_dict=None) -> None:
        """Without a model card, for which sentence-transformers would look up the hub and encode examples."""
        on_cpu(self.model).save_pretrained(str(output_dir or self.args.output_dir), create_model_card=False)


def padded(model: SentenceTransformer, length: int, *, one: bool):
    """`model.preprocess` that cuts texts at `length` tokens and pads a batch to its longest text.

    one: pad to `length`, for XLA, which compiles anew for every shape.
    """
    padding = {"padding": "max_length" if one else True}
    return functools.partial(model.preprocess, max_length=length, processing_kwargs={"text": padding})


def _embed_in_parts(loss: nn.Module, arguments) -> None:
    """Gives a loss that caches gradients the whole batch, in parts of what was the micro-batch."""
    parts = arguments.gradient_accumulation_steps
    loss.mini_batch_size = arguments.per_device_train_batch_size if parts > 1 else 0
    arguments.per_device_train_batch_size *= parts
    arguments.gradient_accumulation_steps = 1


def new_trainer(
    model: SentenceTransformer,
    loss: nn.Module,
    rows: Dataset,
    params: EmbeddingParameters,
    plan: Plan,
    runtime: Runtime,
    output_dir: Path | str,
    **overrides,
) -> LeJEPATrainer:
    """The trainer of a run. No text is twice in a batch, where it would be a negative of itself.

    rows: columns of texts; the model's "query" prompt goes before the first, "document" before the others.
    overrides: fields of `SentenceTransformerTrainingArguments`.
    """
    fields = {
        **params.model_dump(include={"seed", "save_steps", "report_to"}),
        "logging_steps": 5,
        "prompts": {
            column: model.prompts.get("document" if place else "query")
            for place, column in enumerate(rows.column_names)
        },
        "batch_sampler": BatchSamplers.NO_DUPLICATES,
        "eval_strategy": "no",  # the recipe is short and fixed; dev questions choose among models at its end
    }
    return LeJEPATrainer(
        model,
        args=training_arguments(
            plan, runtime, output_dir, cls=SentenceTransformerTrainingArguments, **fields | overrides
        ),
        train_dataset=rows,
        loss=loss,
        plan=plan,
        runtime=runtime,
        max_hours=params.max_hours,
        length=params.train_length,
        # 6 a weight of the encoder, without its tables.
        flops_per_token=6.0 * sum(w.numel() for name, w in model.named_parameters() if "embedding" not in name),
    )
