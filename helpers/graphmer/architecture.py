"""Sizes and switches of a GraphMER encoder, checked, and how many weights they make."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PretrainedConfig

# V vocabulary · D width · A attention heads · I hidden units of a feed-forward layer · L leaf tokens · R relations · E entity

POSITIONS = ("alibi", "rotary", "none")
NORMS = ("rmsnorm", "layernorm")
ACTIVATIONS = ("swiglu", "gelu")
MATCH_KEY = 64  # width in which a leaf finds the roots that it copies
MATCH_PAIRS = 2**14  # numbers that pairs of neighbouring tokens are hashed into there
DECAYS = ("multiplicative", "additive", "none")
TERMS = (
    "mlm",
    "mnm",
    "mnm_ranking",
    "triple",
    "contrastive",
    "scoring",
    "antisymmetry",
    "acyclicity",
    "domain_range",
)


class GraphMERConfig(PretrainedConfig):
    """Sizes, switches and weights of the loss.

    Args:
        vocab_size, pad_token_id: V, and the token of empty places.
        num_relations: R, inverse relations included; ids are 1..R, 0 is none.
        hidden_size, num_hidden_layers, num_attention_heads: D, layers, A.
        intermediate_size: I. With 832 the default model has 80.3M weights; 3,072 with SwiGLU would be 113M in the layers alone.
        dropout: on embeddings, attention weights and each layer's two updates.
        positional_encoding: "alibi" or "rotary" on the roots (a leaf stands where it hangs), or "none".
        leaf_positions: a learned vector a leaf slot. Without, the two ends of a leaf are mirror images by graph distance.
        norm, activation: "rmsnorm" or "layernorm", "swiglu" or "gelu".
        hgat: fusion of relation and head into the leaves (`hgat.py`).
        hgat_relation_bias: a learned vector a relation beside its matrix there.
        relation_dropout: on the relations' matrices (0.3 in GraphMERT).
        relation_attention_bias: a learned bias a relation and head between a leaf and its head's roots.
        decay, decay_base: how graph distance enters attention (`decay.py`); the base is in (0, 1).
        leaf_tokens, max_head_tokens: L and H.
        embedding_size: E, of queries and entities.
        token_match: queries and names also meet token by token (`token_match.py`).
        separator_ids: tokens that end a part of a qualified name; its last two parts are matched apart from the rest.
        break_ids: tokens that are of no dotted path; the dot is a separator and no break.
        temperature: of both contrastive terms.
        ontology_margin: mean cosine above which the triples of a forbidden cycle are penalised.
        antisymmetric_relations, acyclic_relations: ids of the relations that the ontology says this of.
        relation_ranges: for each relation 1..R the numbers of the types that its tails may have; empty admits all.
        <term>_weight: of each term of the loss (`objectives.py`); 0 skips its computation.

    Raises:
        ValueError: names what is wrong.
    """

    model_type = "graphmer"

    def __init__(
        self,
        vocab_size: int = 8192,
        num_relations: int = 30,
        hidden_size: int = 768,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 12,
        intermediate_size: int = 832,
        dropout: float = 0.1,
        positional_encoding: str = "alibi",
        leaf_positions: bool = True,
        norm: str = "rmsnorm",
        activation: str = "swiglu",
        hgat: bool = True,
        hgat_relation_bias: bool = True,
        relation_dropout: float = 0.3,
        relation_attention_bias: bool = True,
        decay: str = "multiplicative",
        decay_base: float = 0.6,
        leaf_tokens: int = 7,
        max_head_tokens: int = 8,
        embedding_size: int = 256,
        token_match: bool = True,
        separator_ids: Sequence[int] = (),
        break_ids: Sequence[int] = (),
        temperature: float = 0.07,
        ontology_margin: float = 0.5,
        antisymmetric_relations: Sequence[int] = (),
        acyclic_relations: Sequence[int] = (),
        relation_ranges: Sequence[Sequence[int]] = (),
        mlm_weight: float = 1.0,
        mnm_weight: float = 1.0,
        mnm_ranking_weight: float = 0.0,
        triple_weight: float = 0.0,
        contrastive_weight: float = 0.0,
        scoring_weight: float = 0.0,
        antisymmetry_weight: float = 0.0,
        acyclicity_weight: float = 0.0,
        domain_range_weight: float = 0.0,
        pad_token_id: int = 0,
        initializer_range: float = 0.02,
        **kwargs,
    ):
        at_least_one = {
            "vocab_size": vocab_size,
            "num_relations": num_relations,
            "hidden_size": hidden_size,
            "num_hidden_layers": num_hidden_layers,
            "num_attention_heads": num_attention_heads,
            "intermediate_size": intermediate_size,
            "leaf_tokens": leaf_tokens,
            "max_head_tokens": max_head_tokens,
            "embedding_size": embedding_size,
        }
        for name, value in at_least_one.items():
            if value < 1:
                raise ValueError(f"{name}={value}: must be at least 1")
        for name, value, known in (
            ("positional_encoding", positional_encoding, POSITIONS),
            ("norm", norm, NORMS),
            ("activation", activation, ACTIVATIONS),
            ("decay", decay, DECAYS),
        ):
            if value not in known:
                raise ValueError(f"{name}={value!r}: must be one of {', '.join(known)}")
        for name, share in (("dropout", dropout), ("relation_dropout", relation_dropout)):
            if not 0 <= share < 1:
                raise ValueError(f"{name}={share}: must be in [0, 1)")
        if not 0 < decay_base < 1:
            raise ValueError(f"decay_base={decay_base}: must be in (0, 1)")
        if not temperature > 0:
            raise ValueError(f"temperature={temperature}: must be positive")
        if not -1 <= ontology_margin <= 1:
            raise ValueError(f"ontology_margin={ontology_margin}: is a cosine, so it must be in [-1, 1]")
        if hidden_size % num_attention_heads:
            raise ValueError(f"num_attention_heads={num_attention_heads}: must divide hidden_size={hidden_size}")
        if positional_encoding == "rotary" and hidden_size // num_attention_heads % 2:
            raise ValueError(
                f"positional_encoding='rotary': a head has {hidden_size // num_attention_heads} dimensions, which must be even"
            )
        for name, ids in (("separator_ids", separator_ids), ("break_ids", break_ids)):
            if wrong := [number for number in ids if not 0 <= number < vocab_size]:
                raise ValueError(f"{name}={list(ids)}: {wrong} are no tokens; ids are in [0, {vocab_size})")
        if not 0 <= pad_token_id < vocab_size:
            raise ValueError(f"pad_token_id={pad_token_id}: must be in [0, {vocab_size})")
        for name, ids in (
            ("antisymmetric_relations", antisymmetric_relations),
            ("acyclic_relations", acyclic_relations),
        ):
            if wrong := [number for number in ids if not 1 <= number <= num_relations]:
                raise ValueError(f"{name}={list(ids)}: {wrong} are no relations; ids are 1..{num_relations}")
        if relation_ranges and len(relation_ranges) != num_relations:
            raise ValueError(f"relation_ranges: has {len(relation_ranges)} lists for {num_relations} relations")
        if any(number < 0 for numbers in relation_ranges for number in numbers):
            raise ValueError("relation_ranges: numbers of types must not be negative")
        self.vocab_size = vocab_size
        self.num_relations = num_relations
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size
        self.dropout = dropout
        self.positional_encoding = positional_encoding
        self.leaf_positions = leaf_positions
        self.norm = norm
        self.activation = activation
        self.hgat = hgat
        self.hgat_relation_bias = hgat_relation_bias
        self.relation_dropout = relation_dropout
        self.relation_attention_bias = relation_attention_bias
        self.decay = decay
        self.decay_base = decay_base
        self.leaf_tokens = leaf_tokens
        self.max_head_tokens = max_head_tokens
        self.embedding_size = embedding_size
        self.token_match = token_match
        self.separator_ids = list(separator_ids)
        self.break_ids = list(break_ids)
        self.temperature = temperature
        self.ontology_margin = ontology_margin
        self.antisymmetric_relations = list(antisymmetric_relations)
        self.acyclic_relations = list(acyclic_relations)
        self.relation_ranges = [list(numbers) for numbers in relation_ranges]
        self.mlm_weight = mlm_weight
        self.mnm_weight = mnm_weight
        self.mnm_ranking_weight = mnm_ranking_weight
        self.triple_weight = triple_weight
        self.contrastive_weight = contrastive_weight
        self.scoring_weight = scoring_weight
        self.antisymmetry_weight = antisymmetry_weight
        self.acyclicity_weight = acyclicity_weight
        self.domain_range_weight = domain_range_weight
        for term, weight in self.weights().items():
            if not 0 <= weight < float("inf"):
                raise ValueError(f"{term}_weight={weight}: must be finite and not negative")
        self.initializer_range = initializer_range
        super().__init__(pad_token_id=pad_token_id, **kwargs)

    def _get_generation_parameters(self) -> dict:
        """None: transformers would refuse to save `temperature`, which is the contrastive terms' here."""
        return {}

    def weights(self) -> dict[str, float]:
        """Weight of every term of the loss."""
        return {term: getattr(self, f"{term}_weight") for term in TERMS}


def parameter_count(config: GraphMERConfig) -> int:
    """Trained weights of `GraphMERForPreTraining(config)`, without making it."""
    D, R, E = config.hidden_size, config.num_relations, config.embedding_size
    norm = D if config.norm == "rmsnorm" else 2 * D
    layer = 4 * D * D + _feed_forward_matrices(config) * D * config.intermediate_size + 2 * norm
    count = config.vocab_size * (D + 1) + 2 * norm + config.num_hidden_layers * layer
    count += config.leaf_tokens * D * config.leaf_positions
    if config.hgat:
        count += R * D * (D + 2 + config.hgat_relation_bias)
    count += R * config.num_attention_heads * config.relation_attention_bias
    count += config.num_attention_heads * (config.decay != "none")
    if config.token_match:
        count += token_match_parameters(config.vocab_size, D)
    return count + 2 * D * E + R * E * E + D + 1


def token_match_parameters(vocab_size: int, hidden_size: int) -> int:
    """Trained weights of `token_match.TokenMatch`: linear maps and vectors of three fields, of pairs and of three paths."""
    linear = (3 * hidden_size + 2 * 7 * MATCH_KEY) * (hidden_size + 1)
    return linear + 2 * vocab_size + MATCH_PAIRS + 2 * 7


def fitting_intermediate_size(config: GraphMERConfig, total: int = 80_000_000) -> int:
    """The I, a multiple of 64, with which `config` comes closest to `total` weights.

    Raises ValueError: everything else is more than that already.
    """
    unit = 64 * _feed_forward_matrices(config) * config.hidden_size * config.num_hidden_layers
    rest = parameter_count(config) - unit * config.intermediate_size // 64
    units = round((total - rest) / unit)
    if units < 1:
        raise ValueError(f"total={total:,}: all but the feed-forward layers are {rest:,}; lower hidden_size or layers")
    return 64 * units


def _feed_forward_matrices(config: GraphMERConfig) -> int:
    return 3 if config.activation == "swiglu" else 2
