"""The trained part: from reservoir features to a vector a token, without any recurrence, hence without backward in time.

x = E[token]                                        the input seen directly (Jaeger 2001: a readout of [u; s])
for each layer of reservoirs:
    x = x + projection(dropout(norm(features)))     low rank: F -> D; static, or attention-enhanced
    x = gated blocks of x                           y = g u + (1 - g) x
logits = head(norm(x))                              the head's weights are E where they are tied
"""

from __future__ import annotations

import torch
from torch import nn

# B batch · T tokens · F features of a layer · D embedding · H hidden units · K heads · V vocabulary


class SequenceDropout(nn.Module):
    """Dropout with one mask for all tokens of a sequence (variational dropout, Gal and Ghahramani 2016): 1/T of the draws."""

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x_BTF):
        if not self.training or not self.p:
            return x_BTF
        return x_BTF * nn.functional.dropout(torch.ones_like(x_BTF[:, :1]), self.p)


class StaticProjection(nn.Module):
    """The classic readout, of low rank: one matrix [D, F] for all states."""

    def __init__(self, features: int, width: int):
        super().__init__()
        self.weight = nn.Linear(features, width, bias=False)

    def forward(self, features_BTF):
        return self.weight(features_BTF)


class AttentionProjection(nn.Module):
    """Attention-enhanced readout (AERC, Köster and Uchida, arXiv 2507.15779): the matrix depends on the state.

    W_att(r) = sum_k a_k(r) W_k with a = softmax(F r), so that W_att(r) r is computed without forming W_att(r).
    """

    def __init__(self, features: int, width: int, heads: int):
        super().__init__()
        self.attention = nn.Linear(features, heads)
        self.weight = nn.Linear(features, heads * width, bias=False)

    def forward(self, features_BTF):
        attention_BTK = self.attention(features_BTF).softmax(dim=-1)
        values_BTKD = self.weight(features_BTF).unflatten(-1, (attention_BTK.shape[-1], -1))
        return (attention_BTK[..., None].to(values_BTKD.dtype) * values_BTKD).sum(dim=-2)


class GatedBlock(nn.Module):
    """y = g u + (1 - g) x with u = SwiGLU(norm(x)) and a gate for each token and channel, g = sigmoid(linear(x))."""

    def __init__(self, width: int, hidden: int, dropout: float):
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        self.gate = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BTD):
        value_BTH, switch_BTH = self.up(self.norm(x_BTD)).chunk(2, dim=-1)
        update_BTD = self.dropout(self.down(nn.functional.silu(switch_BTH) * value_BTH))
        return x_BTD + self.gate(x_BTD).sigmoid() * (update_BTD - x_BTD)
