"""What the pages may call better: five seeds, and neither interval has a 0 in it."""

import sys

import numpy as np
import pytest
from scipy import stats

from tests.harness import ROOT

sys.path.append(str(ROOT / "docs"))

from evidence.seeds import Difference

pytestmark = pytest.mark.once


def test_fewer_than_five_seeds_are_told_one_by_one_and_show_nothing():
    difference = Difference([0.005, -0.015, 0.22], (0.05, 0.09))
    assert difference.outcome == "not shown"
    assert difference.text(1, 100) == "+0.5, -1.5, +22.0 (3 seeds: not shown)"


@pytest.mark.parametrize(
    ("by_seed", "items", "outcome"),
    [
        ([0.05, 0.06, 0.05, 0.07, 0.06], (0.03, 0.08), "better"),
        ([-0.05, -0.06, -0.05, -0.07, -0.06], (-0.08, -0.03), "worse"),
        ([0.05, 0.06, 0.05, 0.07, 0.06], (-0.01, 0.13), "not shown"),  # over items
        ([0.3, 0.0, 0.1, -0.1, 0.2], (0.05, 0.15), "not shown"),  # over seeds
    ],
)
def test_better_needs_both_intervals_and_the_wider_is_printed(by_seed, items, outcome):
    difference = Difference(by_seed, items)
    paired = stats.ttest_1samp(by_seed, 0).confidence_interval(0.95)
    assert difference.outcome == outcome
    assert difference.of_seeds == pytest.approx((paired.low, paired.high))
    widest = max(items, (paired.low, paired.high), key=np.ptp)
    assert difference.interval == pytest.approx(widest)
    assert f"({widest[0]:+.3f} to {widest[1]:+.3f}" in difference.text()
