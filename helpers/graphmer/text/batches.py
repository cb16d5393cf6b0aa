"""Batches of leafy chains: stacked, with the in-batch tails that are also true, and checked before they go to a device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch

from helpers.graphmer.modeling_graphmer.configuration_graphmer import GraphMERConfig
from helpers.graphmer.text.chains import LeafyChains
from helpers.graphmer.text.windows import stacked

# B batch · S roots · G leaves · L leaf tokens · M masked roots · U negatives · C tokens of an entity's text

AXES = {
    "root_ids": "BS",
    "root_segments": "BS",
    "root_positions": "BS",
    "leaf_ids": "BGL",
    "leaf_segments": "BG",
    "relation_ids": "BG",
    "head_start": "BG",
    "head_length": "BG",
    "mlm_positions": "BM",
    "mlm_labels": "BM",
    "mnm_labels": "BGL",
    "triple_labels": "BG",
    "mnm_negative_ids": "BGUL",
    "tail_text_ids": "BGC",
    "tail_entities": "BG",
    "negative_text_ids": "BGUC",
    "known_BGX": "BGX",
    "head_text_ids": "BGC",
    "head_entities": "BG",
    "tail_types": "BG",
}
INPUTS = tuple(AXES)[:8]


class LeafyChainCollator:
    """Stacks examples of `chains` into a batch of int64 tensors (float `triple_labels`, bool `known_BGX`).

    known_BGX [B, G, B·G]: in-batch tail x is also true for the head and relation of this leaf, so it is no wrong answer to
    it; False for the leaf itself, for what is no true leaf, and in its rows.

    config: of the model that the batches are for; each is checked against it (`check_batch`) while it is on the host.
    """

    def __init__(self, chains: LeafyChains, config: GraphMERConfig | None = None):
        self._known, self._config = chains.known, config

    def __call__(self, examples: Sequence[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
        batch = stacked(examples)
        batch["known_BGX"] = self._known_tails(batch["head_entities"], batch["relation_ids"], batch["tail_entities"])
        if self._config is not None:
            check_batch(batch, self._config)
        return batch

    def _known_tails(self, heads_BG: torch.Tensor, relations_BG: torch.Tensor, tails_BG: torch.Tensor) -> torch.Tensor:
        heads, relations, tails = (values.flatten().tolist() for values in (heads_BG, relations_BG, tails_BG))
        places: dict[int, list[int]] = defaultdict(list)
        for x, tail in enumerate(tails):
            if tail >= 0:
                places[tail].append(x)
        known_XX = np.zeros((len(tails), len(tails)), dtype=bool)
        for x, tail in enumerate(tails):
            if tail >= 0:
                for other in places.keys() & self._known.of(heads[x], relations[x]):
                    known_XX[x, places[other]] = True
                known_XX[x, x] = False
        return torch.from_numpy(known_XX).view(*heads_BG.shape, len(tails))


def check_batch(batch: dict[str, torch.Tensor], config: GraphMERConfig) -> None:
    """Raises ValueError that names the field: missing, of a wrong shape, out of range, or a leaf that hangs nowhere.

    For host tensors, in a collator: on a device every one of these questions would wait.
    """
    if missing := [name for name in INPUTS if name not in batch]:
        raise ValueError(f"batch: {', '.join(missing)} missing; the model needs {', '.join(INPUTS)}")
    _check_shapes(batch, config)
    V, R = config.vocab_size, config.num_relations
    for name in ("root_ids", "leaf_ids", "mnm_negative_ids", "tail_text_ids", "negative_text_ids", "head_text_ids"):
        _within(batch, name, 0, V - 1)
    for name in ("mlm_labels", "mnm_labels"):
        _within(batch, name, 0, V - 1, also=-100)
    _within(batch, "triple_labels", 0, 1, also=-100)
    _within(batch, "relation_ids", 0, R)
    S = batch["root_ids"].shape[1]
    for name in ("head_start", "mlm_positions"):
        _within(batch, name, 0, S - 1)
    _within(batch, "head_length", 0, config.max_head_tokens)
    for name in ("root_segments", "root_positions", "leaf_segments"):
        _within(batch, name, 0, torch.iinfo(torch.int64).max)
    for name in ("tail_entities", "head_entities", "tail_types"):
        _within(batch, name, -1, torch.iinfo(torch.int64).max)
    _check_leaves(batch)


def _check_shapes(batch: dict[str, torch.Tensor], config: GraphMERConfig) -> None:
    if unknown := set(batch) - set(AXES):
        raise ValueError(f"batch: unknown field {', '.join(sorted(unknown))}; known: {', '.join(AXES)}")
    sizes = {"L": (config.leaf_tokens, "leaf_tokens of the configuration")}
    if "leaf_ids" in batch and batch["leaf_ids"].dim() == 3:
        B, G, _ = batch["leaf_ids"].shape
        sizes["X"] = (B * G, "all leaves of the batch")
    for name, axes in AXES.items():
        if name not in batch:
            continue
        shape = tuple(batch[name].shape)
        if len(shape) != len(axes):
            raise ValueError(f"{name}: has shape {shape}, must be [{', '.join(axes)}]")
        for axis, size in zip(axes, shape, strict=True):
            known, source = sizes.setdefault(axis, (size, name))
            if size != known:
                raise ValueError(f"{name}: has shape {shape}, but {axis} of [{', '.join(axes)}] is {known} ({source})")


def _within(batch: dict[str, torch.Tensor], name: str, low: int, high: int, also: int | None = None) -> None:
    if name not in batch:
        return
    values = batch[name]
    wrong = (values < low) | (values > high)
    if also is not None:
        wrong &= values != also
    if wrong.any():
        raise ValueError(
            f"{name}={values[wrong][0].item()} at {wrong.nonzero()[0].tolist()}: must be in [{low}, {high}]"
            + ("" if also is None else f" or {also}")
        )


def _check_leaves(batch: dict[str, torch.Tensor]) -> None:
    """Every leaf hangs at a root of its own segment, and so do all the roots of its head."""
    segments_BS, start_BG, length_BG = batch["root_segments"], batch["head_start"], batch["head_length"]
    leaf_BG = batch["leaf_segments"]
    S = segments_BS.shape[1]
    for name in ("head_length", "relation_ids"):
        if (wrong := (leaf_BG > 0) != (batch[name] > 0)).any():
            raise ValueError(
                f"{name}=0 where leaf_segments is not, or the reverse, at {wrong.nonzero()[0].tolist()}: "
                "a leaf has a head and a relation, an empty slot neither"
            )
    if (wrong := (leaf_BG > 0) & (segments_BS.gather(1, start_BG) != leaf_BG)).any():
        raise ValueError(
            f"head_start at {wrong.nonzero()[0].tolist()}: the leaf of segment {leaf_BG[wrong][0].item()} hangs at root "
            f"{start_BG[wrong][0].item()} of another segment"
        )
    last_BG = start_BG + length_BG - 1
    past = (leaf_BG > 0) & ((last_BG >= S) | (segments_BS.gather(1, last_BG.clamp(0, S - 1)) != leaf_BG))
    if past.any():
        raise ValueError(
            f"head_length={length_BG[past][0].item()} at {past.nonzero()[0].tolist()}: the head that begins at root "
            f"{start_BG[past][0].item()} reaches past its segment"
        )
