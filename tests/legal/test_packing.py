"""Blocks hold what TRL packed, and no segment of a row sees another: logits are those of each example alone."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import Gemma2Config, Gemma2ForCausalLM, Qwen2Config, Qwen2ForCausalLM
from trl import pack_dataset
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from helpers.legal.packing import FixedBlocks, choose_attention, count_blocks, mask_of
from helpers.legal.training import IGNORED

from .test_model import runtime

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
    assert mask_of(ids, "sdpa")[0, 0].tolist() == slow


def packed_batch(rows) -> dict[str, torch.Tensor]:
    return FixedBlocks(LENGTH, 0)(packed(rows))


def packed_logits(model, batch) -> torch.Tensor:
    mask = mask_of(batch["segment_ids"], model.config._attn_implementation)
    with torch.no_grad():
        return model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], attention_mask=mask).logits


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


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_packed_logits_are_those_of_each_example_alone(implementation):
    model, batch = qwen2(implementation), packed_batch(examples())
    logits = packed_logits(model, batch)
    assert logits.std() > 0.5
    assert worst_difference(model, batch, logits) < 1e-4
    open_model = qwen2(implementation)
    with torch.no_grad():  # without the mask the examples do see each other
        leaking = open_model(input_ids=batch["input_ids"], attention_mask=torch.ones_like(batch["input_ids"])).logits
    assert worst_difference(open_model, batch, leaking) > 0.1


def flattened(rows) -> dict[str, torch.Tensor]:
    """As TRL's trainer gives it to the model."""
    batch = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)(packed(rows))
    return {name: value for name, value in batch.items() if name != "labels"}


@pytest.mark.parametrize("implementation", ["packed_segments", "eager"])
def test_the_logits_and_gradients_of_a_flattened_batch_are_those_of_the_mask(implementation):
    rows = examples()
    masked, model, batch = qwen2(), qwen2("sdpa" if implementation != "eager" else "eager"), packed_batch(rows)
    name, _ = choose_attention(model, runtime(), LENGTH)
    assert name == implementation
    real, gradients = batch["segment_ids"] > 0, []
    wanted = masked(
        input_ids=batch["input_ids"],
        position_ids=batch["position_ids"],
        attention_mask=mask_of(batch["segment_ids"], "sdpa"),
    ).logits[real]
    found = model(**flattened(rows), use_cache=False).logits[0]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    for each, logits in ((masked, wanted), (model, found)):
        torch.logsumexp(logits, dim=-1).sum().backward()
        gradients.append({name: weight.grad for name, weight in each.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-4, atol=1e-4)


def test_keys_and_values_repeated_for_each_query_head_give_the_same_logits():
    """As a card below sm_80 has it, which has no fused kernel for fewer key heads than query heads."""
    t4 = replace(runtime(), kind="cuda", device_name="Tesla T4", compute_capability=(7, 5))
    batch = flattened(examples())
    found = []
    for machine in (runtime(), t4):
        model = qwen2()
        assert choose_attention(model, machine, LENGTH)[0] == "packed_segments"
        with torch.no_grad():
            found.append(model(**batch, use_cache=False).logits)
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)


def test_a_model_trained_one_segment_after_the_other_generates_as_before():
    model, ids = qwen2(), torch.tensor([[0, 0, 5, 6, 7], [1, 2, 3, 4, 5]])
    seen = torch.tensor([[0, 0, 1, 1, 1], [1] * 5])
    options = {"attention_mask": seen, "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    before = model.generate(ids, **options)
    choose_attention(model, runtime(), LENGTH)
    assert torch.equal(model.generate(ids, **options), before)


def gemma2() -> Gemma2ForCausalLM:
    """Caps its attention scores, which SDPA refuses."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    options = {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 64, "attn_logit_softcapping": 0.05}
    torch.manual_seed(0)
    return Gemma2ForCausalLM(Gemma2Config(**sizes, **options, vocab_size=VOCABULARY, initializer_range=0.5)).eval()


SLIDES = {"sliding_window": 6, "use_sliding_window": True, "max_window_layers": 0}


@pytest.mark.parametrize(
    ("build", "attention"), [(gemma2, "eager"), (functools.partial(qwen2, **SLIDES), "sdpa")], ids=["caps", "slides"]
)
def test_what_the_fused_kernels_leave_out_of_attention_is_trained_by_transformers_own(build, attention):
    model, rows = build(), examples(8)
    alone = {tuple(r["input_ids"]): model(input_ids=torch.tensor([r["input_ids"]])).logits[0] for r in rows}
    assert choose_attention(model, runtime(), LENGTH)[0] == attention
    batch = flattened(rows)
    logits = model(**batch, use_cache=False).logits[0]
    for start, end in itertools.pairwise(batch["cu_seq_lens_q"].tolist()):
        ids = tuple(batch["input_ids"][0, start:end].tolist())
        torch.testing.assert_close(logits[start:end], alone[ids], rtol=1e-4, atol=1e-4)


def test_a_sliding_window_shorter_than_a_block_is_refused_on_xla():
    with pytest.raises(ValueError, match=r"max_length=32: the model attends over a sliding window of 6 tokens"):
        choose_attention(qwen2(**SLIDES), replace(runtime(), kind="xla"), LENGTH)
