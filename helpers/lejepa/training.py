"""The rows that LeJEPA trains on, and the trainer.

The trainer adds to the shared one the slices of SIGReg by the run's step, the terms of the loss in the logs, and gradient caching.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
from torch import nn

from helpers.lejepa import parameters
from helpers.lejepa.data import Example
from helpers.lejepa.documents import Spans
from helpers.lejepa.parameters import EmbeddingParameters
from helpers.machine import xla
from helpers.machine.runtime import Runtime
from helpers.plan import settings
from helpers.plan.settings import Plan, Recipe
from helpers.train.arguments import training_arguments
from helpers.train.sentence_encoder import SentenceEncoderTrainer

LENGTH_STEP = 32  # tokens; lengths on XLA are multiples of it
COUNTED = 200  # examples whose tokens are counted


def fit_lengths(
    model: SentenceTransformer, examples: list[Example], views, longest: int, runtime: Runtime
) -> dict[str, int]:
    """The tokens at which the texts of each column of `pairs` are cut.

    `longest`, but on XLA, which compiles one length a column and pads each text to it, what 99 of 100 texts need.
    """
    rows = pairs(examples, views, 1, len({example.key for example in examples}), seed=0)
    lengths = dict.fromkeys(rows.column_names, longest)
    if runtime.kind == "xla":
        for name, prompt in prompts(model, rows).items():
            texts = [f"{prompt or ''}{text}" for text in rows[name]]
            tokens = [len(ids) for ids in model.tokenizer(texts)["input_ids"]]
            needed = np.quantile(tokens, 0.99)
            lengths[name] = min(longest, LENGTH_STEP * math.ceil(needed / LENGTH_STEP))
    return lengths


def prompts(model: SentenceTransformer, rows: Dataset) -> dict[str, str | None]:
    """The model's prompt for each of the two columns."""
    anchor, positive = rows.column_names
    return {anchor: model.prompts.get("query"), positive: model.prompts.get("document")}


def fit_recipe(examples: list[Example], spans: Spans, length: int, kind: str) -> Recipe:
    """The recipe for these examples on a device of this kind; spans: the tokens of the model."""
    tokens = 0
    for example in examples[:COUNTED]:
        for text in (example.question, example.texts[0]):
            tokens += min(length, len(spans(text)))
    row_tokens = tokens / len(examples[:COUNTED])
    answers = len({example.key for example in examples})
    return parameters.recipe(len(examples), answers, row_tokens, length, kind)


def make_plan(loss: nn.Module, recipe: Recipe, lengths: dict[str, int], runtime: Runtime, **by_user) -> Plan:
    """Settings of a run whose columns are cut at `lengths`; a micro-batch is a part of a cached gradient.

    by_user: as `plan` takes them. Raises as `plan` does.
    """
    if loss.model[0].auto_model.config.model_type.startswith("gemma3"):
        recipe = dataclasses.replace(recipe, fp16=False)

    def batch(examples: int) -> list[dict[str, torch.Tensor]]:
        return blank_columns(lengths.values(), examples)

    return settings.plan(recipe, loss, lambda loss, columns: loss(columns), batch, runtime, **by_user)


def blank_columns(lengths: Iterable[int], examples: int) -> list[dict[str, torch.Tensor]]:
    """Columns of texts of these lengths, as the loss takes them, whose tokens mean nothing."""
    columns = []
    for length in lengths:
        mask = torch.ones(examples, length, dtype=torch.long)
        mask[0, -1] = 0  # as where texts are padded: attention gets a mask
        columns.append({"input_ids": torch.ones_like(mask), "attention_mask": mask})
    return columns


def pairs(examples: list[Example], views, steps: int, batch_size: int, seed: int) -> Dataset:
    """Rows (anchor, positive), step by step: pass after pass over the answers, each time with the next example of an answer.

    views: `loss.views`. No two rows of a batch have the same answer: a text would be a negative of itself. One long epoch: a
    resumed run skips to its place in it.
    """
    draw = random.Random(seed)
    by_answer: dict[str, list[Example]] = defaultdict(list)
    for example in draw.sample(examples, len(examples)):
        by_answer[example.key].append(example)
    if batch_size > len(by_answer):
        raise ValueError(
            f"batch_size={batch_size}: there are {len(by_answer)} different answers or headings, and a batch has each of them once; "
            "set a smaller batch_size, or 0"
        )
    turns = {answer: itertools.cycle(several) for answer, several in by_answer.items()}
    rows: list[tuple[str, str]] = []
    answers: list[str] = []
    while len(rows) < steps * batch_size:
        if len(answers) < batch_size:
            answers = draw.sample([*turns], len(turns))
        batch, answers = answers[:batch_size], answers[batch_size:]
        for answer in batch:
            example = next(turns[answer])
            passage, *others = example.texts
            texts = [passage]
            if others:
                texts.append(draw.choice(others))
            rows.append(views(example.question, texts, draw))
    anchors, positives = zip(*rows, strict=True)
    return Dataset.from_dict({"anchor": anchors, "positive": positives})


class LeJEPATrainer(SentenceEncoderTrainer):
    """The shared trainer for a loss that holds its model; see `new_trainer`.

    A loss's `step` is set to that of the run, and its means are merged into the logs. It gets the whole batch of a step at once: the
    plan's micro-batch is its `mini_batch_size`, and nothing is accumulated.
    """

    def __init__(self, model: SentenceTransformer, **kwargs) -> None:
        _embed_in_parts(kwargs["loss"], kwargs["args"])
        super().__init__(model=model, **kwargs)

    def seed_step(self) -> None:
        if self.runtime.kind == "xla" and hasattr(self.loss, "means"):
            self.loss.means.start(self.args.device)  # before the seed, which a sync moves on
        super().seed_step()

    def compute_loss(self, *args, **kwargs):
        with self.accelerator.autocast():  # both views use one copy of each weight in half precision
            return super().compute_loss(*args, **kwargs)

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
        if "loss" in logs and hasattr(self.loss, "means"):
            logs = logs | self.loss.means.read()
            if self.runtime.kind == "xla":
                xla.sync()  # zeroed sums become data as they are between logs, not constants of a new graph
        super().log(logs, start_time)


def _embed_in_parts(loss: nn.Module, arguments) -> None:
    """Gives a loss that caches gradients the whole batch, in parts of what was the micro-batch."""
    parts = arguments.gradient_accumulation_steps
    loss.mini_batch_size = 0
    if parts > 1:
        loss.mini_batch_size = arguments.per_device_train_batch_size
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
    lengths: dict[str, int] | None = None,
    **overrides,
) -> LeJEPATrainer:
    """The trainer of a run.

    rows: columns of texts, before which the model's prompts go. lengths: `fit_lengths`; None: `train_length`.
    overrides: fields of `SentenceTransformerTrainingArguments`.
    """
    fields = {
        **params.model_dump(include={"seed", "save_steps", "report_to"}),
        "logging_steps": 5,
        "prompts": prompts(model, rows),
        "eval_strategy": "no",  # the recipe is short and fixed; dev questions choose among models at its end
    }
    fields |= overrides
    weights = sum(w.numel() for name, w in model.named_parameters() if "embedding" not in name)
    return LeJEPATrainer(
        model,
        args=training_arguments(plan, runtime, output_dir, cls=SentenceTransformerTrainingArguments, **fields),
        train_dataset=rows,
        loss=loss,
        plan=plan,
        runtime=runtime,
        max_hours=params.max_hours,
        length=lengths or params.train_length,
        flops_per_token=6.0 * weights,  # of the encoder, without its tables
    )
