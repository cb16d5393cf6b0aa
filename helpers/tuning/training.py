"""The classifier, and one training run of it.

Settings are fields of `TrainingArguments`, with four that are not among them: `attn_implementation` of the model, `pad_to`, the length
that the collator pads to (without it: the longest text of a batch), `pad_to_multiple_of`, which the collator rounds that up to, and
`times_the_examples`, how many times the examples of the stock run are trained on (without it: once).
"""

from __future__ import annotations

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
from helpers.plan.settings import Plan
from helpers.train.arguments import training_arguments
from helpers.train.trainer import TrainerMixin

from .data import LabelledTexts
from .evaluation import Trial
from .parameters import TuningParameters, learning_rate, recipe
from .sample import sample_classifier

IGNORED = -100  # label of a row that only fills a batch: no loss counts it
Settings = dict[str, Any]
EXAMPLES = "times_the_examples"
NOT_ARGUMENTS = ("attn_implementation", "pad_to", "pad_to_multiple_of", EXAMPLES)
BATCH, RATE = "per_device_train_batch_size", "learning_rate"
SAMPLING, GROUPED = "train_sampling_strategy", "group_by_length"
PLANNED = (BATCH, RATE, "bf16", "fp16", "tf32", "gradient_checkpointing")  # through the plan
PROCESSOR, WALL = "processor time", "wall time"
BUSY = 0.7  # utilisation below which the device waits


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
        return sample_classifier(texts, config)
    name = str(source_path("base_model", base_model) or base_model)
    revision = hub.REVISIONS.get(base_model)  # which a folder has none of
    with hub.reading(name="base_model", source=base_model):
        tokenizer = AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=False)
        model = AutoModelForSequenceClassification.from_pretrained(
            name,
            revision=revision,
            trust_remote_code=False,
            dtype="float32",
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # the head may have other labels, and is drawn anew
            **config,
        )
    if tokenizer.pad_token is None:  # decoders
        tokenizer.pad_token = tokenizer.eos_token
    model.config.pad_token_id, model.config.use_cache = tokenizer.pad_token_id, False  # nothing is generated
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
        """The stock Trainer: what `TrainingArguments()` and the libraries choose when they are told nothing.

        On XLA each length would be compiled and the fused kernel crashes: there the start pads to what 99 of 100 texts need.
        """
        batch = min(8, self.params.batch_size or 8)  # a smaller one that is asked for is where it starts
        rate = self.params.learning_rate or learning_rate(self.model.num_parameters())
        settings: Settings = {BATCH: batch, RATE: rate}
        settings |= {"optim": "adamw_torch_fused", "dataloader_num_workers": 0}
        settings |= {SAMPLING: "random", "attn_implementation": self.model.config._attn_implementation}
        if self.runtime.kind == "xla":
            batch = -(-batch // self.runtime.device_count)
            longest = math.ceil(self.lengths()["99 %"] / 8) * 8
            settings |= {BATCH: batch, "optim": "adamw_torch", "pad_to": min(self.params.max_length, longest)}
        return settings

    def rows(self, split: str, settings: Settings | None = None) -> list[dict]:
        """The texts of "train", "validation" or "test" as token ids, cut to what the settings pad to or `max_length`, not padded."""
        return self._encoded(split, (settings or {}).get("pad_to") or self.params.max_length)

    @functools.cache  # noqa: B019  one task a notebook
    def _encoded(self, split: str, length: int) -> list[dict]:
        """The texts of a split, each as a row of token ids, cut to `length`, and its label."""
        texts, labels = zip(*getattr(self.texts, split), strict=True)
        columns = self.tokenizer([*texts], truncation=True, max_length=length)
        return Dataset.from_dict({**columns, "labels": labels}).to_list()

    def lengths(self) -> dict[str, int]:
        """Tokens of the training texts, cut to `max_length`: median, 99th percentile, longest."""
        lengths = [len(row["input_ids"]) for row in self.rows("train")]
        median, high, longest = np.percentile(lengths, (50, 99, 100)).astype(int).tolist()
        return {"median": median, "99 %": high, "longest": longest}

    def loss_of_frequencies(self) -> float:
        """Loss on the dev texts of a model that knows nothing but how frequent each label is among the training texts."""
        counts = np.bincount([label for _, label in self.texts.train])
        log_shares = np.log(counts / counts.sum())
        labels = [label for _, label in self.texts.validation]
        return -float(np.mean(log_shares[labels]))

    def untrained(self, seed: int):
        """A copy of the first weights; with another seed than the parameters' a new head, of a sample model all is new."""
        if seed == self.params.seed:
            return copy.deepcopy(self.model)
        texts = (text for text, _ in self.texts.train)
        return load_classifier(self.params.base_model, self.texts.labels, texts=texts, seed=seed)[0]

    def plan(self, settings: Settings, steps: int = 0) -> Plan:
        """The plan of a run with these settings: nothing is accumulated, since which batch fits is found out by trying.

        steps: 0 for as many as see the examples that the start would see, times the settings' factor, whatever the batch.
        """
        params, devices = self.params, self.runtime.device_count
        size = settings[BATCH]
        stock = recipe(len(self.texts.train), self.start[BATCH] * devices, params.max_length, params.max_steps)
        longer = dataclasses.replace(stock, max_steps=stock.max_steps * settings.get(EXAMPLES, 1))
        precision = next((half for half in ("bf16", "fp16") if settings.get(half)), "fp32")
        length = settings.get("pad_to", params.max_length)
        return planner.plan(
            dataclasses.replace(longer, micro_batch_size=size, sequence_length=length),
            self.model,
            lambda model, batch: model(**batch).loss,
            lambda examples: blank_batch(length, examples),
            dataclasses.replace(self.runtime, precision=precision),
            batch_size=size * devices,
            learning_rate=settings[RATE],
            max_steps=steps,
            gradient_checkpointing=settings.get("gradient_checkpointing", False),
        )

    def too_large(self, settings: Settings) -> bool:
        """Whether a CPU's memory may not suffice: the system would end the process, where a GPU raises an error."""
        needed = sum(self.plan(settings).memory.values())
        return self.runtime.kind == "cpu" and needed > planner.usable_memory(self.runtime)


# ---- a run


class GroupedByLength(LengthGroupedSampler):
    """transformers' sampler, which draws each epoch from the seed and the epoch's number, so that a resumed epoch has the same order."""

    def __init__(self, batch: int, rows: list[dict], seed: int):
        super().__init__(batch, lengths=[len(row["input_ids"]) for row in rows])
        self.seed = seed
        self.set_epoch(0)

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
        plan, pad_to = task.plan(settings, steps), settings.get("pad_to")
        padding = "max_length" if pad_to else "longest"
        if train is None:
            train = task.rows("train", settings)
        if len(train) < plan.micro_batch_size:
            raise ValueError(
                f"batch_size={plan.batch_size}: a batch needs as many training rows, and there are {len(train)}; lower "
                "batch_size or give more rows"
            )
        model = task.untrained(seed)
        if model.config._attn_implementation != settings["attn_implementation"]:
            model.set_attn_implementation(settings["attn_implementation"])
        args = arguments(task, settings, output_dir, plan, seed=seed, **overrides)
        validation = whole_batches(task.rows("validation", settings), args.eval_batch_size)
        super().__init__(
            model=model,
            args=args,
            train_dataset=train,
            eval_dataset=validation,
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

    def train(self, *args, **kwargs):
        torch.compiler.reset()  # each trainer compiles its own copy, and after eight variants PyTorch would stop compiling
        return super().train(*args, **kwargs)

    def _get_train_sampler(self, train_dataset=None) -> Sampler:
        if self.args.train_sampling_strategy != GROUPED:
            return super()._get_train_sampler(train_dataset)
        batch = self.args.train_batch_size * self.args.gradient_accumulation_steps
        return GroupedByLength(batch, train_dataset or self.train_dataset, self.args.seed)

    def _get_eval_sampler(self, eval_dataset) -> Sampler:
        """Rows as they come: transformers would group them by length, too, and give predictions in that order."""
        return SequentialSampler(eval_dataset)

    def training_seconds(self) -> float:
        """Seconds of training so far by `clock`, without evaluation, saving and XLA's compilation."""
        wall = self.meter.training_seconds()  # which reads both
        if clock(self.runtime) == PROCESSOR:
            return self.meter.counts["processor_seconds"]
        return wall

    def logits(self, rows: list[dict]) -> np.ndarray:
        """Logits of encoded rows, [N, C]."""
        loader = self.get_eval_dataloader(whole_batches(rows, self.args.eval_batch_size))
        with self.meter.aside():
            output = self.evaluation_loop(loader, "Prediction", prediction_loss_only=False)
        return output.predictions[: len(rows)]


def trial_folder(task: Task, folder: Path, settings: Settings, seed: int) -> Path:
    """Where a trial with these settings keeps its checkpoints."""
    name = "stock"
    if settings != task.start:
        name = f"batch-{settings[BATCH]}-rate-{settings[RATE]:.4g}-examples-x{settings.get(EXAMPLES, 1)}"
    return folder / "trials" / f"{name}-seed-{seed}"


def trained(task: Task, settings: Settings, folder: Path, *, seed: int, examples: int) -> ClassifierTrainer:
    """Trains on so many examples, times the settings' factor, or goes on with that run."""
    examples *= settings.get(EXAMPLES, 1)
    batch = settings[BATCH] * task.runtime.device_count
    steps = max(1, round(examples / batch))
    folder = trial_folder(task, folder, settings, seed)
    trainer = ClassifierTrainer(task, settings, folder, seed=seed, steps=steps)
    trainer.train(resume_from_checkpoint=task.params.resume)
    return trainer


def run_trial(task: Task, settings: Settings, folder: Path, *, seed: int, examples: int) -> Trial:
    """A training run, and what its model makes of each dev text."""
    trainer = trained(task, settings, folder, seed=seed, examples=examples)
    logits = torch.from_numpy(trainer.logits(task.rows("validation", settings))).float()
    labels = torch.tensor([label for _, label in task.texts.validation])
    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    return Trial(settings, seed, trainer.training_seconds(), losses.tolist(), logits.argmax(dim=1).tolist())


def predictions(trainer: ClassifierTrainer, split: str = "test") -> np.ndarray:
    """The label of each text of a split, as the trained model says it."""
    return trainer.logits(trainer.task.rows(split, trainer.settings)).argmax(axis=1)


def whole_batches(rows: list[dict], batch: int) -> list[dict]:
    """Rows filled up to a multiple of `batch`, one shape for all; what is filled in has no label."""
    missing = -len(rows) % batch
    return rows + [rows[0] | {"labels": IGNORED}] * missing


def arguments(task: Task, settings: Settings, output_dir: Path, plan: Plan, *, seed: int, **overrides):
    """`TrainingArguments` of a run with these settings; `overrides` are any of its fields."""
    interval = max(1, plan.max_steps // 3)
    fields = {
        "per_device_eval_batch_size": 2 * plan.per_device_batch_size * task.runtime.engine.fed,
        "lr_scheduler_type": "linear",
        "eval_steps": interval,
        "save_steps": interval,
        "logging_steps": max(1, min(50, plan.max_steps // 10)),
        "report_to": task.params.report_to,
        "remove_unused_columns": False,
    }
    if task.runtime.has_tf32:
        fields["tf32"] = settings.get("tf32", False)
    if task.runtime.kind == "xla":
        fields["eval_accumulation_steps"] = 1  # else logits grow on the device
    for name, value in settings.items():
        if name not in (*NOT_ARGUMENTS, *PLANNED):
            fields[name] = value
    return training_arguments(plan, task.runtime, output_dir, seed=seed, **fields | overrides)


def clock(runtime: Runtime) -> str:
    """What speeds are measured in: processor time on one thread of a CPU, which other programs do not stretch, else wall time."""
    if runtime.kind == "cpu" and torch.get_num_threads() == 1 and ranks.count() == 1:
        return PROCESSOR
    return WALL


class Utilisation(TrainerCallback):
    """A GPU's utilisation, by torch's own call, and memory at each log."""

    def __init__(self, runtime):
        self.runtime, self.samples = runtime, []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in (logs or {}):
            self.samples.append((state.global_step, self.busy(), self.runtime.engine.peak_memory()))

    def busy(self) -> float | None:
        """A share of 1; None where the device does not tell."""
        if self.runtime.kind != "cuda":
            return None
        try:
            return torch.cuda.utilization() / 100
        except Exception:  # NVML's own errors: a slice of a board, or a driver that does not tell
            return None

    def advice(self) -> str:
        """What to change, by the mean over the logs."""
        shares = [share for _, share, _ in self.samples if share is not None]
        if not shares:
            return "This device does not report its utilisation."
        mean = round(statistics.fmean(shares), 2)
        if mean >= BUSY:
            return f"Utilisation was {mean:.0%}: the device was busy."
        return (
            f"Utilisation was {mean:.0%}, below {BUSY:.0%}: the device waited. Raise batch_size or the loader workers; if memory "
            "is full, lower the batch or switch gradient checkpointing on."
        )


def blank_batch(length: int, examples: int) -> dict[str, torch.Tensor]:
    """A batch of texts of so many tokens, which mean nothing."""
    mask = torch.ones(examples, length, dtype=torch.long)
    mask[0, -1] = 0  # as where texts are padded: attention gets a mask
    labels = torch.zeros(examples, dtype=torch.long)
    return {"input_ids": torch.ones_like(mask), "attention_mask": mask, "labels": labels}
