"""What a reservoir does before anything is trained: its spectrum, how it forgets and how it remembers; one picture of all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from helpers.reservoir.reservoirs import Reservoir, TanhReservoir
from helpers.reservoir.ridge import RidgeAccumulator
from helpers.run_folder import saved

# B batch · T tokens · F features · S state floats · K lags · R scored tokens · V vocabulary
# G blocks of M units

FORGOTTEN = 1e-4  # share of the initial distance; well above the 1e-7 where fp32 stops
ROWS = 16  # sequences that measure memory: one half is fitted, the other scored


@dataclass(frozen=True)
class Spectrum:
    """Of the matrix W that takes one state to the next, nonlinearity and input left out.

    A largest singular value below 1 implies that the initial state is forgotten (Jaeger, GMD report 148, 2001); a spectral
    radius below 1 does not (Yildiz et al., Neural Networks 35, 2012).
    """

    eigenvalues: np.ndarray  # complex; of all blocks, or of all units
    spectral_radius: float
    singular_value: float  # the largest
    effective_radius: float  # of (1 - a) I + a W with leak a


@dataclass(frozen=True)
class Washout:
    """Distance of two trajectories that begin in different random states and see the same tokens."""

    distance_T: np.ndarray  # after 0, 1, ... T tokens, as a share of the initial distance; the worst row's
    tokens: int | None  # after which it stays below 1e-4, if it does


@dataclass(frozen=True)
class MemoryCapacity:
    """How well a linear readout recalls a token, by how many tokens ago it was."""

    r2_K: np.ndarray  # squared correlation on held-out sequences, of the lags 1, 2, ... max_lag
    total: float  # their sum
    floor: float  # expected r^2 of a token that has left no trace


@torch.no_grad()
def spectrum(reservoir: Reservoir) -> Spectrum:
    """Of a tanh or a linear reservoir, in fp64 on the CPU; a delay line has none, its shift is nilpotent.

    With leak a the eigenvalues are 1 - a + a w (Jaeger et al., Neural Networks 20, 2007).
    """
    if isinstance(reservoir, TanhReservoir):
        weight_GMM = reservoir.weight.cpu().double()
        eigenvalues = torch.linalg.eigvals(weight_GMM).flatten().numpy()
        singular_value = float(torch.linalg.matrix_norm(weight_GMM, ord=2).max())
        leak = reservoir.spec.leak
    else:
        real, imaginary = reservoir.multiplier.cpu().double().numpy()
        eigenvalues, leak = real + 1j * imaginary, 1.0
        singular_value = float(np.abs(eigenvalues).max())  # diagonal, hence normal
    return Spectrum(
        eigenvalues,
        spectral_radius=float(np.abs(eigenvalues).max()),
        singular_value=singular_value,
        effective_radius=float(np.abs(1 - leak + leak * eigenvalues).max()),
    )


@torch.no_grad()
def washout(reservoir: Reservoir, input_ids_BT: torch.Tensor, seed: int) -> Washout:
    """Echo-state property: whether the initial state is forgotten under this input (Jaeger 2001, definition 1).

    Two states uniform in [-1, 1] a row; the distance is that of the features.
    """
    B = len(input_ids_BT)
    state_BS = torch.rand((2 * B, reservoir.state_size), generator=torch.Generator().manual_seed(seed)) * 2 - 1
    state_BS = state_BS.to(reservoir.input_weight.dtype)
    features_BTF = _features(reservoir, input_ids_BT.repeat(2, 1), state_BS)
    start_B1 = (state_BS[:B] - state_BS[B:]).norm(dim=-1, keepdim=True)
    distance_BT = (features_BTF[:B] - features_BTF[B:]).norm(dim=-1).cpu() / start_B1
    distance_T = np.concatenate([[1.0], distance_BT.amax(0).double().numpy()])
    remembered = int(np.flatnonzero(~(distance_T < FORGOTTEN))[-1])
    return Washout(distance_T, remembered + 1 if remembered + 1 < len(distance_T) else None)


@torch.no_grad()
def memory_capacity(
    reservoir: Reservoir, vocab_size: int, max_lag: int, seed: int, ridge: float = 1e-4, length: int = 1024
) -> MemoryCapacity:
    """Short-term memory capacity: sum over lags k of r^2 between a token's code and its linear estimate k tokens later.

    Jaeger, GMD report 152 (2002), with tokens for numbers: 16 sequences of `length` independent tokens 0 ... vocab_size - 1,
    each with a normal random code; one readout a lag is fitted on half of the sequences and scored on the other. N units
    recall at most N of two tokens, and about N / (V - 1) of V. Where nothing is recalled the score is `floor`; overfitting
    lowers it where 8 (length - max_lag) is not several times the number of features.
    """
    generator = torch.Generator().manual_seed(seed)
    ids_BT = torch.randint(vocab_size, (ROWS, length), generator=generator)
    code_V = torch.randn(vocab_size, generator=generator, dtype=torch.float64)
    features_BTF = _features(reservoir, ids_BT, torch.zeros(ROWS, reservoir.state_size))[:, max_lag:].cpu()
    # Lag k of token t lies at t - k: windows of the K tokens before it, turned round.
    targets_BTK = code_V[ids_BT[:, :-1]].unfold(1, max_lag, 1).flip(-1)
    half = ROWS // 2
    sums = RidgeAccumulator(features_BTF.shape[-1], max_lag)
    for features_TF, targets_TK in zip(features_BTF[:half], targets_BTK[:half], strict=True):
        sums.add(features_TF, targets_TK)
    weight_FK, bias_K = sums.solve(ridge)
    estimates_RK = torch.cat([features_TF.double() @ weight_FK + bias_K for features_TF in features_BTF[half:]])
    varied = [values_RK - values_RK.mean(0) for values_RK in (estimates_RK, targets_BTK[half:].flatten(0, 1))]
    r2_K = torch.nn.functional.cosine_similarity(*varied, dim=0).square()
    return MemoryCapacity(r2_K.numpy(), float(r2_K.sum()), 1 / (len(estimates_RK) - 1))


def _features(reservoir: Reservoir, input_ids_BT: torch.Tensor, state_BS: torch.Tensor) -> torch.Tensor:
    weight = reservoir.input_weight
    return reservoir(input_ids_BT.to(weight.device), state_BS.to(weight))[0]


def plot_diagnostics(
    spectra: Mapping[str, Spectrum],
    washouts: Mapping[str, Washout],
    memories: Mapping[str, MemoryCapacity],
    path: str | Path,
    *,
    title: str,
):
    """Three panels of results by name: eigenvalues, washout, memory by lag. The figure, written to `path` too."""
    import matplotlib.pyplot as plt

    figure, (plane, forgetting, recall) = plt.subplots(1, 3, figsize=(15, 4.5), layout="constrained")
    figure.suptitle(title)
    names = dict.fromkeys([*spectra, *washouts, *memories])
    colors = {name: f"C{index}" for index, name in enumerate(names)}  # one a name, in all panels
    _draw_spectra(plane, spectra, colors)
    for name, washout in washouts.items():
        after = f"not within {len(washout.distance_T) - 1}" if washout.tokens is None else f"{washout.tokens} tokens"
        # Below what fp32 resolves there is only rounding, and zero has no logarithm.
        forgetting.semilogy(np.maximum(washout.distance_T, 1e-8), color=colors[name], label=f"{name} ({after})")
    forgetting.axhline(FORGOTTEN, linestyle="--", color="0.4", label=f"forgotten ({FORGOTTEN:.0e})")
    forgetting.set(title="Washout", xlabel="tokens seen", ylabel="distance / initial distance", ylim=(1e-8, None))
    for name, memory in memories.items():
        lags, label = np.arange(1, len(memory.r2_K) + 1), f"{name} (sum {memory.total:.1f})"
        recall.plot(lags, memory.r2_K, ".", color=colors[name], label=label, markersize=3)
        recall.axhline(memory.floor, linestyle=":", color=colors[name])
    recall.set(title="Memory (dotted: chance)", xlabel="lag (tokens)", ylabel="$r^2$ of the recalled token")
    for axes in (forgetting, recall):
        axes.legend(fontsize="small")
    return saved(figure, path)


def _draw_spectra(axes, spectra: Mapping[str, Spectrum], colors: Mapping[str, str]) -> None:
    circle = np.exp(1j * np.linspace(0, 2 * np.pi, 200))
    axes.plot(circle.real, circle.imag, color="0.4", linewidth=1, label="unit circle")
    for name, spectrum in spectra.items():
        label = (
            f"{name} (radius {spectrum.spectral_radius:.3f}, with leak {spectrum.effective_radius:.3f}, "
            f"singular value {spectrum.singular_value:.3f})"
        )
        values = spectrum.eigenvalues
        axes.scatter(values.real, values.imag, s=4, alpha=0.5, color=colors[name], label=label)
        ring = spectrum.spectral_radius * circle
        axes.plot(ring.real, ring.imag, linestyle="--", linewidth=1, color=colors[name])
    axes.set(title="Eigenvalues (dashed: spectral radius)", xlabel="real part", ylabel="imaginary part")
    axes.set_aspect("equal", adjustable="datalim")
    axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.17))  # below: the points fill the panel
