"""A sentence encoder tuned on docstrings: sentence-transformers' trainer and its MultipleNegativesRankingLoss.

model = sentence_encoder("sentence-transformers/all-MiniLM-L6-v2", texts)
freeze_lower_half(model)
trainer = new_search_trainer(model, in_batches(rows, ...), held_out, MultipleNegativesRankingLoss(model), plan, machine, folder)
trainer.train()
"""

import functools
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch.utils.data import SequentialSampler

from helpers.data import hub
from helpers.machine import xla
from helpers.machine.engine import cpu_copy
from helpers.machine.runtime import Runtime
from helpers.parameters import SAMPLE, source_path
from helpers.plan.settings import Plan, Recipe
from helpers.plan.workloads import Workload
from helpers.train.arguments import training_arguments
from helpers.train.trainer import TrainerMixin

from .parameters import MINILM
from .search import CODE_TOKENS
from .text import train_tokenizer

REVISION = "c9745ed1d9f207416be6d2e6f8de32d1f16199bf"
BATCH, STEPS, LEARNING_RATE = 32, 120, 1e-4


def sentence_encoder(base_model: str, texts: Iterable[str], *, seed: int = 0) -> SentenceTransformer:
    """A pretrained sentence encoder, on the CPU in fp32, that reads `CODE_TOKENS` tokens of a text.

    base_model: a hub id (that of MiniLM at its pinned revision), a local folder, or "sample": a random BERT of four layers with a
        tokeniser trained on `texts`. No code of a checkpoint is run.

    Raises FileNotFoundError (no such folder), and as `hub.reading` for what cannot be loaded.
    """
    if base_model == SAMPLE:
        model = _sample(texts, seed)
    else:
        path = source_path("base_model", base_model)
        options = {} if path else {"revision": REVISION if base_model == MINILM else None}
        with hub.reading("base_model", base_model):
            model = SentenceTransformer(
                str(path or base_model), device="cpu", model_kwargs={"torch_dtype": torch.float32}, **options
            )
    model.max_seq_length = CODE_TOKENS
    return model


def _sample(texts: Iterable[str], seed: int) -> SentenceTransformer:
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel

    tokenizer = train_tokenizer(texts, 4096)  # the same for the same texts
    sizes = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 256}
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        BertModel(BertConfig(vocab_size=len(tokenizer), pad_token_id=0, **sizes)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        backbone = Transformer(folder)
    return SentenceTransformer(modules=[backbone, Pooling(sizes["hidden_size"])], device="cpu")


def freeze_lower_half(model: SentenceTransformer) -> int:
    """Freezes all but the upper half of the layers; returns how many weights go on learning."""
    stacks = [part for part in model.modules() if isinstance(part, torch.nn.ModuleList)]
    layers = max(stacks, key=len)
    model.requires_grad_(False)
    for layer in layers[len(layers) // 2 :]:
        layer.requires_grad_(True)
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


class SearchTrainer(TrainerMixin, SentenceTransformerTrainer):
    """`SentenceTransformerTrainer` with exact resume, on a GPU, a TPU or a CPU; batches come in the order of the rows."""

    def __init__(self, model: SentenceTransformer, *, runtime: Runtime, **kwargs) -> None:
        model.model_card_data.local_files_only = True  # a save asks no hub for a licence
        model.model_card_data.generate_widget_examples = False
        super().__init__(model=model, runtime=runtime, **kwargs)
        if runtime.family == "xla":  # which compiles anew for every shape
            padding = {"text": {"padding": "max_length"}}
            self.data_collator.preprocess_fn = functools.partial(
                model.preprocess, max_length=CODE_TOKENS, processing_kwargs=padding
            )

    def trained_module(self) -> torch.nn.Module:
        return self.loss

    def transformer(self) -> torch.nn.Module:
        return self.model.transformers_model

    def add_model_card_callback(self, default_args_dict) -> None:
        """Stock encodes examples for the card; ours holds none."""

    def get_train_dataloader(self):
        loader = super().get_train_dataloader()
        return xla.shard_loader(loader) if self.runtime.kind == "xla" else loader

    def _save(self, output_dir: str | None = None, state_dict=None) -> None:
        model = self.model
        if model.device.type == "xla":
            model = cpu_copy(model, model.model_card_data)
        model.save_pretrained(str(output_dir or self.args.output_dir), create_model_card=self._staging is None)

    def _load_from_checkpoint(self, checkpoint_path: str) -> None:
        own = self.model.state_dict()
        read = SentenceTransformer(checkpoint_path, device="cpu", local_files_only=True).state_dict()
        self.model.load_state_dict({name: weight for name, weight in read.items() if name in own})


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
) -> SearchTrainer:
    """The trainer of a run of `plan.max_steps` batches.

    rows, held_out: question and code, a batch after the other (`pairs.in_batches`).
    overrides: fields of `SentenceTransformerTrainingArguments`.
    """
    each = max(1, plan.max_steps // 4)
    fields = {"seed": seed, "logging_steps": max(1, each // 4), "eval_steps": each, "save_steps": each}
    fields |= {"batch_sampler": in_order, "per_device_eval_batch_size": plan.micro_batch_size}
    return SearchTrainer(
        model,
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
