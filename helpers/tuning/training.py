"""The classifier, a training run of it, and a window: a short run whose speed is measured.

Settings are fields of `TrainingArguments`, with two that are not among them: `pad_to_multiple_of`, which is the collator's, and
`times_the_examples`, how many times the examples of the stock run are trained on.
"""

import contextlib
import copy
import functools
import math
import random
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch.nn.functional import cross_entropy
from torch.utils.data import SequentialSampler
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    Trainer,
    set_seed,
)
from transformers.trainer_pt_utils import LengthGroupedSampler

from helpers.machine import ranks
from helpers.machine.runtime import Runtime
from helpers.plan.settings import Plan
from helpers.show.progress import Progress
from helpers.train import meter
from helpers.train.arguments import training_arguments
from helpers.train.sentence_encoder import load_sentence_encoder
from helpers.train.trainer import TrainerMixin

from .data import LabelledTexts
from .evaluation import Trial, macro_f1
from .parameters import TuningParameters, learning_rate

Settings = dict[str, Any]
EXAMPLES = "times_the_examples"
BATCH, RATE = "per_device_train_batch_size", "learning_rate"
SAMPLING, GROUPED = "train_sampling_strategy", "group_by_length"
# Settings that TrainingArguments are given as they are; the others go through the plan.
DIRECT = {SAMPLING, "dataloader_num_workers", "dataloader_pin_memory", "torch_compile", "tf32"}
WARM_UP, WEIGHT_DECAY = 0.06, 0.01  # WARM_UP: of a run's steps


# ---- the model and its texts


@dataclass(frozen=True, eq=False)
class Task:
    """Texts, model and machine of a notebook; every run trains a copy of the model."""

    texts: LabelledTexts
    model: Any
    tokenizer: Any
    params: TuningParameters
    runtime: Runtime

    @property
    def start(self) -> Settings:
        """The stock Trainer: what `TrainingArguments()` and the libraries choose when they are told nothing, but for the rate.

        On XLA the fused kernel crashes.
        """
        settings: Settings = {
            # A smaller one that is set is where it starts; of one device.
            BATCH: math.ceil(min(8, self.params.batch_size or 8) / self.runtime.engine.fed),
            RATE: self.params.learning_rate or learning_rate(self.model.num_parameters()),
            SAMPLING: "random",
            EXAMPLES: 1,
            "optim": "adamw_torch_fused",
        }
        if self.runtime.kind == "xla":
            settings["optim"] = "adamw_torch"
        return settings

    @property
    def examples(self) -> int:
        """Of a run of the start: `max_steps` batches, or three passes over the rows and at least 200 steps."""
        batch = self.start[BATCH] * self.runtime.device_count
        return batch * self.params.max_steps or max(batch * 200, 3 * len(self.texts.train))

    @functools.cache  # noqa: B019  one task a notebook
    def rows(self, split: str) -> list[dict]:
        """The texts of "train", "validation" or "test" as token ids, cut to `max_length`, and their labels."""
        texts = getattr(self.texts, split)
        columns = self.tokenizer([*texts.text], truncation=True, max_length=self.params.max_length)
        dataset = Dataset.from_dict({**columns, "labels": texts.label})
        return dataset.to_list()

    @functools.cached_property
    def lengths(self) -> list[int]:
        """Tokens of the training texts, cut to `max_length`."""
        return [len(row["input_ids"]) for row in self.rows("train")]


def load_task(params: TuningParameters, texts: LabelledTexts, runtime: Runtime) -> Task:
    """The encoder `base_model` in fp32 with a new head for the labels.

    On XLA, which compiles each length, texts are cut and padded to what 99 of 100 of them need.

    Raises as `load_sentence_encoder`, and ValueError for a `max_length` that the model has no positions for.
    """
    encoder = load_sentence_encoder(params.base_model, texts=texts.train.text, seed=params.seed)
    backbone, labels = encoder.transformers_model, texts.labels
    config = backbone.config
    if params.max_length > config.max_position_embeddings:
        raise ValueError(
            f"max_length={params.max_length}: the model reads {config.max_position_embeddings} tokens at most"
        )
    set_seed(params.seed)
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: labels.index(label) for label in labels}
    model = AutoModelForSequenceClassification.from_config(config)
    # A classifier may have no pooling layer.
    model.base_model.load_state_dict(backbone.state_dict(), strict=False)
    task = Task(texts, model, encoder.tokenizer, params, runtime)
    if runtime.kind == "xla":
        length = 8 * math.ceil(np.quantile(task.lengths, 0.99) / 8)
        task = replace(task, params=params.model_copy(update={"max_length": length}))
    return task


# ---- a run


class GroupedByLength(LengthGroupedSampler):
    """transformers' sampler, which draws an epoch from its number, so that a resumed one has the same order; the rows were drawn by the seed."""

    def set_epoch(self, epoch: int) -> None:
        self.generator = torch.Generator().manual_seed(epoch)


class ClassifierTrainer(TrainerMixin, Trainer):
    """transformers' Trainer with this suite's reliability, on a task and with settings, from the first weights.

    Args:
        examples: to train on, times the settings' factor.
        train: rows instead of the task's.
        **overrides: fields of `TrainingArguments`.
    """

    def __init__(self, task: Task, settings: Settings, output_dir: Path, examples: int, train=None, **overrides):
        torch.compiler.reset()  # each trainer compiles its own copy, and after eight variants PyTorch would stop compiling
        params, runtime = task.params, task.runtime
        model = copy.deepcopy(task.model)
        examples *= settings[EXAMPLES]
        batches = examples / settings[BATCH] / runtime.device_count
        steps = max(1, round(batches))
        plan = Plan(
            precision=next((half for half in ("bf16", "fp16") if settings.get(half)), "fp32"),
            per_device_batch_size=settings[BATCH],
            gradient_accumulation_steps=1,  # which batch fits is found out by trying
            device_count=runtime.device_count,
            learning_rate=settings[RATE],
            max_steps=steps,
            sequence_length=params.max_length,
            warmup_steps=round(WARM_UP * steps),
            weight_decay=WEIGHT_DECAY,
            max_grad_norm=1.0,
            optimizer=settings["optim"],
            gradient_checkpointing=settings.get("gradient_checkpointing", False),
            memory={},
        )
        third = max(1, steps // 3)
        fields = {
            "lr_scheduler_type": "linear",
            "eval_steps": third,
            "save_steps": third,
            "logging_steps": 50,
            "report_to": params.report_to,
            "remove_unused_columns": False,
            "tf32": False,
            "eval_accumulation_steps": 1,  # else logits grow on the device
        }
        padding = "max_length" if runtime.kind == "xla" else "longest"
        for name in DIRECT & settings.keys():
            fields[name] = settings[name]
        args = training_arguments(plan, runtime, output_dir, seed=params.seed, **fields | overrides)
        super().__init__(
            model=model,
            args=args,
            train_dataset=train or task.rows("train"),
            eval_dataset=whole_batches(task.rows("validation"), args.eval_batch_size),
            data_collator=DataCollatorWithPadding(
                task.tokenizer, padding, params.max_length, settings.get("pad_to_multiple_of")
            ),
            processing_class=task.tokenizer,
            plan=plan,
            runtime=replace(runtime, precision=plan.precision),
            flops_per_token=6.0 * (model.num_parameters() - model.get_input_embeddings().weight.numel()),
            max_hours=params.max_hours,
        )
        # Classifiers take any argument and give the mean over their rows: the trainer divides it by the accumulation.
        self.model_accepts_loss_kwargs = False
        self.task = task
        if runtime.kind == "cpu" and torch.get_num_threads() * ranks.count() == 1:
            self.meter.clock = time.process_time  # other programs do not stretch it
        self.shares: list[float] = []

    def on_log(self, *args, **kwargs):
        """Reads a GPU's utilisation by torch's own call, as a share of 1."""
        with contextlib.suppress(Exception):  # no GPU; NVML's own errors: a slice of a board, an old driver
            self.shares.append(torch.cuda.utilization() / 100)

    def advice(self) -> str:
        """What to change, by the mean utilisation."""
        if not self.shares:
            return "This device does not report its utilisation."
        mean = statistics.fmean(self.shares)
        if mean >= 0.7:
            return f"Utilisation was {mean:.0%}: the device was busy."
        return (
            f"Utilisation was {mean:.0%}, below 70%: the device waited. Raise batch_size or the loader workers; if memory "
            "is full, lower the batch or switch gradient checkpointing on."
        )

    def _get_train_sampler(self, train_dataset=None):
        if self.args.train_sampling_strategy != GROUPED:
            return super()._get_train_sampler(train_dataset)
        return GroupedByLength(self.args.train_batch_size, lengths=self.task.lengths)

    def _get_eval_sampler(self, eval_dataset):
        """Rows as they come: transformers would group them by length, too, and give predictions in that order."""
        return SequentialSampler(eval_dataset)

    def training_seconds(self) -> float:
        """Seconds of training so far, without evaluation, saving and compilation."""
        return self.state.global_step * self.meter.step_seconds()

    def logits(self, split: str) -> np.ndarray:
        """Logits of the texts of a split, [N, C]."""
        rows = self.task.rows(split)
        loader = self.get_eval_dataloader(whole_batches(rows, self.args.eval_batch_size))
        output = self.evaluation_loop(loader, "Prediction", prediction_loss_only=False)
        return output.predictions[: len(rows)]


def whole_batches(rows: list[dict], batch: int) -> list[dict]:
    """Rows filled up to a multiple of `batch`, one shape for all; what is filled in has a label that no loss counts."""
    missing = -len(rows) % batch
    return rows + [rows[0] | {"labels": -100}] * missing


def folder_of(settings: Settings, folder: Path, examples: int) -> Path:
    """Where a run with these settings keeps its checkpoints."""
    return folder / "trials" / "-".join(map(str, (examples, *settings.values())))


def run_trial(task: Task, settings: Settings, folder: Path, examples: int) -> Trial:
    """A training run, or the rest of one, and what its model makes of each dev text."""
    trainer = ClassifierTrainer(task, settings, folder_of(settings, folder, examples), examples)
    trainer.train(resume_from_checkpoint=task.params.resume)
    labels = task.texts.validation.label.to_numpy()
    logits = trainer.logits("validation")
    losses = cross_entropy(torch.tensor(logits), torch.tensor(labels), reduction="none")
    predicted = logits.argmax(axis=1)
    return Trial(
        settings,
        seconds=trainer.training_seconds(),
        dev_losses=losses.tolist(),
        dev_predictions=predicted.tolist(),
        dev_loss=losses.mean().item(),
        dev_f1=macro_f1(labels, predicted),
    )


# ---- a window


class WindowTrainer(ClassifierTrainer):
    """Leaves nothing behind."""

    def _save_checkpoint(self, model, trial):
        """A window is not resumed."""

    def _shrink_micro_batch(self, error: Exception) -> None:
        """Out of memory is an answer here, not something to go on from."""
        raise error


def measure_window(task: Task, settings: Settings, examples: int) -> float:
    """Examples a second, on the same texts as every other window, after some steps with the longest text, which try the memory.

    Raises what a device without enough memory raises, and NonFiniteLoss.
    """
    batch = settings[BATCH] * task.runtime.device_count
    rows, lengths = task.rows("train"), task.lengths
    places = random.Random(task.params.seed).choices(range(len(rows)), k=max(1, examples // batch) * batch)
    if settings[SAMPLING] == GROUPED:
        # A run sorts up to 50 batches together. A window is sorted as a whole, which saves less padding than the run will.
        places.sort(key=lengths.__getitem__)
    places = [lengths.index(max(lengths))] * batch * meter.WARM_UP + places
    with tempfile.TemporaryDirectory() as folder:
        trainer = WindowTrainer(
            task,
            settings | {SAMPLING: "sequential"},
            Path(folder),
            len(places),
            [rows[place] for place in places],
            eval_strategy="no",
            save_strategy="no",
            report_to="none",
            logging_steps=len(places),
        )
        trainer.remove_callback(Progress)
        trainer.train(resume_from_checkpoint=False)
    # Several processes judge alike.
    return ranks.broadcast(batch / trainer.meter.step_seconds())
