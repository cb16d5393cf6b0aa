"""TRL's packed rows as blocks of one shape, in which no record sees another, and the loss of their labels.

# B blocks of a batch · T tokens of a block · D hidden size · V vocabulary · N positions before a label
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import cross_entropy, linear, log_softmax

from helpers.machine import xla
from helpers.machine.decoding import MULTIPLE, base_of

BLOCK = 512  # tokens of a block that several short records share: few records give many steps
IGNORED = -100  # label of a token that is read and not learned
TILE_TOKENS = 2048  # of a device at a time, so that the logits of a whole batch never exist at once
FULL, SLIDING = "full_attention", "sliding_attention"
LOGIT_CHANGES = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier", "output_multiplier")


def count_blocks(lengths: Sequence[int], block_length: int) -> int:
    """How many blocks TRL's best fit makes of rows of these lengths."""
    from datasets import Dataset
    from trl import pack_dataset

    rows = Dataset.from_dict({"input_ids": [[0] * length for length in lengths]})
    return len(pack_dataset(rows, block_length, "bfd"))


def round_up(number: int) -> int:
    return MULTIPLE * math.ceil(number / MULTIPLE)


class FixedBlocks:
    """Rows of TRL's packing, or of single examples, as [B, T] tensors: one shape for XLA, a compiler and a card's allocator.

    TRL's own collator, padded to one length. Segments are numbered from 1, padding is segment 0; positions begin at 0 in each.

    compact: add `learned_N`, the places of the labels, so that the head scores these alone. Their number changes with the
        batch, which XLA would compile anew.
    """

    def __init__(self, length: int, pad_token_id: int, compact: bool = False):
        from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

        self.compact = compact
        self._collate = DataCollatorForLanguageModeling(
            pad_token_id, return_position_ids=True, pad_to_multiple_of=length
        )

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = self._collate(examples)
        starts_BT = batch["position_ids"] == 0
        batch["segment_ids"] = starts_BT.cumsum(dim=1) * batch.pop("attention_mask")
        batch["labels"][starts_BT] = IGNORED  # which nothing inside of its segment predicts
        if self.compact:
            batch["learned_N"] = (batch["labels"].flatten() != IGNORED).nonzero().flatten()
        return batch


def masks_of(segment_ids_BT: torch.Tensor, config, dtype: torch.dtype):
    """What is added to attention scores, [B, 1, T, T]: 0 for keys of the query's own segment up to itself, else the lowest number.

    One mask in the dtype of the products serves all layers, built on the device from static shapes. A model with sliding
    windows gets a mask for each kind of layer. Padding sees padding, so that no row of a softmax is empty.
    """
    position_T = torch.arange(segment_ids_BT.shape[1], device=segment_ids_BT.device)
    distance_TT = position_T[:, None] - position_T[None, :]
    same_BTT = segment_ids_BT[:, :, None] == segment_ids_BT[:, None, :]
    visible_BTT = same_BTT & (distance_TT >= 0)
    lowest = torch.finfo(dtype).min
    window = getattr(config, "sliding_window", None)

    def added(visible_BTT):
        return torch.where(visible_BTT, 0.0, lowest).to(dtype)[:, None]

    if not window or set(layer_kinds(config)) == {FULL}:
        return added(visible_BTT)
    near = added(visible_BTT & (distance_TT < window))
    if not layer_kinds(config):
        return near
    return {FULL: added(visible_BTT), SLIDING: near}


def layer_kinds(config) -> Sequence[str]:
    return getattr(config, "layer_types", None) or ()


def summed_loss(model, blocks: dict[str, torch.Tensor], devices: int = 1, tokens: int = TILE_TOKENS) -> torch.Tensor:
    """Summed negative log-likelihood of the labels of `FixedBlocks`, in tiles whose logits are made anew in the backward pass.

    devices: that a batch is split over along its first axis, in this process (SPMD). A position's label is the next token.
    tokens: of a tile, for each device.
    """
    from peft.helpers import disable_input_dtype_casting

    base = base_of(model)
    config, head = base.config.get_text_config(), base.get_output_embeddings()
    product = linear(head.weight[:1], head.weight[:1])  # has the dtype of products, autocast or not
    labels_BT = blocks["labels"]
    inputs = {
        "input_ids": blocks["input_ids"],
        "position_ids": blocks["position_ids"],
        "attention_mask": masks_of(blocks["segment_ids"], config, product.dtype),
        "use_cache": False,
    }
    nothing_B1 = torch.full_like(labels_BT[:, :1], IGNORED)
    target_BT = torch.cat([labels_BT[:, 1:], nothing_B1], dim=1)
    if head.bias is not None or any(getattr(config, name, None) not in (None, 1, 1.0) for name in LOGIT_CHANGES):
        logits_BTV = model(**inputs).logits.float()
        return cross_entropy(logits_BTV.flatten(0, 1), target_BT.flatten(), ignore_index=IGNORED, reduction="sum")
    autocast = torch.is_autocast_enabled(labels_BT.device.type)  # which casts
    with disable_input_dtype_casting(model, active=autocast):
        if hasattr(model, "module"):  # whose hooks add up the gradients of several processes; the head sees one token
            hidden_BTD = model(**inputs, output_hidden_states=True, logits_to_keep=1).hidden_states[-1]
        else:
            hidden_BTD = base.base_model(**inputs).last_hidden_state
    if "learned_N" in blocks:
        before_N = blocks["learned_N"] - 1
        hidden_BTD = hidden_BTD.flatten(0, 1)[before_N][None]
        target_BT = target_BT.flatten()[before_N][None]
    tile = max(1, tokens * devices // len(target_BT))
    again = torch.utils.checkpoint.checkpoint
    if labels_BT.device.type == "xla":
        again = xla.checkpoint_function()
    losses = []
    for hidden, target in zip(hidden_BTD.split(tile, dim=1), target_BT.split(tile, dim=1), strict=True):
        if torch.is_grad_enabled():
            losses.append(again(_tile_loss, hidden, head.weight, target, use_reentrant=True))
        else:
            losses.append(_tile_loss(hidden, head.weight, target))
    return sum(losses)


def _tile_loss(hidden_BTD, weight_VD, target_BT):
    """No gather: XLA would bring the rows of all devices together for it. A target of -100 is no entry of the vocabulary."""
    log_p_BTV = log_softmax(linear(hidden_BTD.to(weight_VD.dtype), weight_VD), dim=-1, dtype=torch.float32)
    hit_BTV = target_BT[..., None] == torch.arange(len(weight_VD), device=target_BT.device)
    return -torch.where(hit_BTV, log_p_BTV, 0.0).sum()
