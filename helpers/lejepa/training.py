"""sentence-transformers' trainer with this suite's reliability: exact resume, TPU, the loss's own terms logged.

What the stock trainer cannot do: train one batch shape, resume LeJEPA's slices, cache gradients, evaluate or save on XLA.
"""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from torch import nn

from helpers.lejepa.beir import Benchmark
from helpers.lejepa.crops import in_order
from helpers.lejepa.encoding import on_cpu
from helpers.lejepa.evaluation import retrieval_evaluator
from helpers.lejepa.model import check_modules, column_prompts
from helpers.lejepa.parameters import EmbeddingParameters
from helpers.machine import ranks, xla
from helpers.machine.runtime import Runtime
from helpers.plan.settings import Plan
from helpers.train.arguments import training_arguments
from helpers.train.trainer import TrainerMixin

LENGTHS = 4  # that a GPU meets: less padding than one, and few shapes to choose kernels for


def padded(model: SentenceTransformer, length: int, *, one: bool):
    """`model.preprocess` that cuts texts at `length` tokens and pads a batch to a quarter of it, a half, three, or all.

    one: pad to all of it, for XLA, which compiles anew for every shape.
    """
    same = one or length % LENGTHS
    padding = {"padding": "max_length"} if same else {"padding": True, "pad_to_multiple_of": length // LENGTHS}
    return functools.partial(model.preprocess, max_length=length, processing_kwargs={"text": padding})


class EmbeddingTrainer(TrainerMixin, SentenceTransformerTrainer):
    """`SentenceTransformerTrainer` with exact resume, on a GPU, a TPU or a CPU; see `new_trainer`.

    A loss's `step` is set to that of the run, and its `read_terms()`, where it has one, are merged into the logs. The loss
    caches gradients: it gets the whole batch of a step at once, the plan's micro-batch is its `chunk`, and nothing is
    accumulated. The model card holds no example texts and takes no inference; checkpoints have none. `max_seq_length` is in
    tokens, and of training.
    """

    def __init__(self, model: SentenceTransformer, *, max_seq_length: int, runtime: Runtime, **kwargs) -> None:
        # Looking up the Hub for a licence or encoding examples is nothing that a save should do.
        model.model_card_data.local_files_only = True
        model.model_card_data.generate_widget_examples = False
        _embed_in_chunks(kwargs["loss"], kwargs["args"])
        super().__init__(model=model, runtime=runtime, **kwargs)
        self.data_collator.preprocess_fn = padded(model, max_seq_length, one=runtime.kind == "xla")
        if runtime.kind == "xla":
            length = model.max_seq_length or max_seq_length
            self.evaluator = functools.partial(_evaluate_on_xla, self.evaluator, length)

    def trained_module(self) -> nn.Module:
        return self.loss

    def transformer(self) -> nn.Module:
        return self.model.transformers_model

    def add_model_card_callback(self, default_args_dict) -> None:
        """Stock counts the tokens of a thousand texts and prints some of them on the card."""
        self.model.model_card_data.add_tags("generated_from_trainer")

    # -- batches --

    def get_train_dataloader(self):
        loader = super().get_train_dataloader()
        return xla.shard_loader(loader) if self.runtime.kind == "xla" else loader

    def training_step(self, *args, **kwargs):
        self.loss.step = self.state.global_step  # chooses SIGReg's slices, of a resumed run too
        return super().training_step(*args, **kwargs)

    def _shrink_micro_batch(self, error: Exception) -> None:
        self.args.gradient_accumulation_steps = self.plan.gradient_accumulation_steps
        self.args.per_device_train_batch_size //= self.plan.gradient_accumulation_steps
        super()._shrink_micro_batch(error)
        _embed_in_chunks(self.loss, self.args)
        self._train_batch_size = self.args.per_device_train_batch_size

    # -- logs --

    def log(self, logs: dict, start_time: float | None = None) -> None:
        if "loss" in logs:
            logs = logs | self._terms()
        super().log(logs, start_time)

    def _terms(self) -> dict[str, float]:
        """Terms of the loss since the last log, averaged over the processes."""
        terms = self.loss.read_terms() if hasattr(self.loss, "read_terms") else {}
        if self.runtime.kind == "xla":
            xla.sync()  # zeroed sums become data as they are between logs, not constants of a new graph
        everywhere = ranks.gather(terms)
        return {name: round(sum(their[name] for their in everywhere) / len(everywhere), 6) for name in terms}

    # -- saving --

    def _save(self, output_dir: str | None = None, state_dict=None) -> None:
        folder = str(output_dir or self.args.output_dir)
        on_cpu(self.model).save_pretrained(folder, create_model_card=self._staging is None)

    def _load_from_checkpoint(self, checkpoint_path: str) -> None:
        model = getattr(self.model, "_orig_mod", self.model)
        check_modules(Path(checkpoint_path))
        own = model.state_dict()
        read = SentenceTransformer(checkpoint_path, device="cpu", local_files_only=True).state_dict()
        # Stock reads it the same way, and refuses the pooler that transformers then adds to an encoder without one.
        model.load_state_dict({name: weight for name, weight in read.items() if name in own})


def _embed_in_chunks(loss: nn.Module, arguments) -> None:
    """Gives a loss that caches gradients the whole batch, in chunks of what was the micro-batch."""
    chunks = arguments.gradient_accumulation_steps
    loss.chunk = arguments.per_device_train_batch_size if chunks > 1 else 0
    arguments.per_device_train_batch_size *= chunks
    arguments.gradient_accumulation_steps = 1


def new_trainer(
    model: SentenceTransformer,
    loss: nn.Module,
    rows: Dataset,
    validation: Benchmark,
    params: EmbeddingParameters,
    plan: Plan,
    runtime: Runtime,
    output_dir: Path | str,
    **overrides,
) -> EmbeddingTrainer:
    """The trainer of a run, which keeps the weights of the best nDCG@10 on the validation queries, and may keep the start.

    model: its "query" prompt goes before the first column of the rows, "document" before the others.
    loss: one that caches gradients, `LeJEPALoss` or `RankingLoss`.
    rows: text columns in the order in which they are trained on.
    overrides: fields of `SentenceTransformerTrainingArguments`.
    """
    fields = {
        **params.model_dump(include={"seed", "logging_steps", "eval_steps", "save_steps", "report_to"}),
        "prompts": column_prompts(model, rows.column_names) or None,
        "metric_for_best_model": f"eval_{validation.name}_cosine_ndcg@10",
        "greater_is_better": True,
        "batch_sampler": in_order,
        "per_device_eval_batch_size": 1,  # the evaluator has its own
        "eval_on_start": True,  # the best checkpoint may be the start: there training never ends below it
    }
    return EmbeddingTrainer(
        model,
        args=training_arguments(
            plan, runtime, output_dir, cls=SentenceTransformerTrainingArguments, **fields | overrides
        ),
        train_dataset=rows,
        loss=loss,
        evaluator=retrieval_evaluator(validation),
        plan=plan,
        runtime=runtime,
        patience=params.patience,
        max_hours=params.max_hours,
        max_seq_length=params.view_length,
        flops_per_token=flops_per_token(model),
    )


def flops_per_token(model: SentenceTransformer) -> float:
    """Floating-point operations of a training step a token, for MFU: 6 a trained weight of the encoder, 2 a frozen one.

    Without embedding tables, what works once a text, and attention's own products.
    """
    encoder = model.transformers_model
    tables = {id(part.weight) for part in encoder.modules() if isinstance(part, nn.Embedding)}
    weights = [weight for weight in encoder.parameters() if id(weight) not in tables]
    return float(sum((6 if weight.requires_grad else 2) * weight.numel() for weight in weights))


# ---- XLA


def _evaluate_on_xla(evaluator, length: int, model: SentenceTransformer, **kwargs):
    """Runs an evaluator whose texts have few shapes, split over the chips; its own sums are the CPU's.

    `encode` cuts its output into rows, each an operation of a graph where the output is on the device.
    """

    def forward(features, **options):
        # XLA cannot take views of weights in inference mode, which `encode` is in.
        with torch.inference_mode(False), torch.no_grad():
            features = {name: value.clone() if torch.is_tensor(value) else value for name, value in features.items()}
            for value in features.values():
                if torch.is_tensor(value) and value.dim() and value.shape[0] % xla.device_count() == 0:
                    xla.shard_batch(value)
            features = type(model).forward(model, features, **options)
            return features | {"sentence_embedding": features["sentence_embedding"].cpu()}

    model.preprocess, model.forward = padded(model, length, one=False), forward
    try:
        return evaluator(model, **kwargs)
    finally:
        del model.preprocess, model.forward
