"""Timing of settings: short runs of the real trainer on the same examples, in turn with what they are compared to."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import SequentialSampler
from transformers import TrainerCallback

from helpers import meter, monitoring, tracking, xla
from helpers.batch_search import BatchSearch, CompiledMemory, device_memory, largest_batch
from helpers.interruption import Preempted, is_out_of_memory
from helpers.plan import ModelSize, Recipe
from helpers.runtime import Runtime

from .evaluation import scores
from .optimisations import Optimisation
from .settings import Settings, make_plan
from .training import ClassifierTrainer, Encoded, encode, grouped_order, new_trainer

WARM_UP = 4  # steps before the clock starts: allocations, compilation, and on XLA what follows the first log
FLUSH = 2  # the step after which the first loss is read
NOISE = 1.02  # a median gain below this is none
F1_ROWS = 128  # of validation, after a window
STARTED = "start"


@dataclass(frozen=True)
class Window:
    """What one timing gave; the clock ran over `steps` only."""

    steps: int
    examples: int
    seconds: float
    warm_up_seconds: float
    compile_seconds: float  # XLA's
    tokens: int  # padding included
    loss: float  # mean over the window
    peak_memory: int | None  # bytes
    utilisation: float | None

    @property
    def examples_per_second(self) -> float:
        return self.examples / self.seconds


@dataclass(frozen=True)
class Rung:
    """One optimisation on top of everything kept before it."""

    name: str
    settings: dict  # fields of Settings
    kept: bool
    verdict: str
    gains: tuple[float, ...] = ()  # examples/s over what was kept before, a value a repetition
    speed_up: float | None = None  # examples/s over the start: median
    speed_up_low: float | None = None  # of the repetitions
    speed_up_high: float | None = None
    steps_per_second: float | None = None
    examples_per_second: float | None = None
    tokens_per_second: float | None = None
    compile_seconds: float | None = None
    peak_memory_bytes: int | None = None
    utilisation: float | None = None
    loss: float | None = None
    f1: float | None = None


class WindowTrainer(ClassifierTrainer):
    """Leaves nothing behind, takes examples in the order given, and says nothing."""

    def __init__(self, *args, clock: Clock, **kwargs):
        super().__init__(*args, **kwargs)
        self.remove_callback(tracking.Progress)
        self.clock = clock
        clock.trainer = self
        self.add_callback(clock)

    def _get_train_sampler(self, train_dataset=None):
        return SequentialSampler(self.train_dataset)

    def _save_checkpoint(self, model, trial) -> None:
        """A window is not resumed."""

    def _shrink_micro_batch(self, error: Exception) -> None:
        """Out of memory is an answer here, not something to go on from."""
        raise error


class Clock(TrainerCallback):
    """Runs from the end of the warm-up to the last step, with the device waited for at both."""

    def __init__(self, runtime: Runtime, monitor: monitoring.Monitor | None):
        self.runtime, self.monitor = runtime, monitor
        self.trainer: WindowTrainer | None = None
        self.can_reset = False
        self.began = self.ended = self.first = 0.0
        self.tokens = 0
        self.compiled = 0.0
        self._running = contextlib.ExitStack()

    def on_train_begin(self, args, state, control, **kwargs):
        self.first = time.perf_counter()

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == WARM_UP:
            self._wait()
            self.can_reset = monitoring.reset_peak(self.runtime)
            if self.monitor:
                self._running.enter_context(self.monitor)
            self.tokens, self.compiled = self.trainer.meter.tokens, self._compile_seconds()
            self.began = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        control.should_log = state.global_step in (FLUSH, WARM_UP, state.max_steps)
        control.should_evaluate = control.should_save = False
        if state.global_step == state.max_steps:
            self._wait()
            self.ended = time.perf_counter()
            self.tokens = self.trainer.meter.tokens - self.tokens
            self.compiled = self._compile_seconds() - self.compiled
            self._running.close()

    def _compile_seconds(self) -> float:
        return xla.counters()["compile_seconds"] if self.runtime.kind == "xla" else 0.0

    def _wait(self) -> None:
        if self.runtime.kind == "xla":
            xla.wait()
        elif self.runtime.kind == "cuda":
            torch.cuda.synchronize()


class Bench:
    """One model and one set of examples, on which every setting is timed from the same weights."""

    def __init__(
        self,
        model,
        tokenizer,
        train: Sequence[tuple[str, int]],
        validation: Sequence[tuple[str, int]],
        recipe: Recipe,
        size: ModelSize,
        runtime: Runtime,
        *,
        window_examples: int,
        seed: int,
        class_weights: np.ndarray | None = None,
        learning_rate: float = 0.0,
    ):
        self.model, self.tokenizer, self.runtime, self.seed = model, tokenizer, runtime, seed
        self.recipe, self.size, self.learning_rate, self.class_weights = recipe, size, learning_rate, class_weights
        self.validation = list(validation)[:F1_ROWS]
        self.window_examples = window_examples
        self._rows = list(train)
        random.Random(seed).shuffle(self._rows)
        self._encoded: dict[int, Encoded] = {}
        self.compiled_memory = CompiledMemory() if runtime.kind == "xla" else None
        self.f1: dict[Settings, float] = {}
        self.peaks: dict[Settings, int] = {}

    def run(self, settings: Settings, *, steps: int, measure_f1: bool = False, rows: Encoded | None = None) -> Window:
        """One window of `steps` steps after the warm-up.

        Raises what the trainer raises: out of memory above all.
        """
        total = WARM_UP + steps
        plan = make_plan(
            settings, self.recipe, self.size, self.runtime, learning_rate=self.learning_rate, max_steps=total
        )
        # What the memory holds is to be found out here, not estimated.
        plan = dataclasses.replace(
            plan, per_device_batch_size=settings.batch_size // plan.device_count, gradient_accumulation_steps=1
        )
        mark = self.compiled_memory.mark() if self.compiled_memory else 0
        clock = Clock(self.runtime, monitoring.Monitor(self.runtime, interval=0.2))
        with tempfile.TemporaryDirectory() as folder:
            trainer = new_trainer(
                copy.deepcopy(
                    self.model
                ),  # accelerate wraps what it gets; and every window starts from the same weights
                self.tokenizer,
                rows or self._examples(settings, steps),
                [],
                settings,
                plan,
                self.runtime,
                Path(folder),
                class_weights=self.class_weights,
                seed=self.seed,
                cls=functools.partial(WindowTrainer, clock=clock),
                eval_strategy="no",
                save_strategy="no",
                logging_first_step=False,
                logging_steps=10**9,
                per_device_eval_batch_size=2
                * (plan.micro_batch_size if self.runtime.kind == "xla" else plan.per_device_batch_size),
            )
            trainer.train(resume_from_checkpoint=False)
            if measure_f1:
                rows = encode(self.validation, self.tokenizer, settings.length)
                self.f1[settings] = scores(trainer.logits(rows), [label for _, label in self.validation])["f1"]
        return self._window(trainer, clock, settings, steps, mark)

    def _window(self, trainer, clock: Clock, settings: Settings, steps: int, mark: int) -> Window:
        if self.compiled_memory:
            compiled = self.compiled_memory.peak(mark)
            if compiled:
                self.peaks[settings] = max(compiled, self.peaks.get(settings, 0))
            peak = meter.peak_memory(self.runtime) or self.peaks.get(settings)
        else:
            peak = meter.peak_memory(self.runtime) if clock.can_reset else None
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        return Window(
            steps=steps,
            examples=steps * settings.batch_size,
            seconds=max(clock.ended - clock.began - clock.compiled, 1e-9),
            warm_up_seconds=clock.began - clock.first,
            compile_seconds=trainer.meter.compile_seconds,
            tokens=clock.tokens,
            loss=losses[-1],
            peak_memory=peak,
            utilisation=clock.monitor.results()["utilisation"],
        )

    def steps(self, settings: Settings) -> int:
        """Steps of a window: as many examples whatever the batch."""
        return max(1, self.window_examples // settings.batch_size)

    def _examples(self, settings: Settings, steps: int) -> Encoded:
        """Warm-up examples, then the window's, the same for every setting but for their order."""
        rows = self._encoded.setdefault(settings.length, encode(self._rows, self.tokenizer, settings.length))
        count = steps * settings.batch_size
        window = [rows[i % len(rows)] for i in range(count)]
        warm = [rows[(count + i) % len(rows)] for i in range(WARM_UP * settings.batch_size)]
        if settings.padding == "grouped":
            generator = torch.Generator().manual_seed(self.seed)
            order = grouped_order([len(row["input_ids"]) for row in window], settings.batch_size, generator)
            window = [window[i] for i in order]
        return warm + window

    def largest_batch(self, start: Settings, limit: int) -> BatchSearch:
        """The largest batch that fits at full length, see `batch_search.largest_batch`."""
        devices = self.runtime.device_count

        def try_step(batch: int) -> int | None:
            settings = dataclasses.replace(start, batch_size=batch)
            full = max(
                self._encoded.setdefault(start.length, encode(self._rows, self.tokenizer, start.length)), key=_tokens
            )
            window = self.run(settings, steps=1, rows=[full] * batch * (WARM_UP + 1))
            return torch.cuda.max_memory_reserved() if self.runtime.kind == "cuda" else window.peak_memory

        memory = device_memory(self.runtime)
        return largest_batch(
            try_step,
            first=start.batch_size,
            limit=max(limit, start.batch_size) // devices * devices,
            memory=memory,
            multiple_of=devices,
            look_ahead=self.runtime.kind == "cpu",
        )


def _tokens(row: dict) -> int:
    return len(row["input_ids"])


def climb(
    bench: Bench,
    start: Settings,
    ladder: Sequence[Optimisation],
    *,
    repetitions: int,
) -> Iterator[Rung]:
    """Tries one optimisation after the other on top of what was kept; yields the start first.

    A setting and the one before are timed in turn, `repetitions` times each, so that a machine that grows slower or faster
    does so for both. It is kept where it was faster every time, by more than 2 % in the median.
    """
    kept, base, gave_up = start, 1.0, ""
    first = [bench.run(start, steps=bench.steps(start), measure_f1=i == 0) for i in range(repetitions)]
    middle = statistics.median(window.examples_per_second for window in first)
    yield _rung(STARTED, start, first, [w.examples_per_second / middle for w in first], 1.0, bench, True, "the start")
    for optimisation in ladder:
        kind = optimisation.name.rstrip("0123456789 ")
        if optimisation.why_not or kind == gave_up:
            why = optimisation.why_not or f"a smaller {kind} did not help"
            yield Rung(optimisation.name, asdict(kept), False, f"not tried: {why}")
            continue
        candidate = dataclasses.replace(
            kept, **optimisation.changes, start_batch_size=kept.start_batch_size or start.batch_size
        )
        try:
            before, after = _in_turn(bench, kept, candidate, repetitions)
        except Preempted:
            raise
        except (RuntimeError, MemoryError) as error:
            reason = "does not fit into memory" if is_out_of_memory(error) else f"failed: {_first_line(error)}"
            yield Rung(optimisation.name, asdict(candidate), False, reason)
            continue
        gains = [a.examples_per_second / b.examples_per_second for b, a in zip(before, after, strict=True)]
        good, verdict = judge(gains, before, after)
        yield _rung(optimisation.name, candidate, after, gains, base, bench, good, verdict)
        if good:
            kept, base = candidate, base * statistics.median(gains)
        else:
            gave_up = kind


def _in_turn(bench: Bench, kept: Settings, candidate: Settings, repetitions: int) -> tuple[list[Window], list[Window]]:
    before, after = [], []
    for repetition in range(repetitions):
        before.append(bench.run(kept, steps=bench.steps(kept)))
        after.append(bench.run(candidate, steps=bench.steps(candidate), measure_f1=repetition == 0))
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


def _rung(
    name: str,
    settings: Settings,
    windows: Sequence[Window],
    gains: Sequence[float],
    base: float,
    bench: Bench,
    kept: bool,
    verdict: str,
) -> Rung:
    def median(values) -> float | None:
        known = [value for value in values if value is not None]
        return statistics.median(known) if known else None

    first = windows[0]
    steady = median(w.seconds / w.steps for w in windows)
    compiling = first.warm_up_seconds - WARM_UP * steady if settings.compiled else first.compile_seconds
    return Rung(
        name=name,
        settings=asdict(settings),
        kept=kept,
        verdict=verdict,
        gains=tuple(gains),
        speed_up=base * statistics.median(gains),
        speed_up_low=base * min(gains),
        speed_up_high=base * max(gains),
        steps_per_second=1 / steady,
        examples_per_second=median(w.examples_per_second for w in windows),
        tokens_per_second=median(w.tokens / w.seconds for w in windows),
        compile_seconds=max(0.0, compiling),
        peak_memory_bytes=max((w.peak_memory for w in windows if w.peak_memory), default=None),
        utilisation=median(w.utilisation for w in windows),
        loss=median(w.loss for w in windows),
        f1=bench.f1.get(settings),
    )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120] if str(error).strip() else ''}"
