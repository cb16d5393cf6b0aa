"""Attention and gradient checkpointing as torch_xla needs them."""

from __future__ import annotations

from . import xla

SDPA_ONE_DTYPE = "sdpa_one_dtype"


def use_one_dtype(model) -> bool:
    """Gives a transformers model an SDPA attention that survives `torch.autocast("xla")`; False if it has no SDPA.

    Rotary embeddings leave queries and keys in fp32 beside bf16 values there, and SDPA refuses the mixture.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    implementation = getattr(model.config, "_attn_implementation", None)
    if implementation == "eager":
        AttentionMaskInterface.register("eager", _eager_mask_unread)
    if implementation != "sdpa":
        return False
    AttentionInterface.register(SDPA_ONE_DTYPE, _sdpa_one_dtype)
    AttentionMaskInterface.register(SDPA_ONE_DTYPE, _mask_unread)
    model.set_attn_implementation(SDPA_ONE_DTYPE)
    return True


def _sdpa_one_dtype(module, query, key, value, attention_mask, **kwargs):
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    query, key = query.to(value.dtype), key.to(value.dtype)
    return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)


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
    return sdpa_mask(*args, **kwargs) & attention_mask.bool()[:, None, None]


def _eager_mask_unread(*args, attention_mask=None, **kwargs):
    """The same for eager attention, which adds its mask."""
    import torch
    from transformers.masking_utils import eager_mask

    if attention_mask is None:
        return eager_mask(*args, **kwargs)
    seen = _mask_unread(*args, attention_mask=attention_mask, **kwargs)
    return torch.where(seen, 0.0, torch.finfo(kwargs.get("dtype", torch.float32)).min)


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
