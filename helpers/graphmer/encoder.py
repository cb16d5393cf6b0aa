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
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForPreTraining, PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import ModelOutput

from .ontology_loss import OntologyTerms, mean_where, relation_product, unit

IGNORED = -100  # label of what is not asked for
TERMS = ("mlm", "mnm", "triple", "contrastive", "scoring", "antisymmetry", "acyclicity")  # of the loss
MASKED = -3e4  # as a logit: no weight in any dtype, and no infinity that would make NaN of a row of padding


class GraphMERConfig(PretrainedConfig):
    """Sizes, and weights of the terms of the loss; `configuration.py` says what may be. A term whose weight is 0 is not built."""

    model_type = "graphmer"

    vocab_size: int = 8192
    num_relations: int = 30  # inverse relations included; ids are 1..R
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 984  # with the other defaults 80M weights
    dropout: float = 0.1
    relation_dropout: float = 0.3  # of relation matrices, as in GraphMERT
    decay_base: float = 0.6  # factor for a unit of distance, in (0, 1)
    leaf_tokens: int = 7
    max_head_tokens: int = 8
    embedding_size: int = 256
    contrastive_temperature: float = 0.07
    antisymmetric_relations: list[int] = field(default_factory=list)
    acyclic_relations: list[int] = field(default_factory=list)
    triple_weight: float = 0.0  # whether a shown leaf is true
    scoring_weight: float = 0.0  # the tail from head and relation by names; what the next two need
    antisymmetry_weight: float = 0.0
    acyclicity_weight: float = 0.0
    pad_token_id: int = 0
    initializer_range: float = 0.02

    def weights(self) -> dict[str, float]:
        """Weight of every term of the loss that is not 0."""
        weights = {term: getattr(self, f"{term}_weight", 1.0) for term in TERMS}
        return {term: weight for term, weight in weights.items() if weight}


@dataclass
class LeafyBatch:
    """Sequences, as `chains.py` makes them. Segment 0 and relation 0 are padding; without labels there is no loss."""

    root_ids: Tensor  # [B, S]
    root_segments: Tensor  # [B, S] which document of the sequence a token is of, from 1
    root_positions: Tensor  # [B, S] place in the document
    leaf_ids: Tensor  # [B, G, L]
    leaf_segments: Tensor  # [B, G]
    relation_ids: Tensor  # [B, G]
    head_start: Tensor  # [B, G] first root of the head
    head_length: Tensor  # [B, G] roots of the head
    # All of these, or none and no loss.
    mlm_positions: Tensor = None  # [B, M]
    mlm_labels: Tensor | None = None  # [B, M]
    mnm_labels: Tensor = None  # [B, G, L]
    triple_labels: Tensor = None  # [B, G] 1 true, 0 wrong, -100 masked
    head_entities: Tensor = None  # [B, G] numbers of entities; -1 at a wrong leaf
    tail_entities: Tensor = None  # [B, G]
    head_text_ids: Tensor = None  # [B, G, C]
    tail_text_ids: Tensor = None  # [B, G, C]
    known_BGX: Tensor = None  # [B, G, B G] in-batch tails that are right for this leaf, too
    negative_text_ids: Tensor | None = None  # [B, G, U, C]; None where no wrong tails are drawn


@dataclass
class GraphMEROutput(ModelOutput):
    """loss and its unweighted terms (None without labels), root_states [B, S, D], leaf_states [B, G, L, D]."""

    loss: Tensor | None = None
    terms: dict[str, Tensor] | None = None
    root_states: Tensor = None  # always there; an output's fields have this default
    leaf_states: Tensor = None


# ---- what the graph brings into attention


def distances(root_count: int, head_start_BG, leaf_tokens: int):
    """Length of the shortest path between any two tokens of a leafy chain, int32 [B, N, N].

    Neighbouring roots are joined, each slot of a leaf is joined to its root, and neighbouring slots are: roots are |i-j| apart, a root
    and a slot |i-r|+1, slots of two leaves |r-q|+2, slots of one leaf at most 2.
    """
    (B, G), S, L = head_start_BG.shape, root_count, leaf_tokens
    token_N = torch.arange(S + G * L, device=head_start_BG.device, dtype=torch.int32)
    is_slot_N = token_N >= S
    slot_root_BK = head_start_BG.to(torch.int32).repeat_interleave(L, dim=1)
    root_BN = torch.cat([token_N[:S].expand(B, S), slot_root_BK], dim=1)
    between_roots_BNN = (root_BN[:, :, None] - root_BN[:, None, :]).abs()
    to_roots_NN = is_slot_N[:, None].to(torch.int32) + is_slot_N
    leaf_N = (token_N - S).div(L, rounding_mode="floor")
    one_leaf_NN = is_slot_N & (leaf_N[:, None] == leaf_N)
    within_leaf_NN = (token_N[:, None] - token_N).abs().clamp(max=2)
    return torch.where(one_leaf_NN, within_leaf_NN, between_roots_BNN + to_roots_NN)


class Decay(nn.Module):
    """f = base ^ GELU(sqrt(d + 1) - p), with an offset p that each attention head learns; it multiplies the logits."""

    def __init__(self, heads: int, base: float):
        super().__init__()
        self.base = base
        self.offset = nn.Parameter(torch.ones(heads))

    def forward(self, distance_BNN):
        """[B, A, N, N] in fp32."""
        root_BNN = torch.sqrt(distance_BNN.float() + 1)
        shifted_BANN = root_BNN[:, None] - self.offset.float()[:, None, None]
        return torch.exp(math.log(self.base) * F.gelu(shifted_BANN))


def alibi(position_BN, heads: int):
    """-m |i - j| [B, A, N, N] with slopes m = 2^(-8 a / A) (arXiv 2108.12409).

    Keys after the query cost double in even heads and keys before it in odd ones: an encoder has to tell left from right.
    """
    order_A = torch.arange(heads, device=position_BN.device)
    slope_A = torch.exp(-8.0 * math.log(2) * (order_A + 1) / heads)  # torch_xla runs exp2 on the host
    is_even_A = order_A % 2 == 0
    ahead_BNN = position_BN[:, None] - position_BN[:, :, None]
    ahead_B1NN = ahead_BNN.float()[:, None]
    against_BANN = torch.where(is_even_A[:, None, None], ahead_B1NN, -ahead_B1NN).clamp(min=0)
    return -slope_A[:, None, None] * (ahead_B1NN.abs() + against_BANN)


def segment_bias(segment_BN):
    """[B, 1, N, N]: 0 within a document of a packed sequence, `MASKED` between documents and at padding."""
    is_token_BN = segment_BN > 0
    same_BNN = segment_BN[:, :, None] == segment_BN[:, None]
    seen_BNN = same_BNN & is_token_BN[:, None]
    return torch.where(seen_BNN, 0.0, MASKED)[:, None]


def of_relation(table_RX, relation_BG):
    """The row of each relation [B, G, X]; padding reads as relation 1, and what comes of it must not be counted."""
    return F.embedding((relation_BG - 1).clamp(min=0), table_RX)


class RelationBias(nn.Module):
    """A learned number for each relation and attention head, on the logits between a leaf and the roots of its head."""

    def __init__(self, relations: int, heads: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(relations, heads))

    def forward(self, batch: LeafyBatch):
        """[B, A, N, N]; 0 everywhere else."""
        _, S = batch.root_ids.shape
        _, G, L = batch.leaf_ids.shape
        bias_BGA = of_relation(self.weight, batch.relation_ids) * (batch.relation_ids > 0)[..., None]
        place_BGS = torch.arange(S, device=bias_BGA.device) - batch.head_start[..., None]
        is_head_BGS = (place_BGS >= 0) & (place_BGS < batch.head_length[..., None])
        bias_BAGS = bias_BGA.transpose(1, 2)[..., None] * is_head_BGS[:, None]
        upward_BANN = F.pad(bias_BAGS.repeat_interleave(L, dim=2), (0, G * L, S, 0))
        return upward_BANN + upward_BANN.transpose(-1, -2)


class HGAT(nn.Module):
    """Hierarchical graph attention: relation and head flow into the leaves before the first layer.

        e_lj = LeakyReLU(a_r . [W_r t_l ; W_r h_j])    alpha_l = softmax_j(e_lj)    t_l <- t_l + sum_j alpha_lj W_r h_j + b_r

    By linearity W_r^T a_r acts on tokens, and W_r on the L weighted sums of a leaf's head tokens: no other token is projected.
    """

    def __init__(self, relations: int, width: int, dropout: float):
        super().__init__()
        self.dropout = dropout
        self.weight = nn.Parameter(torch.empty(relations, width, width))
        self.attention = nn.Parameter(torch.empty(relations, 2, width))  # a_r: its half for tails and that for heads
        self.bias = nn.Parameter(torch.empty(relations, width))

    def forward(self, leaf_BGLD, head_BGHD, head_mask_BGH, relation_BG):
        """What is added to the leaves [B, G, L, D]; 0 where there is no relation or no head token."""
        weight_RDD = F.dropout(self.weight, self.dropout, self.training)
        attention_R2D = F.dropout(self.attention, self.dropout, self.training)
        query_R2D = attention_R2D @ weight_RDD
        query_BG2D = of_relation(query_R2D.flatten(1), relation_BG).unflatten(-1, (2, -1))
        tail_BGL = (leaf_BGLD * query_BG2D[:, :, :1]).sum(-1)
        head_BGH = (head_BGHD * query_BG2D[:, :, 1:]).sum(-1)
        score_BGLH = F.leaky_relu(tail_BGL[..., None] + head_BGH[:, :, None], 0.01)
        lowest = torch.finfo(score_BGLH.dtype).min
        score_BGLH = score_BGLH.masked_fill(~head_mask_BGH[:, :, None], lowest)
        alpha_BGLH = torch.softmax(score_BGLH, dim=-1).to(head_BGHD.dtype)
        sums_PLD = (alpha_BGLH @ head_BGHD).flatten(0, 1)
        update_BGLD = relation_product(sums_PLD, relation_BG.flatten(), weight_RDD).view(leaf_BGLD.shape)
        update_BGLD = update_BGLD + of_relation(self.bias, relation_BG)[:, :, None]
        has_head_BG = (relation_BG > 0) & head_mask_BGH.any(dim=-1)
        return update_BGLD * has_head_BG[:, :, None, None]


# ---- the transformer


class Attention(nn.Module):
    def __init__(self, config: GraphMERConfig):
        super().__init__()
        self.heads, self.dropout = config.num_attention_heads, config.dropout
        self.inward = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.outward = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x_BND, decay_BANN, bias_BANN):
        """softmax(decay q.k / sqrt(D / A) + bias) v. No library's attention has a factor on the logits."""
        B, N, D = x_BND.shape
        projected = self.inward(x_BND).view(B, N, 3, self.heads, -1)
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        query = query * query.shape[-1] ** -0.5
        logits = query @ key.transpose(-1, -2)
        share = torch.softmax(logits * decay_BANN + bias_BANN, dim=-1)
        share = F.dropout(share.to(value.dtype), self.dropout, self.training)  # the decay made it fp32
        mixed = share @ value
        return self.outward(mixed.transpose(1, 2).reshape(B, N, D))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: GraphMERConfig):
        super().__init__()
        self.up = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x_BND):
        value, gate = self.up(x_BND).chunk(2, dim=-1)
        return self.down(F.silu(gate) * value)


def new_norm(config: GraphMERConfig) -> nn.RMSNorm:
    return nn.RMSNorm(config.hidden_size, eps=1e-6)


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
    _input_embed_layer = "embedding"

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | HGAT | OntologyTerms):
            nn.init.normal_(module.weight, std=module.weight.shape[-1] ** -0.5)
        elif isinstance(module, nn.Embedding | RelationBias):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        else:
            super()._init_weights(module)  # norms
        if isinstance(module, HGAT):
            nn.init.normal_(module.attention)
            nn.init.normal_(module.bias, std=self.config.initializer_range)
        elif getattr(module, "bias", None) is not None:
            nn.init.zeros_(module.bias)


class GraphMERModel(GraphMERPreTrainedModel):
    """The encoder without heads."""

    _keys_to_ignore_on_load_unexpected = ["token_bias", "_head", "ontology"]  # noqa: RUF012

    def __init__(self, config: GraphMERConfig):
        super().__init__(config)
        D, A, R = config.hidden_size, config.num_attention_heads, config.num_relations
        self.embedding = nn.Embedding(config.vocab_size, D)
        self.leaf_embedding = nn.Embedding(config.leaf_tokens, D)  # the order of a leaf's tokens
        self.hgat = HGAT(R, D, config.relation_dropout)
        self.relation_bias = RelationBias(R, A)
        self.decay = Decay(A, config.decay_base)
        self.embedding_norm, self.norm = new_norm(config), new_norm(config)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.post_init()

    def forward(self, **fields):
        """States of roots [B, S, D] and leaves [B, G, L, D], 0 at padding. fields: those of a `LeafyBatch`."""
        return self.encode_chains(LeafyBatch(**fields))

    def encode_chains(self, batch: LeafyBatch):
        _, S = batch.root_ids.shape
        B, G, L = batch.leaf_ids.shape
        is_token_BGL = (batch.leaf_segments > 0)[..., None] & (batch.leaf_ids != self.config.pad_token_id)
        leaf_segment_BK = (batch.leaf_segments[..., None] * is_token_BGL).flatten(1)
        segment_BN = torch.cat((batch.root_segments, leaf_segment_BK), dim=1)
        leaf_position_BG = batch.root_positions.gather(1, batch.head_start)
        position_BN = torch.cat((batch.root_positions, leaf_position_BG.repeat_interleave(L, dim=1)), dim=1)
        leaves_BGLD = self._embed_leaves(batch)
        bias_BANN = segment_bias(segment_BN) + self.relation_bias(batch)
        roots_BSD = self.embedding(batch.root_ids)
        x_BND = torch.cat((roots_BSD, leaves_BGLD.flatten(1, 2)), dim=1)
        distance_BNN = distances(S, batch.head_start, L)
        states_BND = self._encode(x_BND, position_BN, distance_BNN, bias_BANN)
        states_BND = states_BND * (segment_BN > 0)[..., None]
        leaf_states = states_BND[:, S:].reshape(B, G, L, -1)
        return GraphMEROutput(root_states=states_BND[:, :S], leaf_states=leaf_states)

    def encode_text(self, text_ids: Tensor):
        """Mean state [..., D] of texts [..., C] of their own, without leaves; 0 for an empty one."""
        ids_PC = text_ids.flatten(0, -2)
        is_token_PC = ids_PC != self.config.pad_token_id
        position_1C = torch.arange(ids_PC.shape[1], device=ids_PC.device)[None]
        distance_1CC = (position_1C[:, :, None] - position_1C[:, None]).abs()
        bias_P1CC = segment_bias(is_token_PC.long())
        states_PCD = self._encode(self.embedding(ids_PC), position_1C, distance_1CC, bias_P1CC)
        total_PD = (states_PCD * is_token_PC[..., None]).sum(1)
        count_P = is_token_PC.sum(1).clamp(min=1)
        mean_PD = total_PD / count_P[:, None]
        return mean_PD.view(*text_ids.shape[:-1], -1)

    def _embed_leaves(self, batch):
        leaves_BGLD = self.embedding(batch.leaf_ids)
        order_H = torch.arange(self.config.max_head_tokens, device=batch.leaf_ids.device)
        place_BGH = batch.head_start[..., None] + order_H
        place_BGH = place_BGH.clamp(max=batch.root_ids.shape[1] - 1)
        # Looked up again, not gathered from the roots' vectors: XLA would send those of every chip to all.
        head_ids_BX = batch.root_ids.gather(1, place_BGH.flatten(1))
        heads_BGHD = self.embedding(head_ids_BX.view_as(place_BGH))
        is_head_BGH = order_H < batch.head_length[..., None]
        leaves_BGLD = leaves_BGLD + self.hgat(leaves_BGLD, heads_BGHD, is_head_BGH, batch.relation_ids)
        return leaves_BGLD + self.leaf_embedding.weight

    def _encode(self, x_BND, position_BN, distance_BNN, bias):
        """The layers; everything about pairs of tokens is computed once for all of them."""
        bias = bias + alibi(position_BN, self.config.num_attention_heads)
        decay = self.decay(distance_BNN)
        x_BND = self.dropout(self.embedding_norm(x_BND))
        for layer in self.layers:
            x_BND = layer(x_BND, decay, bias)
        return self.norm(x_BND)


# ---- the loss. All shapes are static: what does not count is multiplied by 0, never indexed away.


def token_loss(logits: Tensor, labels: Tensor):
    """Mean cross-entropy in nats of logits [..., V] where labels [...] are not -100."""
    index = labels.clamp(min=0)[..., None]
    chosen = logits.gather(-1, index).squeeze(-1)
    nats = torch.logsumexp(logits.float(), dim=-1) - chosen.float()
    return mean_where(nats, labels != IGNORED)


class GraphMERForPreTraining(GraphMERPreTrainedModel):
    """The encoder with a head for each term of the loss that has a weight."""

    def __init__(self, config: GraphMERConfig):
        super().__init__(config)
        D, E = config.hidden_size, config.embedding_size
        self.encoder = GraphMERModel(config)
        self.token_bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.triple_head = nn.Linear(D, 1) if config.triple_weight else None
        self.query_head = nn.Linear(D, E, bias=False)
        self.entity_head = nn.Linear(D, E, bias=False)
        self.ontology = None
        if config.scoring_weight:
            forbidden = (config.antisymmetric_relations, config.acyclic_relations)
            self.ontology = OntologyTerms(config.num_relations, E, *forbidden)
        self.post_init()

    def save_pretrained(self, *args, **kwargs):
        """With this file: `AutoModel` loads the encoder from the folder, `AutoModelForPreTraining` the whole."""
        self.config.auto_map = {"AutoModel": "encoder.GraphMERModel"}
        super().save_pretrained(*args, **kwargs)

    def forward(self, **fields):
        """Loss, its terms and the states; without `mlm_labels` the states alone. fields: those of a `LeafyBatch`."""
        batch = LeafyBatch(**fields)
        states = self.encoder.encode_chains(batch)
        if batch.mlm_labels is None:
            return states
        terms = self._token_terms(batch, states) | self._entity_terms(batch, states)
        weights = self.config.weights()
        loss = sum(weights[name] * terms[name] for name in weights)
        return GraphMEROutput(loss=loss, terms=terms, root_states=states.root_states, leaf_states=states.leaf_states)

    def token_logits(self, states: Tensor):  # [..., V]
        return F.linear(states, self.encoder.embedding.weight, self.token_bias)

    def entities(self, text_ids: Tensor):
        """Unit vectors [..., E] of entities' texts [..., C]."""
        return unit(self.entity_head(self.encoder.encode_text(text_ids)))

    def queries(self, states: GraphMEROutput):
        """Unit vectors [B, G, E] that the tails of masked leaves should be near to."""
        return unit(self.query_head(states.leaf_states[:, :, 0]))

    def _token_terms(self, batch, states):
        """Masked roots, masked leaves, and whether a shown leaf is true."""
        masked_BMV = self.token_logits(_at(states.root_states, batch.mlm_positions))
        terms = {"mlm": token_loss(masked_BMV, batch.mlm_labels)}
        terms["mnm"] = token_loss(self.token_logits(states.leaf_states), batch.mnm_labels)
        if self.triple_head is not None:
            logits_BG = self.triple_head(states.leaf_states[:, :, 0]).squeeze(-1)
            target_BG = batch.triple_labels.clamp(0, 1)
            loss_BG = F.binary_cross_entropy_with_logits(logits_BG.float(), target_BG, reduction="none")
            terms["triple"] = mean_where(loss_BG, batch.triple_labels >= 0)  # of masked leaves nothing is asked here
        return terms

    def _entity_terms(self, batch, states):
        """The right tail among others: asked for by a masked leaf, and by head and relation; and what the ontology forbids."""
        wrong_BGUE = None if batch.negative_text_ids is None else self.entities(batch.negative_text_ids)
        tails_BGE = self.entities(batch.tail_text_ids)
        masked_BG = (batch.mnm_labels != IGNORED).any(-1)
        queries_BGE = self.queries(states)
        terms = {"contrastive": self.contrastive_loss(batch, queries_BGE, masked_BG, tails_BGE, wrong_BGUE)}
        if self.ontology is None:
            return terms
        true_BG = (batch.relation_ids > 0) & (batch.tail_entities >= 0) & (batch.triple_labels != 0)
        heads_PE = self.entities(batch.head_text_ids).flatten(0, 1)
        tails_PE = tails_BGE.flatten(0, 1)
        relation_P, true_P = batch.relation_ids.flatten(), true_BG.flatten()
        expected_BGE = self.ontology.expected_tails(heads_PE, relation_P).view_as(tails_BGE)
        terms["scoring"] = self.contrastive_loss(batch, expected_BGE, true_BG, tails_BGE, wrong_BGUE)
        head_P, tail_P = batch.head_entities.flatten(), batch.tail_entities.flatten()
        return terms | self.ontology(heads_PE, tails_PE, relation_P, head_P, tail_P, true_P)

    def contrastive_loss(self, batch, queries_BGE, counted_BG, tails_BGE, wrong_BGUE):
        """InfoNCE: the right tail among those of the whole batch, and the wrong ones of its own leaf.

        Not among them are tails without an entity, other copies of the right one, and tails that are known to be right as well.
        """
        temperature, entities_P = self.config.contrastive_temperature, batch.tail_entities.flatten()
        scores_PX = queries_BGE.flatten(0, 1) @ tails_BGE.flatten(0, 1).T
        scores_PX = scores_PX.float() / temperature
        true_P = scores_PX.diagonal()
        same_PX = entities_P[:, None] == entities_P
        excluded_PX = (entities_P < 0) | same_PX | batch.known_BGX.flatten(0, 1)
        own_PX = torch.eye(len(entities_P), dtype=torch.bool, device=entities_P.device)
        scores_PX = scores_PX.masked_fill(excluded_PX & ~own_PX, MASKED)
        if wrong_BGUE is not None:
            wrong_BGU = (wrong_BGUE @ queries_BGE[..., None]).squeeze(-1)
            wrong_BGU = wrong_BGU.float() / temperature
            absent_BGU = (batch.negative_text_ids == self.config.pad_token_id).all(-1)
            wrong_PU = wrong_BGU.masked_fill(absent_BGU, MASKED).flatten(0, 1)
            scores_PX = torch.cat((scores_PX, wrong_PU), dim=1)
        counted_P = counted_BG.flatten() & (entities_P >= 0)
        return mean_where(torch.logsumexp(scores_PX, dim=1) - true_P, counted_P)


def _at(states_BSD, place_BM):
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
