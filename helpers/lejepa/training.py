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
from helpers.lejepa.parameters import EmbeddingParameters, recipe
from helpers.machine.runtime import Runtime
from helpers.plan import settings
from helpers.train.arguments import training_arguments
from helpers.train.sentence_encoder import SentenceEncoderTrainer

LENGTH_STEP = 32  # tokens; lengths on XLA are multiples of it
COUNTED = 200  # examples whose tokens are counted
COLUMNS = {"anchor": "query", "positive": "document"}  # of the rows, with the task whose prompt they get


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
    for _ in range(steps):
        if len(answers) < batch_size:
            answers = draw.sample([*turns], len(turns))
        for answer in answers[:batch_size]:
            question, (passage, *others), _ = next(turns[answer])
            other = [draw.choice(others)] if others else []
            rows.append(views(question, [passage, *other], draw))
        answers = answers[batch_size:]
    return Dataset.from_dict(dict(zip(COLUMNS, zip(*rows, strict=True), strict=True)))


def prompts(model: SentenceTransformer) -> dict[str, str]:
    """The model's prompt for each column."""
    return {column: model.prompts.get(task) or "" for column, task in COLUMNS.items()}


def fit_lengths(
    model: SentenceTransformer, examples: list[Example], views, longest: int, runtime: Runtime
) -> dict[str, int]:
    """The tokens at which the texts of each column of `pairs` are cut.

    `longest`, but on XLA, which compiles one length a column and pads each text to it, what 99 of 100 texts need.
    """
    lengths = dict.fromkeys(COLUMNS, longest)
    if runtime.kind == "xla":
        rows = pairs(examples, views, 1, len({example.key for example in examples}), seed=0)
        for column, prompt in prompts(model).items():
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
    anchor, positive = lengths.values()
    tokens = []
    for example in examples[:COUNTED]:
        tokens.append(min(anchor, len(spans(example.question))) + min(positive, len(spans(example.texts[0]))))
    answers = len({example.key for example in examples})
    chosen = recipe(len(examples), answers, sum(tokens) / len(tokens), anchor + positive, runtime.kind)
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
    ones = [torch.ones(size, length, dtype=torch.long) for length in lengths]
    return [{"input_ids": tokens, "attention_mask": tokens} for tokens in ones]


class LeJEPATrainer(SentenceEncoderTrainer):
    """The shared trainer for a loss that holds its model; see `new_trainer`.

    A loss's `step` is set to that of the run. But on XLA it gets the whole batch of a step at once: the plan's micro-batch is its
    `mini_batch_size`, and nothing is accumulated.
    """

    def __init__(self, model: SentenceTransformer, *, loss: nn.Module, args, runtime: Runtime, **kwargs) -> None:
        self.caches_gradients = runtime.kind != "xla"  # whose generators CachedLossMixin cannot restore
        self._cache_gradients(loss, args)
        super().__init__(model=model, loss=loss, args=args, runtime=runtime, **kwargs)

    def compute_loss(self, *args, **kwargs):
        with self.accelerator.autocast():  # both views use one copy of each weight in half precision
            return super().compute_loss(*args, **kwargs)

    def training_step(self, *args, **kwargs):
        self.loss.step = self.state.global_step  # chooses SIGReg's slices, of a resumed run too
        return super().training_step(*args, **kwargs)

    def _shrink_micro_batch(self, error: Exception) -> None:
        parts = self.plan.gradient_accumulation_steps // self.args.gradient_accumulation_steps
        self.args.gradient_accumulation_steps *= parts
        self.args.per_device_train_batch_size //= parts
        super()._shrink_micro_batch(error)
        self._cache_gradients(self.loss, self.args)
        self._train_batch_size = self.args.per_device_train_batch_size

    def _cache_gradients(self, loss: nn.Module, args) -> None:
        """Gives the loss the whole batch, in parts of what was the micro-batch."""
        parts = args.gradient_accumulation_steps
        if self.caches_gradients:
            loss.mini_batch_size = args.per_device_train_batch_size if parts > 1 else 0
            args.per_device_train_batch_size *= parts
            args.gradient_accumulation_steps = 1


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
        "prompts": prompts(model),
        "eval_strategy": "no",  # the recipe is short and fixed; dev questions choose among models at its end
        **overrides,
    }
    weights = sum(w.numel() for name, w in model.named_parameters() if "embedding" not in name)
    return LeJEPATrainer(
        model,
        args=training_arguments(plan, runtime, output_dir, cls=SentenceTransformerTrainingArguments, **fields),
        train_dataset=rows,
        loss=loss,
        plan=plan,
        runtime=runtime,
        max_hours=params.max_hours,
        length=lengths,
        flops_per_token=6.0 * weights,  # of the encoder, without its tables
    )
