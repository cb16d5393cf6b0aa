"""GraphMER: one transformer over the tokens of code and over the triples of its knowledge graph.

Tokens of a text in a row are the roots. A triple (head, relation, tail) hangs as a leaf at the root where its head is named: the leaf
holds the tokens of the tail. This is a leafy chain (GraphMERT, arXiv 2510.09580; written from its formulas).

    leaf      t <- t + sum_j alpha_j W_r h_j + b_r                 H-GAT: relation r and head tokens h flow into the tail's tokens
    logits    f(distance) q.k / sqrt(d) + ALiBi + bias_r           f decays with the distance in the chain, bias_r joins leaf and head
    loss      masked tokens + masked leaves + the right tail among wrong ones + what the ontology forbids

# B batch · S roots · G leaves · L leaf tokens · K = G L · N = S + K tokens · H head tokens · D width · A attention heads
# M masked roots · U wrong tails of a leaf · C tokens of an entity's text · E entity embedding · R relations · P = B G
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForPreTraining, PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import ModelOutput

IGNORED = -100  # label of what is not asked for
MASKED = -3e4  # as a logit: no weight in any dtype, and no infinity that would make NaN of a row of padding
MARGIN = 0.5  # mean cosine of the triples of a forbidden cycle that is let pass


class GraphMERConfig(PretrainedConfig):
    """Sizes, switches and weights of the loss; `configuration.py` says what may be. A part whose weight is 0 is not built."""

    model_type = "graphmer"

    vocab_size: int = 8192
    num_relations: int = 30  # inverse relations included; ids are 1..R
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 984  # with the other defaults 80M weights
    dropout: float = 0.1
    positional_encoding: str = "alibi"  # or none
    norm: str = "rmsnorm"  # or layernorm
    activation: str = "swiglu"  # or gelu
    hgat: bool = True
    hgat_relation_bias: bool = True
    relation_dropout: float = 0.3  # of relation matrices, as in GraphMERT
    relation_attention_bias: bool = True
    decay_base: float = 0.6  # factor for a unit of distance, in (0, 1)
    leaf_tokens: int = 7
    max_head_tokens: int = 8
    embedding_size: int = 256
    contrastive_temperature: float = 0.07
    antisymmetric_relations: list[int] = field(default_factory=list)
    acyclic_relations: list[int] = field(default_factory=list)
    contrastive_weight: float = 1.0
    triple_weight: float = 0.0  # whether a shown leaf is true
    scoring_weight: float = 0.0  # the tail from head and relation by names; what the next two need
    antisymmetry_weight: float = 0.0
    acyclicity_weight: float = 0.0
    pad_token_id: int = 0
    initializer_range: float = 0.02

    def weights(self) -> dict[str, float]:
        """Weight of every term of the loss that is not 0."""
        terms = ("triple", "contrastive", "scoring", "antisymmetry", "acyclicity")
        found = {"mlm": 1.0, "mnm": 1.0} | {term: getattr(self, f"{term}_weight") for term in terms}
        return {term: weight for term, weight in found.items() if weight}


@dataclass
class GraphMEROutput(ModelOutput):
    """loss and its unweighted terms (None without labels), root_states [B, S, D], leaf_states [B, G, L, D]."""

    loss: torch.Tensor | None = None
    terms: dict[str, torch.Tensor] | None = None
    root_states: torch.Tensor | None = None
    leaf_states: torch.Tensor | None = None


# ---- what the graph brings into attention


def distances(root_count: int, head_start_BG: torch.Tensor, leaf_tokens: int) -> torch.Tensor:
    """Length of the shortest path between any two tokens of a leafy chain, int32 [B, N, N].

    Neighbouring roots are joined, each slot of a leaf is joined to its root, and neighbouring slots are: roots are |i-j| apart, a root
    and a slot |i-r|+1, slots of two leaves |r-q|+2, slots of one leaf at most 2.
    """
    (B, G), S, L = head_start_BG.shape, root_count, leaf_tokens
    token_N = torch.arange(S + G * L, device=head_start_BG.device, dtype=torch.int32)
    is_slot_N, leaf_N = token_N >= S, (token_N - S).div(L, rounding_mode="floor")
    slot_N = token_N - S - leaf_N * L
    root_BN = torch.cat([token_N[:S].expand(B, S), head_start_BG.to(torch.int32).repeat_interleave(L, dim=1)], dim=1)
    steps_NN = is_slot_N[:, None].to(torch.int32) + is_slot_N
    apart_BNN = (root_BN[:, :, None] - root_BN[:, None, :]).abs() + steps_NN
    one_leaf_NN = (leaf_N[:, None] == leaf_N) & is_slot_N[:, None]
    return torch.where(one_leaf_NN, (slot_N[:, None] - slot_N).abs().clamp(max=2), apart_BNN)


class Decay(nn.Module):
    """f = base ^ GELU(sqrt(d + 1) - p), with an offset p that each attention head learns; it multiplies the logits."""

    def __init__(self, heads: int, base: float):
        super().__init__()
        self.base, self.offset = base, nn.Parameter(torch.ones(heads))

    def forward(self, distance_BNN: torch.Tensor) -> torch.Tensor:
        """[B, A, N, N] in fp32."""
        shifted = torch.sqrt(distance_BNN.float() + 1)[:, None] - self.offset.float()[:, None, None]
        return torch.exp(math.log(self.base) * nn.functional.gelu(shifted))


def alibi(position_BN: torch.Tensor, heads: int) -> torch.Tensor:
    """-m |i - j| [B, A, N, N] with slopes m = 2^(-8 a / A) (arXiv 2108.12409).

    Keys after the query cost double in even heads and keys before it in odd ones: an encoder has to tell left from right.
    """
    order_A = torch.arange(heads, device=position_BN.device)
    slope_A11 = torch.exp(-8.0 * math.log(2) * (order_A + 1) / heads)[:, None, None]  # torch_xla runs exp2 on the host
    ahead_BNN = (position_BN[:, None, :] - position_BN[:, :, None]).float()[:, None]
    against = torch.where((order_A % 2 == 0)[:, None, None], ahead_BNN, -ahead_BNN).clamp(min=0)
    return -slope_A11 * (ahead_BNN.abs() + against)


def segment_bias(segment_BN: torch.Tensor) -> torch.Tensor:
    """[B, 1, N, N]: 0 within a document of a packed sequence, `MASKED` between documents and at padding."""
    same_BNN = (segment_BN[:, :, None] == segment_BN[:, None, :]) & (segment_BN > 0)[:, None, :]
    return torch.where(same_BNN, 0.0, MASKED)[:, None]


class RelationBias(nn.Module):
    """A learned number for each relation and attention head, on the logits between a leaf and the roots of its head."""

    def __init__(self, relations: int, heads: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(relations, heads))

    def forward(self, roots: int, L: int, relation_BG, head_start_BG, head_length_BG) -> torch.Tensor:
        """[B, A, N, N]; 0 everywhere else."""
        bias_BGA = nn.functional.embedding((relation_BG - 1).clamp(min=0), self.weight) * (relation_BG > 0)[..., None]
        offset_BGS = torch.arange(roots, device=relation_BG.device) - head_start_BG[..., None]
        head_BGS = (offset_BGS >= 0) & (offset_BGS < head_length_BG[..., None])
        bias_BAKS = (bias_BGA.transpose(1, 2)[..., None] * head_BGS[:, None]).repeat_interleave(L, dim=2)
        upward = nn.functional.pad(bias_BAKS, (0, bias_BAKS.shape[2], roots, 0))
        return upward + upward.transpose(-1, -2)


class HGAT(nn.Module):
    """Hierarchical graph attention: relation and head flow into the leaves before the first layer.

        e_lj = LeakyReLU(a_r . [W_r t_l ; W_r h_j])    alpha_l = softmax_j(e_lj)    t_l <- t_l + sum_j alpha_lj W_r h_j + b_r

    By linearity W_r^T a_r acts on tokens, and W_r on the L weighted sums of a leaf's head tokens: no other token is projected.
    """

    def __init__(self, relations: int, width: int, *, bias: bool, dropout: float):
        super().__init__()
        self.dropout, self.weight = dropout, nn.Parameter(torch.empty(relations, width, width))
        self.attention = nn.Parameter(torch.empty(relations, 2, width))  # a_r: its half for tails and that for heads
        self.bias = nn.Parameter(torch.empty(relations, width)) if bias else None

    def forward(self, leaf_BGLD, head_BGHD, head_mask_BGH, relation_BG) -> torch.Tensor:
        """What is added to the leaves [B, G, L, D]; 0 where there is no relation or no head token."""
        weight_RDD = nn.functional.dropout(self.weight, self.dropout, self.training)
        attention_R2D = nn.functional.dropout(self.attention, self.dropout, self.training)
        index_BG = (relation_BG - 1).clamp(min=0)
        query_R2D = (attention_R2D @ weight_RDD).flatten(1)
        query_BG2D = nn.functional.embedding(index_BG, query_R2D).unflatten(-1, (2, -1))
        tail_BGL = (leaf_BGLD * query_BG2D[:, :, :1]).sum(-1)
        head_BGH = (head_BGHD * query_BG2D[:, :, 1:]).sum(-1)
        score_BGLH = nn.functional.leaky_relu(tail_BGL[..., None] + head_BGH[:, :, None], 0.01)
        score_BGLH = score_BGLH.masked_fill(~head_mask_BGH[:, :, None], torch.finfo(score_BGLH.dtype).min)
        alpha_BGLH = torch.softmax(score_BGLH, dim=-1).to(head_BGHD.dtype)
        sums_PLD = (alpha_BGLH @ head_BGHD).flatten(0, 1)
        update_BGLD = relation_product(sums_PLD, index_BG.flatten(), weight_RDD).view(leaf_BGLD.shape)
        if self.bias is not None:
            update_BGLD = update_BGLD + nn.functional.embedding(index_BG, self.bias)[:, :, None]
        return update_BGLD * ((relation_BG > 0) & head_mask_BGH.any(dim=-1))[:, :, None, None]


def relation_product(vectors_PLD: torch.Tensor, relation_P: torch.Tensor, weight_RDD: torch.Tensor) -> torch.Tensor:
    """W_r v for each of the L vectors of each leaf [P, L, D]; relations from 0.

    A copy of W_r for each leaf would be P D^2 numbers. All R products have shapes that depend on no value: XLA compiles them once.
    """
    total_PLD = torch.zeros_like(vectors_PLD)
    for relation, weight_DD in enumerate(weight_RDD.unbind()):
        total_PLD = total_PLD + (vectors_PLD @ weight_DD.T) * (relation_P == relation)[:, None, None]
    return total_PLD


# ---- the transformer


def new_norm(config: GraphMERConfig) -> nn.Module:
    return (nn.RMSNorm if config.norm == "rmsnorm" else nn.LayerNorm)(config.hidden_size, eps=1e-6)


class Attention(nn.Module):
    def __init__(self, config: GraphMERConfig):
        super().__init__()
        self.heads, self.dropout = config.num_attention_heads, config.dropout
        self.inward = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.outward = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x_BND, decay_BANN, bias_BANN):
        """softmax(decay q.k / sqrt(D / A) + bias) v. No library's attention has a factor on the logits."""
        B, N, D = x_BND.shape
        query, key, value = self.inward(x_BND).view(B, N, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        logits = (query * (D // self.heads) ** -0.5) @ key.transpose(-1, -2)
        share = torch.softmax(logits * decay_BANN + bias_BANN, dim=-1).to(value.dtype)  # the decay makes it fp32
        mixed = nn.functional.dropout(share, self.dropout, self.training) @ value
        return self.outward(mixed.transpose(1, 2).reshape(B, N, D))


class FeedForward(nn.Module):
    def __init__(self, config: GraphMERConfig):
        super().__init__()
        self.gated, hidden = config.activation == "swiglu", config.intermediate_size
        self.up = nn.Linear(config.hidden_size, 2 * hidden if self.gated else hidden, bias=False)
        self.down = nn.Linear(hidden, config.hidden_size, bias=False)

    def forward(self, x_BND):
        if not self.gated:
            return self.down(nn.functional.gelu(self.up(x_BND)))
        value, gate = self.up(x_BND).chunk(2, dim=-1)
        return self.down(nn.functional.silu(gate) * value)


class Layer(GradientCheckpointingLayer):
    """A pre-norm transformer layer; its activations may be computed again in the backward pass."""

    def __init__(self, config: GraphMERConfig):
        super().__init__()
        self.attention_norm, self.feed_forward_norm = new_norm(config), new_norm(config)
        self.attention, self.feed_forward = Attention(config), FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BND, decay, bias):  # positional: reentrant checkpointing gives keyword arguments no gradient
        x_BND = x_BND + self.dropout(self.attention(self.attention_norm(x_BND), decay, bias))
        return x_BND + self.dropout(self.feed_forward(self.feed_forward_norm(x_BND)))


class GraphMERPreTrainedModel(PreTrainedModel):
    config_class = GraphMERConfig
    base_model_prefix = "encoder"
    main_input_name = "root_ids"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = False  # the loss is a mean: a trainer divides it by its accumulation steps
    _no_split_modules = ("Layer",)
    _input_embed_layer = "embedding"

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | HGAT | TripleScorer):
            nn.init.normal_(module.weight, std=module.weight.shape[-1] ** -0.5)
        elif isinstance(module, nn.Embedding | RelationBias):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        else:
            super()._init_weights(module)  # norms
        if isinstance(module, HGAT):
            nn.init.normal_(module.attention)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=self.config.initializer_range)
        elif getattr(module, "bias", None) is not None:
            nn.init.zeros_(module.bias)


class GraphMERModel(GraphMERPreTrainedModel):
    """The encoder without heads."""

    _keys_to_ignore_on_load_unexpected = ["forbidden_2R", "token_bias", "query_head", "entity_head"]  # noqa: RUF012

    def __init__(self, config: GraphMERConfig):
        super().__init__(config)
        D, A, R = config.hidden_size, config.num_attention_heads, config.num_relations
        self.embedding = nn.Embedding(config.vocab_size, D)
        self.leaf_embedding = nn.Embedding(config.leaf_tokens, D)  # the order of a leaf's tokens
        self.hgat = HGAT(R, D, bias=config.hgat_relation_bias, dropout=config.relation_dropout) if config.hgat else None
        self.relation_bias = RelationBias(R, A) if config.relation_attention_bias else None
        self.decay = Decay(A, config.decay_base)
        self.embedding_norm, self.norm = new_norm(config), new_norm(config)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.post_init()

    def forward(self, **batch: torch.Tensor) -> GraphMEROutput:
        """States of roots [B, S, D] and leaves [B, G, L, D], 0 at padding; segment 0 and relation 0 are padding."""
        root_ids, root_segments, root_positions = (batch[f"root_{name}"] for name in ("ids", "segments", "positions"))
        leaf_ids, leaf_segments, relation_ids = batch["leaf_ids"], batch["leaf_segments"], batch["relation_ids"]
        head_start, head_length = batch["head_start"], batch["head_length"]
        (B, S), (G, L) = root_ids.shape, leaf_ids.shape[1:]
        there_BGL = (leaf_segments > 0)[..., None] & (leaf_ids != self.config.pad_token_id)
        segment_BN = torch.cat((root_segments, (leaf_segments[..., None] * there_BGL).flatten(1)), dim=1)
        hanging_BG = root_positions.gather(1, head_start)
        position_BN = torch.cat((root_positions, hanging_BG.repeat_interleave(L, dim=1)), dim=1)
        leaves_BGLD = self._leaves(leaf_ids, root_ids, relation_ids, head_start, head_length)
        bias = segment_bias(segment_BN)
        if self.relation_bias is not None:
            bias = bias + self.relation_bias(S, L, relation_ids, head_start, head_length)
        x_BND = torch.cat((self.embedding(root_ids), leaves_BGLD.flatten(1, 2)), dim=1)
        states_BND = self._encode(x_BND, position_BN, distances(S, head_start, L), bias)
        states_BND = states_BND * (segment_BN > 0)[..., None]
        return GraphMEROutput(root_states=states_BND[:, :S], leaf_states=states_BND[:, S:].reshape(B, G, L, -1))

    def encode_text(self, text_ids: torch.Tensor) -> torch.Tensor:
        """Mean state [..., D] of texts [..., C] of their own, without leaves; 0 for an empty one."""
        ids_PC = text_ids.flatten(0, -2)
        there_PC = ids_PC != self.config.pad_token_id
        position_1C = torch.arange(ids_PC.shape[1], device=ids_PC.device)[None]
        distance_1CC = (position_1C[:, :, None] - position_1C[:, None]).abs()
        states_PCD = self._encode(self.embedding(ids_PC), position_1C, distance_1CC, segment_bias(there_PC.long()))
        total_PD = (states_PCD * there_PC[..., None]).sum(1)
        return (total_PD / there_PC.sum(1).clamp(min=1)[:, None]).view(*text_ids.shape[:-1], -1)

    def _leaves(self, leaf_ids, root_ids, relation_ids, head_start, head_length) -> torch.Tensor:
        leaves_BGLD = self.embedding(leaf_ids)
        if self.hgat is not None:
            order_H = torch.arange(self.config.max_head_tokens, device=leaf_ids.device)
            place_BGH = (head_start[..., None] + order_H).clamp(max=root_ids.shape[1] - 1)
            # Looked up again, not gathered from the roots' vectors: XLA would send those of every chip to all.
            heads_BGHD = self.embedding(root_ids.gather(1, place_BGH.flatten(1)).view_as(place_BGH))
            there_BGH = order_H < head_length[..., None]
            leaves_BGLD = leaves_BGLD + self.hgat(leaves_BGLD, heads_BGHD, there_BGH, relation_ids)
        return leaves_BGLD + self.leaf_embedding.weight

    def _encode(self, x_BND, position_BN, distance_BNN, bias) -> torch.Tensor:
        """The layers; everything about pairs of tokens is computed once for all of them."""
        if self.config.positional_encoding == "alibi":
            bias = bias + alibi(position_BN, self.config.num_attention_heads)
        decay, x_BND = self.decay(distance_BNN), self.dropout(self.embedding_norm(x_BND))
        for layer in self.layers:
            x_BND = layer(x_BND, decay, bias)
        return self.norm(x_BND)


# ---- the loss. All shapes are static: what does not count is multiplied by 0, never indexed away.


def mean_where(values: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    """Mean of the values that count, 0 where none does."""
    return (values * counted).sum() / counted.sum().to(values.dtype).clamp(min=1)


def unit(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.normalize(x.float() if x.dtype != torch.float64 else x, dim=-1)


def token_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in nats of logits [..., V] where labels [...] are not -100."""
    chosen = logits.gather(-1, labels.clamp(min=0)[..., None]).squeeze(-1).float()
    return mean_where(torch.logsumexp(logits.float(), dim=-1) - chosen, labels != IGNORED)


def contrastive_loss(queries_BGE, counted_BG, tails_BGE, wrong_BGUE, wrong_BGU, entities_BG, known_BGX, temperature):
    """InfoNCE: the right tail among the tails of the whole batch and a leaf's own wrong ones (None: there are none).

    No candidates are tails without an entity, other copies of the right one, and tails that are known to be right as well.
    """
    entities_P = entities_BG.flatten()
    scores_PX = (queries_BGE.flatten(0, 1) @ tails_BGE.flatten(0, 1).T).float() / temperature
    true_P = scores_PX.diagonal()
    own_PX = torch.eye(len(entities_P), dtype=torch.bool, device=entities_P.device)
    excluded_PX = (entities_P < 0) | (entities_P[:, None] == entities_P) | known_BGX.flatten(0, 1)
    scores_PX = scores_PX.masked_fill(excluded_PX & ~own_PX, MASKED)
    if wrong_BGUE is not None:
        wrong_PU = ((wrong_BGUE @ queries_BGE[..., None]).squeeze(-1).float() / temperature).flatten(0, 1)
        scores_PX = torch.cat((scores_PX, wrong_PU.masked_fill(~wrong_BGU.flatten(0, 1), MASKED)), dim=1)
    return mean_where(torch.logsumexp(scores_PX, dim=1) - true_P, (counted_BG & (entities_BG >= 0)).flatten())


def cycle_loss(scores: list[torch.Tensor], counted: torch.Tensor) -> torch.Tensor:
    """Hinge on the mean score [P] of the triples of a forbidden cycle: they cannot all hold."""
    return mean_where((torch.stack(scores).float().mean(0) - MARGIN).clamp(min=0), counted)


class TripleScorer(nn.Module):
    """s(h, r, t) = cos(M_r h, t) of entities' embeddings: a matrix a relation, so that s(h, r, t) is not s(t, r, h)."""

    def __init__(self, relations: int, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(relations, size, size))

    def forward(self, heads_PE, relation_P):
        """M_r h as unit vectors [P, E]; relation 0 reads as 1, and what comes of it must not be counted."""
        return unit(relation_product(heads_PE[:, None], (relation_P - 1).clamp(min=0), self.weight).squeeze(1))


class GraphMERForPreTraining(GraphMERPreTrainedModel):
    """The encoder with a head for each term of the loss that has a weight."""

    def __init__(self, config: GraphMERConfig):
        super().__init__(config)
        D, E, R, wanted = config.hidden_size, config.embedding_size, config.num_relations, config.weights()
        self.encoder = GraphMERModel(config)
        self.token_bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.triple_head = nn.Linear(D, 1) if "triple" in wanted else None
        self.query_head = nn.Linear(D, E, bias=False) if "contrastive" in wanted else None
        self.entity_head = nn.Linear(D, E, bias=False) if {"contrastive", "scoring"} & wanted.keys() else None
        self.triple_scorer = TripleScorer(R, E) if "scoring" in wanted else None
        forbidden_2R = torch.zeros(2, R + 1)  # saved: from_pretrained makes what is not saved of empty memory
        forbidden_2R[0, config.antisymmetric_relations], forbidden_2R[1, config.acyclic_relations] = 1, 1
        self.register_buffer("forbidden_2R", forbidden_2R)
        self.post_init()

    def save_pretrained(self, *args, **kwargs):
        """With this file: `AutoModel` loads the encoder from the folder, `AutoModelForPreTraining` the whole."""
        self.config.auto_map = {"AutoModel": "encoder.GraphMERModel"}
        super().save_pretrained(*args, **kwargs)

    def forward(self, **batch) -> GraphMEROutput:
        """Loss, its terms and the states; without `mlm_labels` the states alone. The data set says which fields there are."""
        states = self.encoder(**batch)
        if "mlm_labels" not in batch:
            return states
        terms = self._terms(batch, states)
        loss = sum(weight * terms[name] for name, weight in self.config.weights().items())
        return GraphMEROutput(loss=loss, terms=terms, root_states=states.root_states, leaf_states=states.leaf_states)

    def token_logits(self, states: torch.Tensor) -> torch.Tensor:  # [..., V]
        return nn.functional.linear(states, self.encoder.embedding.weight, self.token_bias)

    def entities(self, text_ids: torch.Tensor) -> torch.Tensor:
        """Unit vectors [..., E] of entities' texts [..., C]."""
        return unit(self.entity_head(self.encoder.encode_text(text_ids)))

    def queries(self, states: GraphMEROutput) -> torch.Tensor:
        """Unit vectors [B, G, E] that the tails of masked leaves should be near to."""
        return unit(self.query_head(states.leaf_states[:, :, 0]))

    def _terms(self, batch: dict[str, torch.Tensor], states: GraphMEROutput) -> dict[str, torch.Tensor]:
        wanted, config = self.config.weights(), self.config
        masked_BMV = self.token_logits(_at(states.root_states, batch["mlm_positions"]))
        terms = {"mlm": token_loss(masked_BMV, batch["mlm_labels"])}
        terms["mnm"] = token_loss(self.token_logits(states.leaf_states), batch["mnm_labels"])
        if "triple" in wanted:
            logits_BG = self.triple_head(states.leaf_states[:, :, 0]).squeeze(-1).float()
            target_BG = batch["triple_labels"].clamp(0, 1)
            loss_BG = nn.functional.binary_cross_entropy_with_logits(logits_BG, target_BG, reduction="none")
            terms["triple"] = mean_where(loss_BG, batch["triple_labels"] >= 0)  # of masked leaves nothing is asked here
        if self.entity_head is None:
            return terms
        wrong_BGUE = wrong_BGU = None
        if (wrong_BGUC := batch.get("negative_text_ids")) is not None:
            wrong_BGUE, wrong_BGU = self.entities(wrong_BGUC), (wrong_BGUC != config.pad_token_id).any(-1)
        tails_BGE = self.entities(batch["tail_text_ids"])
        candidates = (tails_BGE, wrong_BGUE, wrong_BGU, batch["tail_entities"], batch["known_BGX"])
        among = (*candidates, config.contrastive_temperature)
        if "contrastive" in wanted:
            masked_BG = (batch["mnm_labels"] != IGNORED).any(-1)
            terms["contrastive"] = contrastive_loss(self.queries(states), masked_BG, *among)
        if "scoring" in wanted:
            terms |= self._scored(batch, tails_BGE, among)
        return terms

    def _scored(self, batch: dict[str, torch.Tensor], tails_BGE, among) -> dict[str, torch.Tensor]:
        """Triples by their names alone: the right tail is near to M_r h, and no cycle that the ontology forbids scores high."""
        relation_P, head_P, tail_P = (batch[f].flatten() for f in ("relation_ids", "head_entities", "tail_entities"))
        true_BG = (batch["relation_ids"] > 0) & (batch["tail_entities"] >= 0) & (batch["triple_labels"] != 0)
        heads_PE, tails_PE = self.entities(batch["head_text_ids"]).flatten(0, 1), tails_BGE.flatten(0, 1)

        def score(one_PE, other_PE):
            return (self.triple_scorer(one_PE, relation_P) * other_PE).sum(-1)

        expected_BGE = self.triple_scorer(heads_PE, relation_P).view_as(tails_BGE)
        apart_P = true_BG.flatten() & (head_P != tail_P)
        antisymmetric_P, acyclic_P = (apart_P & (of_relation[relation_P] > 0) for of_relation in self.forbidden_2R)
        both_ways = [score(heads_PE, tails_PE), score(tails_PE, heads_PE)]
        other_P = self._another(tail_P)
        third_PE, third_P = tails_PE.index_select(0, other_P), tail_P.index_select(0, other_P)
        three_P = acyclic_P & (third_P >= 0) & (third_P != tail_P) & (third_P != head_P)
        cycle = [both_ways[0], score(tails_PE, third_PE), score(third_PE, heads_PE)]
        terms = {
            "scoring": contrastive_loss(expected_BGE, true_BG, *among),
            "antisymmetry": cycle_loss(both_ways, antisymmetric_P),
            "acyclicity": cycle_loss(both_ways, acyclic_P) + cycle_loss(cycle, three_P),
        }
        return {name: term for name, term in terms.items() if name in self.config.weights()}

    def _another(self, entities_P: torch.Tensor) -> torch.Tensor:
        """For each leaf another of the batch [P], all shifted by one random number; by 1 in evaluation."""
        order_P = torch.arange(len(entities_P), device=entities_P.device)
        shift = torch.randint(1, max(len(order_P), 2), (1,), device=order_P.device) if self.training else 1
        return (order_P + shift) % len(order_P)


def _at(states_BSD: torch.Tensor, place_BM: torch.Tensor) -> torch.Tensor:
    """The states at these places [B, M, D], by a product: a gather's gradient is summed in any order on a GPU."""
    place_S = torch.arange(states_BSD.shape[1], device=place_BM.device)
    chosen_BMS = (place_BM[..., None] == place_S).to(states_BSD.dtype)
    with torch.autocast(states_BSD.device.type, enabled=False):
        return chosen_BMS @ states_BSD


AutoConfig.register(GraphMERConfig.model_type, GraphMERConfig, exist_ok=True)
AutoModel.register(GraphMERConfig, GraphMERModel, exist_ok=True)
AutoModelForPreTraining.register(GraphMERConfig, GraphMERForPreTraining, exist_ok=True)
GraphMERConfig.register_for_auto_class()
GraphMERModel.register_for_auto_class()
GraphMERForPreTraining.register_for_auto_class("AutoModelForPreTraining")
