"""One layer of the encoder: attention over roots and leaf slots that knows graph distance, and a feed-forward network."""

from __future__ import annotations

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from .configuration_graphmer import GraphMERConfig

# B batch · S roots · G leaves · L leaf tokens · K = G L · N = S + K tokens · D width · A attention heads

MASKED = -3e4  # as a logit: no weight in any dtype, and no infinity that would make NaN of a row of padding


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


def segment_bias(segment_BN: torch.Tensor) -> torch.Tensor:
    """[B, 1, N, N]: 0 within a document, `MASKED` between documents and at padding (segment 0)."""
    same_BNN = (segment_BN[:, :, None] == segment_BN[:, None, :]) & (segment_BN > 0)[:, None, :]
    return torch.where(same_BNN, 0.0, MASKED)[:, None]


class RelationBias(nn.Module):
    """A number for each relation and head, on the logits between a leaf's tokens and the roots of its head, both ways."""

    def __init__(self, relations: int, heads: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(relations, heads))

    def forward(
        self, roots: int, L: int, relation_BG: torch.Tensor, head_start_BG: torch.Tensor, head_length_BG: torch.Tensor
    ) -> torch.Tensor:
        """[B, A, N, N]; 0 everywhere else."""
        bias_BGA = nn.functional.embedding((relation_BG - 1).clamp(min=0), self.weight)
        bias_BGA = bias_BGA * (relation_BG > 0)[..., None]
        offset_BGS = torch.arange(roots, device=relation_BG.device) - head_start_BG[..., None]
        head_BGS = (offset_BGS >= 0) & (offset_BGS < head_length_BG[..., None])
        bias_BAGS = bias_BGA.transpose(1, 2)[..., None] * head_BGS[:, None]
        bias_BAKS = bias_BAGS.repeat_interleave(L, dim=2)
        upward = nn.functional.pad(bias_BAKS, (0, bias_BAKS.shape[2], roots, 0))
        return upward + upward.transpose(-1, -2)
