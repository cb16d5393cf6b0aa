"""Frozen reservoirs as modules: leaky tanh, complex-diagonal linear and delay line, with one interface.

Every tensor of a reservoir is a buffer, drawn from a seed and never trained. Token input is a row of the input weights, as
a one-hot vector times W_in would be, without the product.
"""

from __future__ import annotations

import math
import random

import numpy as np
import torch
from torch import nn

from helpers.reservoir import scans
from helpers.reservoir.architecture import Delay, Layers, Linear, Tanh

# B batch · T tokens · I inputs (vocabulary, or features of the layer below) · N units · F features · S state floats
# G blocks of M units

DRIVEN_TOKENS = 16  # whose drive is computed at once: it stays in cache and takes no second [B, T, N] of memory
SHORTEST_MEMORY = 1.0  # tokens, time constant of the fastest linear unit


def build(spec: Tanh | Linear | Delay, inputs: int) -> Reservoir:
    """The module of a specification, its weights still zero (`draw` makes them)."""
    return _MODULES[type(spec)](spec, inputs)


class Reservoir(nn.Module):
    """`forward(inputs, state_BS, mask_BT)` gives features after every token [B, T, F] and the state after the last [B, S].

    Attributes:
        features: F, floats a token that a readout sees.
        state_size: S, floats that are carried from one token to the next.
    """

    features: int
    state_size: int

    def __init__(self, spec, inputs: int, units: int):
        super().__init__()
        self.spec = spec
        self.register_buffer("input_weight", torch.zeros(inputs, units))

    @torch.no_grad()
    def draw(self, generator: torch.Generator, tokens: bool, codes_IC: torch.Tensor | None = None) -> None:
        """Draws every buffer on the CPU.

        tokens: the input is one-hot; else features, whose sum is normalised. codes_IC: codes of unit mean square instead
        of one-hot inputs; W_in is a random map of them, of the variance that it has otherwise.
        """
        inputs, units = self.input_weight.shape
        scale = self.spec.input_scaling * (1 if tokens else inputs**-0.5)
        if codes_IC is None:
            self.input_weight.copy_(_uniform((inputs, units), scale, generator))
            return
        map_CN = torch.randn(codes_IC.shape[1], units, generator=generator) * (3 * codes_IC.shape[1]) ** -0.5
        self.input_weight.copy_(codes_IC @ map_CN * scale)

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

    def __init__(self, spec: Tanh, inputs: int):
        super().__init__(spec, inputs, spec.size)
        M = spec.size // spec.blocks
        self.register_buffer("weight", torch.zeros(spec.blocks, M, M))
        self.register_buffer("bias", torch.zeros(spec.size))
        self.features = self.state_size = spec.size

    @torch.no_grad()
    def draw(self, generator, tokens, codes_IC=None):
        """Raises ValueError where a block of W has no cycle: then its spectral radius is 0, however it is scaled."""
        super().draw(generator, tokens, codes_IC)
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

    def forward(self, inputs, state_BS, mask_BT=None):
        if inputs.device.type == "xla":
            drive_BTN = self._masked(self.drive(inputs) + self.bias, mask_BT)
            return scans.leaky_tanh(drive_BTN, self.weight, self.spec.leak, state_BS)
        # Piece by piece into one array: another one as large would cost as much, in page faults, as the arithmetic.
        dtype, shape = scans.compute_dtype(self.bias), (*inputs.shape[:2], self.features)
        states_BTN = torch.empty(shape, dtype=dtype, device=self.bias.device)
        for begin in range(0, inputs.shape[1], DRIVEN_TOKENS):
            piece = slice(begin, begin + DRIVEN_TOKENS)
            mask = None if mask_BT is None else mask_BT[:, piece]
            drive_BTN = self._masked(self.drive(inputs[:, piece]) + self.bias, mask)
            out_BTN = states_BTN[:, piece]
            _, state_BS = scans.leaky_tanh(drive_BTN, self.weight, self.spec.leak, state_BS, out_BTN)
        return states_BTN, state_BS


class LinearReservoir(Reservoir):
    """Features and state are real and imaginary parts, 2 N."""

    def __init__(self, spec: Linear, inputs: int):
        super().__init__(spec, inputs, spec.size)
        self.register_buffer("multiplier", torch.zeros(2, spec.size))
        self.features = self.state_size = 2 * spec.size

    @torch.no_grad()
    def draw(self, generator, tokens, codes_IC=None):
        super().draw(generator, tokens, codes_IC)
        N = self.spec.size
        longest = -1 / math.log(self.spec.spectral_radius)
        shortest = min(SHORTEST_MEMORY, longest)
        time_N = shortest * (longest / shortest) ** torch.rand(N, generator=generator, dtype=torch.float64)
        time_N[0] = longest  # so that the radius is the one asked for
        radius_N = torch.exp(-1 / time_N)
        phase_N = math.pi * torch.rand(N, generator=generator, dtype=torch.float64)
        self.multiplier.copy_(torch.stack((radius_N * phase_N.cos(), radius_N * phase_N.sin())))
        self.input_weight.mul_((1 - radius_N**2).sqrt())

    def forward(self, inputs, state_BS, mask_BT=None):
        drive_BTN = self.drive(inputs, mask_BT)
        scan = scans.doubling if drive_BTN.device.type == "xla" else scans.chunked
        states_BT2N = scans.linear(drive_BTN, self.multiplier, state_BS.unflatten(1, (2, -1)), scan)
        return states_BT2N.flatten(2), states_BT2N[:, -1].flatten(1)


class DelayReservoir(Reservoir):
    """Features are the codes of the last tokens and products of them; the state is the codes of all but the current."""

    def __init__(self, spec: Delay, inputs: int):
        super().__init__(spec, inputs, spec.size)
        self.register_buffer("pairs", torch.zeros(2, spec.quadratic, dtype=torch.int64))
        self.features = spec.size * spec.delays + spec.quadratic
        self.state_size = spec.size * (spec.delays - 1)

    @torch.no_grad()
    def draw(self, generator, tokens, codes_IC=None):
        super().draw(generator, tokens, codes_IC)
        # Pair number p of the pairs i < j, row by row of the triangle below the diagonal.
        length, quadratic = self.spec.size * self.spec.delays, self.spec.quadratic
        chooser = random.Random(int(torch.randint(2**62, (1,), generator=generator)))
        chosen = torch.tensor(chooser.sample(range(length * (length - 1) // 2), quadratic), dtype=torch.float64)
        j = ((1 + (1 + 8 * chosen).sqrt()) / 2).floor()
        self.pairs.copy_(torch.stack((chosen - j * (j - 1) / 2, j)).long())

    def forward(self, inputs, state_BS, mask_BT=None):
        T = inputs.shape[1]
        line_BTN = torch.cat((state_BS.unflatten(1, (-1, self.spec.size)), self.drive(inputs, mask_BT)), dim=1)
        delays = self.spec.delays
        linear_BTF = torch.cat([line_BTN[:, delays - 1 - k : delays - 1 - k + T] for k in range(delays)], dim=-1)
        state_BS = line_BTN[:, T:].flatten(1)
        if not self.spec.quadratic:
            return linear_BTF, state_BS
        left, right = self.pairs
        return torch.cat((linear_BTF, linear_BTF[..., left] * linear_BTF[..., right]), dim=-1), state_BS


_MODULES = {Tanh: TanhReservoir, Linear: LinearReservoir, Delay: DelayReservoir}


class Reservoirs(nn.Module):
    """Layers of reservoirs: the first sees token ids, each next one the features of the layer below.

    Attributes:
        features: floats a token of each layer.
        state_size: floats carried between calls, all reservoirs together.
    """

    def __init__(self, layers: Layers, vocab_size: int):
        super().__init__()
        self.layers, self.features, inputs = nn.ModuleList(), [], vocab_size
        for layer in layers:
            self.layers.append(nn.ModuleList(build(spec, inputs) for spec in layer))
            inputs = sum(reservoir.features for reservoir in self.layers[-1])
            self.features.append(inputs)
        self.state_size = sum(reservoir.state_size for layer in self.layers for reservoir in layer)

    def draw(self, seed: int, codes_VC: torch.Tensor | None = None) -> None:
        """Draws each reservoir from (seed, its layer, its place), so that one more changes no other.

        codes_VC: what the first layer sees of a token, as `codes_IC` above.
        """
        for depth, layer in enumerate(self.layers):
            for place, reservoir in enumerate(layer):
                entropy = int(np.random.SeedSequence((seed, depth, place)).generate_state(1, np.uint64)[0] >> 1)
                codes = codes_VC if depth == 0 else None
                reservoir.draw(torch.Generator().manual_seed(entropy), tokens=depth == 0, codes_IC=codes)

    @torch.no_grad()
    def forward(self, input_ids_BT, state_BS, mask_BT=None):
        """Features of every layer [[B, T, F], ...] and the state after the last token [B, S].

        Where `mask_BT` is 0 the token drives nothing: the zero state stays zero through padding on the left.
        """
        states = iter(state_BS.split([r.state_size for layer in self.layers for r in layer], dim=1))
        inputs, features, lasts = input_ids_BT, [], []
        for layer in self.layers:
            outputs = [reservoir(inputs, next(states), mask_BT) for reservoir in layer]
            inputs = torch.cat([output for output, _ in outputs], dim=-1) if len(outputs) > 1 else outputs[0][0]
            features.append(inputs)
            lasts += [last for _, last in outputs]
        return features, torch.cat(lasts, dim=1)


def _uniform(shape, scale: float, generator: torch.Generator) -> torch.Tensor:
    return (torch.rand(shape, generator=generator) * 2 - 1) * scale
