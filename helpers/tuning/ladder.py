"""Which settings train as well in less time here. Two questions, one after the other:

1. **What is faster?** A rung is a change of `TrainingArguments`. Short windows of real training with it and without it take turns,
   so that whatever else the machine does falls on both sides, and each pair gives one ratio of speeds. A rung is kept where every one
   of six pairs is faster, or all but one of nine: the interval of the median ratio, from the smallest to the largest of six (from
   the second to the eighth of nine), then lies above 1 with 96 % confidence, whatever the noise is like. A change that does nothing is
   kept in 1/64 + 6/64 x 1/8 = 2.7 % of cases. The batch comes first, since precision and compilation pay only in a large one.
2. **Is it as good?** A larger batch takes fewer steps, so the learning rate grows with it: k times the batch is tried with k times the
   rate and with its square root, on the examples of the stock run and then on twice as many, where that is still faster. A candidate
   is kept where two things are shown on the dev texts, paired text by text: its loss is at most LOSS_MARGIN above that of the stock
   run, and its macro F1 at most F1_MARGIN below. The loss alone does not suffice: it can fall while fewer texts get their label. The
   seconds that a kept candidate took are its time to the quality of the stock run.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from accelerate.utils.memory import clear_device_cache
from pydantic import TypeAdapter

from helpers.machine import ranks
from helpers.show import tracking
from helpers.train.interruption import Stopped, is_out_of_memory
from helpers.tuning.evaluation import Quality, Trial, compare_quality
from helpers.tuning.training import BATCH, EXAMPLES, GROUPED, RATE, SAMPLING, Settings, Task, run_trial
from helpers.tuning.windows import Window, measure_window

FEWEST_PAIRS, MOST_PAIRS = 6, 9  # of windows: nine where one of them was slower
LEAST_STEPS = 30  # of the run with the largest batch: fewer would learn little
MOST_STEPS = 32  # of a window, in batches of the start
COMPILE_SECONDS = 120  # that torch.compile may take before its first step
CLIMB_SHARE = 1 / 3  # of tuning_minutes, for windows; the rest is for trials
LOSS_MARGIN = 0.02  # of the stock run's dev loss
F1_MARGIN = 0.01
DEV_TEXTS = (
    300  # fewer cannot show that F1 is within the margin, even if none gets another label (rule of three: 3 / 300)
)
LEARNED = 0.97  # of the loss of the label frequencies: a run that ends above it has learned next to nothing
SPARE = 0.85  # of the time that is left is planned with: evaluations and the unexpected take the rest


class Outcome(StrEnum):
    START = "the start"
    KEPT = "kept"
    NOT_FASTER = "not faster"
    WORSE = "worse"
    NOT_DECIDED = "not decided"
    NOT_TRIED = "not tried"
    TOO_LARGE = "does not fit into memory"
    FAILED = "failed"


# ---- 1. what is faster


@dataclass(frozen=True)
class Rung:
    """Fields of `TrainingArguments` that change (`attn_implementation` is the model's, `pad_to...` the collator's)."""

    name: str
    change: Settings
    why_not: str = ""  # why it cannot be tried here


@dataclass(frozen=True)
class Tried:
    """What a rung gave over the settings that were kept before it."""

    name: str
    change: Settings
    settings: Settings  # with the change
    outcome: Outcome
    detail: str = ""
    ratios: list[float] = field(default_factory=list)  # of examples a second, one a pair
    window: Window | None = None  # the last one with the change

    @property
    def verdict(self) -> str:
        if not self.detail:
            return self.outcome
        return f"{self.outcome}: {self.detail}"


def cpu_multiplies_bf16() -> bool:
    """By the flags that Linux lists: without such instructions bf16 is emulated and takes 40 times as long."""
    flags = Path("/proc/cpuinfo")
    return flags.exists() and "bf16" in flags.read_text(encoding="utf-8")


def rungs(task: Task) -> list[Rung]:
    """What is tried once the batch is found, in this order."""
    runtime, params = task.runtime, task.params
    half = "bf16"
    if runtime.is_before_ampere:
        half = "fp16"
    quarter = math.ceil(task.lengths()["99 %"] / 32) * 8  # four lengths, each compiled once
    changes: dict[str, Settings] = {
        "length-grouped batches": {SAMPLING: GROUPED},
        "padding to multiples of 8": {"pad_to_multiple_of": 8},
        "TF32": {"tf32": True},
        half: {half: True},
        "fused AdamW": {"optim": "adamw_torch_fused"},
        "loader workers, pinned memory": {
            "dataloader_num_workers": min(2, os.cpu_count() or 1),
            "dataloader_pin_memory": True,
        },
        "torch.compile": {"torch_compile": True, "pad_to_multiple_of": quarter},
    }
    obstacles = {}
    if not runtime.has_tf32:
        obstacles["TF32"] = f"{runtime.device_name} has no TF32"
    if runtime.kind != "cuda":
        obstacles["padding to multiples of 8"] = "it is for tensor cores"
        obstacles["loader workers, pinned memory"] = "only a GPU waits for a loader"
    if runtime.kind == "cpu" and not cpu_multiplies_bf16():
        obstacles[half] = "no instructions for it are known of this CPU"
    if params.precision == "fp32":
        obstacles[half] = "precision='fp32' rules it out"
    if not params.try_compile:
        obstacles["torch.compile"] = "try_compile=False"
    if runtime.kind == "xla":
        obstacles["length-grouped batches"] = "all texts are padded to one length"
        obstacles["fused AdamW"] = "the fused kernel crashes on XLA"
        obstacles["torch.compile"] = "XLA compiles the whole step already"
    return [Rung(name, change, obstacles.get(name, "")) for name, change in changes.items()]


def interval(ratios: list[float]) -> tuple[float, float]:
    """Of the median of six or more ratios, from their order alone (sign test); of fewer their range."""
    ordered = sorted(ratios)
    if len(ratios) >= MOST_PAIRS:
        ordered = ordered[1:-1]
    return ordered[0], ordered[-1]


def decision(ratios: list[float]) -> Outcome:
    """Whether a rung is kept; not decided while more pairs are needed."""
    slower = sum(ratio <= 1 for ratio in ratios)
    if slower >= 2:
        return Outcome.NOT_FASTER
    pairs = FEWEST_PAIRS
    if slower:
        pairs = MOST_PAIRS
    if len(ratios) < pairs:
        return Outcome.NOT_DECIDED
    return Outcome.KEPT


def now() -> float:
    """Seconds of the first process's wall clock, so that several processes end alike."""
    return ranks.broadcast(time.monotonic())


def compare_speed(task: Task, settings: Settings, rung: Rung, examples: int, deadline: float) -> Tried:
    """Windows with and without the rung in turn until a decision or the deadline."""
    changed = settings | rung.change
    ratios: list[float] = []
    while decision(ratios) is Outcome.NOT_DECIDED and (now() < deadline or not ratios):
        if len(ratios) % 2 == 0:
            before = measure_window(task, settings, examples)
            after = measure_window(task, changed, examples)
        else:
            after = measure_window(task, changed, examples)
            before = measure_window(task, settings, examples)
        ratios.append(after.examples_per_second / before.examples_per_second)
        if not math.isfinite(after.loss):
            return Tried(rung.name, rung.change, changed, Outcome.FAILED, "the loss is no longer a number", ratios)
    low, high = interval(ratios)
    detail = f"{statistics.median(ratios):.2f} x ({low:.2f} to {high:.2f}, {len(ratios)} pairs)"
    return Tried(rung.name, rung.change, changed, decision(ratios), detail, ratios, after)


class Climb:
    """The rungs that were tried so far, each on top of those that were kept."""

    def __init__(self, task: Task, seconds: float):
        self.task, self.deadline = task, now() + seconds
        self.tried: list[Tried] = []
        batch = task.start[BATCH] * task.runtime.device_count
        for _ in range(2):  # the first one loads libraries
            began = now()
            first = measure_window(task, task.start, batch)
            overhead = now() - began  # seconds of a window of one step
        possible = sum(not rung.why_not for rung in rungs(task))
        planned = FEWEST_PAIRS * (5 + possible)  # many rungs are decided by their first pairs
        steps = round(1 + (seconds / planned - overhead) / first.step_seconds)
        steps = min(MOST_STEPS, max(2, steps))
        self.examples = steps * batch
        self.pace = overhead + (steps - 1) * first.step_seconds  # seconds of a window
        speed = f"{first.examples_per_second:.4g} examples a second"
        self.tried.append(Tried("stock Trainer", {}, task.start, Outcome.START, speed, window=first))

    @property
    def settings(self) -> Settings:
        return chosen(self.tried)

    def attempt(self, rung: Rung) -> Tried:
        """Tries a rung if it is possible and two pairs would end before the deadline."""
        task, changed = self.task, self.settings | rung.change
        needed = 4 * self.pace
        if "torch_compile" in rung.change:
            needed += COMPILE_SECONDS
        why_not = rung.why_not
        if not why_not and changed == self.settings:
            why_not = "the stock Trainer does so already"
        if not why_not and now() + needed > self.deadline:
            why_not = "no time of tuning_minutes is left"
        if why_not:
            result = Tried(rung.name, rung.change, changed, Outcome.NOT_TRIED, why_not)
        elif task.too_large(changed):
            result = Tried(rung.name, rung.change, changed, Outcome.TOO_LARGE)
        else:
            result = self.measured(rung, changed)
        tracking.say(f"{rung.name}: {result.verdict}")
        self.tried.append(result)
        return result

    def measured(self, rung: Rung, changed: Settings) -> Tried:
        """What windows say of a rung, or why they could not."""
        try:
            return compare_speed(self.task, self.settings, rung, self.examples, self.deadline)
        except Stopped:  # the user's signal ends the climb, too
            raise
        except (RuntimeError, MemoryError) as error:
            outcome, detail = Outcome.TOO_LARGE, ""
            if not is_out_of_memory(error):
                first_line = str(error).strip().partition("\n")[0]
                outcome, detail = Outcome.FAILED, f"{type(error).__name__}: {first_line[:120]}"
        clear_device_cache(garbage_collection=True)  # after `except`, whose traceback keeps the step's tensors
        return Tried(rung.name, rung.change, changed, outcome, detail)

    def grow_batch(self) -> bool:
        """Doubles the batch while that is faster; whether it grew. `batch_size` allows one size alone."""
        task, devices = self.task, self.task.runtime.device_count
        before = self.settings[BATCH]
        size, largest = 2 * before, recipe_examples(task) // devices // LEAST_STEPS
        if task.params.batch_size:
            size = largest = task.params.batch_size // devices
        while before < size <= largest:
            grown = self.attempt(Rung(f"batch {size * devices}", {BATCH: size}))
            if grown.outcome is Outcome.TOO_LARGE:  # with it there is room, at the price of time
                saving = {BATCH: size, "gradient_checkpointing": True}
                why_not = ""
                if not getattr(task.model, "supports_gradient_checkpointing", False):
                    why_not = "the model has none"
                grown = self.attempt(Rung(f"gradient checkpointing, batch {size * devices}", saving, why_not))
            if grown.outcome is not Outcome.KEPT:
                break
            size *= 2
        return self.settings[BATCH] > before


def climb(task: Task, seconds: float) -> list[Tried]:
    """The stock Trainer and every rung within `seconds`: the batch, the others at that batch, then the batch again.

    What was not faster in a small batch may be in a larger one, so precision is asked once more if the batch has grown again.
    """
    ladder = Climb(task, seconds)
    ladder.grow_batch()
    for rung in rungs(task):
        ladder.attempt(rung)
    if ladder.settings != task.start and not task.params.batch_size and ladder.grow_batch():
        for rung in rungs(task):
            if rung.name in ("bf16", "fp16", "TF32") and not rung.change.items() <= ladder.settings.items():
                ladder.attempt(rung)
    return ladder.tried


def chosen(tried: list[Tried]) -> Settings:
    """The settings of the last rung that was kept."""
    settings = [rung.settings for rung in tried if rung.outcome in (Outcome.START, Outcome.KEPT)]
    return settings[-1]


# ---- 2. is it as good


@dataclass(frozen=True)
class Judged:
    """A candidate beside the stock Trainer, over the seeds that both were trained with."""

    settings: Settings
    outcome: Outcome
    quality: Quality


@dataclass(frozen=True)
class Race:
    """Training runs of the stock Trainer and of the candidates; those of a kept candidate have the same seeds."""

    examples: int  # of a stock run
    is_whole: bool  # whether they are as many as the recipe has
    trials: list[Trial]
    judged: list[Judged]  # in the order of the trials
    settings: Settings  # that are used: those of the last candidate if it was kept, or else the stock Trainer's
    outcome: Outcome
    detail: str


def candidates(task: Task, fastest: Settings) -> list[Settings]:
    """The fastest settings with the rate times k and times the root of k, then on twice the examples; the same with half of the batch.

    The last one is the start's batch and rate.
    """
    settings, batch = [], fastest[BATCH]
    while batch > task.start[BATCH]:
        k = batch / task.start[BATCH]
        for examples in (1, 2):
            for factor in (k, math.sqrt(k)):
                settings.append(fastest | {BATCH: batch, RATE: task.start[RATE] * factor, EXAMPLES: examples})
        batch //= 2
    return [*settings, fastest | {BATCH: task.start[BATCH]}]


def judge(quality: Quality) -> Outcome:
    """The rule. "Kept" needs evidence: an interval that goes beyond a margin decides nothing."""
    if quality.loss.high <= LOSS_MARGIN * quality.stock_loss and quality.f1.low >= -F1_MARGIN:
        if quality.speed > 1:
            return Outcome.KEPT
        return Outcome.NOT_FASTER
    if quality.loss.low > 0 or quality.f1.high < 0:
        return Outcome.WORSE
    return Outcome.NOT_DECIDED


def recipe_examples(task: Task) -> int:
    """Of a run of the start's settings with as many steps as the recipe has."""
    return task.plan(task.start).max_steps * task.start[BATCH] * task.runtime.device_count


def examples_of_a_trial(task: Task, stock: Window, seeds: int, seconds: float) -> int:
    """As many as let the stock Trainer and a candidate train with each seed, and one more candidate, none slower than the stock one."""
    batch = task.start[BATCH] * task.runtime.device_count
    affordable = SPARE * seconds / (2 * seeds + 1) / stock.step_seconds * batch
    return min(recipe_examples(task), int(affordable) // batch * batch)


def race(task: Task, tried: list[Tried], folder: Path, *, seconds: float) -> Race:
    """Trains the stock Trainer and the candidates within `seconds`, and chooses the first candidate whose quality is shown to be kept.

    With the first seed the candidates are tried until one is kept; the other `paired_seeds` ask that one again. Where none is kept
    the stock Trainer's settings are chosen.
    """
    start, fastest, deadline = task.start, chosen(tried), now() + seconds
    recipe, batch = recipe_examples(task), start[BATCH] * task.runtime.device_count
    labels = [label for _, label in task.texts.validation]
    trials: list[Trial] = []
    judged: list[Judged] = []
    examples = 0

    def ended(outcome: Outcome, detail: str, settings: Settings = start) -> Race:
        return Race(examples, examples == recipe, trials, judged, settings, outcome, detail)

    if fastest == start:
        return ended(Outcome.NOT_FASTER, "Nothing was faster than the stock Trainer here.")
    if len(labels) < DEV_TEXTS:
        why = f"{len(labels)} dev texts cannot show that F1 is at most {F1_MARGIN} lower: {DEV_TEXTS} can. Give more rows."
        return ended(Outcome.NOT_DECIDED, why)
    assert tried[0].window
    for seeds in (task.params.paired_seeds, 1):
        examples = examples_of_a_trial(task, tried[0].window, seeds, seconds)
        if examples >= min(recipe, LEAST_STEPS * batch):
            break
    else:
        return ended(Outcome.NOT_DECIDED, "No time of tuning_minutes is left to compare quality: raise tuning_minutes.")

    def train(settings: Settings, seed: int) -> Trial:
        trials.append(run_trial(task, settings, folder, seed=seed, examples=examples))
        return trials[-1]

    def compare(settings: Settings) -> Outcome:
        quality = compare_quality(labels, stock, tuned)
        outcome = judge(quality)
        judged.append(Judged(settings, outcome, quality))
        times = settings.get(EXAMPLES, 1)
        tracking.say(f"batch {settings[BATCH]}, rate {settings[RATE]:.2g}, examples x {times}: {outcome}, {quality}")
        return outcome

    began, first_seed = now(), task.params.seed
    stock = [train(start, first_seed)]
    pace = now() - began  # wall seconds of the slowest trial
    if stock[0].dev_loss > LEARNED * task.loss_of_frequencies():
        why = f"The stock run over {examples:,} examples learned next to nothing, so there is no quality to compare: raise learning_rate, or train longer."
        return ended(Outcome.NOT_DECIDED, why)
    settings = start
    for candidate in candidates(task, fastest):
        times, before = candidate.get(EXAMPLES, 1), trials[-1]
        expected = before.seconds * times / before.settings.get(EXAMPLES, 1)
        if times > 1 and expected >= stock[0].seconds:
            continue
        if now() + pace > deadline:
            break
        tuned = [train(candidate, first_seed)]
        if compare(candidate) is Outcome.KEPT:
            settings = candidate
            break
    for seed in range(first_seed + 1, first_seed + seeds):
        if settings == start or now() + 2 * pace > deadline:
            break
        stock.append(train(start, seed))
        tuned.append(train(settings, seed))
    if len(stock) > 1 and compare(settings) is not Outcome.KEPT:
        settings = start
    if not judged:
        return ended(Outcome.NOT_DECIDED, "No time of tuning_minutes was left for a candidate.")
    if settings == start:
        outcome = judged[-1].outcome
        if any(candidate.outcome is Outcome.NOT_DECIDED for candidate in judged):
            outcome = Outcome.NOT_DECIDED
        return ended(outcome, "No candidate was shown to be as good, so the stock Trainer's settings are used.")
    return ended(Outcome.KEPT, str(judged[-1].quality), settings)


def read_or_make(make, form: type, file: Path, resume: bool):
    """What `make()` returns, kept in a file of the run's folder, which a second run reads."""
    adapter: TypeAdapter = TypeAdapter(form)
    before = None
    if resume and file.is_file():
        before = file.read_bytes()
    before = ranks.broadcast(before)
    if before:
        tracking.say(f"measured before: {file.name}")
        return adapter.validate_json(before)
    value = make()
    file.write_bytes(adapter.dump_json(value))
    return value
