"""The 95 % interval of what test items measured: a percentile bootstrap over texts, questions or groups of them, and over seeds.

difference = bootstrap(lambda ours_N, theirs_N: (ours_N - theirs_N).mean(), ours_N, theirs_N)  # paired: drawn together
print(difference, difference.outcome)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
FEWEST = 20  # items; the resamples of fewer hardly differ, and their interval is too narrow


@dataclass(frozen=True)
class Interval:
    """A value and its interval, which is infinite over too few items. items: texts, questions or groups that were drawn."""

    value: float
    low: float
    high: float
    items: int

    @property
    def outcome(self) -> str:
        """Of a difference: "better" or "worse" where the interval has no 0 in it, else "no significant difference"."""
        if self.low <= 0 <= self.high:
            return "no significant difference"
        return "better" if self.low > 0 else "worse"

    def __str__(self) -> str:
        if self.items < FEWEST:
            return f"{self.value:+.3f} (too few for an interval: {self.items})"
        return f"{self.value:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


def bootstrap(measure: Callable[..., float], *columns_N: np.ndarray, groups: Sequence | None = None) -> Interval:
    """The interval of `measure(*columns_N)`.

    groups: of each item, where the items of one, such as the questions on a document, are drawn together.
    """
    group_N = np.arange(len(columns_N[0]))
    if groups is not None:
        _, group_N = np.unique(groups, return_inverse=True)
    order_N = np.argsort(group_N, kind="stable")
    rows_G = np.split(order_N, np.cumsum(np.bincount(group_N))[:-1])

    def resampled(generator: np.random.Generator) -> float:
        rows = generator.integers(len(rows_G), size=len(rows_G))
        if groups is not None:
            rows = np.concatenate([rows_G[group] for group in rows])
        return measure(*(column_N[rows] for column_N in columns_N))

    return _interval(measure(*columns_N), resampled, len(rows_G))


def bootstrap_of_seeds(measure: Callable[[np.ndarray, np.ndarray], float], seeds: int, items: int) -> Interval:
    """The interval of `measure(seeds, items)`, of their numbers from 0 on, where both are drawn.

    With one seed the interval is over items alone, and with a few seeds it is somewhat too narrow.
    """

    def resampled(generator: np.random.Generator) -> float:
        drawn = generator.integers(seeds, size=seeds)
        return measure(drawn, generator.integers(items, size=items))

    return _interval(measure(np.arange(seeds), np.arange(items)), resampled, items)


def _interval(value: float, resampled: Callable[[np.random.Generator], float], items: int) -> Interval:
    if items < FEWEST:
        return Interval(float(value), -math.inf, math.inf, items)
    generator = np.random.default_rng(0)
    values = [resampled(generator) for _ in range(RESAMPLES)]
    low, high = np.quantile(values, (0.025, 0.975))
    return Interval(float(value), float(low), float(high), items)
