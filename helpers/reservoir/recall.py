"""Frozen recall: which tokens stood where the text looked as it does now, from a delay line of the last tokens themselves.

Reservoir states are blurred: they tell that a name was there, not which of a hundred. So each token of the line is proposed
again, with the weight of a kernel:
    recency   2^(-age / half-life)                      a decaying cache (Clarkson and Robinson 1997)
    match n   the n tokens before it are the last n of the text, divided by how often that is so: induction by counting
The readout scales each kernel at each position, and the sums are added to the logits of the proposed tokens.
"""

from __future__ import annotations

import math

import torch
from torch import nn

# B batch · T tokens · U = T + 1 · W tokens of the line · S = W + T tokens that can be proposed · K kernels · D embedding · V vocabulary
# R = B T rows

HALF_LIVES = (8.0, 64.0)  # tokens
MATCHES = (1, 2, 3)  # tokens
KERNELS = len(HALF_LIVES) + len(MATCHES)
NOTHING, UNLIKE_ANY = 0, -1  # in a line of ids + 1: before the text began, or masked; equal to no entry


@torch.no_grad()
def extend_line(line_BW: torch.Tensor, input_ids: torch.Tensor, mask_BT: torch.Tensor | None = None, since_BU=None):
    """Puts new tokens behind the line of the last W; with W = 3, [0, 5, 9] and ids [2, 6] give [0, 5, 9, 3, 7] and [9, 3, 7].

    Args:
        line_BW: the W tokens before these as floats, id + 1, 0 where there was none.
        input_ids: [B, T].
        mask_BT: 0 where a token counts as none.
        since_BU: tokens since the text began (`scans.since_begin`), if texts end among these.

    Returns:
        All tokens [B, S], and the next line [B, W], in which those of another text are 0.
    """
    new_BT = (input_ids + 1).to(line_BW.dtype)
    ids_BS = torch.cat((line_BW, new_BT if mask_BT is None else new_BT * mask_BT.to(new_BT.dtype)), dim=1)
    next_BW = ids_BS[:, input_ids.shape[1] :]
    if since_BU is not None:
        age_W = torch.arange(next_BW.shape[1], 0, -1, device=next_BW.device)
        next_BW = next_BW * (since_BU[:, -1:] >= age_W)
    return ids_BS, next_BW


@torch.no_grad()
def proposals(line_BW: torch.Tensor, input_ids: torch.Tensor, mask_BT: torch.Tensor | None = None, since_BU=None):
    """Frozen kernels of every position over the last W tokens, its own included.

    Args as of `extend_line`; nothing of another text is proposed or compared.

    Returns:
        The proposed tokens [B, S] and their weights [B, T, K, S].
    """
    W, T = line_BW.shape[1], input_ids.shape[1]
    dtype = line_BW.dtype
    ids_BS, _ = extend_line(line_BW, input_ids, mask_BT, since_BU)
    position_S = torch.arange(W + T, device=ids_BS.device)
    age_TS = position_S[W:, None] - position_S
    in_text_BTS = True if since_BU is None else age_TS <= since_BU[:, :-1, None]
    # Products of 0 and 1 in floats take half the time of logic on booleans.
    valid_BTS = ((age_TS >= 0) & (age_TS < W) & in_text_BTS).to(dtype) * (ids_BS != NOTHING)[:, None].to(dtype)
    # Not `exp2`, which torch_xla computes on the host.
    kernels = [valid_BTS * torch.exp(age_TS.to(dtype) * (-math.log(2) / half)) for half in HALF_LIVES]
    match_BTS = valid_BTS
    for n in range(1, max(MATCHES) + 1):
        # The n-th token before a proposed one, against the n-th last of the text, of which the current one is the first.
        before_BS = nn.functional.pad(ids_BS, (n, 0), value=NOTHING)[:, : W + T]
        if since_BU is not None:  # in the line there is one text
            before_BS = before_BS * (nn.functional.pad(since_BU[:, :-1], (W, 0), value=n) >= n)
        last_BT = nn.functional.pad(ids_BS, (n - 1, 0), value=NOTHING)[:, W : W + T]
        same_BTS = before_BS[:, None] == last_BT.masked_fill(last_BT == NOTHING, UNLIKE_ANY)[..., None]
        in_line_TS = (age_TS + n < W).to(dtype)  # the ones before it too, so that streaming sees the same
        match_BTS = match_BTS * same_BTS * in_line_TS
        if n in MATCHES:
            kernels.append(match_BTS / match_BTS.sum(-1, keepdim=True).clamp(min=1))
    return (ids_BS - 1).clamp(min=0).long(), torch.stack(kernels, dim=2)


class Recall(nn.Module):
    """Trained trust in each kernel, linear in the readout's vector; it starts at none."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(KERNELS, width))
        self.bias = nn.Parameter(torch.zeros(KERNELS))

    def forward(self, logits_RV, x_BTD, tokens_BS, weights_BTKS):
        """Logits [R = B T, V], on XLA [B, T, V], with what is recalled added, in fp32 at least; in place where they are that."""
        # A scatter of half precision would go there and back; the loss wants fp32 too.
        logits_RV = logits_RV.to(torch.promote_types(logits_RV.dtype, torch.float32))
        trust_BTK = nn.functional.linear(x_BTD, self.weight, self.bias)
        with torch.autocast(x_BTD.device.type, enabled=False):
            boost_BTS = (trust_BTK.to(weights_BTKS.dtype)[..., None, :] @ weights_BTKS).squeeze(-2)
        if logits_RV.device.type == "xla":
            # A scatter along a sharded tensor gathers it on every chip; a product does not.
            chosen_BSV = tokens_BS[..., None] == torch.arange(logits_RV.shape[-1], device=logits_RV.device)
            return logits_RV + (boost_BTS.to(trust_BTK.dtype) @ chosen_BSV.to(trust_BTK.dtype)).view_as(logits_RV)
        places_RS = tokens_BS[:, None].expand_as(boost_BTS).flatten(0, 1)
        return logits_RV.scatter_add_(1, places_RS, boost_BTS.flatten(0, 1).to(logits_RV.dtype))
