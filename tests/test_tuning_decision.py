"""The rule by which a change is kept, on speeds that are drawn instead of timed."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from helpers.tuning.decision import Noise

TRIALS = 3000
SCALE = 0.05  # of the noise of one timing


def gaussian(draw, start: int, count: int) -> np.ndarray:
    return draw.normal(0, SCALE, count)


def heavy_tailed(draw, start: int, count: int) -> np.ndarray:
    return SCALE * draw.standard_t(3, count) / np.sqrt(3)


def drifting(draw, start: int, count: int) -> np.ndarray:
    """A random walk, beside noise of each timing."""
    return np.cumsum(draw.normal(0, SCALE / 2, count)) + draw.normal(0, SCALE / 2, count)


def growing_slower(draw, start: int, count: int) -> np.ndarray:
    """A machine that gets hot: each timing a hundredth slower than the one before."""
    return draw.normal(0, SCALE / 5, count) - 0.01 * np.arange(count)


def stalling(draw, start: int, count: int) -> np.ndarray:
    """One timing in seven is much slower."""
    return draw.normal(0, SCALE / 3, count) - (draw.random(count) < 0.15) * draw.exponential(3 * SCALE, count)


def restless_later(draw, start: int, count: int) -> np.ndarray:
    """Half as much noise again once the start was timed."""
    return draw.normal(0, SCALE, count) * np.where(np.arange(count) < start, 1, 1.5)


def share_kept(noise, repetitions: int, *, gain: float = 1.0) -> float:
    """Of trials of a change that is `gain` times as fast, timed as `Climber` does: in turn, every second pair the other way round."""
    draw, kept = np.random.default_rng(0), 0
    for _ in range(TRIALS):
        speeds = np.exp(noise(draw, 2 * repetitions, 4 * repetitions))
        first, pairs = speeds[: 2 * repetitions], speeds[2 * repetitions :].reshape(repetitions, 2)
        before, after = np.where(np.arange(repetitions) % 2, pairs[:, ::-1].T, pairs.T)
        kept += Noise.of(first.tolist()).interval((gain * after / before).tolist()).low > 1
    return kept / TRIALS


@pytest.mark.once
@pytest.mark.parametrize("repetitions", [2, 3, 5])
@pytest.mark.parametrize(
    "noise",
    [gaussian, heavy_tailed, drifting, growing_slower, stalling, restless_later],
    ids=lambda each: each.__name__,
)
def test_a_change_that_does_nothing_is_kept_in_less_than_a_twentieth_of_trials(noise, repetitions):
    assert share_kept(noise, repetitions) < 0.05


@pytest.mark.once
def test_a_change_that_is_well_above_the_noise_is_kept_nearly_always():
    assert share_kept(gaussian, 3, gain=1.3) > 0.95
    assert share_kept(gaussian, 3, gain=1 / 1.3) == 0


def test_the_interval_is_students_of_the_paired_logarithms():
    gains = [1.2, 1.4, 1.1, 1.3]
    quiet = Noise.of([100.0, 100.01])  # nearly none, so that the gains' own counts
    found = quiet.interval(gains)
    logs, freedom = np.log(gains), len(gains) - 1 + 1
    low, high = stats.t.interval(0.95, freedom, loc=logs.mean(), scale=stats.sem(logs))
    assert (found.value, found.low, found.high) == pytest.approx(tuple(np.exp([logs.mean(), low, high])))


def test_the_noise_of_the_start_widens_an_interval_of_gains_that_agree_by_chance():
    speeds = [100.0, 90.0, 112.0, 95.0]
    found = Noise.of(speeds).interval([1.05, 1.05])
    spread = np.std(np.log(speeds), ddof=1) * np.sqrt(2) / np.sqrt(2)  # of a ratio; of the mean of two
    assert np.log(found.high / found.value) == pytest.approx(stats.t.ppf(0.975, 4) * spread)
    assert found.low < 1 < found.high and found.value == pytest.approx(1.05)
