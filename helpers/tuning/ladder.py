"""Which lines of `TrainingArguments` train faster here: one change after the other, each decided in pairs of short windows.

A rung is a change. Windows of real training with it and without it take turns, from the same weights and on the same texts,
so that whatever else the machine does falls on both sides. Each pair gives one ratio of speeds. A rung is kept where every one
of six pairs is faster, or all but one of nine: the interval of the median ratio, from the smallest to the largest of six
(from the second to the eighth of nine), then lies above 1 with 96 % confidence, whatever the noise is like. No noise is assumed,
and none is measured first. A change that does nothing is kept in 1/64 + 6/64 x 1/8 = 2.7 % of cases.
"""

from __future__ import annotations

import importlib.util
import math
import os
import random
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from accelerate.utils.memory import clear_device_cache
from pydantic import TypeAdapter
from transformers import TrainerCallback
from transformers.trainer_pt_utils import get_length_grouped_indices

from helpers.machine import ranks
from helpers.show import tables, tracking
from helpers.show.progress import Progress
from helpers.train.interruption import Stopped, is_out_of_memory
from helpers.tuning.training import BATCH, ClassifierTrainer, Settings, Task

ENOUGH, MOST = 6, 9  # pairs
LARGEST_BATCH = 64  # a larger one would leave too few steps to learn from
MOST_STEPS = 32  # of a window, in batches of the start
HOPELESS = 5  # times as long as the other side's warm-up: bf16 that a CPU emulates takes 40 times as long
GRACE = 10  # seconds beside it: libraries load kernels, workers start
COMPILE_SECONDS = 120  # that torch.compile may take before its first step


@dataclass(frozen=True)
class Rung:
    """Fields of `TrainingArguments` that change (`attn_implementation` is the model's, `pad_to` the collator's)."""

    name: str
    change: Settings
    why_not: str = ""  # why it cannot be tried here


def rungs(task: Task) -> list[Rung]:
    """What is tried before the batch, in this order."""
    gpu, xla, can = task.runtime.kind == "cuda", task.runtime.family == "xla", task.runtime.abilities
    half = "bf16" if can["bf16"][0] else "fp16"
    pad_to = -(-task.lengths()["99 %"] // 8) * 8  # tensor cores and vector units like multiples of 8
    group = Rung("length-grouped batches", {"train_sampling_strategy": "group_by_length"})
    if xla:
        as_long = "" if pad_to < task.params.max_length else "the texts are as long"
        group = Rung(f"padding to {pad_to} tokens", {"pad_to": pad_to}, as_long)
    compiles = "XLA compiles the whole step already" if xla else "" if task.params.try_compile else "try_compile=False"
    workers = {"dataloader_num_workers": min(2, os.cpu_count() or 1), "dataloader_pin_memory": True}
    return [
        Rung("TF32", {"tf32": True}, "" if can["tf32"][0] else can["tf32"][1]),
        Rung(half, {half: True}, "precision='fp32' rules it out" if task.params.precision == "fp32" else ""),
        Rung("fused AdamW", {"optim": "adamw_torch_fused"}, "the fused kernel crashes on XLA" if xla else ""),
        group,
        Rung("attention written out", {"attn_implementation": "eager"}),
        Rung("loader workers, pinned memory", workers, "" if gpu else "only a GPU waits for a loader"),
        Rung("torch.compile", {"torch_compile": True}, compiles),
    ]


def memory_savers(task: Task) -> list[Rung]:
    """What makes room for a batch that does not fit; each costs time, so that it has to earn its place with that batch."""
    can = getattr(task.model, "supports_gradient_checkpointing", False)
    installed = task.runtime.kind == "cuda" and importlib.util.find_spec("bitsandbytes")
    return [
        Rung("gradient checkpointing", {"gradient_checkpointing": True}, "" if can else "the model has none"),
        Rung("8-bit AdamW", {"optim": "adamw_bnb_8bit"}, "" if installed else "it needs a GPU and bitsandbytes"),
    ]


# ---- one window


class TooSlow(RuntimeError):
    """A setting is so slow that timing it is not worth the wait."""


@dataclass(frozen=True)
class Window:
    """A short training run; the clock runs after its warm-up."""

    examples_per_second: float  # by `training.clock`
    step_seconds: float  # wall time, of which the budget is made
    warm_up_seconds: float
    peak_bytes: int | None
    loss: float


def now() -> float:
    """Seconds of the first process's wall clock, so that several processes end alike."""
    return ranks.broadcast(time.monotonic())


class Watch(TrainerCallback):
    """Reads the clocks (`training_seconds`, wall time) before the first step, after the warm-up and after the last step.

    Stops a warm-up that takes longer than `patience` seconds; 0: never.
    """

    def __init__(self, trainer: ClassifierTrainer, warm_up: int, patience: float):
        self.trainer, self.warm_up, self.patience = trainer, warm_up, patience

    def read(self) -> tuple[float, float]:
        self.trainer.runtime.wait()
        return self.trainer.training_seconds(), time.perf_counter()

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step > self.warm_up:
            return
        self.began = self.read()
        if state.global_step == 0:
            self.first = self.began
        taken = self.began[0] - self.first[0]
        if self.patience and taken > self.patience:
            raise TooSlow(f"gave up: {state.global_step} steps took {tables.seconds(taken)}")
        if self.trainer.runtime.kind == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def on_step_end(self, args, state, control, **kwargs):
        # The first logs come before the clock starts: on XLA what follows them is compiled once.
        control.should_log = state.global_step in (1, self.warm_up, state.max_steps)
        control.should_evaluate = control.should_save = False
        if state.global_step == state.max_steps:
            self.ended = self.read()


class WindowTrainer(ClassifierTrainer):
    """Leaves nothing behind."""

    def _save_checkpoint(self, model, trial) -> None:
        """A window is not resumed."""

    def _shrink_micro_batch(self, error: Exception) -> None:
        """Out of memory is an answer here, not something to go on from."""
        raise error


def order(lengths: list[int], batch: int, of_all: int, seed: int) -> list[int]:
    """Places of a window's texts as transformers groups them by length where they are a few of `of_all` texts.

    Left to itself transformers would sort a window of 12 batches by threes, and a run of 200 batches and more by fifties. A window
    of fewer batches than a run sorts together is sorted as a whole, which saves less padding than the run will.
    """
    sorted_together = max(1, min(of_all // (4 * batch), 50))  # batches, as in transformers
    generator = torch.Generator().manual_seed(seed)
    return get_length_grouped_indices(lengths, batch, mega_batch_mult=sorted_together, generator=generator)


def window(task: Task, settings: Settings, examples: int, patience: float = 0.0) -> Window:
    """Speed of `settings` on the same texts as every other window; the longest text warms it up, so that memory is tried, too.

    Raises TooSlow, and what a device without enough memory raises.
    """
    on_gpu, on_xla = task.runtime.kind == "cuda", task.runtime.family == "xla"
    batch, warm_up = settings[BATCH] * task.runtime.device_count, 4 if on_xla else 2
    rows, steps = task.rows("train", settings), max(1, examples // batch)
    drawn = random.Random(task.params.seed).choices(rows, k=steps * batch)
    lengths = [len(row["input_ids"]) for row in drawn]
    if settings["train_sampling_strategy"] == "group_by_length":
        drawn = [drawn[at] for at in order(lengths, batch, len(rows), task.params.seed)]
    longest = max(rows, key=lambda row: len(row["input_ids"]))
    with tempfile.TemporaryDirectory() as folder:
        trainer = WindowTrainer(
            task,
            settings | {"train_sampling_strategy": "sequential"},
            Path(folder),
            seed=task.params.seed,
            steps=warm_up + steps,
            train=[longest] * (warm_up * batch) + drawn,
            eval_strategy="no",
            save_strategy="no",
            report_to="none",
            logging_steps=10**9,
            logging_first_step=False,
        )
        watch = Watch(trainer, warm_up, patience)
        trainer.remove_callback(Progress)
        trainer.add_callback(watch)
        trainer.train(resume_from_checkpoint=False)
    seconds, wall = (after - before for before, after in zip(watch.began, watch.ended, strict=True))
    peak = task.runtime.engine.peak_memory() if on_gpu else None  # elsewhere the peak of the process cannot be reset
    loss = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry][-1]
    speed = steps * batch / max(seconds, 1e-9)
    found = Window(speed, wall / steps, watch.began[0] - watch.first[0], peak, loss)
    return ranks.broadcast(found)  # several processes judge alike


# ---- the decision


def interval(ratios: list[float]) -> tuple[float, float]:
    """Of the median of six or more ratios, from their order alone (sign test); of fewer their range."""
    skipped = 1 if len(ratios) >= MOST else 0
    return sorted(ratios)[skipped], sorted(ratios)[-1 - skipped]


def decision(ratios: list[float]) -> bool | None:
    """Whether a rung is kept; None while more pairs are needed."""
    slower = sum(ratio <= 1 for ratio in ratios)
    if slower >= 2:
        return False
    return True if len(ratios) >= (MOST if slower else ENOUGH) else None


@dataclass(frozen=True)
class Tried:
    """What a rung gave over the settings that were kept before it."""

    name: str
    change: Settings
    settings: Settings  # with the change
    kept: bool = False
    verdict: str = ""
    ratios: list[float] = field(default_factory=list)  # of examples a second, one a pair
    window: Window | None = None  # the last one with the change
    fits: bool = True


def compare(task: Task, kept: Settings, changed: Settings, examples: int, deadline: float) -> dict:
    """Windows of both settings in turn until a decision or the deadline: fields of `Tried`."""
    ratios, patience, grace = [], 0.0, min(GRACE, max(1.0, (deadline - now()) / 20))
    # One of several processes cannot give up alone, and torch.compile has its own time.
    patient = ranks.count() > 1 or changed.get("torch_compile")
    while decision(ratios) is None and (now() < deadline or not ratios):
        pair = [None, None]
        for side in (0, 1) if len(ratios) % 2 == 0 else (1, 0):  # the other way round every second time
            pair[side] = window(task, (kept, changed)[side], examples, patience if side and not patient else 0.0)
            if not side:
                patience = grace + HOPELESS * pair[0].warm_up_seconds * changed[BATCH] / kept[BATCH]
        ratios.append(pair[1].examples_per_second / pair[0].examples_per_second)
        if not math.isfinite(pair[1].loss):
            return {"verdict": "not kept: the loss is no longer a number", "ratios": ratios}
    low, high = interval(ratios)
    word = {True: "kept", False: "not kept", None: "not decided in time"}[decision(ratios)]
    said = f"{word}: {statistics.median(ratios):.2f} x ({low:.2f} to {high:.2f}, {len(ratios)} pairs)"
    return {"kept": decision(ratios) is True, "verdict": said, "ratios": ratios, "window": pair[1]}


def attempt(task: Task, rung: Rung, kept: Settings, examples: int, deadline: float, pace: float) -> Tried:
    """Tries a rung if it is possible and two pairs, at `pace` seconds a window, would end before the deadline."""
    changed, why_not = kept | rung.change, rung.why_not
    needed = 4 * pace + (COMPILE_SECONDS if "torch_compile" in rung.change else 0)
    if not why_not and changed == kept:
        why_not = "the stock Trainer does so already"
    if not why_not and now() + needed > deadline:
        why_not = "no time of tuning_minutes is left"
    found, fits = {"verdict": f"not tried: {why_not}"}, bool(why_not) or not task.too_large(changed)
    if fits and not why_not:
        try:
            found = compare(task, kept, changed, examples, deadline)
        except Stopped:  # the user's signal ends the climb, too
            raise
        except TooSlow as error:
            found = {"verdict": str(error)}
        except (RuntimeError, MemoryError) as error:
            fits = not is_out_of_memory(error)
            found = {"verdict": f"failed: {type(error).__name__}: {str(error).strip().partition(chr(10))[0][:120]}"}
        clear_device_cache(garbage_collection=True)  # after `except`, whose traceback keeps the step's tensors
    if not fits:
        found = {"verdict": "does not fit into memory"}
    tracking.say(f"{rung.name}: {found['verdict']}")
    return Tried(rung.name, rung.change, changed, fits=fits, **found)


# ---- the ladder


def climb(task: Task, seconds: float) -> list[Tried]:
    """The stock Trainer and every rung, each on top of what was kept, within `seconds`; at the end the kept over the start."""
    deadline, start = now() + seconds, task.start
    batch, devices = start[BATCH] * task.runtime.device_count, task.runtime.device_count
    for _ in range(2):  # the first one loads libraries
        began = now()
        first = window(task, start, batch)
        pace = now() - began  # seconds of a window of one step
    candidates = rungs(task)
    windows = ENOUGH * (5 + sum(not rung.why_not for rung in candidates))  # many rungs are decided by their first pairs
    steps = min(MOST_STEPS, max(2, round(1 + (seconds / windows - pace) / first.step_seconds)))
    pace += (steps - 1) * first.step_seconds
    tried = [
        Tried("stock Trainer", {}, start, True, f"{first.examples_per_second:.4g} examples a second", window=first)
    ]

    def attempted(rung: Rung) -> Tried:
        # The last comparison, of all that was kept with the start, has its time.
        reserved = min(2 * ENOUGH * pace, seconds / 3) if chosen(tried) != start else 0
        tried.append(attempt(task, rung, chosen(tried), steps * batch, deadline - reserved, pace))
        return tried[-1]

    for rung in candidates:
        attempted(rung)
    asked = task.params.batch_size
    for size in [asked] if asked else [batch * 2**power for power in range(1, 9) if batch * 2**power <= LARGEST_BATCH]:
        if size <= batch:  # it is the start's
            break
        larger = {BATCH: size // devices}
        found = attempted(Rung(f"batch {size}", larger))
        if not found.fits:
            savers = (
                Rung(f"{each.name}, batch {size}", each.change | larger, each.why_not) for each in memory_savers(task)
            )
            found = next((each for each in map(attempted, savers) if each.kept), found)
        if not found.kept:
            break
    if all(each.verdict.startswith("not tried") for each in tried[1:]):
        tracking.say("No change could be timed: raise tuning_minutes. The stock Trainer is trained as it is, once.")
    elif chosen(tried) == start:
        tracking.say("Nothing was faster than the stock Trainer here: it is trained as it is, once.")
    else:  # what a timing chose is flattered by it
        again = compare(task, start, chosen(tried), steps * batch, deadline)
        tried.append(Tried("all that was kept, over the stock Trainer", {}, chosen(tried), **again | {"kept": False}))
        tracking.say(f"{tried[-1].name}: {tried[-1].verdict}")
    return tried


def chosen(tried: list[Tried]) -> Settings:
    """The settings of the last rung that was kept."""
    return [each.settings for each in tried if each.kept][-1]


def climbed(task: Task, folder: Path, *, seconds: float) -> list[Tried]:
    """`climb`, kept in a file of the run's folder, which a second run reads."""
    file, form = folder / "ladder.json", TypeAdapter(list[Tried])
    if before := ranks.broadcast(file.read_bytes() if task.params.resume and file.is_file() else None):
        tracking.say(f"measured before: {file.name}")
        return form.validate_json(before)
    tried = climb(task, seconds)
    file.write_bytes(form.dump_json(tried))
    return tried
