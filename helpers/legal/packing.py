"""TRL's packed rows as blocks of one shape for XLA, and attention that keeps the examples of a row apart.

# B blocks of a batch · T tokens a block · H heads · D size of a head
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from helpers.machine.runtime import Runtime

if TYPE_CHECKING:
    import torch

MULTIPLE = 128  # of lengths: what a TPU's matrix unit and fused attention kernels tile by
BLOCK = 1024  # tokens of a block that several short records share
FLASH = "flash_attention_2"
SEGMENTWISE = "packed_segments"  # name under which transformers finds the attention below


def count_blocks(lengths: Sequence[int], block_length: int) -> int:
    """How many blocks TRL's best fit makes of rows of these lengths."""
    from datasets import Dataset
    from trl import pack_dataset

    rows = Dataset.from_dict({"input_ids": [[0] * length for length in lengths]})
    return len(pack_dataset(rows, block_length, "bfd"))


def round_up(number: int) -> int:
    return MULTIPLE * math.ceil(number / MULTIPLE)


class FixedBlocks:
    """Rows of TRL's packing, or of single examples, as [B, T] tensors: XLA compiles one graph for each shape.

    TRL's own collator, padded to one length. Segments are numbered from 1, padding is segment 0; positions begin at 0 in each.
    """

    def __init__(self, length: int, pad_token_id: int):
        from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

        self._collate = DataCollatorForLanguageModeling(
            pad_token_id, return_position_ids=True, pad_to_multiple_of=length
        )

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = self._collate(examples)
        starts_BT = batch["position_ids"] == 0
        batch["segment_ids"] = starts_BT.cumsum(dim=1) * batch.pop("attention_mask")
        batch["labels"][starts_BT] = -100  # which nothing inside of its segment predicts
        return batch


# ---- attention


def mask_of(segment_ids_BT: torch.Tensor, implementation: str) -> torch.Tensor:
    """Which keys a query sees, [B, 1, T, T]: those before it, and itself, in its own segment; bool, added for "eager".

    Built on the device from static shapes. Padding sees padding, so that no row of a softmax is empty.
    """
    import torch

    position_T = torch.arange(segment_ids_BT.shape[1], device=segment_ids_BT.device)
    same_BTT = segment_ids_BT[:, :, None] == segment_ids_BT[:, None, :]
    mask_B1TT = (same_BTT & (position_T[:, None] >= position_T[None, :]))[:, None]
    if implementation == "eager":
        return torch.where(mask_B1TT, 0.0, torch.finfo(torch.float32).min)
    return mask_B1TT


def choose_attention(model, runtime: Runtime, max_length: int) -> tuple[str, str]:
    """Gives `model` the fastest attention that computes what the model means on this machine; its name and the reason.

    Raises ValueError on XLA where a model's sliding window is shorter than a block.
    """
    from transformers.utils import is_flash_attn_2_available

    config, name = model.config.get_text_config(), model.config._attn_implementation
    half = runtime.kind == "cuda" and runtime.precision != "fp32" and runtime.compute_capability >= (8, 0)
    window = getattr(config, "sliding_window", None)
    slides = "sliding_attention" in (getattr(config, "layer_types", None) or ()) and window and window < max_length
    if slides and runtime.family == "xla":
        raise ValueError(
            f"max_length={max_length}: the model attends over a sliding window of {window} tokens, which the mask of packed "
            f"blocks does not have; use max_length={window}, a GPU, or another model"
        )
    if runtime.family == "xla":
        reason = "a mask from segment ids: no fused kernel for segments on XLA"
    elif name == "eager":
        reason = "transformers chose it: the fused kernels leave out a part of this model's attention"
    elif half and is_flash_attn_2_available():
        name, reason = FLASH, "flash-attn is installed: one fused kernel over all segments, no mask"
    elif slides:
        reason = "transformers' mask from the positions of packed examples"
    else:
        _register(repeats=runtime.is_before_ampere)
        name, reason = SEGMENTWISE, "one segment after the other: nothing is computed that a mask would hide"
    if name != model.config._attn_implementation:
        model.set_attn_implementation(name)
    return name, reason


def _register(repeats: bool) -> None:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    def mask(attention_mask=None, q_length=0, kv_length=0, **kwargs):
        """None for a packed batch: the segments are told by `cu_seq_lens_q`."""
        if attention_mask is None and q_length == kv_length:
            return None
        return sdpa_mask(attention_mask=attention_mask, q_length=q_length, kv_length=kv_length, **kwargs)

    AttentionInterface.register(SEGMENTWISE, functools.partial(_segmentwise, repeats=repeats))
    AttentionMaskInterface.register(SEGMENTWISE, mask)


def _segmentwise(module, query_BHTD, key_BHTD, value_BHTD, attention_mask, repeats: bool = False, **kwargs):
    """Causal attention inside each segment of one flattened batch, one call for each segment; SDPA where there are no segments.

    repeats: keys and values once for each query head, as cards below sm_80 need it (`machine.attention.repeat_heads`).
    """
    import torch
    from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

    if repeats:
        groups = query_BHTD.shape[1] // key_BHTD.shape[1]
        key_BHTD, value_BHTD = repeat_kv(key_BHTD, groups), repeat_kv(value_BHTD, groups)
        module = SimpleNamespace(is_causal=True)  # it names no groups

    starts = kwargs.get("cu_seq_lens_q")
    if starts is None:
        return sdpa_attention_forward(module, query_BHTD, key_BHTD, value_BHTD, attention_mask, **kwargs)
    if not hasattr(starts, "on_host"):  # one wait for the device a batch, not one a layer
        starts.on_host = starts.tolist()
    outputs = [
        sdpa_attention_forward(
            module, *(each[:, :, start:end] for each in (query_BHTD, key_BHTD, value_BHTD)), None, **kwargs
        )[0]
        for start, end in itertools.pairwise(starts.on_host)
    ]
    return torch.cat(outputs, dim=1), None
