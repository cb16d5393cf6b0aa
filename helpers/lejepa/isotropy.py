"""How near embeddings are to an isotropic Gaussian: numbers that tell what SIGReg's value alone does not, and a picture.

SIGReg at its floor proves little in 512 dimensions: projected on random directions, the corners of a hypercube or half of
the dimensions look Gaussian (the central limit theorem). Rank, eigenvalues and norms are looked at by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from helpers import run_folder
from helpers.lejepa.sigreg import SIGReg

# N texts · K embedding


@dataclass(frozen=True)
class Isotropy:
    """Of N embeddings of K dimensions. What N draws from N(0, I) would give is in brackets."""

    texts: int  # N: SIGReg and the spread of eigenvalues depend on it; compare at equal N only
    dimensions: int  # K
    sigreg: float
    sigreg_excess: float  # over the floor of the same t_max and n_points [0 within slice noise]
    effective_rank: float  # exp of the entropy of the covariance's eigenvalues [a little below min(N - 1, K)]
    participation_ratio: float  # (sum of eigenvalues)^2 / sum of squares: stricter [K / (1 + K / N)]
    norm_distance: float  # Kolmogorov-Smirnov distance of the squared norms to chi^2 with K degrees of freedom
    eigenvalues_K: np.ndarray  # of the covariance, ascending [from (1 - sqrt(K / N))^2 to (1 + sqrt(K / N))^2]
    squared_norms_N: np.ndarray

    def results(self) -> dict[str, float]:
        """The numbers without the arrays, for results.json."""
        return {name: value for name, value in vars(self).items() if not isinstance(value, np.ndarray)}


def isotropy(
    embeddings_NK: np.ndarray | torch.Tensor,
    *,
    t_max: float = 3.0,
    n_points: int = 17,
    num_slices: int = 1024,
    seed: int = 0,
) -> Isotropy:
    """Measures embeddings as they come out of the model, not L2-normalised; in fp64 on the CPU.

    Effective rank: Roy and Vetterli (EUSIPCO 2007), here of the covariance's eigenvalues. Below about 4 K rows these spread by
    sampling alone. SIGReg's memory is 8 N num_slices bytes.

    Raises ValueError for numbers that are not finite, or embeddings that are all the same.
    """
    from scipy.stats import kstest

    embeddings_NK = torch.as_tensor(embeddings_NK).detach().to("cpu", torch.float64)
    if bad := int((~torch.isfinite(embeddings_NK).all(1)).sum()):
        raise ValueError(f"embeddings_NK: {bad} of {len(embeddings_NK)} rows hold NaN or infinity; remove them")
    if (embeddings_NK == embeddings_NK[0]).all():
        raise ValueError(
            "embeddings_NK: all rows are the same, so that rank and eigenvalues say nothing; check the model"
        )
    N, K = embeddings_NK.shape
    eigenvalues_K = torch.linalg.eigvalsh(torch.cov(embeddings_NK.T).reshape(K, K)).clamp(min=0).numpy()
    sigreg = SIGReg(t_max=t_max, n_points=n_points, num_slices=num_slices, seed=seed)
    with torch.no_grad():
        value = float(sigreg(embeddings_NK, 0))
    squared_norms_N = embeddings_NK.square().sum(1).numpy()
    share_K = eigenvalues_K[eigenvalues_K > 0] / eigenvalues_K.sum()
    return Isotropy(
        texts=N,
        dimensions=K,
        sigreg=value,
        sigreg_excess=value - sigreg.floor,
        effective_rank=float(np.exp(-(share_K * np.log(share_K)).sum())),
        participation_ratio=float(eigenvalues_K.sum() ** 2 / np.square(eigenvalues_K).sum()),
        norm_distance=float(kstest(squared_norms_N, "chi2", args=(K,)).statistic),
        eigenvalues_K=eigenvalues_K,
        squared_norms_N=squared_norms_N,
    )


def plot_isotropy(reports: Mapping[str, Isotropy], path: str | Path, *, title: str):
    """Two panels, eigenvalues and squared norms, beside as many draws from N(0, I), written as PNG: the matplotlib figure.

    reports: name -> what `isotropy` returned. The draws have the last one's N and K.
    """
    import matplotlib.pyplot as plt
    from scipy.stats import chi2

    last = list(reports.values())[-1]
    figure, (spectrum, norms) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    figure.suptitle(title)
    for name, report in reports.items():
        label = f"{name} (effective rank {report.effective_rank:.0f} of {report.dimensions})"
        # A share of the trace: models differ in scale, and zero has no logarithm.
        shares_K = report.eigenvalues_K[::-1] * report.dimensions / report.eigenvalues_K.sum()
        spectrum.semilogy(np.arange(1, report.dimensions + 1), np.maximum(shares_K, 1e-8), label=label)
        norms.hist(report.squared_norms_N / report.dimensions, 60, density=True, histtype="step", label=name)
    gaussian_NK = np.random.default_rng(0).standard_normal((last.texts, last.dimensions))
    gaussian_K = np.linalg.eigvalsh(np.cov(gaussian_NK.T).reshape(last.dimensions, last.dimensions))[::-1]
    drawn = {"color": "0.4", "linestyle": "--"}
    spectrum.semilogy(np.arange(1, last.dimensions + 1), gaussian_K, label=f"N(0, I), {last.texts} draws", **drawn)
    grid = np.linspace(*chi2.ppf((1e-5, 1 - 1e-5), last.dimensions), 200)
    norms.plot(grid / last.dimensions, last.dimensions * chi2.pdf(grid, last.dimensions), label="N(0, I)", **drawn)
    spectrum.set_ylim(bottom=1e-4)  # below is rounding, and directions that the texts do not have
    spectrum.set(title="Covariance", xlabel="eigenvalue, largest first", ylabel="eigenvalue / mean eigenvalue")
    norms.set(title="Length", xlabel="squared norm / dimensions", ylabel="density")
    for axes in (spectrum, norms):
        axes.legend(fontsize="small")
    return run_folder.saved(figure, path)
