"""Packed blocks hold what went in, and no segment of a block sees another: logits are those of each example alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl import pack_dataset

from helpers import xla
from helpers.legal.layout import IGNORED
from helpers.legal.packing import (
    STRATEGIES,
    BlockCollator,
    attention_arguments,
    choose_attention,
    count,
    pack,
    segment_mask,
)
from helpers.runtime import detect

from .test_legal_model import runtime
from .xla_process import answers_on_xla

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


def segments(blocks) -> list[dict[str, list[int]]]:
    """Every segment of every block, cut out by its number."""
    found = []
    for block in blocks:
        for number in range(1, block["segment_ids"].max() + 1):
            here = block["segment_ids"] == number
            found.append({name: block[name][here].tolist() for name in block})
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


@pytest.mark.parametrize("strategy", ["bfd", "padded"])
def test_every_example_is_in_one_segment_whole_and_its_first_token_has_no_label(strategy):
    rows = examples()
    found = segments(pack(rows, LENGTH, strategy=strategy))
    wanted = [(row["input_ids"], [IGNORED, *row["labels"][1:]]) for row in rows]
    assert sorted((segment["input_ids"], segment["labels"]) for segment in found) == sorted(wanted)


def test_wrapped_segments_follow_one_another_to_the_same_text_and_fill_all_blocks_but_the_last():
    rows = examples()
    blocks = pack(rows, LENGTH, strategy="wrapped", seed=3)
    text = [token for segment in segments(blocks) for token in segment["input_ids"]]
    order = np.random.default_rng(3).permutation(len(rows))
    assert text == [token for row in order for token in rows[row]["input_ids"]]
    assert all((block["segment_ids"] > 0).all() for block in list(blocks)[:-1])
    assert len(blocks) == -(-len(text) // LENGTH)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_positions_begin_at_zero_in_each_segment_and_padding_is_a_segment_without_labels(strategy):
    blocks = pack(examples(), LENGTH, strategy=strategy, pad_token_id=7, multiple_of=8)
    assert len(blocks) % 8 == 0
    for segment in segments(blocks):
        assert segment["position_ids"] == list(range(len(segment["position_ids"])))
        assert segment["labels"][0] == IGNORED
    for block in blocks:
        padding = block["segment_ids"] == 0
        assert (block["input_ids"][padding] == 7).all() and (block["labels"][padding] == IGNORED).all()
        assert block["position_ids"][padding].tolist() == list(range(padding.sum()))


def test_bins_are_as_few_as_those_of_trl():
    from datasets import Dataset

    rows = examples(300, longest=LENGTH // 2)
    ours = pack(rows, LENGTH)
    theirs = pack_dataset(Dataset.from_list(rows), LENGTH, "bfd")
    assert len(ours) == len(theirs)
    assert count(ours).fill > 0.98


def test_counts_are_those_of_the_examples():
    rows = examples()
    counted = count(pack(rows, LENGTH, multiple_of=16))
    assert counted.segments == len(rows)
    assert counted.useful_tokens == sum(len(row["input_ids"]) for row in rows)
    labels = sum(label != IGNORED for row in rows for label in row["labels"][1:])
    assert counted.label_tokens == labels
    assert counted.tokens == counted.blocks * LENGTH
    assert str(counted).startswith(f"40 examples in {counted.blocks} blocks of 32 tokens, {counted.fill:.1%} filled")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strategy": "bdf"}, "packing='bdf' is unknown: give one of 'bfd', 'wrapped', 'padded'"),
        ({"max_length": 20}, "max_length=20: .* of 40 rows are longer .the longest has 32 tokens"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        pack(**{"rows": examples(), "max_length": LENGTH, **arguments})


# ---- attention


def test_the_mask_is_causal_inside_a_segment_and_closed_between_segments():
    ids = torch.tensor([[1, 1, 2, 2, 2, 0, 0]])
    slow = [[ids[0, q] == ids[0, k] and k <= q for k in range(7)] for q in range(7)]
    assert segment_mask(ids)[0, 0].tolist() == slow


def packed_batch(rows) -> dict[str, torch.Tensor]:
    return BlockCollator()(list(pack(rows, LENGTH)))


def packed_logits(model, batch) -> torch.Tensor:
    arguments = attention_arguments(batch, model.config._attn_implementation)
    with torch.no_grad():
        return model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], **arguments).logits


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


def test_one_segment_after_the_other_gives_the_logits_and_gradients_of_the_mask():
    rows = examples()
    masked, model = qwen2(), qwen2()
    name, _ = choose_attention(model, runtime(), LENGTH)
    assert name == "packed_segments"
    batch = BlockCollator(varlen=True)(list(pack(rows, LENGTH)))
    assert worst_difference(qwen2(), batch, packed_logits(model, batch)) < 1e-4
    real = batch["segment_ids"] > 0
    gradients = []
    for each, one in ((masked, packed_batch(rows)), (model, batch)):
        arguments = attention_arguments(one, each.config._attn_implementation)
        logits = each(input_ids=one["input_ids"], position_ids=one["position_ids"], **arguments).logits
        torch.logsumexp(logits[real], dim=-1).sum().backward()
        gradients.append({name: weight.grad for name, weight in each.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-4, atol=1e-4)


def test_a_model_trained_one_segment_after_the_other_generates_as_before():
    model, ids = qwen2(), torch.tensor([[0, 0, 5, 6, 7], [1, 2, 3, 4, 5]])
    seen = torch.tensor([[0, 0, 1, 1, 1], [1] * 5])
    options = {"attention_mask": seen, "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    before = model.generate(ids, **options)
    choose_attention(model, runtime(), LENGTH)
    assert torch.equal(model.generate(ids, **options), before)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_changing_one_segment_changes_no_logit_of_another(implementation):
    model, batch = qwen2(implementation), packed_batch(examples(longest=10))
    assert int(batch["segment_ids"].max()) >= 3
    before = packed_logits(model, batch)
    second = batch["segment_ids"] == 2
    changed = {**batch, "input_ids": torch.where(second, (batch["input_ids"] + 5) % VOCABULARY, batch["input_ids"])}
    after = packed_logits(model, changed)
    assert torch.equal(before[~second], after[~second])
    assert (before[second] - after[second]).abs().max() > 0.1


def xla_difference() -> float:
    """Packed on 8 virtual XLA devices, alone on the CPU; run in a process of its own."""
    machine = detect(True, precision="fp32")
    from helpers.attention import use_one_dtype

    batch = packed_batch(examples())
    blocks = len(batch["input_ids"]) // 8 * 8
    batch = {name: tensor[:blocks] for name, tensor in batch.items()}
    model = qwen2().to(machine.device)
    xla.replicate(model)
    use_one_dtype(model)
    on_device = {name: xla.shard_batch(tensor.to(machine.device)) for name, tensor in batch.items()}
    return worst_difference(qwen2(), batch, packed_logits(model, on_device).cpu())


@pytest.mark.skipif(not xla.installed(), reason="torch_xla is not installed")
def test_packed_logits_on_eight_xla_devices_are_those_of_each_example_alone_on_the_cpu():
    code = "from tests.test_legal_packing import xla_difference as f; print('ANSWERS', f())"
    assert answers_on_xla(code) < 1e-4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_fused_attention_over_segments_agrees_with_the_mask():
    machine = detect(False)
    model, batch = qwen2(head_dim=64).to("cuda", torch.bfloat16), packed_batch(examples())
    batch = {name: tensor.cuda() for name, tensor in batch.items()}
    masked = packed_logits(model, batch)
    name, _ = choose_attention(model, machine, LENGTH)
    if name == "sdpa":
        pytest.skip("no fused kernel for segments on this GPU")
    on_host = {name: tensor.cpu().numpy() for name, tensor in batch.items()}
    blocks = [{name: values[b] for name, values in on_host.items()} for b in range(len(on_host["input_ids"]))]
    fused = packed_logits(model, {name: t.cuda() for name, t in BlockCollator(varlen=True)(blocks).items()})
    assert (fused - masked).abs().max() < 0.05 * masked.abs().max()


def test_segment_starts_are_where_positions_are_zero():
    rows = [{"input_ids": [1] * size, "labels": [1] * size} for size in (20, 12, 30)]
    batch = BlockCollator(varlen=True)(list(pack(rows, LENGTH)))
    # Blocks of 30 + 2 padding and of 20 + 12.
    assert batch["segment_starts"].tolist() == [0, 30, 32, 52, 64]
    assert batch["segment_starts"].dtype == torch.int32


def test_a_sliding_window_shorter_than_a_block_is_refused_where_attention_cannot_slide():
    window = {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 0}
    with pytest.raises(ValueError, match=r"max_length=32: the model attends over a sliding window of 16 tokens"):
        choose_attention(qwen2(**window), runtime(), LENGTH)


def test_an_attention_that_takes_no_mask_is_refused():
    with pytest.raises(ValueError, match="attn_implementation='flex_attention': cannot keep packed examples apart"):
        attention_arguments(packed_batch(examples()), "flex_attention")
