"""Supervised fine-tuning by TRL with this suite's reliability, on a GPU, a TPU or a CPU; and its step, for the planner."""

from __future__ import annotations

import copy
import logging
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import is_peft_model
from datasets import Dataset, concatenate_datasets
from transformers import PreTrainedTokenizerBase
from trl import SFTConfig, SFTTrainer

from helpers.machine import xla
from helpers.machine.runtime import Runtime
from helpers.plan.settings import Plan
from helpers.plan.workloads import Workload
from helpers.show import tracking
from helpers.train.arguments import training_arguments
from helpers.train.trainer import TrainerMixin

from .layout import IGNORED, round_up
from .loss import base_of, tiled_loss
from .packing import FLASH, SEGMENTWISE, FixedBlocks, choose_attention, mask_of
from .parameters import NOTEBOOK, LegalParameters

BITS = 4.127  # a weight in NF4 with double quantisation (Dettmers et al. 2023, section 3)
NOT_ON_XLA = {  # fields of SFTConfig that TRL's loss or collator carries out, with their defaults
    "loss_type": "nll",
    "label_smoothing_factor": 0.0,
    "padding_free": False,
    "activation_offloading": False,
    "router_aux_loss_coef": None,
    "use_liger_kernel": False,
}


class LegalTrainer(TrainerMixin, SFTTrainer):
    """TRL's SFTTrainer, which tokenises, labels, packs and computes its chunked loss; the evaluation loss is the mean over all
    labels of the evaluation set.

    On XLA rows get one length (`FixedBlocks`), and the loss is the tiled one: TRL's brings three values a micro-batch to the
    host for its metrics, which stalls a TPU. Empty rows fill the last step and the last evaluation batch: no shape varies.

    train, evaluation: rows of any form that TRL takes: prompt and completion (`Layout.example`), messages, or tokens.
    max_length: tokens of a block, which TRL cuts longer rows to.
    params: packing, seed of data order and dropout, when to log, evaluate and save.
    plan: its examples are blocks.
    flops_per_token: of a training step, for MFU.
    overrides: any fields of `SFTConfig`.

    Raises ValueError where a model's attention cannot keep packed examples apart, and on XLA for a field of `NOT_ON_XLA`.
    """

    def __init__(
        self,
        model,
        tokenizer: PreTrainedTokenizerBase,
        train: Sequence[Mapping[str, Any]],
        evaluation: Sequence[Mapping[str, Any]],
        max_length: int,
        params: LegalParameters,
        plan: Plan,
        runtime: Runtime,
        output_dir: Path,
        *,
        flops_per_token: float | None = None,
        **overrides: Any,
    ):
        implementation, reason = choose_attention(model, runtime, max_length)
        tracking.say(f"attention {implementation}: {reason}")
        devices = plan.device_count
        eval_batch = min(plan.micro_batch_size, round_up(len(evaluation), devices))
        self._whole = {"train": plan.batch_size, "eval": eval_batch}
        arguments = training_arguments(
            plan,
            runtime,
            output_dir,
            cls=SFTConfig,
            **params.model_dump(include={"seed", "logging_steps", "eval_steps", "save_steps", "report_to"}),
            # Under SPMD this process feeds all devices, elsewhere one.
            per_device_eval_batch_size=eval_batch if runtime.kind == "xla" else eval_batch // devices,
            max_length=max_length,
            packing=params.packing != "padded",
            gradient_checkpointing=False,  # the plan decides, and the mixin knows how on XLA
            ddp_find_unused_parameters=False,  # every trained weight has a gradient in every step
            **overrides,
        )
        # TRL warns that only flash-attn keeps packed examples apart; the attention chosen above does, too.
        logging.getLogger("trl.trainer.sft_trainer").setLevel(logging.ERROR)
        super().__init__(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_list([*train]),
            eval_dataset=Dataset.from_list([*evaluation]),
            processing_class=tokenizer,
            plan=plan,
            runtime=runtime,
            flops_per_token=flops_per_token,
            **params.model_dump(include={"patience", "max_hours"}),
        )
        for weight in self.model.parameters():  # TRL makes the adapter of a model in 4 bits bf16
            if weight.requires_grad and weight.dtype == torch.bfloat16:
                weight.data = weight.data.float()
        if runtime.kind == "xla":
            for name, default in NOT_ON_XLA.items():
                if (value := getattr(self.args, name)) != default:
                    raise ValueError(f"{name}={value!r}: a TPU has no such loss or collator here; leave it out")
            self.data_collator = FixedBlocks(max_length, tokenizer.pad_token_id)
            base = base_of(self.model)
            # TRL's extended forward: that of a copy would compute with this model's weights.
            vars(base).pop("forward", None)
            base.batch_groups = runtime.device_count
            self.model_accepts_loss_kwargs = True  # asks transformers to count the labels of a whole step
        self._labels_a_batch = 1.0

    def _prepare_dataset(self, dataset, processing_class, args, packing, formatting_func, dataset_name):
        rows = super()._prepare_dataset(dataset, processing_class, args, packing, formatting_func, dataset_name)
        missing = -len(rows) % self._whole[dataset_name]
        empty = {"input_ids": [processing_class.pad_token_id], "labels": [IGNORED], "seq_lengths": [1]}
        empty = {name: [value] * missing for name, value in empty.items() if name in rows.column_names}
        rows = rows.select_columns([*empty])
        return concatenate_datasets([rows, Dataset.from_dict(empty, features=rows.features)])

    # -- loss --

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        if self.runtime.kind != "xla":
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        loss = _summed_loss(model, inputs)
        labels = (inputs["labels"] != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
        loss = loss / torch.as_tensor(labels, device=loss.device).clamp(min=1)
        return (loss, {"loss": loss}) if return_outputs else loss

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        if "cu_seq_lens_q" in inputs:  # TRL flattens a micro-batch into one row, and the meter counts rows
            self.meter.examples += (self.args.per_device_train_batch_size - 1) * self.args.world_size
        return loss

    def get_eval_dataloader(self, eval_dataset=None):
        loader = super().get_eval_dataloader(eval_dataset)
        self._labels_a_batch = max(1, _labels(self.eval_dataset if eval_dataset is None else eval_dataset)) / len(
            loader
        )
        return loader

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        """The loss of a batch in units that make the mean over batches, which transformers takes, the mean over labels."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            return self.compute_loss(model, inputs, num_items_in_batch=self._labels_a_batch), None, None

    def completion_loss(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, float | int]:
        """Mean nats a label over `examples` (as the trainer takes them), its exponential, how many labels and examples.

        A token weighs the same in a long example as in a short one.
        """
        rows = Dataset.from_list([*examples])
        rows = self._prepare_dataset(rows, self.processing_class, self.args, self.args.packing, None, "eval")
        loss = self.evaluation_loop(self.get_eval_dataloader(rows), "", prediction_loss_only=True).metrics["eval_loss"]
        self._metrics["eval"].clear()  # TRL's, which go into the next log
        return {
            "loss": loss,
            "perplexity": math.exp(min(loss, 700.0)),
            "tokens": _labels(rows),
            "rows": len(examples),
        }

    # -- saving --

    def _save_weights(self, output_dir: str | None, internal_call: bool) -> None:
        if self.runtime.kind == "xla" and is_peft_model(self.model):
            xla.sync()  # the adapter alone leaves the device
            trained = {name: each.detach().cpu() for name, each in self.model.named_parameters() if each.requires_grad}
            self._save(output_dir, state_dict=trained)
        else:
            super()._save_weights(output_dir, internal_call)

    def create_model_card(self, *args, **kwargs) -> None:
        """TRL writes one at every checkpoint, of what it knows; the export writes one with data and results."""

    # -- measuring --

    def results(self) -> dict:
        """As the mixin's, and how many of the tokens were no padding."""
        results = super().results()
        tokens = sum(map(len, self.train_dataset["input_ids"]))
        results["train"]["fill"] = round(tokens / (len(self.train_dataset) * self.args.max_length), 4)
        # TRL computes no padding between packed rows.
        share = results["train"]["fill"] if self.runtime.kind == "xla" else 1
        results["train"]["useful_tokens_per_second"] = round(results["train"]["tokens_per_second"] * share, 1)
        return results


def _labels(rows: Dataset) -> int:
    return sum(label != IGNORED for labels in rows["labels"] for label in labels)


def _summed_loss(model, blocks: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Of `FixedBlocks`; kernels that know segments, which the planner counts for a GPU, get no mask."""
    attention = model.config._attn_implementation
    given = {name: blocks[name] for name in ("input_ids", "position_ids")}
    if attention not in (SEGMENTWISE, FLASH):
        given["attention_mask"] = mask_of(blocks["segment_ids"], attention)
    return tiled_loss(model, blocks["labels"], **given)


# ---- for the planner


def workload(model, name: str, length: int, method: str) -> Workload:
    """The step of a causal language model on packed blocks, whole or with adapters, with the tiled loss."""
    base_of(model).batch_groups = 1  # the planner sets it where chips share a batch

    def batch(examples: int, length: int) -> dict[str, torch.Tensor]:
        ids = random.Random(0).choices(range(5, 1_000), k=length)
        return FixedBlocks(length, pad_token_id=0)([{"input_ids": ids, "labels": ids}] * examples)

    return Workload(
        notebook=NOTEBOOK,
        name=name,
        model=_counted_in_four_bits(model) if method == "qlora" else model,
        batch=batch,
        loss=lambda model, blocks: _summed_loss(model, blocks) / blocks["labels"].numel(),
        length=length,
        parameters=model.num_parameters(),  # transformers counts both of two that one number holds
        optimizer="paged_adamw_8bit" if method == "qlora" else "adamw",
    )


def _counted_in_four_bits(model):
    """The model with its own weights, but for frozen projections: as large as QLoRA keeps them, and without numbers."""
    frozen = [getattr(layer, "base_layer", None) for layer in model.modules()]
    instead = {id(each): _FourBit(each) for each in frozen if isinstance(each, torch.nn.Linear)}
    return copy.deepcopy(model, {id(weight): weight for weight in model.parameters()} | instead)


class _FourBit(torch.nn.Module):
    def __init__(self, linear: torch.nn.Linear):
        super().__init__()
        size = int(linear.in_features * linear.out_features * BITS / 8)
        packed = torch.empty(size, dtype=torch.uint8, device="meta")
        self.packed, self.outputs = torch.nn.Parameter(packed, requires_grad=False), linear.out_features

    def forward(self, x):
        return _Product.apply(x, self.outputs)


class _Product(torch.autograd.Function):
    """bitsandbytes makes the whole matrix for a product and forgets it."""

    @staticmethod
    def forward(ctx, x, outputs):
        ctx.inputs = x.shape[-1]
        return torch.nn.functional.linear(x, x.new_empty(outputs, x.shape[-1]))

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ gradient.new_empty(gradient.shape[-1], ctx.inputs), None
