"""The rows that LeJEPA trains on, and the trainer.

The trainer adds to the shared one the slices of SIGReg by the run's step, and gradient caching.
"""

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

from helpers.lejepa.data import Example
from helpers.lejepa.documents import Spans
from helpers.lejepa.parameters import LEAST_BATCH, EmbeddingParameters, recipe
from helpers.machine.runtime import Runtime
from helpers.plan import settings
from helpers.train.arguments import training_arguments
from helpers.train.sentence_encoder import SentenceEncoderTrainer

LENGTH_STEP = 32  # tokens; lengths on XLA are multiples of it
COUNTED = 200  # examples, or batches of two, whose tokens are counted
COLUMNS = ("query", "document")  # of the rows; the model's prompts have these names, too


def pairs(examples: list[Example], views, steps: int, batch_size: int, seed: int) -> Dataset:
    """Rows (query, document), step by step: pass after pass over the answers, each time with the next example of an answer.

    views: `loss.views`. No two rows of a batch have the same answer: a text would be a negative of itself. One long epoch: a
    resumed run skips to its place in it. Raises ValueError for a batch that the answers cannot fill.
    """
    draw = random.Random(seed)
    by_answer: dict[str, list[Example]] = defaultdict(list)
    for example in draw.sample(examples, len(examples)):
        by_answer[example.key].append(example)
    if batch_size > len(by_answer):
        raise ValueError(
            f"batch_size={batch_size}: a batch has at most {len(by_answer)} texts, each with another answer or heading; 0 chooses"
        )
    turns = {answer: itertools.cycle(several) for answer, several in by_answer.items()}
    columns: dict[str, list[str]] = defaultdict(list)
    answers: list[str] = []
    for _ in range(steps):
        if len(answers) < batch_size:
            answers = draw.sample([*turns], len(turns))
        for answer in answers[:batch_size]:
            question, (passage, *others), _ = next(turns[answer])
            texts = [passage]
            if others:
                texts.append(draw.choice(others))
            for name, text in zip(COLUMNS, views(question, texts, draw), strict=True):
                columns[name].append(text)
        answers = answers[batch_size:]
    return Dataset.from_dict(columns)


def fit_lengths(
    model: SentenceTransformer, examples: list[Example], views, longest: int, runtime: Runtime
) -> dict[str, int]:
    """The tokens at which the texts of each column of `pairs` are cut.

    `longest`, but on XLA, which compiles one length a column and pads each text to it, what 99 of 100 texts need.
    """
    lengths = dict.fromkeys(COLUMNS, longest)
    if runtime.kind == "xla":
        rows = pairs(examples, views, COUNTED, LEAST_BATCH, seed=0)
        for column in COLUMNS:
            prompt = model.prompts[column]
            ids = model.tokenizer([prompt + text for text in rows[column]])["input_ids"]
            needed = np.quantile([*map(len, ids)], 0.99)
            lengths[column] = min(longest, LENGTH_STEP * math.ceil(needed / LENGTH_STEP))
    return lengths


def make_plan(
    loss: nn.Module, examples: list[Example], spans: Spans, lengths: dict[str, int], runtime: Runtime, **by_user
) -> settings.Plan:
    """Settings of a run whose columns are cut at `lengths`; a micro-batch is a part of a cached gradient.

    spans: the tokens of the model, which are counted, since the recipe on a CPU depends on them. by_user: as `plan` takes them.
    Raises as `plan` does.
    """
    question_length, text_length = lengths.values()
    counted = examples[:COUNTED]
    tokens = 0
    for example in counted:
        tokens += min(question_length, len(spans(example.question)))
        tokens += min(text_length, len(spans(example.texts[0])))
    answers = len({example.key for example in examples})
    chosen = recipe(len(examples), answers, tokens / len(counted), question_length + text_length, runtime.kind)
    if loss.model[0].auto_model.config.model_type.startswith("gemma3"):
        chosen = dataclasses.replace(chosen, fp16=False)
    return settings.plan(
        chosen,
        loss,
        lambda loss, columns: loss(columns),
        lambda size: blank_columns(lengths.values(), size),
        runtime,
        **by_user,
    )


def blank_columns(lengths: Iterable[int], size: int) -> list[dict[str, torch.Tensor]]:
    """Columns of texts of these lengths, as the loss takes them, whose tokens mean nothing."""
    columns = []
    for length in lengths:
        ones = torch.ones(size, length, dtype=torch.long)
        columns.append({"input_ids": ones, "attention_mask": ones})
    return columns


class LeJEPATrainer(SentenceEncoderTrainer):
    """The shared trainer for a loss that holds its model; see `new_trainer`.

    A loss's `step` is set to that of the run. It gets the whole batch of a step at once, in parts of the plan's micro-batch, and nothing
    is accumulated; but not on XLA, whose generators CachedLossMixin cannot restore.
    """

    def __init__(self, model: SentenceTransformer, *, loss: nn.Module, args, runtime: Runtime, **kwargs) -> None:
        self.loss, self.args, self.runtime = loss, args, runtime
        self._cache_gradients()
        super().__init__(model=model, loss=loss, args=args, runtime=runtime, **kwargs)

    def training_step(self, *args, **kwargs):
        self.loss.step = self.state.global_step  # chooses SIGReg's slices, of a resumed run too
        return super().training_step(*args, **kwargs)

    def _shrink_micro_batch(self, error: Exception) -> None:
        parts = self.plan.gradient_accumulation_steps // self.args.gradient_accumulation_steps
        self.args.gradient_accumulation_steps *= parts
        self.args.per_device_train_batch_size //= parts
        super()._shrink_micro_batch(error)
        self._cache_gradients()
        self._train_batch_size = self.args.per_device_train_batch_size

    def _cache_gradients(self) -> None:
        parts = self.args.gradient_accumulation_steps
        if parts > 1 and self.runtime.kind != "xla":
            self.loss.mini_batch_size = self.args.per_device_train_batch_size
            self.args.per_device_train_batch_size *= parts
            self.args.gradient_accumulation_steps = 1


def new_trainer(
    model: SentenceTransformer,
    loss: nn.Module,
    rows: Dataset,
    params: EmbeddingParameters,
    plan: settings.Plan,
    runtime: Runtime,
    output_dir: Path | str,
    lengths: dict[str, int],
    **overrides,
) -> LeJEPATrainer:
    """The trainer of a run.

    rows: of `pairs`, before which the model's prompts go. lengths: `fit_lengths`.
    overrides: fields of `SentenceTransformerTrainingArguments`.
    """
    fields = {
        **params.model_dump(include={"seed", "save_steps", "report_to"}),
        "logging_steps": 5,
        "prompts": model.prompts,
        "eval_strategy": "no",  # the recipe is short and fixed; dev questions choose among models at its end
        **overrides,
    }
    return LeJEPATrainer(
        model,
        args=training_arguments(plan, runtime, output_dir, cls=SentenceTransformerTrainingArguments, **fields),
        train_dataset=rows,
        loss=loss,
        plan=plan,
        runtime=runtime,
        max_hours=params.max_hours,
        length=lengths,
        flops_per_token=6.0 * model.transformers_model.num_parameters(exclude_embeddings=True),
    )
