"""The pictures of README.md: a dot for each method, the notebook's own in blue, with its interval."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from evidence.seeds import Difference

from helpers.show.intervals import Interval

FOLDER = Path(__file__).resolve().parents[1] / "figures"


@dataclass(frozen=True)
class Dot:
    """A method's value, and the ends of its interval."""

    method: str
    value: float
    low: float
    high: float
    ours: bool = False


def percent(method: str, share: Interval, ours: bool = False) -> Dot:
    """The dot of a share with its interval."""
    return Dot(method, 100 * share.value, 100 * share.low, 100 * share.high, ours)


def seeds(method: str, shares: Sequence[float], ours: bool = False) -> Dot:
    """The dot of the mean of several seeds, from the lowest to the highest."""
    return Dot(method, 100 * fmean(shares), 100 * min(shares), 100 * max(shares), ours)


def difference(method: str, values: Difference, ours: bool = False) -> Dot:
    """The dot of a difference with its interval."""
    return Dot(method, values.value, *values.interval, ours)


def dots(name: str, title: str, unit: str, rows: list[Dot], digits: int = 1) -> None:
    """Writes the picture, with the first row at the top."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 0.9 + 0.36 * len(rows)), layout="constrained")
    for height, dot in enumerate(rows):
        colour = "tab:blue" if dot.ours else "0.45"
        axes.plot([dot.low, dot.high], [height, height], color=colour)
        axes.plot(dot.value, height, marker="o", color=colour)
        axes.text(dot.value, height - 0.15, f"{dot.value:.{digits}f}", ha="center")
    axes.set_yticks(range(len(rows)), [dot.method for dot in rows])
    axes.set(title=title, xlabel=unit, ylim=(len(rows) - 0.5, -0.7))
    figure.savefig(FOLDER / f"{name}.png", dpi=100)
    plt.close(figure)
