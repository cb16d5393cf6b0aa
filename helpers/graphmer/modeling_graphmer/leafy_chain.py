"""Leafy chains: tokens of a text in a row, the roots, and triples as leaves at the root where their head begins.

Neighbouring roots are joined, each leaf slot is joined to its root, and neighbouring slots of one leaf are (GraphMERT,
arXiv 2510.09580). How far two tokens are from each other follows from their places: no shortest-path search is needed.

# B sequences · S roots · G leaves · L tokens of a leaf · K = G·L leaf slots · N = S + K tokens
"""

from __future__ import annotations

import torch


def distances(root_count: int, head_start_BG: torch.Tensor, leaf_tokens: int) -> torch.Tensor:
    """Length of the shortest path between any two tokens, int32 [B, N, N]; slot l of leaf g is token S + g·L + l.

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
