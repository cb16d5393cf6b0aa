"""Supervised fine-tuning in one file: a record becomes a prompt and a completion, and TRL's trainer learns the completion.

record  a conversation (`data.Record`): what was asked, and what the assistant should have written
row     `prompt` and `completion`, messages as TRL takes them: one row for each turn of the assistant that is learned
labels  the token ids that are learned: the completion, up to the token that ends the turn. -100: read only
trainer TRL's SFTTrainer, which writes rows in the model's own chat template, makes the labels, packs rows into blocks and trains;
        ours adds exact resume, and blocks of one shape
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, concatenate_datasets
from trl import SFTConfig, SFTTrainer

from helpers.data.rows import Unusable
from helpers.train.arguments import training_arguments
from helpers.train.trainer import TrainerMixin

from .packing import FULL, IGNORED, MULTIPLE, SLIDING, FixedBlocks, base_of, layer_kinds, round_up, summed_loss
from .template import ChatTemplate

MOST_LENGTH = 4096  # tokens of a record, unless max_length says another number


# ---- record -> rows


def rows_of(record, template: ChatTemplate, most_tokens: int) -> list[dict[str, Any]]:
    """`prompt`, `completion` and the number of their tokens, for each turn of the assistant that is learned.

    Raises Unusable where the chat template refuses the conversation, and where it has more than `most_tokens`: cut, it would
    teach an answer without its reasoning.
    """
    rows: list[dict[str, Any]] = []
    for turn, message in enumerate(record.messages):
        if message["role"] == "assistant":
            prompt = [*record.messages[:turn]]
            tokens = len(template.encode(template.text([*prompt, message])))
            rows.append({"prompt": prompt, "completion": [message], "tokens": tokens})
    if rows[-1]["tokens"] > most_tokens:
        raise Unusable(f"longer than {most_tokens:,} tokens")
    return rows


def encode(records, template: ChatTemplate, *, max_length: int = 0, reads: int = MOST_LENGTH):
    """The rows of every split as data sets, the records that they are made of, and how many tokens a record may have.

    max_length: tokens, rounded up to a multiple of 128; 0 takes the longest record, at most MOST_LENGTH and what the model
        `reads`. A record that `rows_of` refuses is set aside with its reason.

    Raises ValueError where most records of a split are set aside.
    """
    most_tokens = round_up(max_length) or min(MOST_LENGTH, reads // MULTIPLE * MULTIPLE)
    longest = max_length
    set_aside = [*records.set_aside]
    splits, data_sets = {}, {}
    for name, part in records.splits.items():
        usable, rows = [], []
        for record in part:
            try:
                rows += rows_of(record, template, most_tokens)
                usable.append(record)
            except Unusable as reason:
                set_aside.append((record.id, str(reason)))
        if 2 * len(usable) < max(1, len(part)):
            raise ValueError(
                f"data_source={records.name!r}: {len(usable)} of {len(part)} {name} records can be used; the last one that cannot: "
                f"{set_aside[-1:]}. Set a larger max_length or another base_model, or give more records, without `system`"
            )
        splits[name] = usable
        data_sets[name] = Dataset.from_list(rows)
        longest = max(longest, *data_sets[name]["tokens"])
    return data_sets, replace(records, splits=splits, set_aside=set_aside), round_up(longest)


# ---- labels -> trainer


def sft_config(plan, machine, folder: Path, *, length: int, **fields: Any) -> SFTConfig:
    """The arguments of the trainer: of the plan and, by name, any field of SFTConfig.

    length: tokens of a block. TRL packs whole rows into blocks of this length, best fit first; the attention keeps them apart.
    """
    return training_arguments(
        plan,
        machine,
        folder,
        cls=SFTConfig,
        max_length=length,
        packing=True,
        packing_strategy="bfd",
        gradient_checkpointing=False,  # the mixin does what the plan decided, and knows how on XLA
        ddp_find_unused_parameters=False,  # every trained weight has a gradient in every step
        **fields,
    )


class LegalTrainer(TrainerMixin, SFTTrainer):
    """TRL's SFTTrainer with exact resume (the mixin), whose losses are means over all labels of a step, or of an evaluation.

    Rows stand in blocks of one shape, whose mask keeps them apart (`packing`). No value goes to the host but for a log.

    args: `sft_config`. train_dataset, eval_dataset: rows of `rows_of`, or of any form that TRL takes.
    """

    def __init__(self, model, args: SFTConfig, train_dataset, eval_dataset, processing_class, **mixin):
        plan, runtime = mixin["plan"], mixin["runtime"]
        config = base_of(model).config.get_text_config()
        others = {*layer_kinds(config)} - {FULL, SLIDING}
        if others:
            raise ValueError(f"base_model: {others} would carry one record of a block into the next; use another model")
        on_xla, devices = runtime.kind == "xla", plan.device_count
        eval_batch = min(plan.micro_batch_size, devices * math.ceil(len(eval_dataset) / devices))
        args.per_device_eval_batch_size = eval_batch if on_xla else eval_batch // devices
        self._whole = {"train": plan.batch_size, "eval": eval_batch}
        # The backward pass goes through what is frozen, too, and makes no gradient of its weights.
        trained = model.num_parameters(only_trainable=True)
        mixin["flops_per_token"] = 4.0 * model.num_parameters() + 2.0 * trained
        super().__init__(model, args, None, train_dataset, eval_dataset, processing_class, **mixin)
        for weight in self.model.parameters():  # TRL makes the adapter of a model in 4 bits bf16
            if weight.requires_grad and weight.dtype == torch.bfloat16:
                weight.data = weight.data.float()
        assert args.max_length is not None  # else TRL refuses to pack
        self.data_collator = FixedBlocks(args.max_length, processing_class.pad_token_id, compact=not on_xla)
        vars(base_of(self.model)).pop("forward", None)  # TRL's, with a head that waits for the host
        self.model_accepts_loss_kwargs = True  # asks transformers to count the labels of a whole step
        self._labels_a_batch = 1.0

    def _prepare_dataset(self, dataset, processing_class, args, packing, formatting_func, dataset_name):
        """TRL's blocks, then empty ones that fill the last step and the last evaluation batch, so that all batches have one shape."""
        rows = super()._prepare_dataset(dataset, processing_class, args, False, formatting_func, dataset_name)
        rows = rows.map(_until_stop, fn_kwargs={"stop": ChatTemplate(processing_class).stop_token_id})
        rows = super()._prepare_dataset(rows, processing_class, args, packing, formatting_func, dataset_name)
        missing = -len(rows) % self._whole[dataset_name]
        empty = {"input_ids": [processing_class.pad_token_id], "labels": [IGNORED], "seq_lengths": [1]}
        rows = rows.select_columns([name for name in empty if name in rows.column_names])
        filling = {name: [empty[name]] * missing for name in rows.column_names}
        return concatenate_datasets([rows, Dataset.from_dict(filling, features=rows.features)])

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """The loss of all labels of a batch over `num_items_in_batch`, the labels of its step."""
        processes = self.accelerator.num_processes  # on XLA one has all devices
        with self.accelerator.autocast():
            loss = summed_loss(model, inputs, self.plan.device_count // processes)
        labels = torch.as_tensor(num_items_in_batch, device=loss.device).clamp(min=1)
        return loss / labels * processes  # DDP takes the mean over them

    def get_eval_dataloader(self, eval_dataset=None):
        loader = super().get_eval_dataloader(eval_dataset)
        rows = eval_dataset or self.eval_dataset
        self._labels = sum(len(labels) - labels.count(IGNORED) for labels in rows["labels"])
        self._labels_a_batch = max(1, self._labels) / len(loader)
        return loader

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        """The loss of a batch in units that make the mean over batches, which transformers takes, the mean over labels."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            return self.compute_loss(model, inputs, num_items_in_batch=self._labels_a_batch), None, None

    def completion_loss(self, rows: Dataset) -> dict[str, float | int]:
        """Mean nats a label over rows, its exponential (perplexity), and how many labels and rows."""
        blocks = self._prepare_dataset(rows, self.processing_class, self.args, self.args.packing, None, "eval")
        loader = self.get_eval_dataloader(blocks)
        loss = self.evaluation_loop(loader, "", prediction_loss_only=True).metrics["eval_loss"]
        self._metrics["eval"].clear()  # TRL's, which go into the next log
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "tokens": self._labels, "rows": len(rows)}


def _until_stop(row: dict[str, list[int]], stop: int) -> dict[str, list[int]]:
    """The labels without what the template writes after the end of the last turn, such as a new line, which nobody has to write."""
    labels = row["labels"]
    after = 0
    if stop in labels:
        after = labels[::-1].index(stop)
    return row | {"labels": labels[: len(labels) - after] + [IGNORED] * after}
