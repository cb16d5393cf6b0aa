"""Blocks hold what TRL packed, and no segment of a row sees another: logits are those of each example alone."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from trl import pack_dataset

from helpers.legal.packing import IGNORED, FixedBlocks, count_blocks, masks_of
from tests.models import tiny

# N blocks · B blocks of a batch · T tokens a block · V vocabulary
LENGTH = 32
VOCABULARY = 50


def examples() -> list[dict[str, list[int]]]:
    generator = np.random.default_rng(0)
    rows = []
    for size in generator.integers(2, LENGTH + 1, 40).tolist():
        ids = generator.integers(1, VOCABULARY, size).tolist()
        rows.append({"input_ids": ids, "labels": [IGNORED] * (size // 3) + ids[size // 3 :]})
    return rows


def packed(rows) -> list[dict]:
    return list(pack_dataset(Dataset.from_list(rows), LENGTH, "bfd"))


def places(batch):
    """Block and tokens of every segment."""
    for b, ids_T in enumerate(batch["segment_ids"]):
        for number in range(1, int(ids_T.max()) + 1):
            yield b, ids_T == number


# ---- blocks


def test_every_example_is_in_one_segment_and_whole():
    rows = examples()
    batch = FixedBlocks(LENGTH, 7)(packed(rows))
    blocks = count_blocks([len(row["input_ids"]) for row in rows], LENGTH)
    assert {tensor.shape for tensor in batch.values()} == {(blocks, LENGTH)}
    learned_N = FixedBlocks(LENGTH, 7, compact=True)(packed(rows))["learned_N"]
    assert learned_N.tolist() == (batch["labels"].flatten() != IGNORED).nonzero().flatten().tolist()
    wanted = [(row["input_ids"], [IGNORED, *row["labels"][1:]]) for row in rows]
    found = [{name: tensor[place].tolist() for name, tensor in batch.items()} for place in places(batch)]
    assert sorted((segment["input_ids"], segment["labels"]) for segment in found) == sorted(wanted)
    assert all(each["position_ids"] == [*range(len(each["position_ids"]))] for each in found)
    for b, padding_T in enumerate(batch["segment_ids"] == 0):
        assert (batch["input_ids"][b, padding_T] == 7).all() and (batch["labels"][b, padding_T] == IGNORED).all()
        assert (batch["position_ids"][b, padding_T] == 0).all()


# ---- attention


def worst_difference(model, batch, logits_BTV: torch.Tensor) -> float:
    """Largest difference to the logits of each segment alone, in a plain forward pass."""
    worst = 0.0
    for b, here_T in places(batch):
        alone = model(input_ids=batch["input_ids"][b, here_T][None]).logits[0]
        worst = max(worst, float((logits_BTV[b, here_T] - alone).abs().max()))
    return worst


# Gemma caps its attention scores, which SDPA refuses, and slides in every second layer.
CAPS = {"head_dim": 8, "sliding_window": 6, "attn_logit_softcapping": 0.05, "initializer_range": 0.5}
SLIDES = {"sliding_window": 6, "use_sliding_window": True, "max_window_layers": 0}


@torch.no_grad()
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("Qwen2", {"attn_implementation": "sdpa"}),
        ("Qwen2", {"attn_implementation": "eager"}),
        ("Gemma2", CAPS),
        ("Qwen2", SLIDES),
    ],
    ids=["sdpa", "eager", "caps and slides", "slides"],
)
def test_packed_logits_are_those_of_each_example_alone(family, options):
    model, batch = tiny(family, **{"initializer_range": 0.3} | options), FixedBlocks(LENGTH, 0)(packed(examples()))
    masks = masks_of(batch["segment_ids"], model.config, torch.float32)
    logits = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], attention_mask=masks).logits
    assert logits.std() > 0.5
    assert worst_difference(model, batch, logits) < 1e-4
    # Without the mask the examples do see each other.
    leaking = model(input_ids=batch["input_ids"], attention_mask=torch.ones_like(batch["input_ids"])).logits
    assert worst_difference(model, batch, leaking) > 0.1
