"""The GraphMER encoder: code's tokens (roots) and the triples that hang on them (leaves) to states.

After GraphMERT (arXiv 2510.09580), written from its formulas: `graph_attention.py` fuses relation and head into
the leaves and brings graph distance into attention. Leaves have slots of their own (K = G L) beside the S roots, not L at every root.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import ModelOutput

from .configuration_graphmer import GraphMERConfig
from .graph_attention import HGAT, Decay, RelationBias, alibi, distances, segment_bias

# B batch · S roots · G leaves · L leaf tokens · K = G L · N = S + K tokens · H head tokens · D width · A attention heads
# C tokens of an entity's text · P texts

INPUTS = (
    "root_ids",
    "root_segments",
    "root_positions",
    "leaf_ids",
    "leaf_segments",
    "relation_ids",
    "head_start",
    "head_length",
)


@dataclass
class GraphMEROutput(ModelOutput):
    """loss (scalar, None without labels), its unweighted terms by name, root_states [B, S, D], leaf_states [B, G, L, D]."""

    loss: torch.Tensor | None = None
    terms: dict[str, torch.Tensor] | None = None
    root_states: torch.Tensor | None = None
    leaf_states: torch.Tensor | None = None


class Layer(GradientCheckpointingLayer):
    """Pre-norm transformer layer."""

    def __init__(self, config: GraphMERConfig):
        super().__init__()
        self.attention_norm = new_norm(config)
        self.attention = Attention(config)
        self.feed_forward_norm = new_norm(config)
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BND, decay, bias):
        """Everything is positional: reentrant checkpointing gives no gradient to keyword arguments."""
        x_BND = x_BND + self.dropout(self.attention(self.attention_norm(x_BND), decay, bias))
        return x_BND + self.dropout(self.feed_forward(self.feed_forward_norm(x_BND)))


class Attention(nn.Module):
    def __init__(self, config: GraphMERConfig):
        super().__init__()
        self.heads, self.dropout = config.num_attention_heads, config.dropout
        self.inward = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.outward = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(
        self,
        x_BND: torch.Tensor,
        decay_BANN: torch.Tensor | None,
        bias_BANN: torch.Tensor,
    ) -> torch.Tensor:
        """softmax(decay q.k / sqrt(D / A) + bias) v. Without a factor on the logits it is SDPA's; with one, no library's."""
        B, N, D = x_BND.shape
        query, key, value = self.inward(x_BND).view(B, N, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        if decay_BANN is None:
            bias_BANN = bias_BANN.to(query.dtype)
            mixed = nn.functional.scaled_dot_product_attention(
                query, key, value, attn_mask=bias_BANN, dropout_p=dropout
            )
        else:
            logits = (query * (D // self.heads) ** -0.5) @ key.transpose(-1, -2)
            share = torch.softmax(logits * decay_BANN + bias_BANN, dim=-1).to(value.dtype)  # the decay makes it fp32
            mixed = nn.functional.dropout(share, dropout, self.training) @ value
        return self.outward(mixed.transpose(1, 2).reshape(B, N, D))


class FeedForward(nn.Module):
    def __init__(self, config: GraphMERConfig):
        super().__init__()
        self.gated = config.activation == "swiglu"
        hidden = config.intermediate_size
        self.up = nn.Linear(config.hidden_size, 2 * hidden if self.gated else hidden, bias=False)
        self.down = nn.Linear(hidden, config.hidden_size, bias=False)

    def forward(self, x_BND: torch.Tensor) -> torch.Tensor:
        if self.gated:
            value, gate = self.up(x_BND).chunk(2, dim=-1)
            return self.down(nn.functional.silu(gate) * value)
        return self.down(nn.functional.gelu(self.up(x_BND)))


def new_norm(config: GraphMERConfig) -> nn.Module:
    kind = nn.RMSNorm if config.norm == "rmsnorm" else nn.LayerNorm
    return kind(config.hidden_size, eps=1e-6)


class GraphMERPreTrainedModel(PreTrainedModel):
    config_class = GraphMERConfig
    base_model_prefix = "encoder"
    main_input_name = "root_ids"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = False  # the loss is a mean: a trainer divides it by its accumulation steps
    _no_split_modules = ("Layer",)
    _input_embed_layer = "embedding"

    def _init_weights(self, module: nn.Module) -> None:
        std = self.config.initializer_range
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=std)  # the tied head then begins near a uniform guess
        elif isinstance(module, nn.RMSNorm | nn.LayerNorm):
            nn.init.ones_(module.weight)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, Decay):
            nn.init.ones_(module.offset)
        elif isinstance(module, RelationBias):
            nn.init.normal_(module.weight, std=std)
        elif isinstance(module, HGAT):
            nn.init.normal_(module.weight, std=self.config.hidden_size**-0.5)
            nn.init.normal_(module.attention, std=1.0)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=std)


class GraphMERModel(GraphMERPreTrainedModel):
    """The encoder without heads."""

    def __init__(self, config: GraphMERConfig):
        super().__init__(config)
        D, A = config.hidden_size, config.num_attention_heads
        self.embedding = nn.Embedding(config.vocab_size, D)
        self.leaf_embedding = nn.Embedding(config.leaf_tokens, D) if config.leaf_positions else None
        self.hgat = (
            HGAT(config.num_relations, D, bias=config.hgat_relation_bias, dropout=config.relation_dropout)
            if config.hgat
            else None
        )
        self.relation_bias = RelationBias(config.num_relations, A) if config.relation_attention_bias else None
        self.decay = Decay(A, config.decay_base) if config.decay != "none" else None
        self.embedding_norm = new_norm(config)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = new_norm(config)
        self.post_init()

    def forward(
        self,
        root_ids: torch.Tensor,
        root_segments: torch.Tensor,
        root_positions: torch.Tensor,
        leaf_ids: torch.Tensor,
        leaf_segments: torch.Tensor,
        relation_ids: torch.Tensor,
        head_start: torch.Tensor,
        head_length: torch.Tensor,
        return_dict: bool | None = None,
    ) -> GraphMEROutput:
        """States of roots [B, S, D] and leaves [B, G, L, D]; 0 at padding. `workload.AXES` has their axes."""
        B, S = root_ids.shape
        G, L = leaf_ids.shape[1:]
        leaf_there_BGL = (leaf_segments > 0)[..., None] & (leaf_ids != self.config.pad_token_id)
        segment_BN = torch.cat((root_segments, (leaf_segments[..., None] * leaf_there_BGL).flatten(1)), dim=1)
        hanging_BG = root_positions.gather(1, head_start)
        position_BN = torch.cat((root_positions, hanging_BG.repeat_interleave(L, dim=1)), dim=1)
        roots_BSD = self.embedding(root_ids)
        leaves_BGLD = self._leaves(leaf_ids, root_ids, relation_ids, head_start, head_length)
        bias = segment_bias(segment_BN)
        if self.relation_bias is not None:
            bias = bias + self.relation_bias(S, L, relation_ids, head_start, head_length)
        distance_BNN = distances(S, head_start, L)
        x_BND = torch.cat((roots_BSD, leaves_BGLD.flatten(1, 2)), dim=1)
        states_BND = self._encode(x_BND, position_BN, distance_BNN, bias) * (segment_BN > 0)[..., None]
        return GraphMEROutput(
            root_states=states_BND[:, :S], leaf_states=states_BND[:, S:].reshape(B, G, L, self.config.hidden_size)
        )

    def encode_text(self, text_ids: torch.Tensor) -> torch.Tensor:
        """Mean state [..., D] of texts [..., C] of their own, without leaves; 0 for an empty one."""
        ids_PC = text_ids.flatten(0, -2)
        there_PC = ids_PC != self.config.pad_token_id
        position_1C = torch.arange(ids_PC.shape[1], device=ids_PC.device)[None]
        distance_1CC = (position_1C[:, :, None] - position_1C[:, None]).abs()
        states_PCD = self._encode(self.embedding(ids_PC), position_1C, distance_1CC, segment_bias(there_PC.long()))
        total_PD = (states_PCD * there_PC[..., None]).sum(1)
        mean_PD = total_PD / there_PC.sum(1).clamp(min=1)[:, None]
        return mean_PD.view(*text_ids.shape[:-1], -1)

    def _leaves(self, leaf_ids, root_ids, relation_ids, head_start, head_length) -> torch.Tensor:
        leaves_BGLD = self.embedding(leaf_ids)
        if self.hgat is not None:
            order_H = torch.arange(self.config.max_head_tokens, device=leaf_ids.device)
            place_BGH = (head_start[..., None] + order_H).clamp(max=root_ids.shape[1] - 1)
            # Looked up again, not gathered from the roots' vectors: XLA would send those of every chip to all for the gradient.
            heads_BGHD = self.embedding(root_ids.gather(1, place_BGH.flatten(1)).view_as(place_BGH))
            leaves_BGLD = leaves_BGLD + self.hgat(
                leaves_BGLD, heads_BGHD, order_H < head_length[..., None], relation_ids
            )
        return leaves_BGLD if self.leaf_embedding is None else leaves_BGLD + self.leaf_embedding.weight

    def _encode(self, x_BND, position_BN, distance_BNN, bias) -> torch.Tensor:
        """The layers. Everything about pairs of tokens is computed here once; B of positions and distances may be 1."""
        config, decay = self.config, None
        if config.positional_encoding == "alibi":
            bias = bias + alibi(position_BN, config.num_attention_heads)
        if config.decay == "multiplicative":
            decay = self.decay(distance_BNN)
        x_BND = self.dropout(self.embedding_norm(x_BND))
        for layer in self.layers:
            x_BND = layer(x_BND, decay, bias)
        return self.norm(x_BND)


AutoConfig.register(GraphMERConfig.model_type, GraphMERConfig, exist_ok=True)
AutoModel.register(GraphMERConfig, GraphMERModel, exist_ok=True)
GraphMERConfig.register_for_auto_class()
GraphMERModel.register_for_auto_class()
