"""Fine-tuning of a classifier: transformers' Trainer with this suite's reliability, class weights, and three paddings."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import SequentialSampler
from transformers import DataCollatorWithPadding, Trainer

from helpers.plan.settings import Plan
from helpers.train.arguments import training_arguments
from helpers.train.trainer import TrainerMixin

from .evaluation import IGNORED, scores
from .task import PROCESSOR, Encoded, Settings, Task, clock

# B batch · C labels


def whole_batches(rows: Encoded, batch: int) -> Encoded:
    """Rows filled up to a multiple of `batch`; what is filled in has no label."""
    return rows + [{**rows[0], "labels": IGNORED}] * (-len(rows) % batch)


class ClassifierTrainer(TrainerMixin, Trainer):
    """The trainer of a run, from the first weights.

    The loss is the mean over examples of weight x cross entropy, however a step is cut.

    Args:
        seed: of the new head, data order and dropout.
        steps: exactly so many; 0: as many as see the examples that the recipe or `max_steps` asks for.
        train: rows instead of the task's, none longer than `settings.length`.
        **overrides: fields of `TrainingArguments`.

    Raises ValueError for fewer training rows than a batch has.
    """

    def __init__(
        self,
        task: Task,
        settings: Settings,
        output_dir: Path,
        *,
        seed: int,
        steps: int = 0,
        train: Encoded | None = None,
        **overrides,
    ):
        runtime, plan = task.runtime, task.plan(settings, steps)
        train = task.encoded("train", settings.length) if train is None else train
        validation = task.encoded("validation", settings.length)
        if len(train) < plan.micro_batch_size:
            raise ValueError(
                f"batch_size={plan.batch_size}: a batch of {plan.micro_batch_size} needs as many training rows, and there "
                f"are {len(train)}; lower batch_size or give more rows"
            )
        model = task.untrained(seed)
        if model.config._attn_implementation != settings.attention:
            model.set_attn_implementation(settings.attention)
        args = arguments(task, settings, output_dir, plan, seed=seed, **overrides)
        fixed = settings.padding == "fixed"
        super().__init__(
            model=model,
            args=args,
            train_dataset=train,
            eval_dataset=whole_batches(validation, args.eval_batch_size) if runtime.kind == "xla" else validation,
            data_collator=DataCollatorWithPadding(
                task.tokenizer, "max_length" if fixed else "longest", settings.length if fixed else None
            ),
            processing_class=task.tokenizer,
            compute_metrics=_metrics,
            plan=plan,
            runtime=dataclasses.replace(runtime, precision=plan.precision),
            flops_per_token=flops_per_token(model),
            patience=task.params.patience,
            max_hours=task.params.max_hours,
        )
        self.settings = settings
        self.model_accepts_loss_kwargs = False  # the mean is taken here, and transformers averages over micro-batches
        self._weights = None if task.weights is None else torch.tensor(task.weights).float().to(self.args.device)
        if settings.compiled:
            torch.compiler.reset()  # each trainer wraps the model anew, and after eight variants PyTorch stops compiling
            self.model.compile(dynamic=not fixed)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels_B = inputs["labels"]
        outputs = model(**{name: tensor for name, tensor in inputs.items() if name != "labels"})
        loss = functional.cross_entropy(
            outputs["logits"].float(), labels_B, weight=self._weights, ignore_index=IGNORED, reduction="sum"
        ) / (labels_B != IGNORED).sum().clamp(min=1)
        return (loss, {"logits": outputs["logits"].float()}) if return_outputs else loss

    def _get_eval_sampler(self, eval_dataset) -> SequentialSampler:
        """Rows as they come: transformers would group them by length, too, and give predictions in that order."""
        return SequentialSampler(eval_dataset)

    def training_seconds(self) -> float:
        """Seconds of training so far by `clock`, without evaluation, saving and XLA's compilation."""
        wall = self.meter.training_seconds()  # which reads both
        return self.meter.processor_seconds if clock(self.runtime) == PROCESSOR else wall

    def logits(self, rows: Encoded) -> np.ndarray:
        """Logits of encoded rows, [N, C]."""
        filled = whole_batches(rows, self.args.eval_batch_size) if self.runtime.kind == "xla" else rows
        loader = self.get_eval_dataloader(filled)
        with self.aside("evaluate"):
            output = self.evaluation_loop(loader, "Prediction", prediction_loss_only=False)
        return output.predictions[: len(rows)]


def flops_per_token(model) -> float:
    """6 a weight that multiplies: forward and backward; embeddings are looked up."""
    looked_up = sum(module.weight.numel() for module in model.modules() if isinstance(module, torch.nn.Embedding))
    return 6.0 * (sum(weight.numel() for weight in model.parameters()) - looked_up)


def arguments(task: Task, settings: Settings, output_dir: Path, plan: Plan, *, seed: int, **overrides):
    """`TrainingArguments` of a run; `overrides` are any of its fields."""
    params, runtime = task.params, task.runtime
    rows = -(-max(len(task.texts.validation), 1) // plan.device_count) * plan.device_count
    eval_batch = min(2 * plan.micro_batch_size, rows)
    every = max(1, plan.max_steps // params.evaluations)
    has_tf32 = runtime.kind == "cuda" and runtime.compute_capability >= (8, 0)
    fields = {
        "per_device_eval_batch_size": eval_batch if runtime.kind == "xla" else eval_batch // plan.device_count,
        "tf32": settings.tf32 if has_tf32 else None,
        "lr_scheduler_type": "linear",
        "train_sampling_strategy": "group_by_length" if settings.padding == "grouped" else "random",
        "eval_steps": every,
        "save_steps": every,
        "logging_steps": params.logging_steps,
        "report_to": params.report_to,
        "metric_for_best_model": "eval_f1",
        "greater_is_better": True,
        "prediction_loss_only": False,
        "remove_unused_columns": False,
        "eval_accumulation_steps": 1 if runtime.kind == "xla" else None,  # else logits grow on the device
    }
    return training_arguments(plan, runtime, output_dir, seed=seed, **fields | overrides)


def _metrics(prediction) -> dict[str, float]:
    logits, labels = prediction.predictions, prediction.label_ids
    real = labels != IGNORED
    return scores(logits[real], labels[real])
