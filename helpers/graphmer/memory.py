"""Memory of one training step of GraphMER, from shapes: what a batch and a length need, and which batch fits.

What autograd keeps for backward is counted tensor by tensor, as `attention.py`, `hgat.py` and `objectives.py` make them.
Graph decay multiplies the logits, so attention keeps whole matrices [B, A, N, N]: they are most of a step at 768 tokens.
The entities' texts go through the same layers, as so many short sequences of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from helpers.graphmer.architecture import GraphMERConfig, parameter_count
from helpers.graphmer.configuration import Configuration
from helpers.plan import GIB, MEMORY_MARGIN

# B batch · S roots · G leaves · L leaf tokens · N = S + G L tokens · A heads · D width · I hidden units · V vocabulary
# U negatives · C tokens of an entity's text · E entity embedding · R relations · M masked roots

FP32 = 4
TILE = 8  # leaves that share a copy of their relation's matrix (`hgat.relation_product`)
OVER_TEXTS = ("contrastive", "scoring", "antisymmetry", "acyclicity", "domain_range")


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of tensors at the fullest moment of a step. `parts` add up to `total`."""

    parts: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    def __str__(self) -> str:
        rows = [*sorted(self.parts.items(), key=lambda part: -part[1]), ("total", self.total)]
        return "\n".join(f"{name:<14}{size / GIB:8.2f} GiB" for name, size in rows)


def estimate(
    config: GraphMERConfig,
    batch: int,
    roots: int,
    leaves: int,
    *,
    precision: str = "fp32",
    checkpointing: bool = False,
    kind: str = "cpu",
    masked_roots: int | None = None,
    negatives: int = 4,
    entity_tokens: int = 32,
    optimizer: str = "adamw",
    accumulation: int = 1,
) -> MemoryEstimate:
    """Memory of a step on one device, without the allocator's and the libraries' own.

    Args:
        config: the model and the weights of its loss; a term of weight 0 costs nothing.
        batch, roots, leaves: B, S and G.
        precision: "fp32", or "bf16" and "fp16" by autocast over fp32 weights.
        checkpointing: layers are recomputed in backward.
        kind: "cpu", "cuda" or "xla". Off the CPU a dropout mask is a byte a number and RMSNorm keeps its input only:
            derived from torch's kernels, not measured.
        masked_roots: M; None takes 15 % of the roots.
        negatives: U, of a leaf.
        entity_tokens: C.
        optimizer: "adamw", or "adafactor" without moments of every weight.
        accumulation: micro-batches a step; from the second on, the gradients of the first are there in forward.

    Raises ValueError: a size below 1, an unknown precision or kind.
    """
    for name, size in (("batch", batch), ("roots", roots), ("leaves", leaves), ("accumulation", accumulation)):
        if size < 1:
            raise ValueError(f"{name}={size}: must be at least 1")
    if precision not in ("fp32", "bf16", "fp16"):
        raise ValueError(f"precision={precision!r}: must be 'fp32', 'bf16' or 'fp16'")
    if kind not in ("cpu", "cuda", "xla"):
        raise ValueError(f"kind={kind!r}: must be 'cpu', 'cuda' or 'xla'")
    layer = _Layer(config, precision, kind)
    weights = FP32 * parameter_count(config)
    masked = ceil(0.15 * roots) if masked_roots is None else masked_roots
    chains = (batch, roots + leaves * config.leaf_tokens)
    texts = [(count, entity_tokens) for count in encoded_texts(config, batch * leaves, negatives)]
    hgat, scorer = _relations(config, layer, batch, leaves)
    logits, logits_backward = _logits(config, layer, batch, masked, leaves)
    # Backward goes from the texts, encoded last, over the logits to the chains, encoded first.
    kept = [layer.checkpointed(*shape) if checkpointing else layer.all_layers(*shape) for shape in (chains, *texts)]
    again = [layer.recomputed(*shape) if checkpointing else (0, 0) for shape in (chains, *texts)]
    moments = [_added(*kept[: last + 1], again[last], (scorer + logits, 0)) for last in range(len(texts), 0, -1)]
    moments += [_added(kept[0], (logits + logits_backward, 0)), _added(kept[0], again[0])]
    linear, pairs = max(moments, key=sum)
    parts = {
        "weights": weights + layer.cast_weights(checkpointing),
        "optimizer": 2 * weights if optimizer == "adamw" else 0,
        "attention": pairs + layer.shared(*chains),
        "activations": linear + hgat,
        "batch": _batch(config, batch, roots, masked, leaves, negatives, entity_tokens),
    }
    # In a first micro-batch without checkpointing, gradients come as activations go.
    going = 0 if accumulation > 1 or checkpointing else parts["attention"] + parts["activations"]
    return MemoryEstimate({**parts, "gradients": max(0, weights - going)})


def _added(*pairs: tuple[int, int]) -> tuple[int, int]:
    return sum(first for first, _ in pairs), sum(second for _, second in pairs)


def estimate_run(
    configuration: Configuration, vocab_size: int, num_relations: int, *, kind: str, precision: str
) -> MemoryEstimate:
    """Of the configuration's longest sequences and its micro-batch, on one device of a kind."""
    config = configuration.model_config(vocab_size, num_relations)
    roots, leaves = configuration.shape(configuration.training_data.max_seq_len)
    batch = configuration.training_data.micro_batch_size
    return estimate(config, batch, roots, leaves, kind=kind, precision=precision, **run_options(configuration))


def run_options(configuration: Configuration) -> dict:
    """What `estimate` and `largest_batch` take from a configuration beside the model and the shape."""
    mnm = configuration.objectives.mnm
    roots, _ = configuration.shape(configuration.training_data.max_seq_len)
    return {
        "checkpointing": configuration.checkpointing.activation_checkpointing,
        "masked_roots": ceil(configuration.objectives.mlm.mask_prob * roots),
        "negatives": mnm.type_consistent_negatives + mnm.hard_negatives,
        "entity_tokens": configuration.encoding.entity_tokens,
        "optimizer": configuration.optimizer.name,
        "accumulation": configuration.run.gradient_accumulation_steps,
    }


def largest_batch(
    config: GraphMERConfig, memory: int, roots: int, leaves: int, *, share: float = MEMORY_MARGIN, **options
) -> int:
    """The most sequences of a micro-batch whose estimate is within `share` of `memory` bytes; 0 where not one is.

    options: of `estimate`.
    """

    def fits(batch: int) -> bool:
        return estimate(config, batch, roots, leaves, **options).total <= share * memory

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


class _Layer:
    """Bytes that layers keep, for `count` sequences of `length` tokens: (what grows with tokens, with pairs of tokens)."""

    def __init__(self, config: GraphMERConfig, precision: str, kind: str):
        self.config = config
        self.size = FP32 if precision == "fp32" else 2  # of what autocast computes
        self.fused = kind != "cpu"
        self.mask = (1 if self.fused else self.size) * (config.dropout > 0)
        self.scaled = FP32 if config.norm == "rmsnorm" and not self.fused else 0

    def all_layers(self, count: int, length: int) -> tuple[int, int]:
        linear, pairs = self.one_layer(count, length)
        layers = self.config.num_hidden_layers
        return layers * linear + self.ends(count, length), layers * pairs

    def checkpointed(self, count: int, length: int) -> tuple[int, int]:
        """Each layer's input, and the bias that all of them hold on to."""
        inputs = self.config.num_hidden_layers * count * length * self.config.hidden_size * FP32
        return inputs + self.ends(count, length), FP32 * self.matrix(count, length)

    def recomputed(self, count: int, length: int) -> tuple[int, int]:
        """One layer, and the gradients of two of its matrices."""
        linear, pairs = self.one_layer(count, length)
        return linear, pairs + 2 * FP32 * self.matrix(count, length)

    def one_layer(self, count: int, length: int) -> tuple[int, int]:
        """Norms, residuals, q, k, v and their mix, two dropouts, feed-forward; and attention's matrices.

        The matrices: logits, their softmax, what dropout leaves of it, and dropout's mask. Without decay, or with the
        additive one, they are SDPA's: fp32 on the CPU, none where its kernel is fused.
        """
        config, size = self.config, self.size
        ours = config.decay == "multiplicative"
        inward = size if ours or self.fused else FP32  # q, k, v
        width = 2 * (self.scaled + size + FP32) + 3 * inward + size + 2 * self.mask
        hidden = (4 if config.activation == "swiglu" else 2) * size
        linear = count * length * (config.hidden_size * width + config.intermediate_size * hidden)
        if not ours:
            return linear, 0 if self.fused else (2 + (config.dropout > 0)) * FP32 * self.matrix(count, length)
        left = size if config.dropout or size < FP32 else 0
        return linear, (2 * FP32 + left + self.mask) * self.matrix(count, length)

    def matrix(self, count: int, length: int) -> int:
        """Numbers of one [B, A, N, N]."""
        return count * self.config.num_attention_heads * length**2

    def shared(self, count: int, length: int) -> int:
        """Decay of the roots' and leaves' distances, once for all layers."""
        return 0 if self.config.decay == "none" else 2 * FP32 * self.matrix(count, length)

    def ends(self, count: int, length: int) -> int:
        """Embeddings, first and last norm, states."""
        return count * length * self.config.hidden_size * (2 * self.scaled + 4 * FP32 + self.mask)

    def cast_weights(self, checkpointing: bool) -> int:
        """Copies of the matrices that autocast makes: once a forward pass, of a checkpointed layer while it is recomputed."""
        config = self.config
        D, E = config.hidden_size, config.embedding_size
        feed_forward = (3 if config.activation == "swiglu" else 2) * D * config.intermediate_size
        layers = 1 if checkpointing else config.num_hidden_layers
        matrices = layers * (4 * D * D + feed_forward) + config.vocab_size * D + 2 * D * E
        return matrices * self.size if self.size < FP32 else 0


def encoded_texts(config: GraphMERConfig, leaves: int, negatives: int) -> list[int]:
    """Texts of entities that a batch of so many leaves encodes: tails, wrong tails, heads."""
    wanted = {name for name in OVER_TEXTS if config.weights()[name]}
    texts = [leaves] if wanted else []
    if negatives and wanted & {"contrastive", "scoring"}:
        texts.append(leaves * negatives)
    return [*texts, leaves] if wanted & {"scoring", "antisymmetry", "acyclicity"} else texts


def _relations(config: GraphMERConfig, layer: _Layer, batch: int, leaves: int) -> tuple[int, int]:
    """Of H-GAT and of the scorer: copies of relations' matrices for tiles of leaves, and dropout's of all."""
    D, E, R, triples = config.hidden_size, config.embedding_size, config.num_relations, batch * leaves
    tiles, hgat = ceil(triples / TILE) + R, 0
    if config.hgat:
        dropped = FP32 + (1 if layer.fused else FP32) if config.relation_dropout else 0
        cast = layer.size if layer.size < FP32 else 0
        slots = 4 * config.leaf_tokens + 2 * config.max_head_tokens
        hgat = tiles * D * D * layer.size + R * D * D * (dropped + cast) + triples * slots * D * FP32
    scored = {name for name in ("scoring", "antisymmetry", "acyclicity") if config.weights()[name]}
    products = bool(scored) + bool(scored & {"antisymmetry", "acyclicity"}) + 2 * ("acyclicity" in scored)
    return hgat, products * tiles * E * (E + 2 * TILE) * layer.size


def _logits(config: GraphMERConfig, layer: _Layer, batch: int, masked: int, leaves: int) -> tuple[int, int]:
    """Over the vocabulary, at masked roots and at leaf slots; and what their backward takes beside them.

    Under autocast each use of them makes its own fp32 copy.
    """
    weights = config.weights()
    uses = bool(weights["mnm"]) + bool(weights["mnm_ranking"])
    slots, masked = leaves * config.leaf_tokens * bool(uses), masked * bool(weights["mlm"])
    number = batch * config.vocab_size * FP32
    return number * (masked + slots * (min(uses, 1) if layer.size == FP32 else uses)), 3 * number * max(slots, masked)


def _batch(config: GraphMERConfig, batch: int, roots: int, masked: int, leaves: int, negatives: int, text: int) -> int:
    """The collator's tensors, all int64 but for known_BGX."""
    leaf = 6 + config.leaf_tokens * (2 + negatives) + text * (2 + negatives)
    return batch * (8 * (3 * roots + 2 * masked + leaves * leaf) + leaves * batch * leaves)
