"""Supervised fine-tuning by TRL with this suite's reliability, on a GPU, a TPU or a CPU."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import is_peft_model
from datasets import Dataset, concatenate_datasets
from transformers import PreTrainedTokenizerBase
from trl import SFTConfig, SFTTrainer

from helpers import tracking, xla
from helpers.arguments import training_arguments
from helpers.plan import Plan
from helpers.runtime import Runtime
from helpers.trainer import TrainerMixin

from .layout import IGNORED, round_up
from .loss import base_of, tiled_loss
from .packing import FixedBlocks, choose_attention, mask_of
from .parameters import LegalParameters

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
            vars(base).pop(
                "forward", None
            )  # TRL's extended forward: that of a copy would compute with this model's weights
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
        mask = mask_of(inputs["segment_ids"], self.model.config._attn_implementation)
        given = {name: inputs[name] for name in ("input_ids", "position_ids")}
        loss = tiled_loss(model, inputs["labels"], attention_mask=mask, **given)
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
            xla.sync()
            self._save(output_dir)  # the adapter alone leaves the device
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
