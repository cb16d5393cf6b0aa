"""One optimisation after the other, each on top of what was kept: what is tried, what it gave, and what stays."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accelerate.utils.memory import clear_device_cache
from pydantic import TypeAdapter

from helpers.machine import ranks
from helpers.run import run_folder
from helpers.run.run_folder import saved
from helpers.show import tables, tracking
from helpers.train.interruption import Stopped, is_out_of_memory

from .decision import Noise, Ratio
from .measurement import WARM_UP, Bench, TooSlow, Window
from .optimisations import Ladder, Optimisation, ladder
from .task import Settings, Task, clock

LADDER_FILE = "ladder.json"
MULTIPLE = 8  # tokens: what tensor cores and vector units like a length to be
SLOWER = 0.8  # times as fast in the first pair of timings: the others are left out
TRIALS_SHARE = 0.5  # of `tuning_minutes`; what is left of them is for the runs that compare
NO_ROOM, NO_TIME = "does not fit into memory", "tuning_minutes is used up"


@dataclass(frozen=True)
class Rung:
    """One optimisation on top of everything kept before it; what was not timed has a verdict alone."""

    name: str
    settings: Settings
    kept: bool
    verdict: str
    gains: tuple[float, ...] = ()  # examples/s over what was kept before, a value a repetition
    speed_up: float | None = None  # examples/s over the start: geometric mean
    speed_up_low: float | None = None  # of its interval
    speed_up_high: float | None = None
    steps_per_second: float | None = None
    examples_per_second: float | None = None
    compile_seconds: float | None = None
    peak_memory_bytes: int | None = None
    loss: float | None = None


@dataclass(frozen=True)
class Climb:
    """Every rung, the start first; the settings of the last one that was kept are the tuned ones."""

    rungs: tuple[Rung, ...]
    over_start: Ratio | None  # the tuned settings, timed in turn with it once more; None: nothing kept, or no time left
    seconds: float  # that the climb took

    @property
    def top(self) -> Rung:
        """The last rung that was kept."""
        return [rung for rung in self.rungs if rung.kept][-1]

    def rows(self) -> list[dict[str, Any]]:
        """For `tables.show`."""
        said = str(self.over_start or "not measured: nothing was kept, or no time was left")
        rows = [
            {
                "optimisation": rung.name,
                "verdict": rung.verdict,
                "speed-up": rung.speed_up and round(rung.speed_up, 2),
                "examples/s": rung.examples_per_second,
                "steps/s": rung.steps_per_second,
                "memory": tables.size(rung.peak_memory_bytes),
                "compiling": tables.seconds(rung.compile_seconds or None),
                "loss": rung.loss,
            }
            for rung in self.rungs
        ]
        return [*rows, {"optimisation": "tuned over the start, timed again", "verdict": said}]

    def results(self) -> dict[str, Any]:
        """Parts of results.json."""
        start, *others = map(asdict, self.rungs)
        over_start = self.over_start and asdict(self.over_start)
        return {"start": start, "optimisations": others, "over_start": over_start, "tuning_seconds": self.seconds}


def tune(task: Task, folder: Path) -> Climb:
    """Says how long it may take, tries every optimisation, and writes what was found; a second run reads it."""
    file, params = folder / LADDER_FILE, task.params
    if before := ranks.broadcast(file.read_bytes() if params.resume and file.is_file() else None):
        tracking.say(f"measured before: {file.name}")
        return TypeAdapter(Climb).validate_json(before)
    enough = min(params.max_length, -(-task.lengths()["99 %"] // MULTIPLE) * MULTIPLE)
    steps = ladder(task, enough_length=enough)
    limit = TRIALS_SHARE * 60 * params.tuning_minutes or math.inf
    climber = Climber(Bench(task), task.start, repetitions=params.repetitions, seconds=limit)
    tracking.say(climber.expected(steps))
    rungs = []
    for rung in climber.climb(steps):
        tracking.say(f"{rung.name}: {rung.verdict}")
        rungs.append(rung)
    over_start = climber.over_start()
    tracking.say(f"tuned over the start: {over_start or 'not measured'}")
    found = Climb(tuple(rungs), over_start, climber.elapsed())
    run_folder.write_json(file, asdict(found))
    return found


class Climber:
    """Tries one change after the other on top of what was kept, for at most so many seconds.

    A setting and the one before are timed in turn, `repetitions` times each and the other way round every second time, so
    that a machine that grows slower or faster does so for both. A change is kept where the interval of its ratio lies above
    1. The noise is that of the start, which is timed twice as often, or the change's own where that is larger.
    """

    def __init__(self, bench: Bench, start: Settings, *, repetitions: int, seconds: float = math.inf):
        self.bench, self.start, self.kept = bench, start, start
        self.repetitions, self.seconds, self._began = repetitions, seconds, time.monotonic()
        self.base = 1.0  # what was kept over the start
        self.noise: Noise | None = None
        self._window_seconds = 0.0  # of a whole window of what is kept
        self._start_seconds = 0.0  # of an example

    def elapsed(self) -> float:
        return ranks.broadcast(time.monotonic() - self._began)

    def expected(self, steps: Ladder) -> str:
        """What to say before it starts, from one step of the start and its warm-up."""
        window, task = self.bench.run(self.start, steps=1), self.bench.task
        step = (window.seconds + window.warm_up_seconds) / (1 + WARM_UP)
        trials = 2 + len(steps.batch_sizes) + sum(not each.why_not for each in (*steps.changes, *steps.memory_savers))
        trying = 2 * self.repetitions * trials * (self.bench.steps(self.start) + WARM_UP) * step
        limit = f", of which {self.seconds / 60:.3g} minutes may pass" if self.seconds < math.inf else ""
        return (
            f"Trials: about {tables.seconds(trying)} if nothing helps{limit}, in {clock(task.runtime)}. Then whole runs: each "
            f"about {tables.seconds(task.plan(self.start).max_steps * step)} at the start's speed, less when tuned."
        )

    def climb(self, steps: Ladder) -> Iterator[Rung]:
        """Yields the start, and every change with what it gave; `kept` is what is left at the end."""
        yield self._first()
        for change in steps.changes:
            yield self._tried(change)
        does_not_fit = yield from self._larger_batches(steps.batch_sizes)
        for saver in steps.memory_savers:
            why_not = saver.why_not or ("" if does_not_fit else "memory does not limit the batch")
            name = saver.name if why_not else f"{saver.name}, batch size {does_not_fit}"
            rung = self._tried(Optimisation(name, saver.changes | {"batch_size": does_not_fit}, why_not))
            yield rung
            if rung.kept:
                does_not_fit = yield from self._larger_batches(steps.batch_sizes)

    def over_start(self) -> Ratio | None:
        """The settings that were kept over the start: timed in turn again, since what was chosen by a timing is flattered by it."""
        if self.kept == self.start or self._out_of_time(trials=1):
            return None
        return self.noise.interval(_gains(*self._in_turn(self.start, self.kept)))

    def _first(self) -> Rung:
        start, windows = self.start, []
        try:
            while len(windows) < 2 or (len(windows) < 2 * self.repetitions and self.elapsed() < self.seconds):
                windows.append(self._run(start))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise RuntimeError(
                f"start_batch_size={start.batch_size} {NO_ROOM}; lower it, or max_length, or take a smaller base_model"
            ) from error
        speeds = [window.examples_per_second for window in windows]
        self.noise = Noise.of(speeds)
        middle = statistics.geometric_mean(speeds)
        self._start_seconds = 1 / middle
        least = self.noise.around(1.0, self.repetitions)
        verdict = f"{middle:.4g} examples a second; a ratio from {least.low:.2f} to {least.high:.2f} is noise"
        return self._timed("start", start, True, verdict, windows, [x / middle for x in speeds], least)

    def _larger_batches(self, sizes: Sequence[int]) -> Iterator[Rung]:
        """Doubles the batch while that helps; returns the size that memory does not hold, or 0."""
        for size in (size for size in sizes if size > self.kept.batch_size):
            rung = self._tried(Optimisation(f"batch size {size}", {"batch_size": size}))
            yield rung
            if not rung.kept:
                return size if rung.verdict.startswith(NO_ROOM) else 0
        return 0

    def _tried(self, change: Optimisation) -> Rung:
        candidate = dataclasses.replace(self.kept, **change.changes)
        if change.why_not or self._out_of_time():
            return Rung(change.name, self.kept, False, f"not tried: {change.why_not or NO_TIME}")
        try:
            if candidate.batch_size != self.kept.batch_size:
                self.bench.probe(candidate)
            before, after = self._in_turn(self.kept, candidate)
        except Stopped:
            raise
        except (RuntimeError, MemoryError) as error:
            verdict = _why_not(error)
        else:
            gains = _gains(before, after)
            kept, verdict, ratio = judge(gains, self.noise, before, after)
            rung = self._timed(change.name, candidate, kept, verdict, after, gains, ratio)
            if kept:
                self.kept, self.base = candidate, self.base * ratio.value
            return rung
        clear_device_cache(garbage_collection=True)  # after the block, whose traceback keeps the step's tensors
        return Rung(change.name, candidate, False, verdict)

    def _in_turn(self, kept: Settings, candidate: Settings) -> tuple[list[Window], list[Window]]:
        """As many pairs of windows as `repetitions`; fewer where the first says enough or time is up."""
        before, after = [], []
        for pair in range(self.repetitions):
            for settings in (kept, candidate) if pair % 2 == 0 else (candidate, kept):
                if settings == kept:
                    before.append(self._run(kept))
                else:
                    after.append(self._run(candidate, start_seconds=self._start_seconds))
            hopeless = min(SLOWER, self.noise.around(1.0, 1).low)
            if _gains(before, after)[0] < hopeless or self.elapsed() > self.seconds:
                break
        return before, after

    def _run(self, settings: Settings, **options) -> Window:
        began = time.monotonic()
        window = self.bench.run(settings, steps=self.bench.steps(settings), **options)
        self._window_seconds = ranks.broadcast(time.monotonic() - began)
        return window

    def _out_of_time(self, trials: int = 2) -> bool:
        """Whether so many trials are not expected to end in time: the next one, and the last one over the start."""
        return self.elapsed() + trials * 2 * self.repetitions * self._window_seconds > self.seconds

    def _timed(self, name: str, settings: Settings, kept: bool, verdict: str, windows, gains, ratio: Ratio) -> Rung:
        """A rung with the numbers of its windows."""
        steady = statistics.median(window.seconds / window.steps for window in windows)
        first = windows[0]
        compiling = first.warm_up_seconds - WARM_UP * steady if settings.compiled else first.compile_seconds
        return Rung(
            name,
            settings,
            kept,
            verdict,
            gains=tuple(gains),
            speed_up=self.base * ratio.value,
            speed_up_low=self.base * ratio.low,
            speed_up_high=self.base * ratio.high,
            steps_per_second=1 / steady,
            examples_per_second=statistics.median(window.examples_per_second for window in windows),
            compile_seconds=max(0.0, compiling),
            peak_memory_bytes=_peak(windows),
            loss=statistics.median(window.loss for window in windows),
        )


def _peak(windows: Sequence[Window]) -> int | None:
    return max((window.peak_memory for window in windows if window.peak_memory), default=None)


def _gains(before: Sequence[Window], after: Sequence[Window]) -> list[float]:
    return [a.examples_per_second / b.examples_per_second for b, a in zip(before, after, strict=True)]


def judge(
    gains: Sequence[float], noise: Noise, before: Sequence[Window], after: Sequence[Window]
) -> tuple[bool, str, Ratio]:
    """Whether a gain is one, what to say about it, and its interval; one pair of timings shows no gain."""
    ratio, memory = noise.interval(gains), ""
    if (peak := _peak(after)) and (peak_before := _peak(before)) and abs(peak / peak_before - 1) > 0.03:
        memory = f", memory x {peak / peak_before:.2f}"
    if not all(math.isfinite(window.loss) for window in after):
        return False, "the loss is no longer a number", ratio
    if ratio.low > 1 and len(gains) > 1:
        return True, f"kept: {ratio}{memory}", ratio
    return False, f"did not help here: {ratio}{memory}{', timed once' if len(gains) == 1 else ''}", ratio


def _why_not(error: Exception) -> str:
    if isinstance(error, TooSlow):
        return str(error)
    said = str(error).strip().partition("\n")[0][:120]
    if isinstance(error, MemoryError):
        return f"{NO_ROOM}: {said}"
    return NO_ROOM if is_out_of_memory(error) else f"failed: {type(error).__name__}: {said}"


def plot(rungs: Sequence[Rung], path: Path, *, title: str):
    """Bars of the speed-up over the start with the interval; what was not kept is pale."""
    import matplotlib.pyplot as plt

    tried = [rung for rung in rungs if rung.speed_up is not None]
    figure, axes = plt.subplots(figsize=(8, 0.45 * len(tried) + 1.6), layout="constrained")
    axes.barh(
        [rung.name if rung.kept else f"{rung.name} (not kept)" for rung in tried],
        [rung.speed_up for rung in tried],
        xerr=list(zip(*((r.speed_up - r.speed_up_low, r.speed_up_high - r.speed_up) for r in tried), strict=True)),
        color=["tab:blue" if rung.kept else "lightsteelblue" for rung in tried],
        ecolor="0.3",
        capsize=3,
    )
    axes.invert_yaxis()
    axes.axvline(1, color="0.4", linestyle="--", label="the start")
    axes.set(title=title, xlabel="examples/s, times the start's (whisker: 95 % interval of the last change)")
    axes.legend(loc="lower right")
    return saved(figure, path)
