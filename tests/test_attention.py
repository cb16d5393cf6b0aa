"""Attention that survives mixed dtypes, and gradient checkpointing, on a small random Llama beside the stock one."""

import copy
import json

import pytest
import torch
from transformers import LlamaForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from helpers.machine.attention import QUERY_PARTS, SDPA_ONE_DTYPE, checkpoint_activations, use_one_dtype

from .models import tiny

# B batch · H heads · T tokens · D head size


def llama() -> LlamaForCausalLM:
    return tiny("Llama", num_hidden_layers=3, attn_implementation="sdpa")


def tokens() -> torch.Tensor:
    return torch.randint(0, 50, (3, 12), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("masked", [False, True])
def test_logits_are_those_of_stock_attention_bit_for_bit(masked):
    model, mask = llama(), torch.ones(3, 12, dtype=torch.long)
    mask[0, :5] = mask[1, 9:] = 0
    inputs = {"input_ids": tokens(), "attention_mask": mask if masked else None}
    stock = model(**inputs).logits
    use_one_dtype(model)
    assert model.config._attn_implementation == SDPA_ONE_DTYPE
    assert torch.equal(model(**inputs).logits, stock)


def test_registered_attention_takes_what_stock_attention_refuses():
    model = llama()
    use_one_dtype(model)
    module = model.model.layers[0].self_attn
    module.num_key_value_groups = 1
    query, key, value = torch.randn(3, 2, 4, 10, 8, generator=torch.Generator().manual_seed(0))
    value = value.bfloat16()  # as autocast leaves them: rotary embeddings made queries and keys fp32
    with pytest.raises(RuntimeError, match="same dtype"):
        sdpa_attention_forward(module, query, key, value, None)
    output, _ = ALL_ATTENTION_FUNCTIONS[SDPA_ONE_DTYPE](module, query, key, value, None)
    assert output.dtype == torch.bfloat16
    causal = torch.full((10, 10), -torch.inf).triu(1)
    expected = ((query @ key.mT) / 8**0.5 + causal).softmax(-1) @ value.float()
    assert torch.allclose(output.float(), expected.transpose(1, 2), atol=3e-2)


def test_queries_never_meet_a_key_after_the_end_of_their_part():
    """A key and a value without numbers would be seen in the products, whatever the mask makes of them."""
    module, mask = llama().model.layers[0].self_attn, torch.full((16, 16), torch.finfo(torch.float32).min).triu(1)
    use_one_dtype(llama())
    attend, step = ALL_ATTENTION_FUNCTIONS[SDPA_ONE_DTYPE], 16 // QUERY_PARTS
    query, key, value = torch.randn(3, 2, 4, 16, 8)
    key, value = key[:, :2], value[:, :2]  # of two heads each
    whole, _ = sdpa_attention_forward(module, query, key, value, mask[None, None])
    torch.testing.assert_close(attend(module, query, key, value, mask[None, None])[0], whole)
    key[:, :, step:], value[:, :, step:] = torch.nan, torch.nan
    parts, _ = attend(module, query, key, value, mask[None, None])
    torch.testing.assert_close(parts[:, :step], whole[:, :step])
    assert parts[:, step:].isnan().all()


def test_saved_configuration_names_no_attention_that_others_lack(tmp_path):
    model = llama()
    use_one_dtype(model)
    model.save_pretrained(tmp_path)
    assert SDPA_ONE_DTYPE not in (tmp_path / "config.json").read_text()
    assert "num_hidden_layers" in json.loads((tmp_path / "config.json").read_text())
    reloaded = LlamaForCausalLM.from_pretrained(tmp_path)
    assert reloaded.config._attn_implementation == "sdpa"
    assert torch.equal(reloaded(tokens()).logits, model(tokens()).logits)


# ---- gradient checkpointing


def loss_and_gradients(model) -> tuple[torch.Tensor, list[torch.Tensor]]:
    loss = model.train()(tokens(), labels=tokens()).loss
    loss.backward()
    return loss, [parameter.grad for parameter in model.parameters()]


def test_recomputed_activations_give_the_identical_loss_and_gradients():
    plain, checkpointed = llama(), llama()
    checkpoint_activations(checkpointed, "cpu")
    torch.testing.assert_close(loss_and_gradients(plain), loss_and_gradients(checkpointed), rtol=0, atol=0)


def test_layers_before_the_first_trained_one_do_not_lose_its_gradient():
    model = llama()
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "layers.1.mlp" in name
    reference = copy.deepcopy(model)
    checkpoint_activations(model, "cpu")
    _, gradients = loss_and_gradients(model)
    _, expected = loss_and_gradients(reference)
    assert sum(gradient is not None for gradient in expected) == 3
    for left, right in zip(gradients, expected, strict=True):
        assert (left is None and right is None) or torch.equal(left, right)
