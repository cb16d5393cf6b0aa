"""Ridge regression in closed form: a readout with no step size and no seed.

W = (X'X + ridge I)^-1 X'Y (Hoerl and Kennard 1970), X with a column of ones whose weight, the bias, is not penalised.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from .readout import RidgeReadout

# B rows · F features · G = F + 1, with a one · Y targets · V vocabulary · T tokens of a sequence · R predicted tokens

ROWS = 1024  # scored or accumulated at once: at V = 50,000 a slice of fp32 scores is 0.2 GB
HELD_OUT_EVERY, MOST_HELD_OUT = 10, 4  # batches
SMOOTHING = 0.1  # added to each token's count, so that an unseen token has a probability
LOG2_CALIBRATIONS = np.arange(-10, 4.25, 0.25)
Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]  # features_BTF, input_ids_BT


class RidgeAccumulator:
    """Sums over rows from which ridge regression is solved, in fp64 on the CPU: at F = 4,096 and 50,000 tokens 1.8 GB."""

    def __init__(self, features: int, targets: int) -> None:
        self.gram_GG = torch.zeros(features + 1, features + 1, dtype=torch.float64)
        self.cross_YG = torch.zeros(targets, features + 1, dtype=torch.float64)  # a token adds to one contiguous row

    @torch.no_grad()
    def add(self, features_BF: torch.Tensor, targets_BY: torch.Tensor) -> None:
        """Adds rows with real targets. Raises ValueError for a value that is not finite."""
        targets_BY = _finite("targets_BY", targets_BY)
        self.cross_YG += _product(targets_BY, self._add_features(features_BF))

    @torch.no_grad()
    def add_tokens(self, features_BF: torch.Tensor, tokens_B: torch.Tensor) -> None:
        """Adds rows whose target is 1 for their token and 0 for the others; the one-hot matrix [B, V] is never built.

        Raises ValueError for a feature that is not finite.
        """
        self.cross_YG.index_add_(0, tokens_B.cpu(), self._add_features(features_BF))

    @torch.no_grad()
    def solve(self, ridge: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight [F, Y] and bias [Y] that minimise |Y - X W - b|^2 + ridge |W|^2, summed (not averaged) over rows.

        Raises ValueError where there are no rows, and torch.linalg.LinAlgError where the ridge is too small for features that
        depend on each other.
        """
        if not self.gram_GG[-1, -1]:
            raise ValueError("ridge regression has no rows; call add or add_tokens first")
        weight_GY = torch.cholesky_solve(self.cross_YG.T, torch.linalg.cholesky(self.penalised_gram(ridge)))
        return weight_GY[:-1], weight_GY[-1]

    def penalised_gram(self, ridge: float) -> torch.Tensor:
        """X'X + ridge I [F + 1, F + 1] of rows that end in a one, which has no penalty."""
        gram_GG = self.gram_GG.clone()
        gram_GG.diagonal()[:-1] += ridge
        return gram_GG

    def _add_features(self, features_BF: torch.Tensor) -> torch.Tensor:
        rows_BG = torch.nn.functional.pad(_finite("features_BF", features_BF), (0, 1), value=1.0)
        self.gram_GG += _product(rows_BG, rows_BG)
        return rows_BG


def _finite(name: str, values: torch.Tensor) -> torch.Tensor:
    values = values.detach().cpu().double()  # first the device: a TPU has no fp64
    finite_B = values.isfinite().all(1)
    if not finite_B.all():
        raise ValueError(
            f"{name} is not finite in {int((~finite_B).sum())} of {len(values)} rows, the first is row "
            f"{int((~finite_B).nonzero()[0])}; drop them, or lower the spectral radius where states overflow"
        )
    return values


def _product(left_BN: torch.Tensor, right_BM: torch.Tensor) -> torch.Tensor:
    # numpy sums rows in blocks; torch one after the other, with ten times the rounding, which collinear states show.
    return torch.from_numpy(left_BN.numpy().T @ right_BM.numpy())


@torch.no_grad()
def fit_readout(batches: Batches, features: int, vocab_size: int, ridges: Sequence[float]) -> RidgeReadout:
    """Fits token t + 1 of each sequence on its features at t, in one pass over `batches`.

    The second of every ten batches, at most four, choose c and one of `ridges`, which is the `ridge` of what is returned; then
    they are fitted like the others.

    Raises ValueError for fewer than two batches.
    """
    sums, held_out = RidgeAccumulator(features, vocab_size), []
    for index, (features_BTF, ids_BT) in enumerate(batches):
        batch = (features_BTF.detach().cpu(), ids_BT.cpu())
        if index % HELD_OUT_EVERY == 1 and len(held_out) < MOST_HELD_OUT:
            held_out.append(batch)
        else:
            _add(sums, [batch])
    if not held_out:
        raise ValueError("batches: fewer than two; one is fitted and the next chooses the share of the unigram")
    _, calibration, ridge = min((*_best_calibration(_solved(sums, ridge), held_out), ridge) for ridge in ridges)
    _add(sums, held_out)
    readout = _solved(sums, ridge)
    readout.calibration.fill_(calibration)
    readout.gram_GG.copy_(sums.penalised_gram(ridge))
    readout.ridge = ridge
    return readout


def _add(sums: RidgeAccumulator, batches: Batches) -> None:
    for features_RF, tokens_R in _predictions(batches):
        sums.add_tokens(features_RF, tokens_R)


def _solved(sums: RidgeAccumulator, ridge: float) -> RidgeReadout:
    readout = RidgeReadout(len(sums.gram_GG) - 1, len(sums.cross_YG))
    weight_FV, bias_V = sums.solve(ridge)
    readout.weight_FV.copy_(weight_FV)
    readout.bias_V.copy_(bias_V)
    readout.counts_V.copy_(sums.cross_YG[:, -1] + SMOOTHING)
    return readout


@torch.no_grad()
def readout_nats(readout: RidgeReadout, batches: Batches) -> float:
    """Mean nats per predicted token (all but the first of each sequence)."""
    total, count = 0.0, 0
    for features_RF, tokens_R in _predictions(batches):
        features_RF, tokens_R = features_RF.to(readout.weight_FV.device), tokens_R.to(readout.weight_FV.device)
        total += float(torch.nn.functional.cross_entropy(readout(features_RF), tokens_R, reduction="sum"))
        count += len(tokens_R)
    return total / count


def _best_calibration(readout: RidgeReadout, batches: Batches) -> tuple[float, float]:
    """Least sum of nats over a grid of c, and that c."""
    nats, floor_V = np.zeros(len(LOG2_CALIBRATIONS)), readout.floor_V()
    for features_RF, tokens_R in _predictions(batches):
        scores_RV = readout.scores(features_RF)
        for index, log2 in enumerate(LOG2_CALIBRATIONS):
            floored_RV = scores_RV.maximum(float(2**log2) * floor_V)
            nats[index] += float((floored_RV.sum(1) / floored_RV.gather(1, tokens_R[:, None])[:, 0]).log().sum())
    return nats.min(), float(2 ** LOG2_CALIBRATIONS[nats.argmin()])


def _predictions(batches: Batches) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Slices of at most ROWS rows: features and the token that follows each."""
    for features_BTF, ids_BT in batches:
        yield from zip(
            features_BTF[:, :-1].flatten(0, 1).split(ROWS), ids_BT[:, 1:].flatten().long().split(ROWS), strict=True
        )
