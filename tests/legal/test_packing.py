"""Blocks hold what TRL packed, and no segment of a row sees another: logits are those of each example alone."""

import functools

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import Gemma2Config, Gemma2ForCausalLM, Qwen2Config, Qwen2ForCausalLM
from trl import pack_dataset
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from helpers.legal.packing import IGNORED, FixedBlocks, count_blocks, masks_of

# N blocks · B blocks of a batch · T tokens a block · V vocabulary
LENGTH = 32
VOCABULARY = 50


def examples(number: int = 40, seed: int = 0, longest: int = LENGTH) -> list[dict[str, list[int]]]:
    generator = np.random.default_rng(seed)
    rows = []
    for size in generator.integers(2, longest + 1, number).tolist():
        ids = generator.integers(1, VOCABULARY, size).tolist()
        rows.append({"input_ids": ids, "labels": [IGNORED] * (size // 3) + ids[size // 3 :]})
    return rows


def packed(rows) -> list[dict]:
    return list(pack_dataset(Dataset.from_list(rows), LENGTH, "bfd"))


def segments(batch) -> list[dict[str, list[int]]]:
    """Every segment of every block, cut out by its number."""
    found = []
    for b, ids_T in enumerate(batch["segment_ids"]):
        for number in range(1, int(ids_T.max()) + 1):
            found.append({name: tensor[b, ids_T == number].tolist() for name, tensor in batch.items()})
    return found


def qwen2(implementation: str = "sdpa", **options) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.3, attn_implementation=implementation,
        **options,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).eval()


# ---- blocks


def test_every_example_is_in_one_segment_whole_and_its_first_token_has_no_label():
    rows = examples()
    batch = FixedBlocks(LENGTH, 7)(packed(rows))
    blocks = count_blocks([len(row["input_ids"]) for row in rows], LENGTH)
    assert {tensor.shape for tensor in batch.values()} == {(blocks, LENGTH)}
    learned_N = FixedBlocks(LENGTH, 7, compact=True)(packed(rows))["learned_N"]
    assert learned_N.tolist() == (batch["labels"].flatten() != IGNORED).nonzero().flatten().tolist()
    wanted = [(row["input_ids"], [IGNORED, *row["labels"][1:]]) for row in rows]
    found = segments(batch)
    assert sorted((segment["input_ids"], segment["labels"]) for segment in found) == sorted(wanted)
    assert all(each["position_ids"] == [*range(len(each["position_ids"]))] for each in found)
    for b, padding_T in enumerate(batch["segment_ids"] == 0):
        assert (batch["input_ids"][b, padding_T] == 7).all() and (batch["labels"][b, padding_T] == IGNORED).all()
        assert (batch["position_ids"][b, padding_T] == 0).all()


def test_labels_of_a_block_are_those_of_trls_own_collator():
    taken = packed(examples())
    flat = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)([dict(row) for row in taken])
    batch = FixedBlocks(LENGTH, 0)(taken)
    real = batch["segment_ids"] > 0
    for name in ("input_ids", "labels", "position_ids"):
        assert torch.equal(batch[name][real], flat[name][0])


# ---- attention


def test_the_mask_is_causal_inside_a_segment_and_closed_between_segments():
    ids = torch.tensor([[1, 1, 2, 2, 2, 0, 0]])
    slow = [[ids[0, q] == ids[0, k] and k <= q for k in range(7)] for q in range(7)]
    added = masks_of(ids, Qwen2Config(), torch.bfloat16)
    assert added.dtype == torch.bfloat16 and (added[0, 0] == 0).tolist() == slow


def packed_batch(rows) -> dict[str, torch.Tensor]:
    return FixedBlocks(LENGTH, 0)(packed(rows))


def packed_logits(model, batch) -> torch.Tensor:
    masks = masks_of(batch["segment_ids"], model.config, torch.float32)
    with torch.no_grad():
        return model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], attention_mask=masks).logits


def worst_difference(model, batch, logits_BTV: torch.Tensor) -> float:
    """Largest difference to the logits of each segment alone, in a plain forward pass."""
    worst = 0.0
    for b, ids_T in enumerate(batch["segment_ids"]):
        for number in range(1, int(ids_T.max()) + 1):
            here = ids_T == number
            with torch.no_grad():
                alone = model(input_ids=batch["input_ids"][b, here][None]).logits[0]
            worst = max(worst, float((logits_BTV[b, here] - alone).abs().max()))
    return worst


def gemma2() -> Gemma2ForCausalLM:
    """Caps its attention scores, which SDPA refuses, and slides in every second layer."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    options = {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6, "attn_logit_softcapping": 0.05}
    torch.manual_seed(0)
    return Gemma2ForCausalLM(Gemma2Config(**sizes, **options, vocab_size=VOCABULARY, initializer_range=0.5)).eval()


SLIDES = {"sliding_window": 6, "use_sliding_window": True, "max_window_layers": 0}
MODELS = {
    "sdpa": qwen2,
    "eager": functools.partial(qwen2, "eager"),
    "caps and slides": gemma2,
    "slides": functools.partial(qwen2, **SLIDES),
}


@pytest.mark.parametrize("name", MODELS)
def test_packed_logits_are_those_of_each_example_alone(name):
    model, batch = MODELS[name](), packed_batch(examples())
    logits = packed_logits(model, batch)
    assert logits.std() > 0.5
    assert worst_difference(model, batch, logits) < 1e-4
    with torch.no_grad():  # without the mask the examples do see each other
        leaking = model(input_ids=batch["input_ids"], attention_mask=torch.ones_like(batch["input_ids"])).logits
    assert worst_difference(model, batch, leaking) > 0.1
