"""The 95 % interval of what test items measured: a bootstrap over texts, questions or groups of them; of a share, Wilson's.

difference = bootstrap(lambda ours_N, theirs_N: (ours_N - theirs_N).mean(), ours_N, theirs_N)  # paired: drawn together
print(difference, difference.outcome)

What another seed of the training would change is in none of these intervals: pages say "better" from five seeds on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas

RESAMPLES = 2000
FEWEST = 20  # items; the resamples of fewer hardly differ, and their interval is too narrow
Z = 1.959964  # of a normal distribution, 95 % lie within so many standard deviations


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
        if self.low > 0:
            return "better"
        if self.high < 0:
            return "worse"
        return "no significant difference"

    def __str__(self) -> str:
        if math.isinf(self.low):
            return f"{self.value:+.3f} (too few for an interval: {self.items})"
        return f"{self.value:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


def wilson(share: float, items: int) -> Interval:
    """The interval of a share of independent items (Wilson 1927): also of all and of none it is not a point."""
    variance = share * (1 - share) / items
    spread = Z * math.sqrt(variance + (Z / (2 * items)) ** 2)
    middle, scale = share + Z**2 / (2 * items), 1 + Z**2 / items
    return Interval(share, max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale), items)


def bootstrap(measure: Callable[..., float], *columns_N: np.ndarray, groups: Sequence | None = None) -> Interval:
    """The interval of `measure(*columns_N)`.

    columns_N: the first axis is over items. groups: of each item, where the items of one, such as the questions on a document, are
        drawn together.
    """
    value = float(measure(*columns_N))
    rows_G: Any = np.arange(len(columns_N[0]))
    if groups is not None:
        grouped = pandas.Series(rows_G).groupby(list(groups))
        rows_G = [*grouped.indices.values()]
    if len(rows_G) < FEWEST:
        return Interval(value, -math.inf, math.inf, len(rows_G))
    generator = np.random.default_rng(0)
    values = []
    for _ in range(RESAMPLES):
        rows = generator.integers(len(rows_G), size=len(rows_G))
        if groups is not None:
            rows = np.concatenate([rows_G[group] for group in rows])
        values.append(measure(*(column_N[rows] for column_N in columns_N)))
    low, high = np.quantile(values, (0.025, 0.975))
    return Interval(value, float(low), float(high), len(rows_G))
