"""The classifier, and one training run of it.

Settings are fields of `TrainingArguments`, with three that are not among them: `pad_to`, the length that the collator pads to
(without it: the longest text of a batch), `pad_to_multiple_of`, which the collator rounds that up to, and `times_the_examples`, how
many times the examples of the stock run are trained on.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch.utils.data import Sampler, SequentialSampler
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    set_seed,
)
from transformers.trainer_pt_utils import LengthGroupedSampler

from helpers.data import hub
from helpers.machine import ranks
from helpers.machine.runtime import Runtime
from helpers.parameters import SAMPLE, source_path
from helpers.plan import settings as planner
from helpers.plan.settings import Plan, Recipe
from helpers.plan.workloads import Asked, Workload
from helpers.train.arguments import training_arguments
from helpers.train.trainer import TrainerMixin

from .data import LabelledTexts
from .evaluation import Trial, macro_f1
from .parameters import EPOCHS, LEAST_STEPS, NOTEBOOK, TuningParameters, learning_rate, recipe
from .sample import sample_classifier

IGNORED = -100  # label of a row that only fills a batch: no loss counts it
Settings = dict[str, Any]
EXAMPLES = "times_the_examples"
BATCH, RATE = "per_device_train_batch_size", "learning_rate"
SAMPLING, GROUPED = "train_sampling_strategy", "group_by_length"
NOT_ARGUMENTS = ("pad_to", "pad_to_multiple_of", EXAMPLES)
DIRECT = (
    "optim",
    SAMPLING,
    "dataloader_num_workers",
    "dataloader_pin_memory",
    "torch_compile",
    "tf32",
)  # the others through the plan
PROCESSOR, WALL = "processor time", "wall time"
ROWS, LABELS = 16_000, 6  # of dair-ai/emotion, the notebook's default
BUSY = 0.7  # utilisation below which the device waits
EVALUATIONS = 4  # of a run


# ---- the model


def load_classifier(base_model: str, labels: Sequence[str], *, texts: Iterable[str] = (), seed: int):
    """(model, tokeniser): fp32 weights, a new head for `labels`, the attention that transformers chooses.

    base_model: a hub id (`hub.REVISIONS` are pinned), a local path, or "sample", which learns its tokeniser from `texts`. No code
        from a checkpoint is run; weights are safetensors.

    Raises as `hub.reading`.
    """
    set_seed(seed)
    label2id = {label: number for number, label in enumerate(labels)}
    config = {"id2label": dict(enumerate(labels)), "label2id": label2id}
    if base_model == SAMPLE:
        return sample_classifier(texts, seed, config)
    place = {
        "pretrained_model_name_or_path": str(source_path("base_model", base_model) or base_model),
        "revision": hub.REVISIONS.get(base_model),  # which a folder has none of
        "trust_remote_code": False,
    }
    with hub.reading(name="base_model", source=base_model):
        tokenizer = AutoTokenizer.from_pretrained(**place)
        model = AutoModelForSequenceClassification.from_pretrained(
            **place,
            dtype="float32",
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # the head may have other labels, and is drawn anew
            **config,
        )
    return model, tokenizer


@dataclass(frozen=True, eq=False)
class Task:
    """Texts, model and machine of a notebook; every run trains a copy of the model."""

    texts: LabelledTexts
    model: Any
    tokenizer: Any
    params: TuningParameters
    runtime: Runtime

    @classmethod
    def load(cls, params: TuningParameters, texts: LabelledTexts, runtime: Runtime) -> Task:
        """Raises ValueError for a `max_length` that the model has no positions for."""
        train = (text for text, _ in texts.train)
        model, tokenizer = load_classifier(params.base_model, texts.labels, texts=train, seed=params.seed)
        longest = min(getattr(model.config, "max_position_embeddings", None) or math.inf, tokenizer.model_max_length)
        if params.max_length > longest:
            raise ValueError(f"max_length={params.max_length}: {params.base_model!r} reads {longest} tokens at most")
        return cls(texts, model, tokenizer, params, runtime)

    @property
    def start(self) -> Settings:
        """The stock Trainer: what `TrainingArguments()` and the libraries choose when they are told nothing, but for the rate.

        On XLA each length would be compiled and the fused kernel crashes: there the start pads to what 99 of 100 texts need.
        """
        settings: Settings = {
            BATCH: min(8, self.params.batch_size or 8),  # a smaller one that is asked for is where it starts
            RATE: self.params.learning_rate or learning_rate(self.model.num_parameters()),
            SAMPLING: "random",
            EXAMPLES: 1,
            "optim": "adamw_torch_fused",
            "dataloader_num_workers": 0,
        }
        if self.runtime.kind == "xla":
            settings[BATCH] = -(-settings[BATCH] // self.runtime.device_count)
            settings["optim"] = "adamw_torch"
            settings["pad_to"] = min(self.params.max_length, math.ceil(self.lengths()["99 %"] / 8) * 8)
        return settings

    @property
    def examples(self) -> int:
        """Of a run of the start: `max_steps` batches, or three passes over the rows and not too few steps."""
        batch = self.start[BATCH] * self.runtime.device_count
        steps = max(LEAST_STEPS, EPOCHS * len(self.texts.train) // batch)
        return batch * (self.params.max_steps or steps)

    @functools.cache  # noqa: B019  one task a notebook
    def rows(self, split: str, length: int | None = None) -> list[dict]:
        """The texts of "train", "validation" or "test" as token ids, cut to `length` or `max_length`, and their labels."""
        texts, labels = zip(*getattr(self.texts, split), strict=True)
        columns = self.tokenizer([*texts], truncation=True, max_length=length or self.params.max_length)
        return Dataset.from_dict({**columns, "labels": labels}).to_list()

    def lengths(self) -> dict[str, int]:
        """Tokens of the training texts, cut to `max_length`: median, 99th percentile, longest."""
        lengths = [len(row["input_ids"]) for row in self.rows("train")]
        quantiles = np.percentile(lengths, (50, 99, 100)).astype(int).tolist()
        return dict(zip(("median", "99 %", "longest"), quantiles, strict=True))

    def untrained(self, seed: int):
        """A copy of the first weights; with another seed than the parameters' a new head, of a sample model all is new."""
        if seed == self.params.seed:
            return copy.deepcopy(self.model)
        texts = (text for text, _ in self.texts.train)
        return load_classifier(self.params.base_model, self.texts.labels, texts=texts, seed=seed)[0]

    @functools.cached_property
    def step(self) -> Workload:
        length = self.start.get("pad_to", self.params.max_length)
        return workload(self.model, self.params.base_model, length)

    def plan(self, settings: Settings, steps: int = 0) -> Plan:
        """The plan of a run with these settings: nothing is accumulated, since which batch fits is found out by trying.

        steps: 0 for as many as see the examples of the start, times the settings' factor, whatever the batch.
        """
        devices = self.runtime.device_count
        length = settings.get("pad_to", self.params.max_length)
        steps = steps or round(self.examples * settings[EXAMPLES] / settings[BATCH] / devices)
        precision = next((half for half in ("bf16", "fp16") if settings.get(half)), "fp32")
        stock = recipe(len(self.texts.train), settings[BATCH] * devices, length)
        planned = planner.plan(
            dataclasses.replace(stock, micro_batch_size=settings[BATCH]),
            self.step,
            dataclasses.replace(self.runtime, precision=precision),
            batch_size=settings[BATCH] * devices,
            learning_rate=settings[RATE],
            max_steps=steps,
            gradient_checkpointing=settings.get("gradient_checkpointing", False),
        )
        return dataclasses.replace(planned, precision=precision)


# ---- a run


class GroupedByLength(LengthGroupedSampler):
    """transformers' sampler, which draws each epoch from the seed and the epoch's number, so that a resumed epoch has the same order."""

    seed = 0

    def set_epoch(self, epoch: int) -> None:
        self.generator = torch.Generator().manual_seed(self.seed + epoch)


class ClassifierTrainer(TrainerMixin, Trainer):
    """transformers' Trainer with this suite's reliability, on a task and with settings, from the first weights.

    Args:
        steps: exactly so many; 0: as many as see the examples that the recipe or `max_steps` asks for.
        train: rows instead of the task's.
        **overrides: fields of `TrainingArguments`.

    Raises ValueError for fewer training rows than a batch has.
    """

    def __init__(
        self, task: Task, settings: Settings, output_dir: Path, *, seed: int, steps: int = 0, train=None, **overrides
    ):
        torch.compiler.reset()  # each trainer compiles its own copy, and after eight variants PyTorch would stop compiling
        plan, pad_to = task.plan(settings, steps), settings.get("pad_to")
        train = train or task.rows("train", pad_to)
        if len(train) < plan.micro_batch_size:
            raise ValueError(
                f"batch_size={plan.batch_size}: a batch needs as many training rows, and there are {len(train)}; lower "
                "batch_size or give more rows"
            )
        third = max(1, plan.max_steps // 3)
        fields = {
            "lr_scheduler_type": "linear",
            "eval_steps": third,
            "save_steps": third,
            "logging_steps": 50,
            "report_to": task.params.report_to,
            "remove_unused_columns": False,
            "tf32": False,
        }
        if pad_to:  # on XLA
            fields["eval_accumulation_steps"] = 1  # else logits grow on the device
        fields |= {name: settings[name] for name in DIRECT if name in settings}
        args = training_arguments(plan, task.runtime, output_dir, seed=seed, **fields | overrides)
        model = task.untrained(seed)
        padding = "max_length" if pad_to else "longest"
        super().__init__(
            model=model,
            args=args,
            train_dataset=train,
            eval_dataset=whole_batches(task.rows("validation", pad_to), args.eval_batch_size),
            data_collator=DataCollatorWithPadding(task.tokenizer, padding, pad_to, settings.get("pad_to_multiple_of")),
            processing_class=task.tokenizer,
            plan=plan,
            runtime=dataclasses.replace(task.runtime, precision=plan.precision),
            flops_per_token=6.0 * (model.num_parameters() - model.get_input_embeddings().weight.numel()),
            max_hours=task.params.max_hours,
        )
        # Classifiers take any argument and give the mean over their rows: the trainer divides it by the accumulation.
        self.model_accepts_loss_kwargs = False
        self.task, self.settings = task, settings

    def _get_train_sampler(self, train_dataset=None) -> Sampler:
        if self.args.train_sampling_strategy != GROUPED:
            return super()._get_train_sampler(train_dataset)
        sampler = GroupedByLength(self.args.train_batch_size, dataset=self.train_dataset)
        sampler.seed = self.args.seed
        return sampler

    def _get_eval_sampler(self, eval_dataset) -> Sampler:
        """Rows as they come: transformers would group them by length, too, and give predictions in that order."""
        return SequentialSampler(eval_dataset)

    def training_seconds(self) -> float:
        """Seconds of training so far by `clock`, without evaluation, saving and XLA's compilation."""
        wall = self.meter.training_seconds()  # which reads both
        if clock(self.runtime) == PROCESSOR:
            return self.meter.counts["processor_seconds"]
        return wall

    def logits(self, split: str) -> np.ndarray:
        """Logits of the texts of a split, [N, C]."""
        rows = self.task.rows(split, self.settings.get("pad_to"))
        loader = self.get_eval_dataloader(whole_batches(rows, self.args.eval_batch_size))
        with self.meter.aside():
            output = self.evaluation_loop(loader, "Prediction", prediction_loss_only=False)
        return output.predictions[: len(rows)]


def whole_batches(rows: list[dict], batch: int) -> list[dict]:
    """Rows filled up to a multiple of `batch`, one shape for all; what is filled in has no label."""
    missing = -len(rows) % batch
    return rows + [rows[0] | {"labels": IGNORED}] * missing


def folder_of(settings: Settings, folder: Path, seed: int) -> Path:
    """Where a trial with these settings keeps its checkpoints."""
    name = "-".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in settings.values())
    return folder / "trials" / f"{name}-seed-{seed}"


def trained(task: Task, settings: Settings, folder: Path, *, seed: int, examples: int) -> ClassifierTrainer:
    """Trains on so many examples, times the settings' factor, or goes on with that run."""
    steps = max(1, round(examples * settings[EXAMPLES] / settings[BATCH] / task.runtime.device_count))
    trainer = ClassifierTrainer(task, settings, folder_of(settings, folder, seed), seed=seed, steps=steps)
    trainer.train(resume_from_checkpoint=task.params.resume)
    return trainer


def run_trial(task: Task, settings: Settings, folder: Path, *, seed: int, examples: int) -> Trial:
    """A training run, and what its model makes of each dev text."""
    trainer = trained(task, settings, folder, seed=seed, examples=examples)
    logits = torch.from_numpy(trainer.logits("validation")).float()
    labels = torch.tensor([label for _, label in task.texts.validation])
    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    predicted = logits.argmax(dim=1).tolist()
    return Trial(
        settings,
        seconds=trainer.training_seconds(),
        dev_losses=losses.tolist(),
        dev_predictions=predicted,
        dev_loss=losses.mean().item(),
        dev_f1=macro_f1(labels, predicted),
    )


def clock(runtime: Runtime) -> str:
    """What speeds are measured in: processor time on one thread of a CPU, which other programs do not stretch, else wall time."""
    if runtime.kind == "cpu" and torch.get_num_threads() == 1 and ranks.count() == 1:
        return PROCESSOR
    return WALL


class Utilisation(TrainerCallback):
    """A GPU's utilisation at each log, by torch's own call, as shares of 1."""

    def __init__(self, runtime: Runtime):
        self.runtime = runtime
        self.shares: list[float] = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if self.runtime.kind == "cuda" and "loss" in (logs or {}):
            with contextlib.suppress(
                Exception
            ):  # NVML's own errors: a slice of a board, or a driver that does not tell
                self.shares.append(torch.cuda.utilization() / 100)

    def advice(self) -> str:
        """What to change, by the mean over the logs."""
        if not self.shares:
            return "This device does not report its utilisation."
        mean = statistics.fmean(self.shares)
        if mean >= BUSY:
            return f"Utilisation was {mean:.0%}: the device was busy."
        return (
            f"Utilisation was {mean:.0%}, below {BUSY:.0%}: the device waited. Raise batch_size or the loader workers; if memory "
            "is full, lower the batch or switch gradient checkpointing on."
        )


# ---- the planner


def workload(model, name: str, length: int) -> Workload:
    """The step of a transformers model for sequence classification, padded to `length` tokens."""

    def batch(examples: int, length: int) -> dict[str, Any]:
        ids = torch.randint(5, model.config.vocab_size, (examples, length))
        mask = torch.ones_like(ids)
        mask[0, -1] = 0  # as where texts are padded: attention gets a mask
        return {"input_ids": ids, "attention_mask": mask, "labels": torch.zeros(examples, dtype=torch.long)}

    def loss(model, batch):
        return model(**batch).loss

    return Workload(notebook=NOTEBOOK, name=name, model=model, batch=batch, loss=loss, length=length)


def planned(asked: Asked, machine: Runtime) -> tuple[Recipe, Workload]:
    """Recipe and training step of a run, for the planner; its model is on the device "meta" and takes no memory.

    asked: `model` is a hub id or a path, `examples` are rows, `length` is in tokens.
    """
    default = TuningParameters.defaults()
    name, length = asked.model or default.base_model, asked.length or default.max_length
    # What XLA makes of attention is what it makes of products and a softmax that are written out.
    attention = "eager" if machine.kind == "xla" else "sdpa"
    rows = asked.examples or ROWS
    evaluated = EVALUATIONS * rows // 10  # a tenth of the rows is held out
    settings = recipe(rows, 8, length)
    settings = dataclasses.replace(settings, evaluated=evaluated, trial_seconds=60 * default.tuning_minutes)
    return settings, _step(name, length, attention)


@functools.lru_cache(maxsize=4)
def _step(name: str, length: int, attention: str) -> Workload:
    from transformers import AutoConfig, BertConfig

    if name == TuningParameters.defaults().base_model:
        config = BertConfig()  # whose values are those of bert-base-uncased
    else:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    config.num_labels = LABELS
    with torch.device("meta"):
        model = AutoModelForSequenceClassification.from_config(config, attn_implementation=attention)
    return workload(model, name, length)
