"""What the graph brings into the encoder: distances of tokens, attention that decays with them, and relations (H-GAT).

After GraphMERT (arXiv 2510.09580): tokens of a text in a row are the roots, and a triple hangs as a leaf at the root where its
head begins.
"""

from __future__ import annotations

import math

import torch
from torch import nn

# B batch · S roots · G leaves · L leaf tokens · K = G L · N = S + K tokens · H head tokens · D width · A attention heads
# R relations · P = B G · X tiles

MASKED = -3e4  # as a logit: no weight in any dtype, and no infinity that would make NaN of a row of padding
SLOPE = 0.01
TILE = 8  # leaves of one relation that share a copy of its matrix


def distances(root_count: int, head_start_BG: torch.Tensor, leaf_tokens: int) -> torch.Tensor:
    """Length of the shortest path between any two tokens of a leafy chain, int32 [B, N, N]; slot l of leaf g is token S + g·L + l.

    Neighbouring roots are joined, each leaf slot is joined to its root, and neighbouring slots of one leaf are. How far two
    tokens are from each other follows from their places: no shortest-path search is needed.

    Roots |i-j| · root i and a leaf slot at root r |i-r|+1 · slots of leaves at roots r and q |r-q|+2, so 2 for two leaves
    of one root · slots of one leaf min(|s-t|, 2). Segments do not count: attention keeps them apart.

    root_count: S. head_start_BG: root that each leaf hangs at, of an empty leaf any. leaf_tokens: L.

    Torch operations of fixed shapes on the device of `head_start_BG`; nothing is read back to the host.
    """
    B, G = head_start_BG.shape
    S, L = root_count, leaf_tokens
    token_N = torch.arange(S + G * L, device=head_start_BG.device, dtype=torch.int32)
    is_slot_N = token_N >= S
    leaf_N = torch.where(is_slot_N, (token_N - S).div(L, rounding_mode="floor"), -1)
    slot_N = token_N - S - leaf_N * L
    root_BK = head_start_BG.to(torch.int32)[:, :, None].expand(B, G, L).reshape(B, G * L)
    root_BN = torch.cat([token_N[:S].expand(B, S), root_BK], dim=1)
    steps_NN = is_slot_N[:, None].to(torch.int32) + is_slot_N[None, :].to(torch.int32)
    apart_BNN = (root_BN[:, :, None] - root_BN[:, None, :]).abs() + steps_NN
    within_NN = (slot_N[:, None] - slot_N[None, :]).abs().clamp(max=2)
    one_leaf_NN = (leaf_N[:, None] == leaf_N[None, :]) & is_slot_N[:, None]
    return torch.where(one_leaf_NN, within_NN, apart_BNN)


class Decay(nn.Module):
    """GraphMERT's exponential decay with distance, with an offset p learned for each head, one set for all layers; from 1.

        f = base ^ GELU(sqrt(d + 1) - p)

    The paper's text multiplies attention weights by f; its code multiplies the logits, before the softmax, and so do we
    ("multiplicative"). Then a far pair is no weak pair: its logit goes to 0, up where it was negative, and what is far is seen
    evenly.
    """

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


class HGAT(nn.Module):
    """Relation and head flow into the leaves: the hierarchical graph attention (H-GAT) of GraphMERT.

    For a triple (r, head tokens h_1..h_H, tail tokens t_1..t_L):

        e_lj = LeakyReLU_.01(a_r . [W_r t_l ; W_r h_j])    alpha_l = softmax_j(e_lj)    t_l <- t_l + sum_j alpha_lj W_r h_j + b_r

    W_r is a full matrix a relation, b_r is ours. By linearity a_r's halves act on tokens as W_r^T a_r, and W_r on the weighted
    sum of head tokens: no token is projected but the L sums of a leaf.
    """

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
        """What is added to the leaf tokens [B, G, L, D]: 0 where `relation_BG` is 0 or a leaf has no head token.

        leaf_BGLD: tail tokens t. head_BGHD: head tokens h; head_mask_BGH: where there is one. relation_BG: r, from 1; 0 is no leaf.
        """
        B, G, L, D = leaf_BGLD.shape
        drop = nn.functional.dropout
        weight_RDD = drop(self.weight, self.dropout, self.training)
        attention_R2D = drop(self.attention, self.dropout, self.training)
        index_BG = (relation_BG - 1).clamp(min=0)
        query_R2D = (attention_R2D @ weight_RDD).flatten(1)  # W_r^T a_r
        query_BG2D = nn.functional.embedding(index_BG, query_R2D).view(B, G, 2, D)
        tail_BGL = (leaf_BGLD * query_BG2D[:, :, :1]).sum(-1)
        head_BGH = (head_BGHD * query_BG2D[:, :, 1:]).sum(-1)
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
