"""Attention and gradient checkpointing as a device needs them."""

from types import SimpleNamespace

from . import xla

SDPA_ONE_DTYPE, SDPA_REPEATED_HEADS = "sdpa_one_dtype", "sdpa_repeated_heads"
QUERY_PARTS = (
    4  # of a causal text, since XLA has no fused kernel that leaves out the later keys; eight compile for twice as long
)


def repeat_heads(model) -> None:
    """Gives a transformers model with SDPA an attention that repeats keys and values for grouped query heads.

    Below sm_80 no fused kernel takes fewer key heads than query heads, and SDPA falls back to its slow math kernel
    (huggingface/transformers#48633).
    """
    from transformers.masking_utils import sdpa_mask

    _replace_sdpa(model, SDPA_REPEATED_HEADS, _sdpa_repeated_heads, sdpa_mask)


def use_one_dtype(model) -> None:
    """Gives a transformers model with SDPA an attention that survives `torch.autocast("xla")`.

    Rotary embeddings leave queries and keys in fp32 beside bf16 values there, and SDPA refuses the mixture. Where a causal model gets
    a mask that is added, as legal's blocks have one, queries meet only the keys up to the end of their part of the text: the step of
    legal LoRA on v5e-1 moves 43.0 GiB instead of 64.3.
    """
    _replace_sdpa(model, SDPA_ONE_DTYPE, _sdpa_one_dtype, _mask_unread)


def _replace_sdpa(model, name: str, attention, mask) -> None:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    if getattr(getattr(model, "config", None), "_attn_implementation", None) == "sdpa":
        AttentionInterface.register(name, attention)
        AttentionMaskInterface.register(name, mask)
        model.set_attn_implementation(name)


def _sdpa_repeated_heads(module, query, key, value, attention_mask, **kwargs):
    from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

    groups = query.shape[1] // key.shape[1]
    module = SimpleNamespace(is_causal=getattr(module, "is_causal", True))  # it names no groups
    return sdpa_attention_forward(
        module, query, repeat_kv(key, groups), repeat_kv(value, groups), attention_mask, **kwargs
    )


def _sdpa_one_dtype(module, query, key, value, attention_mask, **kwargs):
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    query, key, tokens = query.to(value.dtype), key.to(value.dtype), query.shape[2]
    causal = attention_mask is not None and attention_mask.is_floating_point() and getattr(module, "is_causal", False)
    if not causal or key.shape[2] != tokens or tokens % QUERY_PARTS:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    parts, length = [], tokens // QUERY_PARTS
    for end in range(length, tokens + 1, length):
        part = slice(end - length, end)
        seen = key[:, :, :end], value[:, :, :end], attention_mask[:, :, part, :end]
        parts.append(sdpa_attention_forward(module, query[:, :, part], *seen, **kwargs)[0])
    return torch.cat(parts, dim=1), None


def _mask_unread(*args, attention_mask=None, **kwargs):
    """transformers' SDPA mask, without the wait in every forward pass to ask the host whether anything is masked.

    Padding is not indexed by the example, since every chip would need the whole batch for that.
    """
    from transformers.masking_utils import sdpa_mask

    if attention_mask is None:
        return sdpa_mask(*args, **kwargs)
    kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    if attention_mask.shape[1] != kwargs.get("kv_length"):
        return sdpa_mask(*args, attention_mask=attention_mask, **kwargs)
    causal = sdpa_mask(*args, **kwargs)
    return causal & attention_mask.bool()[:, None, None]


def checkpoint_activations(model, kind: str) -> None:
    """Recomputes activations in backward: transformers' way on CPU and CUDA, torch_xla's own function on XLA."""
    if kind == "xla":
        # Every mode of torch.utils.checkpoint crashes on XLA; without input gradients the reentrant one trains nothing.
        model.enable_input_require_grads()
        model._set_gradient_checkpointing(True, xla.checkpoint_function())
    elif hasattr(model, "activation_checkpointing_enable"):  # transformers 5.20 renamed it
        model.activation_checkpointing_enable()
    else:
        model.gradient_checkpointing_enable()
