"""Recurrences over time without autograd: leaky tanh (dense or block-diagonal) and complex-diagonal linear.

The prefix-sum form of textbooks, lambda^t cumsum(lambda^-t u), overflows after 128 tokens of |lambda| = 0.5.
"""

from __future__ import annotations

import itertools
from functools import partial

import torch
from torch.backends import mkldnn
from torch.nn.functional import linear as linear_layer
from torch.nn.functional import pad as _pad

try:
    from helpers import xla
except ImportError:  # a saved model goes without it, and on XLA unrolls the loop
    xla = None

# B batch · T tokens · U = T + 1 · N units · G blocks of M units (N = G M) · L tokens of a chunk · C chunks

LONG_AGO = 2**30  # tokens since the text began: before this call, so that what was carried counts


def since_begin(ends_BT):
    """Tokens since the text began, of every token and of the next one [B, T + 1]: 0 after a token that ends a text.

    ends_BT: whether a token does. Where none did before, LONG_AGO. By doubling: torch_xla has no running maximum of integers.
    """
    position_U = torch.arange(ends_BT.shape[1] + 1, device=ends_BT.device)
    begin_BU = _pad(ends_BT.long(), (1, 0)) * position_U
    shift = 1
    while shift < len(position_U):
        begin_BU = torch.maximum(begin_BU, _pad(begin_BU[:, :-shift], (shift, 0)))
        shift *= 2
    return (position_U - begin_BU).masked_fill(begin_BU == 0, LONG_AGO)


def _kept(state, kept):
    return state if kept is None else state * kept


@torch.no_grad()
def leaky_tanh(drive_BTN, weight_GMM, leak: float, state_BN, out_BTN=None, since_BT=None):
    """States s_t = (1 - a) s_{t-1} + a tanh(W s_{t-1} + d_t) after every token (Jaeger, GMD report 148, 2001).

    Args:
        drive_BTN: d, the input's part of the activation, bias included.
        weight_GMM: the blocks of a block-diagonal W.
        leak: a in (0, 1].
        state_BN: before the first token.
        out_BTN: where to write the states, of `compute_dtype`; None makes a new array, and so does XLA.
        since_BT: tokens since the text began (`since_begin`); where it is 0 the state before counts for nothing.

    Returns:
        States [B, T, N], under autocast in its dtype, and the last one [B, N] in the drive's, in which it is carried.
    """
    B, T, N = drive_BTN.shape
    G, M, _ = weight_GMM.shape
    dtype = compute_dtype(drive_BTN)
    weight_GMM = weight_GMM.to(dtype)
    kept_TB1 = [None] * T if since_BT is None else (since_BT != 0).to(state_BN.dtype).T[..., None]
    with torch.autocast(drive_BTN.device.type, enabled=False):
        if drive_BTN.device.type == "xla" and xla is not None:
            carry = (xla.shard_batch(state_BN), weight_GMM, torch.tensor(leak, device=drive_BTN.device))
            inputs = (drive_BTN.transpose(0, 1), *([] if since_BT is None else [kept_TB1]))
            (state_BN, _, _), states_TBN = xla.scan(_leaky_step, carry, inputs)
            return xla.shard_batch(states_TBN.transpose(0, 1).to(dtype)), state_BN
        states_BTN = torch.empty((B, T, N), dtype=dtype, device=drive_BTN.device) if out_BTN is None else out_BTN
        activation = _dense(weight_GMM[0], B, T) if G == 1 else partial(_block_diagonal, weight_GMM)
        drive_TGBM = drive_BTN.reshape(B, T, G, M).permute(1, 2, 0, 3)
        states_TGBM = states_BTN.view(B, T, G, M).permute(1, 2, 0, 3)
        state_GBM = state_BN.reshape(B, G, M).transpose(0, 1)
        for drive_GBM, target_GBM, kept_B1 in zip(drive_TGBM, states_TGBM, kept_TB1, strict=True):
            state_GBM = _kept(state_GBM, kept_B1)
            state_GBM = torch.lerp(state_GBM, _tanh_(activation(drive_GBM, state_GBM.to(dtype))), leak)
            target_GBM.copy_(state_GBM)
        return states_BTN, state_GBM.transpose(0, 1).reshape(B, N)


def _dense(weight_NN, B: int, T: int):
    """(d, s) [1, B, N] -> d + s W^T, T times. In oneDNN's own layout of W an fp32 product is faster on an AMD CPU, if at least about
    256 rows pay for the copy. (The planner's fake tensors are a subclass without that layout.)"""
    on_cpu = type(weight_NN) is torch.Tensor and weight_NN.device.type == "cpu" and mkldnn.is_available()
    # A saved model takes this to any torch.
    if on_cpu and weight_NN.dtype == torch.float32 and B * T >= 256 and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        packed_NN = torch.ops.mkldnn._reorder_linear_weight(weight_NN, B)
        add = torch.ops.mkldnn._linear_pointwise.binary
        return lambda drive_1BN, state_1BN: add(state_1BN[0], drive_1BN[0], packed_NN, None, "add")
    return lambda drive_1BN, state_1BN: linear_layer(state_1BN[0], weight_NN) + drive_1BN


def _block_diagonal(weight_GMM, drive_GBM, state_GBM):
    """d + s W^T in the drive's dtype, fused where both have one."""
    fused = state_GBM.dtype == drive_GBM.dtype
    return torch.baddbmm(drive_GBM, state_GBM, weight_GMM.mT) if fused else drive_GBM + state_GBM @ weight_GMM.mT


def _tanh_(tensor):
    """In place. On a CPU by the sigmoid, 2 sigma(2x) - 1, which takes a fifth of the time; absolute error 2e-7 in fp32."""
    if tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.float64):
        return tensor.mul_(2).sigmoid_().mul_(2).sub_(1)
    return tensor.tanh_()


def _leaky_step(carry, inputs):
    # Module-level and closed over nothing: XLA's scan caches the traced body by function, and hoists no tensor.
    (state_BN, weight_GMM, leak), (drive_BN, *kept_B1) = carry, inputs
    state_BN = _kept(state_BN, *kept_B1 or [None])
    G, M, _ = weight_GMM.shape
    if G == 1:
        product_BN = state_BN.to(weight_GMM.dtype) @ weight_GMM[0].T
    else:
        state_BGM = state_BN.to(weight_GMM.dtype).reshape(-1, G, M)
        product_BN = torch.einsum("bgm,gnm->bgn", state_BGM, weight_GMM).reshape(state_BN.shape)
    state_BN = (1 - leak) * state_BN + leak * torch.tanh(drive_BN + product_BN.to(drive_BN.dtype))
    return (state_BN, weight_GMM, leak), state_BN


def compute_dtype(tensor) -> torch.dtype:
    """What autocast computes products of this tensor in, or the tensor's own dtype without it."""
    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tensor.dtype


@torch.no_grad()
def linear(drive_BTN, multiplier_2N, state_B2N, scan, since_BT=None):
    """States s_t = lambda s_{t-1} + u_t of a complex-diagonal linear recurrence (LRU, Orvieto et al. 2023, eq. 1), [B, T, 2, N].

    Complex numbers travel as real and imaginary part, which every backend supports. Sums are at least fp32, since lambda^t
    is the product of T roundings.

    Args:
        drive_BTN: u, real.
        multiplier_2N: lambda, |lambda| < 1.
        state_B2N: before the first token.
        scan: `chunked` or `doubling`.
        since_BT: as in `leaky_tanh`.
    """
    dtype = torch.promote_types(drive_BTN.dtype, multiplier_2N.dtype)
    wide = torch.promote_types(dtype, torch.float32)
    with torch.autocast(drive_BTN.device.type, enabled=False):
        return scan(drive_BTN.to(wide), multiplier_2N.to(wide), state_B2N.to(wide), since_BT).to(dtype)


def chunked(drive_BTN, multiplier_2N, state_B2N, since_BT=None, length: int = 32):
    """A loop over the tokens of a chunk, all chunks at once, then one over chunks."""
    B, T, N = drive_BTN.shape
    multiplier_N, state_BN = torch.complex(*multiplier_2N), torch.complex(*state_B2N.unbind(1))
    length = min(length, T)
    chunks = -(-T // length)
    powers_LN = multiplier_N[None]  # lambda, lambda^2, ...
    while len(powers_LN) < length:
        powers_LN = torch.cat((powers_LN, powers_LN[-1] * powers_LN))
    # In place: at 8 x 1,024 tokens and 512 units a second array costs as much as the arithmetic, in page faults.
    states_BTN = torch.empty((B, chunks * length, N), dtype=multiplier_N.dtype, device=drive_BTN.device)
    states_BTN[:, :T] = drive_BTN
    states_BTN[:, T:] = 0
    states_BCLN = states_BTN.view(B, chunks, length, N)
    kept_LBC1, carried_CBL1 = [None] * length, [None] * chunks
    if since_BT is not None:
        since_BCL1 = _pad(since_BT, (0, chunks * length - T)).view(B, chunks, length, 1)
        kept_LBC1 = (since_BCL1 != 0).to(states_BTN.dtype).unbind(2)
        place_L1 = torch.arange(length, device=since_BT.device)[:, None]
        carried_CBL1 = (since_BCL1 > place_L1).to(states_BTN.dtype).unbind(1)
    # All chunks at once from zero, token by token; then what was there before each, decayed, is added.
    for (before_BCN, state_BCN), kept_BC1 in zip(itertools.pairwise(states_BCLN.unbind(2)), kept_LBC1[1:], strict=True):
        state_BCN.addcmul_(multiplier_N, _kept(before_BCN, kept_BC1))
    for chunk_BLN, carried_BL1 in zip(states_BCLN.unbind(1), carried_CBL1, strict=True):
        chunk_BLN.addcmul_(powers_LN[:length], _kept(state_BN[:, None], carried_BL1))
        state_BN = chunk_BLN[:, -1]
    return torch.view_as_real(states_BTN[:, :T]).transpose(-1, -2)


def doubling(drive_BTN, multiplier_2N, state_B2N, since_BT=None):
    """log2(T) elementwise steps (Hillis and Steele 1986): static shapes and no loop over tokens, for XLA."""
    T = drive_BTN.shape[1]
    (factor_re, factor_im), (state_re, state_im) = multiplier_2N.unbind(-2), state_B2N.unbind(-2)
    # What was there before enters with the first token. Parts apart: stacked, the graph is three times as large.
    rest = (0, 0, 0, T - 1)
    re = drive_BTN + _pad((factor_re * state_re - factor_im * state_im)[:, None], rest)
    im = _pad((factor_re * state_im + factor_im * state_re)[:, None], rest)
    shift = 1
    while shift < T:  # after each pass a state holds twice as many of its inputs
        kept_BT1 = None if since_BT is None else (since_BT >= shift).to(re.dtype)[..., None]
        earlier_re, earlier_im = (_kept(_pad(part[:, :-shift], (0, 0, shift, 0)), kept_BT1) for part in (re, im))
        re, im = (
            re + factor_re * earlier_re - factor_im * earlier_im,
            im + factor_re * earlier_im + factor_im * earlier_re,
        )
        factor_re, factor_im = factor_re * factor_re - factor_im * factor_im, 2 * factor_re * factor_im
        shift *= 2
    return torch.stack((re, im), dim=2)
