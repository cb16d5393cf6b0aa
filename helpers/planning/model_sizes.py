"""Sizes of a real model, from its transformers configuration.

sizes, settings = decoder_sizes(AutoConfig.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct"))
"""

from __future__ import annotations

from .jobs import Sizes

BERT_LIKE = ("bert", "roberta", "xlm-roberta", "camembert", "mpnet")
GEMMA_LIKE = ("gemma3_text",)
QWEN_LIKE = ("qwen2", "qwen3", "llama", "mistral")


def encoder_sizes(config) -> tuple[Sizes, dict] | None:
    """Sizes of a transformers encoder and the settings that follow from its configuration; None for an unknown kind."""
    if config.model_type in BERT_LIKE:
        return _bert_like(config)
    return _gemma_like(config) if config.model_type in GEMMA_LIKE else None


def _bert_like(config) -> tuple[Sizes, dict]:
    """MPNet has no segments, and a number a head for each bucket of distances, which no fused kernel adds."""
    mpnet = config.model_type == "mpnet"
    attention = "eager" if mpnet else getattr(config, "_attn_implementation", None) or "sdpa"
    sizes = Sizes(
        family="bert",
        vocab=config.vocab_size,
        width=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        inner=config.intermediate_size,
        positions=config.max_position_embeddings,
        types=0 if mpnet else config.type_vocab_size,
        buckets=config.relative_attention_num_buckets if mpnet else 0,
    )
    return sizes, {"attention": attention}


def _gemma_like(config) -> tuple[Sizes, dict]:
    return _llama_like("gemma", config), {"attention": getattr(config, "_attn_implementation", None) or "sdpa"}


def decoder_sizes(config) -> tuple[Sizes, dict] | None:
    """Of a transformers decoder with Qwen2's parts, with or without its biases; None for another kind."""
    if config.model_type not in QWEN_LIKE or getattr(config, "mlp_bias", False):
        return None
    biased = ("q", "k", "v") if config.model_type == "qwen2" else ()
    if getattr(config, "attention_bias", False):
        biased = ("q", "k", "v", "o")
    settings = {"biased": biased, "tied": config.tie_word_embeddings, "head_norms": config.model_type == "qwen3"}
    return _llama_like("qwen", config), settings


def _llama_like(family: str, config) -> Sizes:
    return Sizes(
        family=family,
        vocab=config.vocab_size,
        width=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        inner=config.intermediate_size,
    )
