"""Supervised fine-tuning in one file: a record becomes a row of tokens, some of them labels, and TRL's trainer learns these.

    record  a conversation (`data.Record`): what was asked, and what the assistant should have written
    row     the conversation in the model's own chat template, as token ids
    labels  the ids that are learned: what the assistant writes, up to the token that ends its turn. -100: read only
    trainer TRL's SFTTrainer, which packs rows into blocks and trains; ours adds exact resume, and one shape for a TPU

# B blocks of a batch · T tokens of a block · D hidden size · V vocabulary
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import torch
from datasets import Dataset, concatenate_datasets
from torch.nn.functional import cross_entropy, linear, log_softmax
from trl import SFTConfig, SFTTrainer

from helpers.machine import xla
from helpers.show import tracking
from helpers.train.arguments import training_arguments
from helpers.train.trainer import TrainerMixin

from .packing import FLASH, MULTIPLE, SEGMENTWISE, FixedBlocks, choose_attention, mask_of, round_up

MOST_LENGTH = 4096  # tokens of a record, unless max_length says another number
IGNORED = -100  # label of a token that is read and not learned
TILE_TOKENS = 2048  # of a device at a time, so that the logits of a whole batch never exist at once on a TPU
# A tokenizer without a chat template gets this one: the layout of an instruction-tuned model in plain text.
PLAIN_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '### Response:\n' + message['content'] + eos_token + '\n\n' }}"
    "{% elif message['role'] == 'system' %}{{ message['content'] + '\n\n' }}"
    "{% else %}{{ '### Instruction:\n' + message['content'] + '\n\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '### Response:\n' }}{% endif %}"
)
LOGIT_CHANGES = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier", "output_multiplier")


# ---- record -> row: the model's own chat template


class ChatTemplate:
    """What a tokenizer's chat template makes of a conversation, and where the assistant speaks in it.

    A tokenizer without a template gets `PLAIN_TEMPLATE`. A template without a role for the system has its text put before
    the first question.

    Raises ValueError where the template ends the assistant's turn with no special token: the model could not learn to stop.
    """

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        if not tokenizer.chat_template:
            tokenizer.chat_template = PLAIN_TEMPLATE
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        self.has_system_role = self._writes_system()
        self.stop_token_id = self._end_of_turn()

    def text(self, messages: Sequence[dict[str, Any]], tools=None, *, ask: bool = False) -> str:
        """The conversation as the model reads it; with `ask` up to where it has to write."""
        messages = [_decoded(each) for each in messages]
        if messages[0]["role"] == "system" and not self.has_system_role:
            system, asked, *rest = messages
            messages = [asked | {"content": f"{system['content']}\n\n{asked['content']}"}, *rest]
        tools = list(tools) if tools else None
        return self.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=ask)

    def prompt(self, record) -> str:
        """What a record asks, up to where the model has to write its last message."""
        return self.text(record.messages[:-1], record.tools, ask=True)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]  # a template writes its own

    def stop_token_ids(self) -> list[int]:
        """What ends a generation: the end of a turn and, where it is another token, the end of a text."""
        own = self.tokenizer.eos_token_id
        return [self.stop_token_id] if own in (None, self.stop_token_id) else [self.stop_token_id, own]

    def _writes_system(self) -> bool:
        self.has_system_role = True
        messages = [{"role": "system", "content": "law-7"}, {"role": "user", "content": "a"}]
        try:
            return "law-7" in self.text(messages, ask=True)
        except jinja2.TemplateError:
            return False

    def _end_of_turn(self) -> int:
        """The special token with which the chat template ends a turn of the assistant. Raises ValueError where there is none."""
        turns = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "law-7"}]
        special = {index for index, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        for token in self.encode(self.text(turns).rpartition("law-7")[2]):
            if token in special:
                return token
        raise ValueError(
            "base_model: its chat template ends the assistant's turn with no special token, so that a model trained with it "
            "cannot learn to stop. Choose another model, or set tokenizer.chat_template"
        )


def _decoded(message: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a tool call as an object, which templates write as JSON themselves."""
    if not message.get("tool_calls"):
        return message
    calls = [dict(each.get("function", each)) for each in message["tool_calls"]]
    for call in calls:
        if isinstance(call.get("arguments"), str):
            call["arguments"] = json.loads(call["arguments"])
    return message | {"tool_calls": [{"type": "function", "function": call} for call in calls]}


# ---- row -> labels: what the assistant writes


def row_of(record, template: ChatTemplate, learn: str = "all turns") -> dict[str, list[int]]:
    """Token ids of a record, and its labels: the ids inside of the assistant's turns, IGNORED elsewhere.

    learn: "all turns" of the assistant, or its "last turn" alone.

    Raises ValueError where the template writes a conversation so far in another way than the beginning of the whole one
    (the model would be asked in another way than it was trained), and where it leaves out a key of a learned message.
    """
    messages, tools = record.messages, record.tools
    whole = template.text(messages, tools)
    places = [n for n, each in enumerate(messages) if each["role"] == "assistant" and n >= record.first_learned]
    spans = []
    for place in places if learn == "all turns" else places[-1:]:
        prompt = template.text(messages[:place], tools, ask=True)
        turn = template.text(messages[: place + 1], tools).rstrip()
        if not (whole.startswith(turn) and turn.startswith(prompt)):
            raise ValueError(
                f"record {record.id}: the chat template asks with {prompt[-30:]!r}, and the conversation with its answer does not "
                "go on from there, so that the model would be asked in another way than it was trained. Use "
                "learn='last turn' where earlier turns are meant to lose their reasoning, or a model with another template"
            )
        spans.append((len(prompt), len(turn)))
        _check_keys(record, place, whole, template)
    if tools and template.text(messages) == whole:
        raise ValueError(
            f"record {record.id}: the chat template leaves out `tools`. Remove the column, or use another model"
        )
    encoded = template.tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
    labels = []
    for token, (start, end) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
        if any(start < first < end for first, _ in spans):
            raise ValueError(
                f"record {record.id}: a token reaches over the place where the answer begins ({whole[start:end]!r}), so that the "
                "prompt alone has other tokens. Remove white space at the beginning of the answers, or use another model"
            )
        learned = end > start and any(first <= start and end <= last for first, last in spans)
        labels.append(token if learned else IGNORED)
    return {"input_ids": encoded["input_ids"], "labels": labels}


def _check_keys(record, place: int, whole: str, template: ChatTemplate) -> None:
    """Every key of a learned message must change the text: what the template leaves out would be lost in silence."""
    for key in record.messages[place].keys() - {"role", "content"}:
        without = [dict(each) for each in record.messages]
        del without[place][key]
        if template.text(without, record.tools) == whole:
            raise ValueError(
                f"record {record.id}: the chat template leaves out `{key}` of a message. Move it into `content`, remove it from "
                "the records, or use a model whose template writes it"
            )


def encode(records, template: ChatTemplate, *, max_length: int = 0, learn: str = "all turns", reads: int = MOST_LENGTH):
    """The rows of every split as data sets, the records that they are made of, and how many tokens a record may have.

    A longer record is set aside: cut, it would teach an answer without its reasoning. A record that spells out a special token
    of the tokenizer is set aside, too: the token would end a turn in its middle.

    max_length: tokens, rounded up to a multiple of 128; 0 takes the longest training record, at most MOST_LENGTH and what
        the model `reads`. Raises as `row_of`, and ValueError where no record of a split is left.
    """
    encoded, set_aside = _encoded(records, template, learn)
    longest = max(len(row["input_ids"]) for _, row in encoded["train"])
    length = round_up(max_length or min(longest, MOST_LENGTH, reads // MULTIPLE * MULTIPLE))
    special = {token.content for token in template.tokenizer.added_tokens_decoder.values() if token.special}
    kept = {}
    for name, pairs in encoded.items():
        kept[name] = []
        for record, row in pairs:
            spelled = next((token for token in special for each in record.messages if token in str(each)), None)
            if spelled or len(row["input_ids"]) > length:
                reason = f"spells out {spelled}" if spelled else f"longer than {length:,} tokens"
                set_aside.append({"row": record.id, "reason": reason})
            else:
                kept[name].append((record, row))
    records = records.keeping({name: [record for record, _ in pairs] for name, pairs in kept.items()}, set_aside)
    return {name: Dataset.from_list([row for _, row in pairs]) for name, pairs in kept.items()}, records, length


def _encoded(records, template: ChatTemplate, learn: str):
    """Each record with its row, by split, and what the template refuses, such as two turns of the user in a row.

    Raises ValueError where it refuses most records of a split, and as `row_of`.
    """
    encoded, set_aside = {}, []
    for name, part in records.splits.items():
        encoded[name], refused = [], []
        for record in part:
            try:
                encoded[name].append((record, row_of(record, template, learn)))
            except jinja2.TemplateError as error:
                refused.append({"row": record.id, "reason": f"the chat template refuses it ({error})"})
        if 2 * len(refused) > len(part):
            raise ValueError(f"{len(refused)} of {len(part)} records: {refused[0]['reason']}; use another model")
        set_aside += refused
    return encoded, set_aside


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
    """TRL's SFTTrainer with exact resume (the mixin), whose evaluation loss is the mean over all labels.

    On a GPU the loss is TRL's fused one. On a CPU the head scores the labelled positions alone. On XLA rows are padded to
    one length, and the loss takes them in tiles, without the values that TRL brings to the host at every step.

    args: `sft_config`. train_dataset, eval_dataset: rows of `row_of`, or of any form that TRL takes.
    """

    def __init__(self, model, args: SFTConfig, train_dataset, eval_dataset, processing_class, **mixin):
        plan, runtime = mixin["plan"], mixin["runtime"]
        on_xla, devices = runtime.family == "xla", plan.device_count
        tracking.say("attention {}: {}".format(*choose_attention(model, runtime, args.max_length)))
        eval_batch = min(plan.micro_batch_size, devices * math.ceil(len(eval_dataset) / devices))
        args.per_device_eval_batch_size = eval_batch if on_xla else eval_batch // devices
        self._whole = {"train": plan.batch_size, "eval": eval_batch}
        # The backward pass goes through what is frozen, too, and makes no gradient of its weights.
        trained, whole = model.num_parameters(only_trainable=True), model.num_parameters()
        mixin["flops_per_token"] = 4.0 * whole + 2.0 * trained
        super().__init__(model, args, None, train_dataset, eval_dataset, processing_class, **mixin)
        for weight in self.model.parameters():  # TRL makes the adapter of a model in 4 bits bf16
            if weight.requires_grad and weight.dtype == torch.bfloat16:
                weight.data = weight.data.float()
        if on_xla:
            self.data_collator = FixedBlocks(args.max_length, processing_class.pad_token_id)
            # TRL's forward: that of a copy would compute with this model's weights.
            vars(base_of(self.model)).pop("forward", None)
            self.model_accepts_loss_kwargs = True  # asks transformers to count the labels of a whole step
        self._labels_a_batch = 1.0
        # Another loss than the mean over the labels is TRL's own.
        asked = self.compute_loss_func is not None or self.label_smoother is not None or args.loss_type != "nll"
        if asked and on_xla:
            raise ValueError(
                f"label_smoothing_factor={args.label_smoothing_factor}, loss_type={args.loss_type!r} or compute_loss_func: a TPU "
                "computes the plain loss of the labels in tiles. Leave the three as they are, or set use_tpu=False"
            )
        self._stock_loss = asked

    def _prepare_dataset(self, dataset, processing_class, args, packing, formatting_func, dataset_name):
        """TRL's rows, then empty rows that fill the last step and the last evaluation batch, so that all batches have one shape."""
        rows = super()._prepare_dataset(dataset, processing_class, args, packing, formatting_func, dataset_name)
        missing = -len(rows) % self._whole[dataset_name]
        empty = {"input_ids": [processing_class.pad_token_id], "labels": [IGNORED], "seq_lengths": [1]}
        empty = {name: [value] * missing for name, value in empty.items() if name in rows.column_names}
        rows = rows.select_columns([*empty])
        return concatenate_datasets([rows, Dataset.from_dict(empty, features=rows.features)])

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        if self._stock_loss or self.runtime.family not in ("cpu", "xla"):
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        on_xla = self.runtime.family == "xla"
        summed = tiled_loss(model, inputs, self.runtime.device_count) if on_xla else labelled_loss(model, inputs)
        labels = (inputs["labels"] != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
        loss = summed / torch.as_tensor(labels, device=summed.device).clamp(min=1)
        if self.args.average_tokens_across_devices and num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes
        return (loss, {"loss": loss}) if return_outputs else loss

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        if "cu_seq_lens_q" in inputs:  # TRL flattens a micro-batch into one row, and the meter counts rows
            self.meter.examples += (self.args.per_device_train_batch_size - 1) * self.args.world_size
        return loss

    def get_eval_dataloader(self, eval_dataset=None):
        loader = super().get_eval_dataloader(eval_dataset)
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        self._labels = sum(label != IGNORED for labels in rows["labels"] for label in labels)
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
        perplexity = math.exp(min(loss, 700.0))
        return {"loss": loss, "perplexity": perplexity, "tokens": self._labels, "rows": len(rows)}

    def create_model_card(self, *args, **kwargs) -> None:
        """TRL writes one at every checkpoint, of what it knows; the export writes one with data and results."""


# ---- the loss where TRL's fused kernel is not


def base_of(model):
    """The transformers model within PEFT's, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def labelled_loss(model, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Summed negative log-likelihood on a CPU: the head scores only the positions whose next token is a label."""
    inputs = dict(inputs)
    labels_T = inputs.pop("labels")[0]
    before = (labels_T[1:] != IGNORED).nonzero().flatten()
    logits = model(**inputs, use_cache=False, logits_to_keep=before).logits[0]
    return cross_entropy(logits.float(), labels_T[before + 1], reduction="sum")


def tiled_loss(model, blocks: dict[str, torch.Tensor], devices: int = 1, tokens: int = TILE_TOKENS) -> torch.Tensor:
    """The same for `FixedBlocks`, in tiles of tokens of all blocks, whose logits are made anew in the backward pass.

    devices: that a batch is split over along its first axis, in this process (SPMD). A position's label is the next token.
    tokens: of a tile, for each device.
    """
    base, attention = base_of(model), model.config._attn_implementation
    given = {name: blocks[name] for name in ("input_ids", "position_ids")}
    if attention not in (SEGMENTWISE, FLASH):  # which know segments by themselves
        given["attention_mask"] = mask_of(blocks["segment_ids"], attention)
    target_BT = torch.cat([blocks["labels"][:, 1:], torch.full_like(blocks["labels"][:, :1], IGNORED)], dim=1)
    config = base.config.get_text_config()
    head = base.get_output_embeddings()
    if head.bias is not None or any(getattr(config, name, None) not in (None, 1, 1.0) for name in LOGIT_CHANGES):
        logits_BTV = type(base).forward(base, use_cache=False, **given).logits.float()
        return cross_entropy(logits_BTV.flatten(0, 1), target_BT.flatten(), ignore_index=IGNORED, reduction="sum")
    hidden_BTD = base.base_model(use_cache=False, **given).last_hidden_state
    again = xla.checkpoint_function() if hidden_BTD.device.type == "xla" else torch.utils.checkpoint.checkpoint
    tile = max(1, tokens * devices // len(target_BT))
    parts = zip(hidden_BTD.split(tile, dim=1), target_BT.split(tile, dim=1), strict=True)
    if not torch.is_grad_enabled():
        return sum(_tile_loss(hidden, head.weight, target) for hidden, target in parts)
    return sum(again(_tile_loss, hidden, head.weight, target, use_reentrant=True) for hidden, target in parts)


def _tile_loss(hidden_BTD, weight_VD, target_BT):
    """No gather: XLA would bring the rows of all devices together for it. A target of -100 is no entry of the vocabulary."""
    log_p_BTV = log_softmax(linear(hidden_BTD.to(weight_VD.dtype), weight_VD), dim=-1, dtype=torch.float32)
    hit_BTV = target_BT[..., None] == torch.arange(len(weight_VD), device=target_BT.device)
    return -torch.where(hit_BTV, log_p_BTV, 0.0).sum()
