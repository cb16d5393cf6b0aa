"""A sentence encoder tuned on docstrings: sentence-transformers' trainer and its MultipleNegativesRankingLoss.

model = load_sentence_encoder("sentence-transformers/all-MiniLM-L6-v2", max_seq_length=CODE_TOKENS)
freeze_lower_half(model)
trainer = new_search_trainer(model, in_batches(rows, ...), held_out, MultipleNegativesRankingLoss(model), plan, machine, folder)
trainer.train()
"""

from pathlib import Path

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch.utils.data import SequentialSampler

from helpers.machine.runtime import Runtime
from helpers.plan.settings import Plan, Recipe
from helpers.plan.workloads import Workload
from helpers.train.arguments import training_arguments
from helpers.train.sentence_encoder import SentenceEncoderTrainer

from .search import CODE_TOKENS

BATCH, STEPS, LEARNING_RATE = 32, 120, 1e-4


def freeze_lower_half(model: SentenceTransformer) -> int:
    """Freezes all but the upper half of the layers; returns how many weights go on learning."""
    stacks = [part for part in model.modules() if isinstance(part, torch.nn.ModuleList)]
    layers = max(stacks, key=len)
    model.requires_grad_(False)
    for layer in layers[len(layers) // 2 :]:
        layer.requires_grad_(True)
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def in_order(dataset, **options):
    """For `SentenceTransformerTrainingArguments(batch_sampler=in_order)`: rows in their order, which makes the batches."""
    return DefaultBatchSampler(SequentialSampler(dataset), **options)


def search_recipe(steps: int = 0, batch_size: int = 0, learning_rate: float = 0.0) -> Recipe:
    """120 steps of 32 pairs unless something else is asked for; a micro-batch is a batch, since it holds the wrong answers."""
    batch = batch_size or BATCH
    return Recipe(
        batch_size=batch,
        learning_rate=learning_rate or LEARNING_RATE,
        max_steps=steps or STEPS,
        sequence_length=CODE_TOKENS,
        warmup_fraction=0.1,
        tpu_batch_factor=1,
        tpu_learning_rate_factor=1.0,
        gradient_checkpointing=False,
    )


def search_workload(model: SentenceTransformer, notebook: str) -> Workload:
    """The training step for the planner: a question and a code for each pair."""

    def batch(examples: int, length: int) -> list[dict[str, torch.Tensor]]:
        ids = torch.ones(examples, length, dtype=torch.long)
        return [{"input_ids": ids.clone(), "attention_mask": ids.clone()} for _ in range(2)]

    def step_loss(loss, columns):
        return loss([dict(each) for each in columns], None)

    loss = MultipleNegativesRankingLoss(model)
    return Workload(
        notebook=notebook, name="sentence encoder", model=loss, batch=batch, loss=step_loss, length=CODE_TOKENS
    )


def new_search_trainer(
    model: SentenceTransformer,
    rows: Dataset,
    held_out: Dataset,
    loss: torch.nn.Module,
    plan: Plan,
    runtime: Runtime,
    output_dir: Path | str,
    *,
    seed: int,
    max_hours: float = 0.0,
    **overrides,
) -> SentenceEncoderTrainer:
    """The trainer of a run of `plan.max_steps` batches.

    rows, held_out: question and code, a batch after the other (`pairs.in_batches`).
    overrides: fields of `SentenceTransformerTrainingArguments`.
    """
    each = max(1, plan.max_steps // 4)
    fields = {"seed": seed, "logging_steps": max(1, each // 4), "eval_steps": each, "save_steps": each}
    fields |= {"batch_sampler": in_order, "per_device_eval_batch_size": plan.micro_batch_size}
    return SentenceEncoderTrainer(
        model,
        length=CODE_TOKENS,
        args=training_arguments(
            plan, runtime, output_dir, cls=SentenceTransformerTrainingArguments, **fields | overrides
        ),
        train_dataset=rows,
        eval_dataset=held_out,
        loss=loss,
        plan=plan,
        runtime=runtime,
        max_hours=max_hours,
    )
