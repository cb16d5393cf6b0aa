"""Sizes and switches of a GraphMER encoder, checked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import field

from transformers import PretrainedConfig

# V vocabulary · D width · A attention heads · I hidden units of a feed-forward layer · L leaf tokens · R relations · E entity

CHOICES = {
    "positional_encoding": ("alibi", "none"),
    "norm": ("rmsnorm", "layernorm"),
    "activation": ("swiglu", "gelu"),
    "decay": ("multiplicative", "none"),
}
TERMS = ("mlm", "mnm", "triple", "contrastive", "scoring", "antisymmetry", "acyclicity")
SIZES = (
    "vocab_size",
    "num_relations",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "leaf_tokens",
    "max_head_tokens",
    "embedding_size",
)


class GraphMERConfig(PretrainedConfig):
    """Sizes, switches and weights of the loss. Raises ValueError that names what is wrong."""

    model_type = "graphmer"

    vocab_size: int = 8192  # V
    num_relations: int = 30  # R, inverse relations included; ids are 1..R, 0 is none
    hidden_size: int = 768  # D
    num_hidden_layers: int = 12
    num_attention_heads: int = 12  # A
    intermediate_size: int = 832  # I; the default model has 80.3M weights, with 3,072 the layers alone would have 113M
    dropout: float = 0.1  # on embeddings, attention weights and each layer's two updates
    positional_encoding: str = "alibi"  # of the roots; a leaf stands where it hangs
    leaf_positions: bool = True  # a learned vector a leaf slot; without, its ends are mirror images
    norm: str = "rmsnorm"
    activation: str = "swiglu"
    hgat: bool = True  # fusion of relation and head into the leaves (graph_attention.py)
    hgat_relation_bias: bool = True  # a learned vector a relation beside its matrix there
    relation_dropout: float = 0.3  # on the relations' matrices (0.3 in GraphMERT)
    relation_attention_bias: bool = True  # learned for each relation and head, between a leaf and its head's roots
    decay: str = "multiplicative"  # how graph distance enters attention (graph_attention.py)
    decay_base: float = 0.6  # in (0, 1)
    leaf_tokens: int = 7  # L
    max_head_tokens: int = 8  # H
    embedding_size: int = 256  # E, of queries and entities
    token_match: bool = True  # queries and names also meet token by token (copy_head.py)
    separator_ids: list[int] = field(default_factory=list)  # tokens that end a part of a qualified name
    break_ids: list[int] = field(default_factory=list)  # tokens of no dotted path; the dot is a separator and no break
    temperature: float = 0.07  # of both contrastive terms
    ontology_margin: float = 0.5  # mean cosine above which the triples of a forbidden cycle are penalised
    antisymmetric_relations: list[int] = field(default_factory=list)  # ids of those that the ontology says this of
    acyclic_relations: list[int] = field(default_factory=list)
    mlm_weight: float = 1.0  # of a term of the loss (objectives.py); 0 skips its computation
    mnm_weight: float = 1.0
    triple_weight: float = 0.0
    contrastive_weight: float = 0.0
    scoring_weight: float = 0.0
    antisymmetry_weight: float = 0.0
    acyclicity_weight: float = 0.0
    pad_token_id: int = 0  # token of empty places
    initializer_range: float = 0.02

    def __post_init__(self, **kwargs):
        for name, holds, must in self._checks():
            if not holds:
                raise ValueError(f"{name}={getattr(self, name)!r}: {must}")
        super().__post_init__(**kwargs)

    def _checks(self) -> Iterator[tuple[str, bool, str]]:
        """Name of a value, whether it can be, and what it must be; sizes first, since others divide by them."""
        for name in SIZES:
            yield name, getattr(self, name) >= 1, "must be at least 1"
        for name, known in CHOICES.items():
            yield name, getattr(self, name) in known, f"must be one of {', '.join(known)}"
        for name in ("dropout", "relation_dropout"):
            yield name, 0 <= getattr(self, name) < 1, "must be in [0, 1)"
        yield "decay_base", 0 < self.decay_base < 1, "must be in (0, 1)"
        yield "temperature", self.temperature > 0, "must be positive"
        yield "ontology_margin", -1 <= self.ontology_margin <= 1, "is a cosine, so it must be in [-1, 1]"
        divides = self.hidden_size % self.num_attention_heads == 0
        yield "num_attention_heads", divides, f"must divide hidden_size={self.hidden_size}"
        for name, ids in (("separator_ids", self.separator_ids), ("break_ids", self.break_ids)):
            yield name, all(0 <= number < self.vocab_size for number in ids), f"ids are in [0, {self.vocab_size})"
        yield "pad_token_id", 0 <= self.pad_token_id < self.vocab_size, f"must be in [0, {self.vocab_size})"
        for name in ("antisymmetric_relations", "acyclic_relations"):
            known = all(1 <= number <= self.num_relations for number in getattr(self, name))
            yield name, known, f"ids are 1..{self.num_relations}"
        for term, weight in self.weights().items():
            yield f"{term}_weight", 0 <= weight < math.inf, "must be finite and not negative"

    def _get_generation_parameters(self) -> dict:
        """None: transformers would refuse to save `temperature`, which is the contrastive terms' here."""
        return {}

    def weights(self) -> dict[str, float]:
        """Weight of every term of the loss."""
        return {term: getattr(self, f"{term}_weight") for term in TERMS}
