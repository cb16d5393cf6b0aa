"""One picture of the results of `diagnostics`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from helpers.reservoir.diagnostics import FORGOTTEN, MemoryCapacity, Spectrum, Washout


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
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return figure


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
