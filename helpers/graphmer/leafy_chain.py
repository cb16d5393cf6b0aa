"""Leafy chains: tokens of a text in a row, the roots, and triples as leaves at the root where their head begins.

Neighbouring roots are joined, each leaf slot is joined to its root, and neighbouring slots of one leaf are (GraphMERT,
arXiv 2510.09580). How far two tokens are from each other follows from their places: no shortest-path search is needed.

# B sequences · S roots · G leaves · L tokens of a leaf · K = G·L leaf slots · N = S + K tokens
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

# What an empty leaf holds; every other tensor that has leaves holds 0 there.
_EMPTY = {"mnm_labels": -100, "triple_labels": -100, "tail_entities": -1, "head_entities": -1, "tail_types": -1}


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


def full_layout(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same sequences with room for one leaf at every root: G = S, and leaf g hangs at root g.

    On the host. Raises ValueError where two leaves hang at one root: there is no room for the second.
    """
    B, S = batch["root_ids"].shape
    start_BG, used_BG = batch["head_start"], batch["leaf_segments"] > 0
    row_n, leaf_n = used_BG.nonzero(as_tuple=True)
    root_n = start_BG[row_n, leaf_n]
    if len(torch.unique(row_n * S + root_n)) < len(root_n):
        raise ValueError('layout="full": two leaves at one root; choose them with layout="full", or use "compact"')
    full = {}
    for name, values in batch.items():
        if name.startswith(("root_", "mlm_")):
            full[name] = values
        elif name == "known_BGX":
            G = start_BG.shape[1]
            known_nn = values[row_n, leaf_n][:, row_n * G + leaf_n]
            full[name] = values.new_zeros(B, S, B * S)
            full[name][row_n[:, None], root_n[:, None], (row_n * S + root_n)[None, :]] = known_nn
        else:
            full[name] = values.new_full((B, S, *values.shape[2:]), _EMPTY.get(name, 0))
            full[name][row_n, root_n] = values[row_n, leaf_n]
    full["head_start"] = torch.arange(S).expand(B, S).contiguous()
    return full
