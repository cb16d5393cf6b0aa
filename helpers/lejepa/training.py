"""sentence-transformers' trainer with this suite's reliability: exact resume of the loss's state too, TPU, its own terms logged.

What the stock trainer cannot do: train one batch shape, resume a loss with a state, cache gradients, evaluate or save on XLA.
"""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from accelerate.utils import gather_object
from safetensors.torch import load_file, save_file
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from torch import nn

from helpers import checkpoint, xla
from helpers.arguments import training_arguments
from helpers.lejepa.encoding import on_cpu
from helpers.lejepa.model import check_modules, column_prompts
from helpers.plan import Plan
from helpers.runtime import Runtime
from helpers.trainer import TrainerMixin

LOSS_FILE = "loss.safetensors"
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

    Whatever a loss's `state_dict` holds beside the model's weights is in every checkpoint. A loss's `read_terms()`, where
    it has one, is merged into the logs. A loss with a `chunk` caches gradients: it gets the whole batch of a step at once,
    the plan's micro-batch is its chunk, and nothing is accumulated. The model card holds no example texts and takes no
    inference; checkpoints have none. `max_seq_length` is in tokens, and of training.
    """

    def __init__(self, model: SentenceTransformer, *, max_seq_length: int, runtime: Runtime, **kwargs) -> None:
        self._preprocess = padded(model, max_seq_length, one=runtime.kind == "xla")
        # Looking up the Hub for a licence or encoding examples is nothing that a save should do.
        model.model_card_data.local_files_only = True
        model.model_card_data.generate_widget_examples = False
        _embed_in_chunks(kwargs["loss"], kwargs["args"])
        super().__init__(model=model, runtime=runtime, **kwargs)
        if runtime.kind == "xla" and self.evaluator is not None:
            length = model.max_seq_length or max_seq_length
            self.evaluator = functools.partial(_evaluate_on_xla, self.evaluator, length)

    def trained_module(self) -> nn.Module:
        return self.loss

    def transformer(self) -> nn.Module:
        return self.model.transformers_model

    def get_data_collator(self, *args, **kwargs):
        collator = super().get_data_collator(*args, **kwargs)
        collator.preprocess_fn = self._preprocess
        return collator

    def add_model_card_callback(self, default_args_dict) -> None:
        """Stock counts the tokens of a thousand texts and prints some of them on the card."""
        self.model.model_card_data.add_tags("generated_from_trainer")

    # -- batches --

    def get_train_dataloader(self):
        return self._sharded(super().get_train_dataloader())

    def get_eval_dataloader(self, eval_dataset=None):
        return self._sharded(super().get_eval_dataloader(eval_dataset))

    def _sharded(self, loader):
        # Without an eval_dataset the loader is an empty list's, for the evaluator's sake.
        return xla.shard_loader(loader) if hasattr(loader, "_parallel_loader_kwargs") else loader

    def evaluation_loop(self, *args, **kwargs):
        # Stock leaves DDP's wrapper in training mode, and that is what a loss asks.
        self.model_wrapped.eval()
        return super().evaluation_loop(*args, **kwargs)

    def _shrink_micro_batch(self, error: Exception) -> None:
        if hasattr(self.loss, "chunk"):
            self.args.gradient_accumulation_steps = self.plan.gradient_accumulation_steps
            self.args.per_device_train_batch_size //= self.plan.gradient_accumulation_steps
            self.args.per_device_eval_batch_size = 1  # set below
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
        if self.args.world_size > 1:
            everywhere = gather_object([terms])
            terms = {name: sum(their[name] for their in everywhere) / len(everywhere) for name in terms}
        return {name: round(value, 6) for name, value in terms.items()}

    # -- saving --

    def _save_weights(self, output_dir: str | None, internal_call: bool) -> None:
        if self.runtime.kind == "xla":
            xla.sync()
            self._save(output_dir)
        else:
            super()._save_weights(output_dir, internal_call)

    def _save(self, output_dir: str | None = None, state_dict=None) -> None:
        folder = str(output_dir or self.args.output_dir)
        on_cpu(self.model).save_pretrained(folder, create_model_card=self._staging is None)

    def _write_checkpoint(self, staging: Path, model, trial) -> None:
        super()._write_checkpoint(staging, model, trial)
        if self.is_world_process_zero():
            save_file(self._loss_state(), checkpoint.folder(staging, self.state.global_step) / LOSS_FILE)

    def _loss_state(self) -> dict[str, torch.Tensor]:
        """What the loss holds beside the model's weights, on the CPU."""
        return {
            name: value.detach().to("cpu", copy=True).contiguous()
            for name, value in self.loss.state_dict().items()
            if not name.startswith("model.")
        }

    def _load_from_checkpoint(self, checkpoint_path: str) -> None:
        model = getattr(self.model, "_orig_mod", self.model)
        check_modules(Path(checkpoint_path))
        own = model.state_dict()
        read = SentenceTransformer(checkpoint_path, device="cpu", local_files_only=True).state_dict()
        # Stock reads it the same way, and refuses the pooler that transformers then adds to an encoder without one.
        model.load_state_dict({name: weight for name, weight in read.items() if name in own})
        file = Path(checkpoint_path, LOSS_FILE)
        if not file.is_file():
            raise ValueError(
                f"resume: {file.parent.name} has no {LOSS_FILE}, so it was written by another trainer; start in a new "
                "output_dir"
            )
        missing, unexpected = self.loss.load_state_dict(load_file(file), strict=False)
        missing = [name for name in missing if not name.startswith("model.")]
        if missing or unexpected:
            raise ValueError(
                f"resume: the loss of the checkpoint differs from this one (missing {missing}, unexpected {unexpected}); "
                "use the settings of the run, or start in a new output_dir"
            )


def _embed_in_chunks(loss: nn.Module, arguments) -> None:
    """Gives a loss that caches gradients the whole batch, also in evaluation, in chunks of what was the micro-batch."""
    if hasattr(loss, "chunk"):
        chunks = arguments.gradient_accumulation_steps
        loss.chunk = arguments.per_device_train_batch_size if chunks > 1 else 0
        arguments.per_device_train_batch_size *= chunks
        arguments.per_device_eval_batch_size = arguments.per_device_train_batch_size
        arguments.gradient_accumulation_steps = 1


def new_trainer(
    model: SentenceTransformer,
    loss: nn.Module,
    train_dataset,
    eval_dataset,
    evaluator,
    plan: Plan,
    runtime: Runtime,
    output_dir: Path | str,
    *,
    seed: int,
    report_to: str = "none",
    patience: int = 0,
    max_hours: float = 0.0,
    max_seq_length: int = 0,
    **overrides,
) -> EmbeddingTrainer:
    """The trainer of a run. Raises ValueError for nothing to evaluate.

    model: its "query" prompt goes before the first column, "document" before the others.
    train_dataset, eval_dataset: `datasets.Dataset` of text columns; the latter in whole batches, or None.
    evaluator: of sentence-transformers, run at every evaluation; "retrieval" as its name logs "eval_retrieval_...".
    patience: evaluations without improvement before the run stops; 0 never stops.
    max_hours: of this session; 0: no limit.
    max_seq_length: tokens; 0 takes the plan's sequence_length.
    overrides: fields of `SentenceTransformerTrainingArguments`.
    """
    arguments = training_arguments(
        plan,
        runtime,
        output_dir,
        seed=seed,
        report_to=report_to,
        cls=SentenceTransformerTrainingArguments,
        prompts=column_prompts(model, train_dataset.column_names) or None,
        **overrides,
    )
    return EmbeddingTrainer(
        model,
        args=arguments,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        loss=loss,
        evaluator=evaluator,
        plan=plan,
        runtime=runtime,
        patience=patience,
        max_hours=max_hours,
        max_seq_length=max_seq_length or plan.sequence_length,
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
