"""The tiled loss beside the plain one: value and gradients, any tile, any number of device groups."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, Qwen2Config, Qwen2ForCausalLM

from helpers.legal.layout import IGNORED
from helpers.legal.loss import tiled_loss, tiled_nll

from .harness import cpu_here
from .test_legal_model import loaded

# B blocks · T tokens · D hidden size · V vocabulary
B, T, D, V = 4, 12, 16, 300


def inputs(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    hidden_BTD = torch.randn(B, T, D, generator=generator).to(dtype).requires_grad_()
    weight_VD = torch.randn(V, D, generator=generator).requires_grad_()
    target_BT = torch.randint(0, V, (B, T), generator=generator)
    target_BT[0, :7] = target_BT[2] = IGNORED
    return hidden_BTD, weight_VD, target_BT


def plain(hidden_BTD, weight_VD, target_BT):
    logits = (hidden_BTD @ weight_VD.T).float().flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, target_BT.flatten(), ignore_index=IGNORED, reduction="sum")


def value_and_gradients(loss, *leaves):
    return loss.item(), torch.autograd.grad(loss / 20, leaves)


@pytest.mark.parametrize("tile_tokens", [1, 4, 20, 1000])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_value_and_gradients_are_those_of_the_plain_loss(tile_tokens, groups):
    hidden, weight, target = inputs()
    wanted, wanted_gradients = value_and_gradients(plain(hidden, weight, target), hidden, weight)
    loss = tiled_nll(hidden, weight, target, tile_tokens=tile_tokens, groups=groups)
    got, gradients = value_and_gradients(loss, hidden, weight)
    assert got == pytest.approx(wanted, rel=1e-5)
    for gradient, other in zip(gradients, wanted_gradients, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-5, atol=1e-5)


def test_a_frozen_head_gets_no_gradient_and_frozen_hidden_states_none_either():
    hidden, weight, target = inputs()
    loss = tiled_nll(hidden, weight.detach(), target)
    (gradient,) = torch.autograd.grad(loss, [hidden])
    (wanted,) = torch.autograd.grad(plain(hidden, weight, target), [hidden])
    torch.testing.assert_close(gradient, wanted, rtol=1e-5, atol=1e-5)
    assert not tiled_nll(hidden.detach(), weight.detach(), target).requires_grad


def test_no_tile_of_logits_is_larger_than_asked_for():
    hidden, weight, target = inputs()
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            output = function(*args, **(kwargs or {}))
            if torch.is_tensor(output) and output.dim() and output.shape[-1] == V:
                largest = max(largest, output.numel() // V)
            return output

    with Watch():
        tiled_nll(hidden, weight, target, tile_tokens=20).backward()
    assert largest == 20


def test_autocast_multiplies_in_bf16_and_sums_in_fp32():
    hidden, weight, target = inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = tiled_nll(hidden, weight, target)
    half = plain(hidden.bfloat16(), weight.bfloat16(), target)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(half.item(), rel=1e-3)
    gradients, wanted = (torch.autograd.grad(x, [hidden, weight]) for x in (loss, plain(hidden, weight, target)))
    for gradient, other in zip(gradients, wanted, strict=True):
        assert gradient.dtype == torch.float32
        assert (gradient - other).norm() < 0.02 * other.norm()


def test_a_batch_without_labels_has_loss_and_gradients_zero():
    hidden, weight, target = inputs()
    loss = tiled_nll(hidden, weight, torch.full_like(target, IGNORED))
    loss.backward()
    assert loss.item() == 0 and not hidden.grad.any() and not weight.grad.any()


SIZES = {
    "vocab_size": V, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 64,
}  # fmt: skip


def tied_qwen2():
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=True))


def soft_capped_gemma2():
    torch.manual_seed(0)
    return Gemma2ForCausalLM(Gemma2Config(**SIZES, final_logit_softcapping=3.0, attn_implementation="eager"))


@pytest.mark.parametrize("new_model", [tied_qwen2, soft_capped_gemma2])
def test_a_model_gives_its_own_loss_and_gradients(new_model):
    model = new_model()
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, V, (B, T), generator=generator)
    labels = ids.clone()
    labels[:, :4] = IGNORED
    wanted = model(input_ids=ids, labels=labels).loss
    wanted.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    loss = tiled_loss(model, labels, input_ids=ids) / (B * (T - 4))
    loss.backward()
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-4, atol=1e-6)
    assert model(input_ids=ids, labels=labels).loss.item() == pytest.approx(wanted.item(), rel=1e-6)


def test_the_tiled_loss_is_that_which_trl_computes_in_chunks(tmp_path):
    cpu_here()
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    model, tokenizer = loaded(method="full")
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(3, len(tokenizer), (B, T), generator=generator)
    labels = ids.clone()
    labels[0, :7] = labels[2, :9] = IGNORED
    stock = SFTTrainer(
        model,
        args=SFTConfig(
            str(tmp_path),
            loss_type="nll",
            use_cpu=True,
            report_to="none",
            dataset_kwargs={"skip_prepare_dataset": True},
        ),
        train_dataset=Dataset.from_list([{"input_ids": ids[0].tolist(), "labels": labels[0].tolist()}]),
        processing_class=tokenizer,
    )
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    theirs = stock.compute_loss(stock.model, {**inputs, "labels": labels}).item()
    ours = tiled_loss(model, labels, **inputs) / (labels[:, 1:] != IGNORED).sum()
    assert ours.item() == pytest.approx(theirs, rel=1e-5)


def test_a_copy_of_the_model_computes_with_its_own_weights():
    model = tied_qwen2()
    ids = torch.arange(3, 15)[None]
    other = copy.deepcopy(model)
    with torch.no_grad():
        model.model.norm.weight.zero_()
    assert model(input_ids=ids).logits.abs().max() == 0
    assert other(input_ids=ids).logits.abs().max() > 0
    assert tiled_loss(other, ids, input_ids=ids) != tiled_loss(model, ids, input_ids=ids)
