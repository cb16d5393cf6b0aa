"""The transformer beside the reservoir.

# V vocabulary · H hidden size · I intermediate size · L layers
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

HEAD_SIZE = 64  # of attention, where it divides H
WIDEST, STEP = 256, 16  # H at most, and what it is a multiple of
ASPECT = 16  # at least H / L: thin layers by the hundred would else meet a budget that is nearly all embedding
CLOSE = 0.005  # share of the parameters that I, a multiple of 8 for fast matrix products, may miss
TOO_MANY = 1.05


def equal_transformer(
    vocab_size: int,
    trainable: int,
    sequence_length: int,
    *,
    seed: int,
    eos_token_id: int,
) -> LlamaForCausalLM:
    """A Llama with a tied embedding and `trainable` parameters to 1 %, drawn from `seed`; the caller's generator stays as it was.

    Raises ValueError where even the smallest Llama is more than 5 % above `trainable`.
    """
    hidden_size, layers, intermediate_size = sizes(vocab_size, trainable)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=_heads(hidden_size),
        max_position_embeddings=sequence_length,
        tie_word_embeddings=True,
        use_cache=False,  # training would fill a key-value cache at every step
        bos_token_id=eos_token_id,
        eos_token_id=eos_token_id,
        pad_token_id=None,  # a padding token's embedding gets no gradient as an input; end of text needs it
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.config.pad_token_id = eos_token_id  # as the tokenizer has it
    model.generation_config.update(use_cache=True, pad_token_id=eos_token_id)
    return model


def sizes(vocab_size: int, trainable: int) -> tuple[int, int, int]:
    """H, L and I of a Llama with about `trainable` parameters.

    H is 256, or less where that left too little for two layers; as many layers as fit with I = 8 H / 3 (Touvron et al. 2023).
    """
    for H in range(WIDEST, 0, -STEP):
        layers = round((trainable - parameter_count(vocab_size, H, 0, 0)) / (12 * H * H + 2 * H))
        if layers >= 2:
            break
    L = min(max(1, layers), max(2, H // ASPECT))
    fixed = parameter_count(vocab_size, H, L, 0)
    for multiple in (8, 1):
        intermediate = max(1, round((trainable - fixed) / (3 * H * L * multiple))) * multiple
        count = parameter_count(vocab_size, H, L, intermediate)
        if abs(count - trainable) <= CLOSE * trainable:
            break
    if count > TOO_MANY * trainable:
        raise ValueError(
            f"trainable={trainable}: the smallest Llama of vocab_size={vocab_size} has {count} parameters; "
            "use a smaller vocabulary or a larger model to compare with"
        )
    return H, L, intermediate


def parameter_count(vocab_size: int, hidden_size: int, layers: int, intermediate_size: int) -> int:
    """Of a Llama with a tied embedding."""
    H = hidden_size
    return vocab_size * H + layers * (4 * H * H + 3 * H * intermediate_size + 2 * H) + H


def _heads(hidden_size: int) -> int:
    """Heads whose size divides H, is even for the rotary embedding, and is nearest to 64."""
    divisors = (heads for heads in range(1, hidden_size) if hidden_size % (2 * heads) == 0)
    return min(divisors, key=lambda heads: abs(hidden_size / heads - HEAD_SIZE))
