"""Which settings train as well in less time on this machine. Three questions, one after the other:

1. **What is faster?** A rung is a change of `TrainingArguments`. Short windows of real training with it and without it take turns,
   so that whatever else the machine does falls on both sides, and each pair gives one ratio of speeds. A rung is kept where every one
   of six pairs is faster, or all but one of nine: the interval of the median ratio, from the smallest to the largest of six (from
   the second to the eighth of nine), then lies above 1 with 96 % confidence, whatever the noise is like. A change that does nothing is
   kept in 1/64 + 6/64 x 1/8 = 2.7 % of cases. The batch comes first, since precision and compilation pay only in a large one.
2. **Which learning rate?** A larger batch is often better only because its rate is higher. So the stock batch is trained with 2, 4 and 8
   times the rate and nothing else changed, as long as dev loss and dev F1 become better. The best of these runs is the reference.
3. **Is it as good as the reference?** A larger batch takes fewer steps, so the rate grows with it: k times the batch is tried with the
   square root of k times the rate and with k times, on the examples of the reference and then on twice as many, where that is still
   faster. A candidate is kept where two things are shown on the dev texts, paired text by text: its loss is at most LOSS_MARGIN above
   that of the reference, and its macro F1 at most F1_MARGIN below. The loss alone does not suffice: it can fall while fewer texts get
   their label. The seconds that a kept candidate took are its time to the quality of the reference.
"""

import math
import os
import statistics
import time
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import numpy as np
from accelerate.utils.memory import clear_device_cache
from pydantic import TypeAdapter
from scipy.stats import entropy

from helpers.machine import ranks
from helpers.show import tracking
from helpers.train.interruption import NonFiniteLoss, Stopped
from helpers.tuning.evaluation import Trial
from helpers.tuning.training import BATCH, EXAMPLES, GROUPED, RATE, SAMPLING, Settings, Task, measure_window, run_trial

FEWEST_PAIRS, MOST_PAIRS = 6, 9  # of windows: nine where one of them was slower
LEAST_STEPS = 30  # of the run with the largest batch: fewer would learn little
CLIMB_SHARE = 1 / 3  # of tuning_minutes, for windows; the rest is for trials
LOSS_MARGIN = 0.02  # of the reference's dev loss
F1_MARGIN = 0.01
# Fewer cannot show that F1 is within the margin, even if none gets another label (rule of three: 3 / 300).
DEV_TEXTS = 300


class Outcome(StrEnum):
    START = "the start"
    KEPT = "kept"
    NOT_FASTER = "not faster"
    WORSE = "worse"
    NOT_DECIDED = "not decided"
    NOT_TRIED = "not tried"
    FAILED = "failed"


# ---- 1. what is faster


@dataclass
class Rung:
    """Fields of `TrainingArguments` that change (`pad_to_multiple_of` is the collator's), and what came of it."""

    name: str
    change: Settings
    detail: str = ""  # at first why it cannot be tried on this machine
    outcome: Outcome = Outcome.NOT_TRIED
    ratios: list[float] = field(default_factory=list)  # of examples a second, one a pair
    settings: Settings = field(default_factory=dict)  # with the change

    @property
    def verdict(self) -> str:
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
        "torch.compile": {"torch_compile": True, "pad_to_multiple_of": max(task.lengths)},  # one graph
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
    if len(ratios) < (MOST_PAIRS if slower else FEWEST_PAIRS):
        return Outcome.NOT_DECIDED
    return Outcome.KEPT


def now() -> float:
    """Seconds of the first process's wall clock, so that several processes end alike."""
    return ranks.broadcast(time.monotonic())


def climb(task: Task, seconds: float) -> list[Rung]:
    """The stock Trainer and every rung within `seconds`: the batch, the others at that batch, then the batch again."""
    deadline, devices = now() + seconds, task.runtime.device_count
    examples = 24 * task.start[BATCH] * devices  # of a window

    def speed(settings: Settings) -> float:
        return measure_window(task, settings, examples)

    stock = speed(task.start)
    tried = [Rung("stock Trainer", {}, f"{stock:.4g} examples a second", Outcome.START, [stock], task.start)]

    def measure(rung: Rung, before: Settings) -> None:
        """Windows with and without the change in turn until a decision or the deadline."""
        pair, ratios = [before, rung.settings], rung.ratios
        while not ratios or (rung.outcome is Outcome.NOT_DECIDED and now() < deadline):
            ratio = speed(pair[1]) / speed(pair[0])  # in this order
            if len(ratios) % 2:
                ratio = 1 / ratio
            ratios.append(ratio)
            pair.reverse()
            rung.outcome = decision(ratios)
        low, high = interval(ratios)
        rung.detail = f"{statistics.median(ratios):.2f} x ({low:.2f} to {high:.2f}, {len(ratios)} pairs)"

    def attempt(rung: Rung) -> Outcome:
        """Tries a rung on top of what was kept, if it is possible and there is time."""
        before = chosen(tried)
        rung.settings = before | rung.change
        if rung.settings == before:
            rung.detail = "the stock Trainer does so already"
        elif not rung.detail and now() > deadline:
            rung.detail = "no time of tuning_minutes is left"
        if not rung.detail:
            try:
                measure(rung, before)
            except Stopped:  # the user's signal ends the climb, too
                raise
            except (RuntimeError, MemoryError) as error:
                rung.outcome = Outcome.FAILED
                rung.detail = str(error)[:120]
            clear_device_cache(garbage_collection=True)  # after `except`, whose traceback keeps the step's tensors
        tried.append(rung)
        tracking.say(f"{rung.name}: {rung.verdict}")
        return rung.outcome

    def grow_batch() -> None:
        """Doubles the batch while that is faster. `batch_size` allows one size alone."""
        batch = chosen(tried)[BATCH]
        size = 2 * batch
        largest = task.examples // devices // LEAST_STEPS
        if task.params.batch_size:
            size = largest = task.params.batch_size // devices
        outcome = Outcome.KEPT
        while outcome is Outcome.KEPT and batch < size <= largest:
            outcome = attempt(Rung(f"batch {size * devices}", {BATCH: size}))
            if outcome is Outcome.FAILED:  # with it there is more room, at the price of time
                saving = {BATCH: size, "gradient_checkpointing": True}
                outcome = attempt(Rung(f"gradient checkpointing, batch {size * devices}", saving))
            size *= 2

    grow_batch()
    for rung in rungs(task):
        attempt(rung)
    if chosen(tried) != task.start:
        grow_batch()
    return tried


def chosen(tried: list[Rung]) -> Settings:
    """The settings of the last rung that was kept."""
    kept = [rung for rung in tried if rung.outcome in (Outcome.START, Outcome.KEPT)]
    return kept[-1].settings


# ---- 2. which learning rate, 3. is it as good


@dataclass
class Race:
    """Training runs of the stock batch and of the candidates, all with one seed."""

    examples: int  # of a run of the stock batch
    reference: Settings  # the stock batch at its best rate
    settings: Settings  # that are used: those of a kept candidate, or else the reference
    outcome: Outcome = Outcome.NOT_DECIDED
    detail: str = "No time of tuning_minutes was left for a candidate."
    trials: list[Trial] = field(default_factory=list)


def candidates(fastest: Settings, reference: Settings) -> list[Settings]:
    """The fastest settings with the reference's rate times the root of k and times k, then on twice the examples; last at its batch."""
    rate = reference[RATE]
    k = fastest[BATCH] / reference[BATCH]
    larger = [fastest | {RATE: rate * math.sqrt(k)}, fastest | {RATE: rate * k}]
    longer = [settings | {EXAMPLES: 2} for settings in larger]
    return [*larger, *longer, fastest | {BATCH: reference[BATCH], RATE: rate}]


def judge(trial: Trial, reference: Trial) -> Outcome:
    """The rule. "Kept" needs evidence: an interval that goes beyond a margin decides nothing."""
    assert trial.loss and trial.f1
    if trial.loss.high <= LOSS_MARGIN * reference.dev_loss and trial.f1.low >= -F1_MARGIN:
        if trial.speed > 1:
            return Outcome.KEPT
        return Outcome.NOT_FASTER
    if trial.loss.low > 0 or trial.f1.high < 0:
        return Outcome.WORSE
    return Outcome.NOT_DECIDED


def race(task: Task, tried: list[Rung], folder: Path, *, seconds: float) -> Race:
    """Trains the stock batch at its rates and then the candidates within `seconds`, and chooses the first candidate that is kept."""
    start, fastest, began = task.start, chosen(tried), now()
    labels = task.texts.validation.label.to_numpy()
    affordable = int(tried[0].ratios[0] * seconds / 6)  # six trials: the start, its rates, and candidates
    examples = max(LEAST_STEPS * start[BATCH], affordable)
    result = Race(min(task.examples, examples), start, start)
    if len(labels) < DEV_TEXTS:
        result.detail = f"{len(labels)} dev texts cannot show that F1 is at most {F1_MARGIN} lower: {DEV_TEXTS} can. Give more rows."
        return result

    def train(settings: Settings) -> Trial | None:
        """None if there is no time for it, or if its loss is no number."""
        passed = now() - began
        if passed + passed / len(result.trials) > seconds:
            return None
        try:
            trial = run_trial(task, settings, folder, result.examples)
        except NonFiniteLoss:
            return None
        result.trials.append(trial)
        return trial

    best = run_trial(task, start, folder, result.examples)
    result.trials.append(best)
    for factor in (2, 4, 8):
        trial = train(start | {RATE: factor * start[RATE]})
        if trial is None or trial.dev_loss >= best.dev_loss or trial.dev_f1 < best.dev_f1:
            break
        best = trial
    result.reference = result.settings = best.settings
    # The loss of a model that knows nothing but how frequent each label is.
    if best.dev_loss > 0.97 * entropy(np.bincount(labels)):
        result.detail = (
            f"Even with learning_rate={best.settings[RATE]:.2g} a run over {result.examples:,} examples learned next to nothing: raise "
            "learning_rate, max_steps or tuning_minutes."
        )
        return result
    if fastest == start:
        result.outcome, result.detail = Outcome.NOT_FASTER, "Nothing was faster than the stock Trainer."
    for candidate in candidates(fastest, best.settings):
        last = result.trials[-1]
        is_slower = candidate[EXAMPLES] * last.seconds / last.settings[EXAMPLES] >= best.seconds
        is_known = candidate in [trial.settings for trial in result.trials]
        if is_known or (candidate[EXAMPLES] > 1 and is_slower):
            continue
        trial = train(candidate)
        if trial is None:
            continue
        trial.compare(best, labels)
        result.outcome = trial.outcome = judge(trial, best)
        result.detail = f"{trial.speed:.2f} times as fast, dev loss {trial.loss}, dev F1 {trial.f1}"
        if result.outcome is Outcome.KEPT:
            result.settings = candidate
            break
    return result


def read_or_make(make, form: type, file: Path, resume: bool):
    """What `make()` returns, kept in a file of the run's folder, which a second run reads."""
    adapter: TypeAdapter = TypeAdapter(form)
    stored = ranks.broadcast(file.read_bytes() if resume and file.is_file() else None)
    if stored:
        tracking.say(f"measured before: {file.name}")
        return adapter.validate_json(stored)
    value = make()
    file.write_bytes(adapter.dump_json(value))
    return value
