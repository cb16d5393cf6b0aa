"""Rankings of candidates in several packages: weights fitted on the other packages, rows with paired intervals.

# N questions · R candidates of all questions, one question after the other · F features
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize
from sklearn.metrics import average_precision_score

BOOTSTRAP = 1_000


class Rankings:
    """Questions with the features of their candidates.

    packages, groups: of each question, [N]; a group is drawn whole by the bootstrap, within its package.
    right: for each question, which of its candidates answer it; at least one.
    """

    def __init__(self, packages: Sequence[str], groups: Sequence[str], right: Sequence[Sequence[bool]]):
        self.packages, self.groups = np.array(packages), np.array(groups)
        sizes_N = [len(each) for each in right]
        self._starts_N = np.concatenate(([0], np.cumsum(sizes_N)[:-1])).astype(int)
        self._question_R = np.repeat(np.arange(len(right)), sizes_N)
        self._right_R = np.concatenate([np.asarray(each, bool) for each in right])
        if not np.add.reduceat(self._right_R, self._starts_N).all():
            raise ValueError("right: each question needs a candidate that answers it")
        self._features: dict[str, np.ndarray] = {}
        self._standard: dict[str, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.packages)

    def add(self, name: str, values: Sequence[np.ndarray]) -> None:
        """A feature: for each question an array over its candidates. The logit reads it standardised within the question."""
        value_R = np.concatenate([np.asarray(each, np.float64) for each in values])
        count_N = np.bincount(self._question_R)
        centred_R = value_R - (np.add.reduceat(value_R, self._starts_N) / count_N)[self._question_R]
        spread_N = np.sqrt(np.add.reduceat(centred_R**2, self._starts_N) / count_N)
        spread_R = spread_N[self._question_R]
        self._features[name] = value_R
        self._standard[name] = np.where(spread_R > 1e-9, centred_R / np.maximum(spread_R, 1e-9), 0.0)

    def __getitem__(self, name: str) -> np.ndarray:
        """A feature as it was given, [R]."""
        return self._features[name]

    def ranks(self, score_R: np.ndarray) -> np.ndarray:
        """Of the best right candidate of each question, [N]; candidates of equal score share the mean of their ranks."""
        best_R = np.maximum.reduceat(np.where(self._right_R, score_R, -np.inf), self._starts_N)[self._question_R]
        above_N, equal_N = (
            np.add.reduceat(each.astype(float), self._starts_N) for each in (score_R > best_R, score_R == best_R)
        )
        return above_N + (equal_N + 1) / 2

    def average_precision(self, score_R: np.ndarray) -> np.ndarray:
        """Over all right candidates of each question, [N]; those of equal score are taken together."""
        ends_N = [*self._starts_N[1:], len(score_R)]
        places = [slice(*each) for each in zip(self._starts_N, ends_N, strict=True)]
        return np.array([average_precision_score(self._right_R[each], score_R[each]) for each in places])

    def left_out(self, names: Sequence[str], *, every: bool = False) -> np.ndarray:
        """Scores [R] by a conditional logit of these features, for each package fitted on the other ones; every: as in `fitted`."""
        table_RF = np.stack([self._standard[name] for name in names], axis=1)
        start_F = self.fitted(table_RF, np.ones(len(self), bool), np.zeros(len(names)), every=every)
        scores_R = np.zeros(len(table_RF))
        for package in dict.fromkeys(self.packages):
            others_N = self.packages != package
            own_R = ~others_N[self._question_R]
            scores_R[own_R] = table_RF[own_R] @ self.fitted(table_RF, others_N, start_F, every=every)
        return scores_R

    def fitted(
        self,
        table_RF: np.ndarray,
        chosen_N: np.ndarray,
        start_F: np.ndarray,
        ridge: float = 1.0,
        *,
        every: bool = False,
    ) -> np.ndarray:
        """Weights [F] that make the right candidates' share of exp(score) large; each package counts alike.

        every: the mean of the logarithms of each right candidate's share counts, not the logarithm of what they have together, so
            that one of them with a large share is not enough.
        """
        rows_R = chosen_N[self._question_R]
        table_RF, right_R = table_RF[rows_R], self._right_R[rows_R]
        sizes_N = np.bincount(self._question_R)[chosen_N]
        starts_N = np.concatenate(([0], np.cumsum(sizes_N)[:-1])).astype(int)
        question_R = np.repeat(np.arange(len(sizes_N)), sizes_N)
        packages = Counter(self.packages[chosen_N])
        share_N = np.array([1 / packages[package] for package in self.packages[chosen_N]])
        share_N *= len(share_N) / share_N.sum()
        equal_R = right_R / np.add.reduceat(right_R.astype(float), starts_N)[question_R]

        def loss(weight_F: np.ndarray) -> tuple[float, np.ndarray]:
            score_R = table_RF @ weight_F
            all_R = np.exp(score_R - np.maximum.reduceat(score_R, starts_N)[question_R])
            p_R = all_R / np.add.reduceat(all_R, starts_N)[question_R]
            if every:
                gradient_F = table_RF.T @ (share_N[question_R] * (p_R - equal_R)) + ridge * weight_F
                logs_R = np.log(np.maximum(p_R, 1e-300))
                return -(share_N[question_R] * equal_R * logs_R).sum() + ridge * weight_F @ weight_F / 2, gradient_F
            inside_R = np.where(right_R, p_R, 0)
            inside_N = np.maximum(np.add.reduceat(inside_R, starts_N), 1e-300)
            q_R = inside_R / inside_N[question_R]
            gradient_F = table_RF.T @ (share_N[question_R] * (p_R - q_R)) + ridge * weight_F
            return -(share_N * np.log(inside_N)).sum() + ridge * weight_F @ weight_F / 2, gradient_F

        return minimize(loss, start_F, jac=True, method="L-BFGS-B", options={"maxiter": 100}).x

    # ---- rows

    def over_packages(self, value_N: np.ndarray) -> float:
        """Mean over packages of the mean over their questions."""
        return float(self._shares(np.ones((1, len(self))))[0] @ value_N)

    def resamples(self) -> np.ndarray:
        """Shares of the questions when groups are drawn again within each package, [`BOOTSTRAP`, N]; each row adds up to 1."""
        draw, places = np.random.default_rng(0), defaultdict(list)
        keys = list(zip(self.packages, self.groups, strict=True))
        by_package = defaultdict(list)
        for place, key in enumerate(keys):
            if key not in places:
                by_package[key[0]].append(key)
            places[key].append(place)
        count_BN = np.zeros((BOOTSTRAP, len(self)))
        for count_N in count_BN:
            for groups in by_package.values():
                for chosen in draw.integers(len(groups), size=len(groups)):
                    count_N[places[groups[chosen]]] += 1
        return self._shares(count_BN)

    def _shares(self, count_BN: np.ndarray) -> np.ndarray:
        """Each package counts alike, and its questions by how often they are there."""
        names, number_N = np.unique(self.packages, return_inverse=True)
        inside_NP = np.eye(len(names))[number_N]
        return count_BN / (count_BN @ inside_NP)[:, number_N] / len(names)

    def row(self, ranks: Sequence[np.ndarray], bases: dict[str, np.ndarray], share_BN: np.ndarray) -> dict:
        """MRR, first answers that are right, and MRR above each base with its 95 % interval.

        ranks: [N] of each seed. bases: name -> ranks [N]. share_BN: of `resamples`; the seeds are drawn again with them.
        """
        reciprocal_SN = np.stack([1 / rank_N for rank_N in ranks])
        reciprocal_N = reciprocal_SN.mean(0)
        above = self._above(reciprocal_SN, {name: 1 / base_N for name, base_N in bases.items()}, share_BN)
        above = {name: {"mrr": mean, "interval": interval} for name, (mean, interval) in above.items()}
        return {
            "mrr": self.over_packages(reciprocal_N),
            "mrr_by_seed": [self.over_packages(each_N) for each_N in reciprocal_SN],
            "first": self.over_packages(np.mean([rank_N <= 1 for rank_N in ranks], axis=0)),
            "above": above,
            "mrr_by_package": {
                str(package): float(reciprocal_N[self.packages == package].mean())
                for package in dict.fromkeys(self.packages)
            },
        }

    def precision_row(self, values: Sequence[np.ndarray], bases: dict[str, np.ndarray], share_BN: np.ndarray) -> dict:
        """Mean of average precisions, and what is above each base with its 95 % interval; as `row` has it of ranks."""
        value_SN = np.stack(values)
        return {
            "mean": self.over_packages(value_SN.mean(0)),
            "by_seed": [self.over_packages(each_N) for each_N in value_SN],
            "above": {
                name: {"mean": mean, "interval": interval}
                for name, (mean, interval) in self._above(value_SN, bases, share_BN).items()
            },
        }

    def _above(
        self, value_SN: np.ndarray, bases: dict[str, np.ndarray], share_BN: np.ndarray
    ) -> dict[str, tuple[float, list[float]]]:
        """By how much the mean over seeds is above each base's, and the interval of that."""
        value_N, S = value_SN.mean(0), len(value_SN)
        drawn_BS = np.random.default_rng(1).integers(S, size=(len(share_BN), S))
        sample_B = np.take_along_axis(share_BN @ value_SN.T, drawn_BS, axis=1).mean(1)
        return {
            name: (
                self.over_packages(value_N - base_N),
                np.percentile(sample_B - share_BN @ base_N, (2.5, 97.5)).tolist(),
            )
            for name, base_N in bases.items()
        }
