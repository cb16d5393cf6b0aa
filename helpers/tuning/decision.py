"""Whether a ratio of two speeds is more than noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95  # that the interval holds the true ratio, where timings vary by log-normal noise


def half_width(variance: float, freedom: int, count: int) -> float:
    """Of Student's interval of the mean of `count` values, whose variance is known with so many degrees of freedom."""
    from scipy.stats import t

    return float(t.ppf((1 + CONFIDENCE) / 2, freedom)) * math.sqrt(variance / count)


@dataclass(frozen=True)
class Ratio:
    """Geometric mean of paired ratios of speeds, and its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} x ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Noise:
    """How much the ratio of two timings of one and the same setting varies."""

    variance: float  # of the ratio's logarithm
    freedom: int  # degrees of it

    @classmethod
    def of(cls, speeds: Sequence[float]) -> Noise:
        """From repeated timings of the start; at least two. Each of a ratio's two timings varies as these do."""
        return cls(2 * statistics.variance(map(math.log, speeds)), len(speeds) - 1)

    def around(self, ratio: float, pairs: int) -> Ratio:
        """The interval of a ratio that is the mean of so many pairs with this noise."""
        half = half_width(self.variance, self.freedom, pairs)
        return Ratio(ratio, ratio * math.exp(-half), ratio * math.exp(half))

    def interval(self, gains: Sequence[float]) -> Ratio:
        """The interval of a change's gains, one a pair of timings.

        The noise is that of the start or that of the gains themselves, whichever is larger: a machine can grow restless
        after the start was timed, and a few gains can agree by chance.
        """
        logs = [math.log(gain) for gain in gains]
        own = statistics.variance(logs) if len(logs) > 1 else 0.0
        noise = Noise(max(self.variance, own), self.freedom + len(gains) - 1)
        return noise.around(math.exp(statistics.fmean(logs)), len(gains))
