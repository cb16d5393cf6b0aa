"""Ridge regression in closed form: a readout with no step size and no seed, and the check of the trained ones.

W = (X'X + ridge I)^-1 X'Y with X and Y centred (Hoerl and Kennard 1970); b = mean(y) - W' mean(x) is not penalised.
reservoirpy.nodes.Ridge solves the same system. Rows of a washout are the caller's to drop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from helpers.reservoir.baselines import SMOOTHING

# B rows · F features · Y targets · V vocabulary · T tokens of a sequence · R predicted tokens

ROWS = 1024  # scored or accumulated at once: at V = 50,000 a slice of fp32 scores is 0.2 GB
HELD_OUT_EVERY = 10  # the second of every ten batches
LOG2_CALIBRATIONS = np.arange(-10, 4.25, 0.25)


class RidgeAccumulator:
    """Sums over rows from which ridge regression is solved; chunks of any size give what one chunk gives.

    Features may have any floating dtype and device; sums and solution are in fp64 on the CPU. They take F (F + Y) numbers
    and `solve` another F (2 F + Y): at F = 4,096 and Y = 50,000 1.8 GB and 1.9 GB. Y of tokens is the vocabulary size.
    """

    def __init__(self, features: int, targets: int) -> None:
        self.rows = 0
        self.sum_F = torch.zeros(features, dtype=torch.float64)
        self.sum_Y = torch.zeros(targets, dtype=torch.float64)
        self.gram_FF = torch.zeros(features, features, dtype=torch.float64)
        self.cross_YF = torch.zeros(targets, features, dtype=torch.float64)  # a token adds to one contiguous row

    @torch.no_grad()
    def add(self, features_BF: torch.Tensor, targets_BY: torch.Tensor) -> None:
        """Adds rows with real targets. Raises ValueError for a value that is not finite."""
        features_BF, targets_BY = _finite("features_BF", features_BF), _finite("targets_BY", targets_BY)
        self.cross_YF += _product(targets_BY, self._add_features(features_BF))
        self.sum_Y += targets_BY.sum(0)

    @torch.no_grad()
    def add_tokens(self, features_BF: torch.Tensor, tokens_B: torch.Tensor) -> None:
        """Adds rows whose target is 1 for their token and 0 for the others; the one-hot matrix [B, V] is never built.

        Raises ValueError for a feature that is not finite.
        """
        features_BF, tokens_B = _finite("features_BF", features_BF), tokens_B.cpu()
        self.cross_YF.index_add_(0, tokens_B, self._add_features(features_BF))
        self.sum_Y += torch.bincount(tokens_B, minlength=len(self.sum_Y))

    @torch.no_grad()
    def solve(self, ridge: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight [F, Y] and bias [Y] that minimise |Y - X W - b|^2 + ridge |W|^2, summed (not averaged) over rows.

        Rows may be added afterwards, and another ridge tried. Raises ValueError where there are no rows, and
        torch.linalg.LinAlgError where the ridge is too small for features that depend on each other.
        """
        if self.rows == 0:
            raise ValueError("ridge regression has no rows; call add or add_tokens first")
        mean_F = self.sum_F / self.rows
        gram_FF = self.gram_FF.addr(mean_F, mean_F, alpha=-self.rows)
        gram_FF.diagonal().add_(ridge)
        cross_YF = self.cross_YF.addr(self.sum_Y, mean_F, alpha=-1)
        weight_FY = torch.cholesky_solve(cross_YF.T, torch.linalg.cholesky(gram_FF))
        return weight_FY, self.sum_Y / self.rows - mean_F @ weight_FY

    def _add_features(self, features_BF: torch.Tensor) -> torch.Tensor:
        self.gram_FF += _product(features_BF, features_BF)
        self.sum_F += features_BF.sum(0)
        self.rows += len(features_BF)
        return features_BF


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
    # numpy's X'X knows that it is symmetric and sums rows in blocks; torch adds row after row, with ten times the rounding,
    # which shows in the weights of states as collinear as a reservoir's.
    return torch.from_numpy(left_BN.numpy().T @ right_BM.numpy())


class RidgeReadout(torch.nn.Module):
    """Next-token distribution P(v) ~ max(s, c p) from linear scores s = W'x + b, unigram p and one fitted number c.

    Least squares on one-hot targets estimates P(v | x) linearly (Bishop, PRML, 4.1.3): the scores sum to one, but some are
    negative; none falls below a share of the unigram here. (A softmax of scores around the unigram has twice the perplexity.)

    weight_FV and bias_V as solved are kept in fp32; prior_V: p, positive.
    """

    def __init__(self, weight_FV: torch.Tensor, bias_V: torch.Tensor, prior_V: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("weight_FV", weight_FV.float())
        self.register_buffer("bias_V", bias_V.float())
        self.register_buffer("log_prior_V", prior_V.log().float())
        self.register_buffer("calibration", torch.tensor(1.0))  # c

    def scores(self, features: torch.Tensor) -> torch.Tensor:
        """Linear estimates of P(v | x), [..., F] to [..., V], in fp32. Their sum over V is one."""
        return features.to(self.weight_FV.dtype) @ self.weight_FV + self.bias_V

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Logits [..., V] of the next token after features [..., F]."""
        return self.scores(features).maximum(self.calibration * self.log_prior_V.exp()).log()


@torch.no_grad()
def fit_readout(
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]], features: int, vocab_size: int, ridges: Sequence[float]
) -> RidgeReadout:
    """Fits token t + 1 of each sequence on its features at t, in one pass over batches (features_BTF, input_ids_BT).

    The second of every ten batches is not fitted but chooses c and one of `ridges` (`RidgeAccumulator.solve`), which is the
    `ridge` of what is returned; they are kept in memory.

    Raises ValueError for fewer than two batches.
    """
    sums = RidgeAccumulator(features, vocab_size)
    held_out = []
    for index, (features_BTF, ids_BT) in enumerate(batches):
        batch = (features_BTF.detach().cpu(), ids_BT.cpu())
        if index % HELD_OUT_EVERY == 1:
            held_out.append(batch)
            continue
        for features_RF, tokens_R in _predictions([batch]):
            sums.add_tokens(features_RF, tokens_R)
    if not held_out:
        raise ValueError("batches: fewer than two; one is fitted and the next chooses the share of the unigram")
    prior_V = (sums.sum_Y + SMOOTHING) / (sums.rows + SMOOTHING * vocab_size)
    best, least = None, float("inf")
    for ridge in ridges:
        readout = RidgeReadout(*sums.solve(ridge), prior_V)
        readout.calibration.fill_(_best_calibration(readout, held_out))
        nats = readout_nats(readout, held_out) if len(ridges) > 1 else 0.0
        if nats < least:
            best, least, readout.ridge = readout, nats, ridge
    return best


@torch.no_grad()
def readout_nats(readout: RidgeReadout, batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Mean nats per predicted token (all but the first of each sequence) of batches (features_BTF, input_ids_BT)."""
    total, count = 0.0, 0
    for features_RF, tokens_R in _predictions(batches):
        features_RF, tokens_R = features_RF.to(readout.weight_FV.device), tokens_R.to(readout.weight_FV.device)
        total += float(torch.nn.functional.cross_entropy(readout(features_RF), tokens_R, reduction="sum"))
        count += len(tokens_R)
    return total / count


def _best_calibration(readout: RidgeReadout, batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Where the mean nats are least, of a grid over log2(c)."""
    nats = np.zeros(len(LOG2_CALIBRATIONS))
    for features_RF, tokens_R in _predictions(batches):
        scores_RV, prior_V = readout.scores(features_RF), readout.log_prior_V.exp()
        for index, log2 in enumerate(LOG2_CALIBRATIONS):
            floored_RV = scores_RV.maximum(float(2**log2) * prior_V)
            nats[index] += float((floored_RV.sum(1) / floored_RV.gather(1, tokens_R[:, None])[:, 0]).log().sum())
    return float(2 ** LOG2_CALIBRATIONS[nats.argmin()])


def _predictions(
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Slices of at most ROWS rows: features and the token that follows each."""
    for features_BTF, ids_BT in batches:
        yield from zip(
            features_BTF[:, :-1].flatten(0, 1).split(ROWS), ids_BT[:, 1:].flatten().long().split(ROWS), strict=True
        )
