"""Supervised fine-tuning on packed blocks: TRL's trainer with this suite's reliability, on a GPU, a TPU or a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from accelerate.utils import is_peft_model
from transformers import PreTrainedTokenizerBase
from trl import SFTConfig, SFTTrainer

from helpers import tracking, xla
from helpers.arguments import training_arguments
from helpers.plan import Plan
from helpers.runtime import Runtime
from helpers.trainer import TrainerMixin

from .layout import IGNORED, round_up
from .loss import add_tiled_loss
from .packing import BlockCollator, attention_arguments, choose_attention, count, pack, uses_segment_starts
from .parameters import LegalParameters


class LegalTrainer(TrainerMixin, SFTTrainer):
    """TRL's SFTTrainer on what `packing.pack` returns.

    The loss is the mean over all labels of an optimizer step, however the step is cut into micro-batches and devices; the
    evaluation loss is the mean over all labels of the evaluation set. TRL's own loss brings three values a micro-batch to
    the host for its metrics, which stalls a TPU; this one brings none.
    """

    def __init__(self, *args, runtime: Runtime, **kwargs):
        super().__init__(*args, runtime=runtime, **kwargs)
        model = self._language_model()
        vars(model).pop("forward", None)  # TRL's extended forward, whose place the tiled loss takes
        for weight in self.model.parameters():  # TRL makes the adapter of a model in 4 bits bf16
            if weight.requires_grad:
                weight.data = weight.data.float()
        add_tiled_loss(model, groups=runtime.device_count if runtime.kind == "xla" else 1)
        self.model_accepts_loss_kwargs = True  # asks transformers to count the labels of a whole step
        self.packing = count(self.train_dataset)
        self._labels_per_block = 1.0

    def _language_model(self):
        return self.model.get_base_model() if is_peft_model(self.model) else self.model

    # -- loss --

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = self._summed_loss(model, inputs)
        labels = (inputs["labels"] != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
        loss = loss / torch.as_tensor(labels, device=loss.device).clamp(min=1)
        if num_items_in_batch is not None and self.args.average_tokens_across_devices:
            loss = loss * self.accelerator.num_processes  # which gradients are averaged over
        return (loss, {"loss": loss}) if return_outputs else loss

    def _summed_loss(self, model, inputs) -> torch.Tensor:
        return model(
            input_ids=inputs["input_ids"],
            position_ids=inputs["position_ids"],
            labels=inputs["labels"],
            tiled_loss=True,
            **attention_arguments(inputs, self.model.config._attn_implementation),
        )

    def get_eval_dataloader(self, eval_dataset=None):
        blocks = count(self.eval_dataset if eval_dataset is None else eval_dataset)
        self._labels_per_block = max(blocks.label_tokens, 1) / blocks.blocks
        return super().get_eval_dataloader(eval_dataset)

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        """The loss of a batch in units that make the mean over blocks, which transformers takes, the mean over labels."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            loss = self._summed_loss(model, inputs)
        return loss / (len(inputs["input_ids"]) * self._labels_per_block), None, None

    # -- saving --

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        if self.runtime.kind != "xla" or not is_peft_model(self.model):
            super().save_model(output_dir, _internal_call)
            return
        xla.sync()  # the adapter alone leaves the device
        trained = {
            name: parameter.detach().cpu()
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }
        self._save(output_dir or self.args.output_dir, state_dict=trained)

    def create_model_card(self, *args, **kwargs) -> None:
        """TRL writes one at every checkpoint, of what it knows; the export writes one with data and results."""

    # -- measuring --

    def results(self) -> dict:
        """As the mixin's, and how many of the tokens were no padding."""
        results = super().results()
        results["train"] |= {
            "fill": round(self.packing.fill, 4),
            "useful_tokens_per_second": round(results["train"]["tokens_per_second"] * self.packing.fill, 1),
        }
        return results


def new_trainer(
    model,
    tokenizer: PreTrainedTokenizerBase,
    train_rows: Sequence[dict[str, list[int]]],
    eval_rows: Sequence[dict[str, list[int]]],
    max_length: int,
    params: LegalParameters,
    plan: Plan,
    runtime: Runtime,
    output_dir: Path,
    *,
    flops_per_token: float | None = None,
) -> LegalTrainer:
    """The trainer of a run.

    Args:
        train_rows, eval_rows: encoded examples (`Layout.encode`), none longer than `max_length`.
        max_length: tokens of a block.
        params: packing (evaluation never cuts an example), seed of data order and dropout, when to log, evaluate and save.
        plan: its examples are blocks.
        flops_per_token: of a training step, for MFU.

    Raises ValueError where rows are longer than `max_length`, or a model's attention cannot keep packed examples apart.
    """
    implementation, reason = choose_attention(model, runtime, max_length)
    tracking.say(f"attention {implementation}: {reason}")
    filler = {"pad_token_id": tokenizer.pad_token_id, "seed": params.seed}
    # Whole optimizer steps and whole batches: no shape ever varies, and no example waits for another epoch.
    train = pack(train_rows, max_length, strategy=params.packing, multiple_of=plan.batch_size, **filler)
    whole = "bfd" if params.packing == "wrapped" else params.packing
    micro, devices = plan.micro_batch_size, plan.device_count
    needed = len(pack(eval_rows, max_length, strategy=whole))
    eval_batch = min(micro, round_up(needed, devices))
    evaluation = pack(eval_rows, max_length, strategy=whole, multiple_of=eval_batch, **filler)
    tracking.say(f"training: {count(train)}\nevaluation: {count(evaluation)}")
    logger, why = tracking.report_to(params.report_to)
    if logger != params.report_to:
        tracking.say(why)
    arguments = training_arguments(
        plan,
        runtime,
        output_dir,
        seed=params.seed,
        cls=SFTConfig,
        logging_steps=params.logging_steps,
        eval_steps=params.eval_steps,
        save_steps=params.save_steps,
        report_to=logger,
        # Under SPMD this process feeds all devices, elsewhere one.
        per_device_eval_batch_size=eval_batch if runtime.kind == "xla" else eval_batch // devices,
        max_length=max_length,
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
        gradient_checkpointing=False,  # the plan decides, and the mixin knows how on XLA
        ddp_find_unused_parameters=False,  # every trained weight has a gradient in every step
    )
    return LegalTrainer(
        model=model,
        args=arguments,
        train_dataset=train,
        eval_dataset=evaluation,
        processing_class=tokenizer,
        data_collator=BlockCollator(varlen=uses_segment_starts(implementation)),
        plan=plan,
        runtime=runtime,
        flops_per_token=flops_per_token,
        patience=params.patience,
        max_hours=params.max_hours,
    )
