"""Encoded examples packed into blocks of one length, and attention that keeps them apart in there.

# N blocks · B blocks of a batch · T tokens a block · H heads · D size of a head
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from helpers.legal.layout import IGNORED
from helpers.parameters import one_of
from helpers.runtime import Runtime

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

STRATEGIES = ("bfd", "wrapped", "padded")
COLUMNS = ("input_ids", "labels", "position_ids", "segment_ids")
SEGMENTWISE = "packed_segments"  # name under which transformers finds the attention below


def pack(
    rows: Sequence[dict[str, list[int]]],
    max_length: int,
    *,
    strategy: str = "bfd",
    pad_token_id: int = 0,
    multiple_of: int = 1,
    seed: int = 0,
) -> Dataset:
    """Blocks of exactly `max_length` tokens with the columns input_ids, labels, position_ids and segment_ids, each [T].

    Segments are numbered from 1, padding is segment 0; positions begin at 0 in each. Padding and the first token of a
    segment, which nothing inside it predicts, have the label -100.

    Args:
        rows: `input_ids` and `labels` of each example (`Layout.encode`), none longer than `max_length`.
        strategy: "bfd" puts each example whole into the fullest block that has room for it, longest first (best-fit
            decreasing); "wrapped" cuts the stream of all examples every `max_length` tokens, so that only the last block
            has padding and some examples go on in the next block without what came before; "padded" is one example a block.
        multiple_of: empty blocks are added until their number is a multiple of this, so that no batch is cut off.
        seed: of the order of examples where it matters ("wrapped").

    Raises ValueError for an unknown strategy, and rows that are longer than a block.
    """
    import numpy as np
    from datasets import Dataset

    one_of("packing", strategy, STRATEGIES)
    lengths = [len(row["input_ids"]) for row in rows]
    if max(lengths) > max_length:
        raise ValueError(
            f"max_length={max_length}: {sum(n > max_length for n in lengths)} of {len(rows)} rows are longer (the longest "
            f"has {max(lengths)} tokens); encode them with this max_length, or raise it"
        )
    if strategy == "bfd":
        bins = [[(row, 0, lengths[row]) for row in rows_of_bin] for rows_of_bin in _best_fit(lengths, max_length)]
    elif strategy == "wrapped":
        bins = _wrap(np.random.default_rng(seed).permutation(len(rows)).tolist(), lengths, max_length)
    else:
        bins = [[(row, 0, length)] for row, length in enumerate(lengths)]
    bins += [[]] * (-len(bins) % multiple_of)
    blocks = {name: np.zeros((len(bins), max_length), np.int32) for name in COLUMNS}
    blocks["input_ids"][:] = pad_token_id
    blocks["labels"][:] = IGNORED
    for n, pieces in enumerate(bins):
        at = 0
        for segment, (row, start, stop) in enumerate(pieces, 1):
            here = slice(at, at + stop - start)
            blocks["input_ids"][n, here] = rows[row]["input_ids"][start:stop]
            blocks["labels"][n, here] = rows[row]["labels"][start:stop]
            blocks["labels"][n, at] = IGNORED
            blocks["position_ids"][n, here] = np.arange(stop - start)
            blocks["segment_ids"][n, here] = segment
            at = here.stop
        blocks["position_ids"][n, at:] = np.arange(max_length - at)
    return Dataset.from_dict({name: list(values) for name, values in blocks.items()}).with_format("numpy")


def _best_fit(lengths: Sequence[int], max_length: int) -> list[list[int]]:
    """Rows of each bin: longest row first, into the bin with the least room that suffices."""
    bins: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # (tokens free, bin), sorted
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        found = bisect.bisect_left(rooms, (lengths[row], -1))
        if found == len(rooms):
            bins.append([])
            room, index = max_length, len(bins) - 1
        else:
            room, index = rooms.pop(found)
        bins[index].append(row)
        if room > lengths[row]:
            bisect.insort(rooms, (room - lengths[row], index))
    return bins


def _wrap(order: Sequence[int], lengths: Sequence[int], max_length: int) -> list[list[tuple[int, int, int]]]:
    """(row, first token, end) of each piece of each block."""
    bins: dict[int, list[tuple[int, int, int]]] = {}
    at = 0  # in the stream of all tokens
    for row in order:
        cuts = range(max_length - at % max_length, lengths[row], max_length)
        for start, stop in itertools.pairwise([0, *cuts, lengths[row]]):
            bins.setdefault((at + start) // max_length, []).append((row, start, stop))
        at += lengths[row]
    return [*bins.values()]


@dataclass(frozen=True)
class PackingCounts:
    """What a set of blocks holds."""

    blocks: int
    segments: int
    tokens: int  # positions, padding included
    useful_tokens: int  # without padding
    label_tokens: int  # that the loss is over

    @property
    def fill(self) -> float:
        """Share of the positions that is no padding."""
        return self.useful_tokens / self.tokens

    def __str__(self) -> str:
        return (
            f"{self.segments:,} examples in {self.blocks:,} blocks of {self.tokens // self.blocks:,} tokens, {self.fill:.1%} "
            f"filled; loss over {self.label_tokens:,} of {self.useful_tokens:,} tokens"
        )


def count(blocks: Dataset) -> PackingCounts:
    """Segments and tokens of what `pack` returned; a piece of a cut example counts as a segment."""
    import numpy as np

    segments_NT, labels_NT = np.stack(blocks["segment_ids"][:]), np.stack(blocks["labels"][:])
    return PackingCounts(
        blocks=len(blocks),
        segments=int(segments_NT.max(axis=1).sum()),
        tokens=segments_NT.size,
        useful_tokens=int((segments_NT > 0).sum()),
        label_tokens=int((labels_NT != IGNORED).sum()),
    )


@dataclass(frozen=True)
class BlockCollator:
    """Stacks blocks into a batch of [B, T] tensors.

    varlen: adds where each segment begins in the flattened batch, for attention kernels that take that instead of a mask.
    """

    varlen: bool = False

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        import numpy as np
        import torch

        batch = {name: torch.from_numpy(np.stack([e[name] for e in examples])).long() for name in COLUMNS}
        if self.varlen:
            starts = torch.nonzero(batch["position_ids"].flatten() == 0).flatten()
            ends = torch.tensor([batch["position_ids"].numel()])
            batch["segment_starts"] = torch.cat([starts, ends]).to(torch.int32)
        return batch


# ---- attention


def segment_mask(segment_ids_BT: torch.Tensor) -> torch.Tensor:
    """Which keys a query sees, bool [B, 1, T, T]: those before it, and itself, in its own segment.

    Built on the device from static shapes. Padding sees padding, so that no row of a softmax is empty.
    """
    import torch

    position_T = torch.arange(segment_ids_BT.shape[1], device=segment_ids_BT.device)
    same_BTT = segment_ids_BT[:, :, None] == segment_ids_BT[:, None, :]
    return (same_BTT & (position_T[:, None] >= position_T[None, :]))[:, None]


def attention_arguments(batch: dict[str, torch.Tensor], implementation: str) -> dict[str, Any]:
    """What a transformers model must be given beside input_ids and position_ids so that segments stay apart.

    implementation: `model.config._attn_implementation`. Raises ValueError for one that takes neither a mask nor segments.
    """
    import torch

    if "segment_starts" in batch:
        starts = batch["segment_starts"]
        longest = batch["input_ids"].shape[1]  # an upper bound: the exact one would have to be read from the device
        return {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": longest, "max_length_k": longest}
    mask = segment_mask(batch["segment_ids"])
    if implementation == "eager":  # adds its mask
        mask = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
    elif not implementation.startswith("sdpa"):
        raise ValueError(
            f"attn_implementation={implementation!r}: cannot keep packed examples apart; load the model with 'sdpa'"
        )
    return {"attention_mask": mask}


def choose_attention(model, runtime: Runtime, max_length: int) -> tuple[str, str]:
    """Gives `model` the fastest attention that keeps segments apart on this machine; its name and the reason.

    Raises ValueError where a model's sliding window is shorter than a block and the attention cannot slide.
    """
    name, reason = _attention(model, runtime)
    window = getattr(model.config, "sliding_window", None)
    slides = "sliding_attention" in (getattr(model.config, "layer_types", None) or ())
    if slides and window and window < max_length and name != "flash_attention_2":
        raise ValueError(
            f"max_length={max_length}: the model attends over a sliding window of {window} tokens, which packed blocks "
            f"support only with flash-attn (not usable here: {reason}); use max_length={window} or another model"
        )
    if name != model.config._attn_implementation:
        model.set_attn_implementation(name)
    return name, reason


def uses_segment_starts(implementation: str) -> bool:
    """Whether an attention takes where segments begin, not a mask."""
    return implementation == SEGMENTWISE or implementation.startswith("flash_attention")


def _attention(model, runtime: Runtime) -> tuple[str, str]:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    from transformers.utils import is_flash_attn_2_available

    present = model.config._attn_implementation
    if runtime.kind == "cpu" and present == "sdpa":
        AttentionInterface.register(SEGMENTWISE, _segmentwise)
        AttentionMaskInterface.register(SEGMENTWISE, sdpa_mask)
        return SEGMENTWISE, "one segment after the other: nothing is computed that a mask would hide"
    if runtime.kind != "cuda":
        return present, "a mask from segment ids: no fused kernel for segments off CUDA"
    if runtime.precision == "fp32" or runtime.compute_capability < (8, 0):
        return present, f"a mask from segment ids: fused kernels need sm_80 and half precision, not {runtime.precision}"
    if is_flash_attn_2_available():
        return "flash_attention_2", "flash-attn is installed: one fused kernel over all segments, no mask"
    return present, "a mask from segment ids: flash-attn, which needs none, is not installed"


def _segmentwise(module, query_BHTD, key_BHTD, value_BHTD, attention_mask, **kwargs):
    """Causal attention inside each segment, one call a segment; without segments, as in generation, SDPA."""
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    starts = kwargs.get("cu_seq_lens_q")
    if starts is None:
        return sdpa_attention_forward(module, query_BHTD, key_BHTD, value_BHTD, attention_mask, **kwargs)
    batch, _, length, _ = query_BHTD.shape
    outputs = []
    for start, end in itertools.pairwise(starts.tolist()):  # no segment crosses a block
        block, first = divmod(start, length)
        segment = [t[block : block + 1, :, first : first + end - start] for t in (query_BHTD, key_BHTD, value_BHTD)]
        outputs.append(sdpa_attention_forward(module, *segment, None, **kwargs)[0])
    return torch.cat(outputs, dim=1).unflatten(1, (batch, length))[0], None
