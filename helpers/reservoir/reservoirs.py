"""Frozen reservoirs as modules: leaky tanh, complex-diagonal linear and delay line, with one interface.

Every tensor of a reservoir is a buffer, drawn from a seed and never trained.
"""

from __future__ import annotations

import math
import random

import numpy as np
import torch
from torch import nn

from .architecture import Delay, Layers, Linear, Tanh
from .scans import chunked, compute_dtype, doubling, leaky_tanh, linear

# B batch · T tokens · I inputs (vocabulary, or features of the layer below) · N units · F features · S state floats
# C floats of a token's code · G blocks of M units · U = T + 1
# Dtypes are given, since transformers keeps such in whatever dtype it loads a model.

DRIVEN_TOKENS = 16  # whose drive is computed at once: it stays in cache and takes no second [B, T, N] of memory
SHORTEST_MEMORY = 1.0  # tokens, time constant of the fastest linear unit


def build(spec: Tanh | Linear | Delay, inputs: int, codes: int = 0) -> Reservoir:
    """The module of a specification, its weights still zero (`draw` makes them); codes: C, 0 for one-hot inputs."""
    return _MODULES[type(spec)](spec, inputs, codes)


class KeepsPrecision(nn.Module):
    """In a model cast to bf16 or fp16 nothing in here changes."""

    def _apply(self, fn, recurse=True):
        def exact(tensor):
            moved = fn(tensor)
            return moved if moved.dtype in (tensor.dtype, torch.float32, torch.float64) else tensor.to(moved.device)

        return super()._apply(exact, recurse)


class Reservoir(nn.Module):
    """`forward(inputs, state_BS, mask_BT, since_BT)` gives features after every token [B, T, F] and the state after the last.

    Attributes:
        features: F, floats a token that a readout sees.
        state_size: S, floats that are carried from one token to the next.
        input_weight: W_in [I, N]; of tokens with codes, made from those and `input_map`, which is saved in its place.
    """

    features: int
    state_size: int

    def __init__(self, spec, inputs: int, units: int, codes: int):
        super().__init__()
        self.spec = spec
        self.register_buffer("input_weight", torch.zeros(inputs, units, dtype=torch.float32), persistent=not codes)
        self.register_buffer("input_map", torch.zeros(codes, units, dtype=torch.float32) if codes else None)

    @torch.no_grad()
    def draw(self, generator: torch.Generator, tokens: bool) -> torch.Tensor:
        """Draws every buffer on the CPU and returns that of the input.

        tokens: the input is one-hot; else features, whose sum is normalised. A map of codes gives W_in the same variance.
        """
        scale = self.spec.input_scaling * (1 if tokens else len(self.input_weight) ** -0.5)
        if self.input_map is None:
            return self.input_weight.copy_(_uniform(self.input_weight.shape, scale, generator))
        drawn_CN = torch.randn(self.input_map.shape, generator=generator)
        return self.input_map.copy_(drawn_CN * (scale * (3 * len(drawn_CN)) ** -0.5))

    def drive(self, inputs, mask_BT=None):
        """W_in x_t [B, T, N] of token ids [B, T] or features [B, T, I]; zero where `mask_BT` is 0."""
        if inputs.is_floating_point():
            drive_BTN = inputs.to(self.input_weight.dtype) @ self.input_weight
        else:
            drive_BTN = nn.functional.embedding(inputs, self.input_weight)
        return self._masked(drive_BTN, mask_BT)

    @staticmethod
    def _masked(drive_BTN, mask_BT):
        return drive_BTN if mask_BT is None else drive_BTN * mask_BT[..., None].to(drive_BTN.dtype)


class TanhReservoir(Reservoir):
    """Features and state are the N units."""

    def __init__(self, spec: Tanh, inputs: int, codes: int):
        super().__init__(spec, inputs, spec.size, codes)
        M = spec.size // spec.blocks
        self.register_buffer("weight", torch.zeros(spec.blocks, M, M, dtype=torch.float32))
        self.register_buffer("bias", torch.zeros(spec.size, dtype=torch.float32))
        self.features = self.state_size = spec.size

    @torch.no_grad()
    def draw(self, generator, tokens):
        """Raises ValueError where a block of W has no cycle: then its spectral radius is 0, however it is scaled."""
        super().draw(generator, tokens)
        spec = self.spec
        weight_GMM = torch.randn(self.weight.shape, generator=generator, dtype=torch.float64)
        weight_GMM *= torch.rand(self.weight.shape, generator=generator, dtype=torch.float64) < spec.density
        radius_G = torch.linalg.eigvals(weight_GMM).abs().amax(-1)
        if (radius_G == 0).any():
            raise ValueError(
                f"density={spec.density}, size={spec.size}, blocks={spec.blocks}: a block of W has no cycle, so that its "
                f"spectral radius is 0 and cannot be scaled to {spec.spectral_radius}; raise density or size"
            )
        self.weight.copy_(weight_GMM * (spec.spectral_radius / radius_G)[:, None, None])
        self.bias.copy_(_uniform(self.bias.shape, spec.bias_scaling, generator))

    def forward(self, inputs, state_BS, mask_BT=None, since_BT=None):
        if inputs.device.type == "xla":
            drive_BTN = self._masked(self.drive(inputs) + self.bias, mask_BT)
            return leaky_tanh(drive_BTN, self.weight, self.spec.leak, state_BS, since_BT=since_BT)
        # Piece by piece into one array: another one as large would cost as much, in page faults, as the arithmetic.
        dtype, shape = compute_dtype(self.bias), (*inputs.shape[:2], self.features)
        states_BTN = torch.empty(shape, dtype=dtype, device=self.bias.device)
        for begin in range(0, inputs.shape[1], DRIVEN_TOKENS):
            piece = slice(begin, begin + DRIVEN_TOKENS)
            mask, since = (None if each is None else each[:, piece] for each in (mask_BT, since_BT))
            drive_BTN = self._masked(self.drive(inputs[:, piece]) + self.bias, mask)
            _, state_BS = leaky_tanh(drive_BTN, self.weight, self.spec.leak, state_BS, states_BTN[:, piece], since)
        return states_BTN, state_BS


class LinearReservoir(Reservoir):
    """Features and state are real and imaginary parts, 2 N."""

    def __init__(self, spec: Linear, inputs: int, codes: int):
        super().__init__(spec, inputs, spec.size, codes)
        self.register_buffer("multiplier", torch.zeros(2, spec.size, dtype=torch.float32))
        self.features = self.state_size = 2 * spec.size

    @torch.no_grad()
    def draw(self, generator, tokens):
        drawn_IN = super().draw(generator, tokens)
        N = self.spec.size
        longest = -1 / math.log(self.spec.spectral_radius)
        shortest = min(SHORTEST_MEMORY, longest)
        time_N = shortest * (longest / shortest) ** torch.rand(N, generator=generator, dtype=torch.float64)
        time_N[0] = longest  # so that the radius is the one asked for
        radius_N = torch.exp(-1 / time_N)
        phase_N = math.pi * torch.rand(N, generator=generator, dtype=torch.float64)
        self.multiplier.copy_(torch.stack((radius_N * phase_N.cos(), radius_N * phase_N.sin())))
        drawn_IN.mul_((1 - radius_N**2).sqrt())

    def forward(self, inputs, state_BS, mask_BT=None, since_BT=None):
        drive_BTN = self.drive(inputs, mask_BT)
        scan = doubling if drive_BTN.device.type == "xla" else chunked
        states_BT2N = linear(drive_BTN, self.multiplier, state_BS.unflatten(1, (2, -1)), scan, since_BT)
        return states_BT2N.flatten(2), states_BT2N[:, -1].flatten(1)


class DelayReservoir(Reservoir):
    """Features are the codes of the last tokens and products of them; the state is the codes of all but the current."""

    def __init__(self, spec: Delay, inputs: int, codes: int):
        super().__init__(spec, inputs, spec.size, codes)
        self.register_buffer("pairs", torch.zeros(2, spec.quadratic, dtype=torch.int64))
        self.features = spec.size * spec.delays + spec.quadratic
        self.state_size = spec.size * (spec.delays - 1)

    @torch.no_grad()
    def draw(self, generator, tokens):
        super().draw(generator, tokens)
        # Pair number p of the pairs i < j, row by row of the triangle below the diagonal.
        length, quadratic = self.spec.size * self.spec.delays, self.spec.quadratic
        chooser = random.Random(int(torch.randint(2**62, (1,), generator=generator)))
        chosen = torch.tensor(chooser.sample(range(length * (length - 1) // 2), quadratic), dtype=torch.float64)
        j = ((1 + (1 + 8 * chosen).sqrt()) / 2).floor()
        self.pairs.copy_(torch.stack((chosen - j * (j - 1) / 2, j)).long())

    def forward(self, inputs, state_BS, mask_BT=None, since_BT=None):
        T = inputs.shape[1]
        line_BTN = torch.cat((state_BS.unflatten(1, (-1, self.spec.size)), self.drive(inputs, mask_BT)), dim=1)
        delays = self.spec.delays
        codes = [line_BTN[:, delays - 1 - k : delays - 1 - k + T] for k in range(delays)]
        last_BTN = line_BTN[:, T:]
        if since_BT is not None:
            codes = [code_BTN * (since_BT[..., None] >= k) for k, code_BTN in enumerate(codes)]
            last_BTN = (
                last_BTN * (since_BT[:, -1:] >= torch.arange(delays - 2, -1, -1, device=inputs.device))[..., None]
            )
        linear_BTF, state_BS = torch.cat(codes, dim=-1), last_BTN.flatten(1)
        if not self.spec.quadratic:
            return linear_BTF, state_BS
        left, right = self.pairs
        return torch.cat((linear_BTF, linear_BTF[..., left] * linear_BTF[..., right]), dim=-1), state_BS


_MODULES = {Tanh: TanhReservoir, Linear: LinearReservoir, Delay: DelayReservoir}


class Reservoirs(KeepsPrecision):
    """Layers of reservoirs: the first sees token ids, each next one the features of the layer below.

    Never in half precision: rounded at every token a slow leak stalls.

    codes: C, floats of a token's code that the first layer sees; 0 for a one-hot vector. Saved once, in 16 bits.

    Attributes:
        features: floats a token of each layer.
        state_size: floats carried between calls, all reservoirs together.
    """

    def __init__(self, layers: Layers, vocab_size: int, codes: int = 0):
        super().__init__()
        self.register_buffer("codes", torch.zeros(vocab_size, codes, dtype=torch.float16) if codes else None)
        self.layers, self.features, inputs = nn.ModuleList(), [], vocab_size
        for layer in layers:
            self.layers.append(nn.ModuleList(build(spec, inputs, codes) for spec in layer))
            inputs, codes = sum(reservoir.features for reservoir in self.layers[-1]), 0
            self.features.append(inputs)
        self.state_size = sum(reservoir.state_size for layer in self.layers for reservoir in layer)
        self.register_load_state_dict_post_hook(lambda module, _: module.derive())

    def draw(self, seed: int, codes_VC: torch.Tensor | None = None) -> None:
        """Draws each reservoir from (seed, its layer, its place), so that one more changes no other.

        codes_VC: of unit mean square; by default normal.
        """
        if self.codes is not None:
            normal = torch.Generator().manual_seed(seed)
            self.codes.copy_(torch.randn(self.codes.shape, generator=normal) if codes_VC is None else codes_VC)
        for depth, layer in enumerate(self.layers):
            for place, reservoir in enumerate(layer):
                entropy = int(np.random.SeedSequence((seed, depth, place)).generate_state(1, np.uint64)[0] >> 1)
                reservoir.draw(torch.Generator().manual_seed(entropy), tokens=depth == 0)
        self.derive()

    @torch.no_grad()
    def derive(self) -> None:
        """Makes W_in from codes and maps, the same bits from the same file: on the CPU and of copies, aligned in memory."""
        for reservoir in self.layers[0] if self.codes is not None else ():
            map_CN = reservoir.input_map.to("cpu", copy=True)
            reservoir.input_weight.copy_(self.codes.cpu().to(map_CN.dtype) @ map_CN)

    @torch.no_grad()
    def forward(self, input_ids_BT, state_BS, mask_BT=None, since_BU=None):
        """Features of every layer [[B, T, F], ...] and the state after the last token [B, S].

        Where `mask_BT` is 0 the token drives nothing: the zero state stays zero through padding on the left.
        since_BU: tokens since the text began (`scans.since_begin`); what was before then counts for nothing.
        """
        since_BT = None if since_BU is None else since_BU[:, :-1]
        states = iter(state_BS.split([r.state_size for layer in self.layers for r in layer], dim=1))
        inputs, features, lasts = input_ids_BT, [], []
        for layer in self.layers:
            outputs = [reservoir(inputs, next(states), mask_BT, since_BT) for reservoir in layer]
            inputs = torch.cat([output for output, _ in outputs], dim=-1) if len(outputs) > 1 else outputs[0][0]
            features.append(inputs)
            lasts += [last for _, last in outputs]
        last_BS = torch.cat(lasts, dim=1)
        return features, last_BS if since_BU is None else last_BS * (since_BU[:, -1:] != 0)


def _uniform(shape, scale: float, generator: torch.Generator) -> torch.Tensor:
    return (torch.rand(shape, generator=generator) * 2 - 1) * scale
