"""Graph distance in attention: GraphMERT's exponential decay with an offset learned for each head (arXiv 2510.09580).

    f = base ^ GELU(sqrt(d + 1) - p)

The paper's text multiplies attention weights by f; its code multiplies the logits, before the softmax, and so do we
("multiplicative"). Then a far pair is no weak pair: its logit goes to 0, up where it was negative, and what is far is seen
evenly.
"""

from __future__ import annotations

import math

import torch
from torch import nn

# B batch · N tokens · A attention heads


class Decay(nn.Module):
    """Offsets p of the heads, one set for all layers; they begin at 1."""

    def __init__(self, heads: int, base: float):
        super().__init__()
        self.base = base
        self.offset = nn.Parameter(torch.ones(heads))

    def forward(self, distance_BNN: torch.Tensor) -> torch.Tensor:
        """f [B, A, N, N] in fp32 of graph distances (0 of a token to itself)."""
        root_BNN = torch.sqrt(distance_BNN.float() + 1)
        shifted = root_BNN[:, None] - self.offset.float()[:, None, None]
        return torch.exp(math.log(self.base) * nn.functional.gelu(shifted))


def alibi(position_BN: torch.Tensor, heads: int) -> torch.Tensor:
    """-m |i - j| [B, A, N, N], slopes m = 2^(-8 a / A) for a = 1..A (ALiBi, arXiv 2108.12409).

    Keys after the query cost double in even heads and keys before it in odd ones, or an encoder could not tell left from right.
    """
    order_A = torch.arange(heads, device=position_BN.device)
    slope_A11 = torch.exp(-8.0 * math.log(2) * (order_A + 1) / heads)[:, None, None]  # torch_xla runs exp2 on the host
    ahead_BNN = (position_BN[:, None, :] - position_BN[:, :, None]).float()[:, None]
    even_A11 = (order_A % 2 == 0)[:, None, None]
    against = torch.where(even_A11, ahead_BNN, -ahead_BNN).clamp(min=0)
    return -slope_A11 * (ahead_BNN.abs() + against)
