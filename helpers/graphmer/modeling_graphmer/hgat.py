"""Relation and head flow into the leaves: the hierarchical graph attention (H-GAT) of GraphMERT (arXiv 2510.09580).

For a triple (r, head tokens h_1..h_H, tail tokens t_1..t_L):

    e_lj = LeakyReLU_.01(a_r . [W_r t_l ; W_r h_j])    alpha_l = softmax_j(e_lj)    t_l <- t_l + sum_j alpha_lj W_r h_j + b_r

W_r is a full matrix a relation, b_r is ours. By linearity a_r's halves act on tokens as W_r^T a_r, and W_r on the weighted sum of
head tokens: no token is projected but the L sums of a leaf.
"""

from __future__ import annotations

import torch
from torch import nn

# B batch · G leaves · L leaf tokens · H head tokens · D width · R relations · P = B G · X tiles

SLOPE = 0.01
TILE = 8  # leaves of one relation that share a copy of its matrix


class HGAT(nn.Module):
    def __init__(self, relations: int, width: int, *, bias: bool, dropout: float):
        super().__init__()
        self.dropout = dropout
        self.weight = nn.Parameter(torch.empty(relations, width, width))
        self.attention = nn.Parameter(torch.empty(relations, 2, width))  # a_r, its half for tails and that for heads
        self.bias = nn.Parameter(torch.empty(relations, width)) if bias else None

    def forward(
        self,
        leaf_BGLD: torch.Tensor,
        head_BGHD: torch.Tensor,
        head_mask_BGH: torch.Tensor,
        relation_BG: torch.Tensor,
    ) -> torch.Tensor:
        """What is added to the leaf tokens [B, G, L, D]: 0 where `relation_BG` is 0 or a leaf has no head token."""
        B, G, L, D = leaf_BGLD.shape
        drop = nn.functional.dropout
        weight_RDD = drop(self.weight, self.dropout, self.training)
        attention_R2D = drop(self.attention, self.dropout, self.training)
        index_BG = (relation_BG - 1).clamp(min=0)
        through_R2D = (attention_R2D @ weight_RDD).flatten(1)
        through_BG2D = nn.functional.embedding(index_BG, through_R2D).view(B, G, 2, D)
        tail_BGL = (leaf_BGLD * through_BG2D[:, :, :1]).sum(-1)
        head_BGH = (head_BGHD * through_BG2D[:, :, 1:]).sum(-1)
        score_BGLH = nn.functional.leaky_relu(tail_BGL[..., None] + head_BGH[:, :, None], SLOPE)
        score_BGLH = score_BGLH.masked_fill(~head_mask_BGH[:, :, None], torch.finfo(score_BGLH.dtype).min)
        alpha_BGLH = torch.softmax(score_BGLH, dim=-1).to(head_BGHD.dtype)
        sums_BGLD = alpha_BGLH @ head_BGHD
        update_PLD = relation_product(sums_BGLD.flatten(0, 1), index_BG.flatten(), weight_RDD)
        update_BGLD = update_PLD.view(B, G, L, D)
        if self.bias is not None:
            update_BGLD = update_BGLD + nn.functional.embedding(index_BG, self.bias)[:, :, None]
        there_BG = (relation_BG > 0) & head_mask_BGH.any(dim=-1)
        return update_BGLD * there_BG[:, :, None, None]


def relation_product(vectors_PLD: torch.Tensor, relation_P: torch.Tensor, weight_RDD: torch.Tensor) -> torch.Tensor:
    """W_r v for each of the L vectors of each leaf [P, L, D]; relations from 0.

    A copy of W_r for each leaf would be P D^2 numbers, all relations for each leaf R times the arithmetic. Here leaves of one
    relation share tiles of 8; the number of tiles depends on no value, so that XLA compiles one shape and nothing waits.
    """
    P, L, D = vectors_PLD.shape
    R = len(weight_RDD)
    X = (P + (TILE - 1) * min(P, R)) // TILE  # enough, however the relations are spread: a tile has a leaf at least
    mine_PR = (relation_P[:, None] == torch.arange(R, device=relation_P.device)).long()
    tiles_R = (mine_PR.sum(0) + TILE - 1) // TILE
    end_R = tiles_R.cumsum(0)
    place_PR = (end_R - tiles_R) * TILE + mine_PR.cumsum(0) - 1
    place_P = (place_PR * mine_PR).sum(1)
    tile_X = torch.arange(X, device=relation_P.device)
    relation_X = (tile_X[:, None] >= end_R).long().sum(1).clamp(max=R - 1)
    tiled = vectors_PLD.new_zeros(X * TILE, L * D).index_copy(0, place_P, vectors_PLD.flatten(1))
    weight_XDD = nn.functional.embedding(relation_X, weight_RDD.flatten(1)).view(X, D, D)
    product = tiled.view(X, TILE * L, D) @ weight_XDD.transpose(1, 2)
    return product.view(X * TILE, L, D).index_select(0, place_P)
