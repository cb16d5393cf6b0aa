"""One optimisation after the other, each on top of what was kept: what is tried, what it gave, and what stays."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from helpers import ranks, run_folder, tables, tracking
from helpers.interruption import Stopped, is_out_of_memory

from .batch_search import BatchSearch
from .measurement import WARM_UP, Bench, TooSlow, Window
from .optimisations import Optimisation, optimisations
from .settings import Settings
from .task import Task
from .training import MULTIPLE

LADDER_FILE = "ladder.json"
NOISE = 1.02  # a median gain below this is none


@dataclass(frozen=True)
class Rung:
    """One optimisation on top of everything kept before it."""

    name: str
    settings: Settings
    kept: bool
    verdict: str
    gains: tuple[float, ...] = ()  # examples/s over what was kept before, a value a repetition
    speed_up: float | None = None  # examples/s over the start: median
    speed_up_low: float | None = None  # of the repetitions
    speed_up_high: float | None = None
    steps_per_second: float | None = None
    examples_per_second: float | None = None
    compile_seconds: float | None = None
    peak_memory_bytes: int | None = None
    utilisation: float | None = None
    loss: float | None = None
    f1: float | None = None

    def row(self) -> dict[str, Any]:
        """For `tables.show`; what was not timed has a verdict alone."""
        shown = {
            "optimisation": self.name,
            "verdict": self.verdict,
            "speed-up": self.speed_up and round(self.speed_up, 2),
            "examples/s": self.examples_per_second,
            "steps/s": self.steps_per_second,
            "memory": tables.size(self.peak_memory_bytes),
            "busy": None if self.utilisation is None else f"{self.utilisation:.0%}",
            "compiling": tables.seconds(self.compile_seconds or None),
            "loss": self.loss,
            "F1": self.f1,
        }
        return {column: value for column, value in shown.items() if value is not None}


@dataclass(frozen=True)
class Climb:
    """The batch search and every rung, the start first; the settings of the last one that was kept are the tuned ones."""

    search: BatchSearch | None  # None where batch_size was given
    rungs: tuple[Rung, ...]

    @property
    def top(self) -> Rung:
        """The last rung that was kept."""
        return [rung for rung in self.rungs if rung.kept][-1]

    def results(self) -> dict[str, Any]:
        """Parts of results.json."""
        start, *others = map(asdict, self.rungs)
        return {"batch_search": self.search and asdict(self.search), "start": start, "optimisations": others}


def tune(task: Task, folder: Path) -> Climb:
    """Finds the largest batch, tries every optimisation, and writes what was found; a second run reads it."""
    file, params = folder / LADDER_FILE, task.params
    if before := ranks.broadcast(file.read_bytes() if params.resume and file.is_file() else None):
        tracking.say(f"measured before: {file.name}")
        return TypeAdapter(Climb).validate_json(before)
    bench = Bench(task)
    search = None if params.batch_size else bench.largest_batch(params.largest_batch_size)
    if search:
        tracking.say(f"largest batch {search.batch_size}: {search.reason}")
    ladder = optimisations(
        task,
        largest_batch=search.batch_size if search else params.batch_size,
        enough_length=min(params.max_length, -(-task.lengths()["99 %"] // MULTIPLE) * MULTIPLE),
    )
    rungs = []
    for rung in climb(bench, task.start, ladder, repetitions=params.repetitions):
        tracking.say(f"{rung.name}: {rung.verdict}")
        rungs.append(rung)
    found = Climb(search, tuple(rungs))
    run_folder.write_json(file, asdict(found))
    return found


def climb(bench: Bench, start: Settings, ladder: Sequence[Optimisation], *, repetitions: int) -> Iterator[Rung]:
    """Tries one optimisation after the other on top of what was kept; yields the start first.

    A setting and the one before are timed in turn, `repetitions` times each, so that a machine that grows slower or faster
    does so for both. It is kept where it was faster every time, by more than 2 % in the median.
    """
    kept, base, gave_up = start, 1.0, ""
    first = [bench.run(start, steps=bench.steps(start), measure_f1=i == 0) for i in range(repetitions)]
    middle = statistics.median(window.examples_per_second for window in first)
    gains = [window.examples_per_second / middle for window in first]
    yield Rung("start", start, True, f"{middle:.4g} examples a second", **_numbers(start, first, gains, base, bench))
    for optimisation in ladder:
        kind = optimisation.name.rstrip("0123456789 ")
        if optimisation.why_not or kind == gave_up:
            why = optimisation.why_not or f"a smaller {kind} did not help"
            yield Rung(optimisation.name, kept, False, f"not tried: {why}")
            continue
        changes = {"start_batch_size": kept.start_batch_size or start.batch_size, **optimisation.changes}
        candidate = dataclasses.replace(kept, **changes)
        try:
            before, after = _in_turn(bench, kept, candidate, repetitions, 1 / middle)
        except Stopped:
            raise
        except (RuntimeError, MemoryError) as error:
            yield Rung(optimisation.name, candidate, False, _why_not(error))
            continue
        gains = [a.examples_per_second / b.examples_per_second for b, a in zip(before, after, strict=True)]
        good, verdict = judge(gains, before, after)
        yield Rung(optimisation.name, candidate, good, verdict, **_numbers(candidate, after, gains, base, bench))
        if good:
            kept, base = candidate, base * statistics.median(gains)
        else:
            gave_up = kind


def _in_turn(
    bench: Bench, kept: Settings, candidate: Settings, repetitions: int, start_seconds: float
) -> tuple[list[Window], list[Window]]:
    before, after, steps = [], [], bench.steps(candidate)
    for repetition in range(repetitions):
        before.append(bench.run(kept, steps=bench.steps(kept)))
        after.append(bench.run(candidate, steps=steps, measure_f1=repetition == 0, start_seconds=start_seconds))
    return before, after


def judge(gains: Sequence[float], before: Sequence[Window], after: Sequence[Window]) -> tuple[bool, str]:
    """Whether a gain is one, and what to say about it."""
    if not all(np.isfinite(window.loss) for window in after):
        return False, "the loss is no longer a number"
    gain = f"{statistics.median(gains):.2f} x ({min(gains):.2f} to {max(gains):.2f})"
    memory = ""
    peaks = [[w.peak_memory for w in windows if w.peak_memory] for windows in (before, after)]
    if all(peaks):
        share = max(peaks[1]) / max(peaks[0])
        memory = f", memory x {share:.2f}" if abs(share - 1) > 0.03 else ""
    if min(gains) > 1 and statistics.median(gains) > NOISE:
        return True, f"kept: {gain}{memory}"
    return False, f"did not help here: {gain}{memory}"


def _why_not(error: Exception) -> str:
    if isinstance(error, TooSlow):
        return str(error)
    if is_out_of_memory(error):
        return "does not fit into memory"
    return f"failed: {type(error).__name__}: {str(error).strip().partition(chr(10))[0][:120]}"


def _numbers(settings: Settings, windows: Sequence[Window], gains: Sequence[float], base: float, bench: Bench) -> dict:
    """The measured fields of a rung."""

    def median(values) -> float | None:
        known = [value for value in values if value is not None]
        return statistics.median(known) if known else None

    first, steady = windows[0], median(w.seconds / w.steps for w in windows)
    compiling = first.warm_up_seconds - WARM_UP * steady if settings.compiled else first.compile_seconds
    return {
        "gains": tuple(gains),
        "speed_up": base * statistics.median(gains),
        "speed_up_low": base * min(gains),
        "speed_up_high": base * max(gains),
        "steps_per_second": 1 / steady,
        "examples_per_second": median(w.examples_per_second for w in windows),
        "compile_seconds": max(0.0, compiling),
        "peak_memory_bytes": max((w.peak_memory for w in windows if w.peak_memory), default=None),
        "utilisation": median(w.utilisation for w in windows),
        "loss": median(w.loss for w in windows),
        "f1": bench.f1.get(settings),
    }


def plot(rungs: Sequence[Rung], path: Path, *, title: str):
    """Bars of the speed-up over the start with the range of the repetitions; what was not kept is pale."""
    import matplotlib.pyplot as plt

    tried = [rung for rung in rungs if rung.speed_up is not None]
    figure, axes = plt.subplots(figsize=(8, 0.45 * len(tried) + 1.6), layout="constrained")
    below = [rung.speed_up - rung.speed_up_low for rung in tried]
    above = [rung.speed_up_high - rung.speed_up for rung in tried]
    axes.barh(
        [rung.name if rung.kept else f"{rung.name} (not kept)" for rung in tried],
        [rung.speed_up for rung in tried],
        xerr=[below, above],
        color=["tab:blue" if rung.kept else "lightsteelblue" for rung in tried],
        ecolor="0.3",
        capsize=3,
    )
    axes.invert_yaxis()
    axes.axvline(1, color="0.4", linestyle="--", label="the start")
    axes.set(title=title, xlabel="examples/s, times the start's (bar: median, whisker: all repetitions)")
    axes.legend(loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return figure
