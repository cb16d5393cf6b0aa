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

from .reservoirs import KeepsPrecision

# B batch · T tokens · F features of a layer · D embedding · H hidden units · K heads · V vocabulary
# R rows of features, each with the token that follows · G = F + 1, the features and a one


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


class RidgeReadout(KeepsPrecision):
    """Ridge regression in place of all of that: P(v) ~ max(s, c p) from scores s = W'x + b, unigram p and one number c.

    Least squares on one-hot targets estimates P(v | x) linearly (Bishop, PRML, 4.1.3): the scores sum to one, but some are
    negative; none falls below a share of the unigram here.

    Attributes:
        weight_FV, bias_V: W and b.
        counts_V: of the tokens, smoothed; their shares are p.
        calibration: c.
        gram_GG: X'X + ridge I, X with a column of ones that has no penalty, from which `learn` goes on.
    """

    def __init__(self, features: int, vocab_size: int):
        super().__init__()
        weight_FV, bias_V = torch.zeros(features, vocab_size), torch.zeros(vocab_size)
        self.weight_FV = nn.Parameter(weight_FV.float(), requires_grad=False)
        self.bias_V = nn.Parameter(bias_V.float(), requires_grad=False)
        self.register_buffer("counts_V", torch.ones(vocab_size, dtype=torch.float64))
        self.register_buffer("calibration", torch.tensor(1.0, dtype=torch.float64))
        self.register_buffer("gram_GG", torch.zeros(features + 1, features + 1, dtype=torch.float64))

    @torch.no_grad()
    def scores(self, features: torch.Tensor) -> torch.Tensor:
        """Linear estimates of P(v | x), [..., F] to [..., V]. Their sum over V is one."""
        return features.to(self.weight_FV.dtype) @ self.weight_FV + self.bias_V

    def floor_V(self) -> torch.Tensor:
        """c p."""
        return (self.calibration * self.counts_V / self.counts_V.sum()).to(self.bias_V.dtype)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Logits [..., V] of the next token after features [..., F]."""
        return self.scores(features).maximum(self.floor_V()).log()

    @torch.no_grad()
    def learn(self, features_RF: torch.Tensor, tokens_R: torch.Tensor, times: float = 1.0) -> None:
        """Makes it what a fit on these rows too gives: recursive least squares (Plackett, Biometrika 37, 1950), in fp64.

        times: how often each row counts; above 1 a short text weighs more against a long one.
        """
        rows_RG = nn.functional.pad(features_RF.double(), (0, 1), value=1.0)
        weight_GV = torch.cat((self.weight_FV, self.bias_V[None])).double()
        added_GG = times * (rows_RG.T @ rows_RG)
        self.gram_GG += added_GG
        error_GV = -added_GG @ weight_GV
        error_GV.index_add_(1, tokens_R, rows_RG.T, alpha=times)
        weight_GV += torch.cholesky_solve(error_GV, torch.linalg.cholesky(self.gram_GG.double()))
        self.counts_V += times * torch.bincount(tokens_R, minlength=len(self.counts_V))
        self.weight_FV.copy_(weight_GV[:-1])
        self.bias_V.copy_(weight_GV[-1])
