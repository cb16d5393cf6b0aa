"""How well an entity's name fits what a masked leaf expects, token by token: names of entities never seen are made of known tokens.

A vector a text forgets rare words. Here a leaf also says which tokens it expects, by a product with the embeddings, and which
it copies from its document's roots, by exact match. The first collapses to one more dot product of vectors; the second is
late interaction over equal tokens, as COIL has it (Gao, Dai and Callan, arXiv 2104.07186).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from helpers.graphmer.architecture import MATCH_KEY

# B batch · S roots · G leaves · C tokens of an entity's text · D width · V vocabulary · K key · P queries · X entities


class LeafTokens(NamedTuple):
    """What leaves ask for: expected_BGD to be multiplied with an entity's mean embedding, copied_BGS weights of root tokens."""

    expected_BGD: torch.Tensor
    copied_BGS: torch.Tensor


class NameTokens(NamedTuple):
    """What names offer: mean_XD embedding of their tokens, bias_X of these, weights_XC of each token."""

    mean_XD: torch.Tensor
    bias_X: torch.Tensor
    weights_XC: torch.Tensor


class TokenMatch(nn.Module):
    """score(leaf, name) = sum over the name's tokens c of w_c (expected . embedding_c + bias_c + copied weight of c's roots).

    w is softplus of a learned weight a token, a name's w scaled to one learned length, so that a long name gains nothing.
    """

    def __init__(self, vocab_size: int, hidden_size: int):
        super().__init__()
        self.expected = nn.Linear(hidden_size, hidden_size)
        self.copy_query = nn.Linear(hidden_size, MATCH_KEY)
        self.copy_key = nn.Linear(hidden_size, MATCH_KEY)
        self.copy_offset = nn.Parameter(torch.empty(()))
        self.token_weight = nn.Parameter(torch.empty(vocab_size))
        self.token_bias = nn.Parameter(torch.empty(vocab_size))
        self.log_length = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """All but the linear maps, which the model initialises as it does its others."""
        with torch.no_grad():
            self.copy_offset.fill_(-1.0)  # little is copied at first
            for weight in (self.token_weight, self.token_bias, self.log_length):
                weight.zero_()

    def leaves(
        self,
        leaves_BGD: torch.Tensor,
        roots_BSD: torch.Tensor,
        leaf_segments_BG: torch.Tensor,
        root_segments_BS: torch.Tensor,
    ) -> LeafTokens:
        """Of leaves that may copy from the roots of their own document."""
        scores_BGS = self.copy_query(leaves_BGD) @ self.copy_key(roots_BSD).transpose(1, 2) / MATCH_KEY**0.5
        own_BGS = (leaf_segments_BG[..., None] == root_segments_BS[:, None]) & (root_segments_BS > 0)[:, None]
        copied_BGS = nn.functional.softplus(scores_BGS.float() + self.copy_offset) * own_BGS
        return LeafTokens(self.expected(leaves_BGD), copied_BGS)

    def names(self, text_ids: torch.Tensor, embedding_VD: torch.Tensor, pad: int) -> NameTokens:
        """Of texts [..., C]; an empty one offers nothing."""
        there = text_ids != pad
        weights = nn.functional.softplus(nn.functional.embedding(text_ids, self.token_weight[:, None]).squeeze(-1))
        weights = weights.float() * there
        weights = weights * self.log_length.exp() / (weights.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        tokens = nn.functional.embedding(text_ids, embedding_VD)
        mean = (weights[..., None].to(tokens.dtype) * tokens).sum(-2)
        bias = (weights * nn.functional.embedding(text_ids, self.token_bias[:, None]).squeeze(-1)).sum(-1)
        return NameTokens(mean, bias, weights)

    @staticmethod
    def bags(ids: torch.Tensor, weights: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """[..., V] from tokens and their weights [..., n]."""
        empty = weights.new_zeros((*weights.shape[:-1], vocab_size))
        return empty.scatter_add(-1, ids.expand(weights.shape), weights)

    def scores(
        self,
        leaves: LeafTokens,
        root_ids_BS: torch.Tensor,
        names: NameTokens,
        text_ids_XC: torch.Tensor,
        vocab_size: int,
    ) -> torch.Tensor:
        """[P, X] of every leaf (P = B G) and every name, fp32."""
        dense_PX = (leaves.expected_BGD.flatten(0, 1) @ names.mean_XD.T).float() + names.bias_X
        copied_BGV = self.bags(root_ids_BS[:, None].expand(leaves.copied_BGS.shape), leaves.copied_BGS, vocab_size)
        name_XV = self.bags(text_ids_XC, names.weights_XC, vocab_size)
        return dense_PX + copied_BGV.flatten(0, 1).float() @ name_XV.T

    def own_scores(
        self, leaves: LeafTokens, root_ids_BS: torch.Tensor, names: NameTokens, text_ids_BGUC: torch.Tensor
    ) -> torch.Tensor:
        """[B, G, U] of every leaf and its own U names; `names` of these [B, G, U, ...]."""
        dense_BGU = (names.mean_XD @ leaves.expected_BGD[..., None]).squeeze(-1).float() + names.bias_X
        equal_BGUCS = text_ids_BGUC[..., None] == root_ids_BS[:, None, None, None]
        copied_BGUC = (equal_BGUCS * leaves.copied_BGS[:, :, None, None]).sum(-1)
        return dense_BGU + (names.weights_XC * copied_BGUC).sum(-1)
