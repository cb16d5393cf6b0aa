"""The ladder: its rule against arithmetic, its rungs on every card, its budget, and TF32 that is put back."""

from __future__ import annotations

import itertools
import math
import random
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import binom
from transformers.trainer_pt_utils import LengthGroupedSampler

from helpers.machine import xla
from helpers.train.interruption import Stopped
from helpers.tuning import ladder
from helpers.tuning.ladder import Rung, TooSlow, Window, decision, interval
from helpers.tuning.training import BATCH, Task, Utilisation
from tests.harness import cpu_here
from tests.tuning_run import task_of

ROOT = Path(__file__).resolve().parents[2]


# ---- the rule


def test_a_change_that_does_nothing_is_kept_in_three_of_a_hundred_cases_at_most():
    """All orders of nine pairs, each faster or slower with the same chance: exactly, whatever the noise is like."""
    kept = 0
    for signs in itertools.product((0.9, 1.1), repeat=9):
        ended = next(count for count in range(1, 10) if decision([*signs[:count]]) is not None)
        kept += decision([*signs[:ended]])
    assert kept / 2**9 == pytest.approx(1 / 64 + 6 / 64 / 8) and kept / 2**9 < 0.03


@pytest.mark.parametrize("pairs", [6, 7, 8, 9])
def test_the_interval_holds_the_median_with_at_least_95_percent(pairs):
    """Of the order statistics: the median lies outside where too few or too many ratios lie below it."""
    low, high = interval([*range(1, pairs + 1)])
    outside = 2 * binom.cdf(low - 1, pairs, 0.5)
    assert high == pairs + 1 - low and 1 - outside >= 0.95


def test_what_is_kept_is_what_the_interval_says():
    draw = np.random.default_rng(0)
    for _ in range(500):
        ratios = []
        while decision(ratios) is None:
            ratios.append(math.exp(draw.normal(0.05, 0.1)))
        assert decision(ratios) == (interval(ratios)[0] > 1 and len(ratios) >= 6)


# ---- windows


@pytest.mark.parametrize("texts", [240, 8000])
def test_a_grouped_window_saves_most_of_the_padding_that_a_whole_run_saves_and_never_more(texts):
    draw = random.Random(0)
    lengths = [min(64, 3 + int(draw.expovariate(0.1))) for _ in range(texts)]
    whole = [*LengthGroupedSampler(8, lengths=lengths, generator=torch.Generator().manual_seed(0))]
    at_random, windows = [], []
    for seed in range(20):
        at_random += (drawn := random.Random(seed).choices(lengths, k=12 * 8))
        windows += [drawn[at] for at in ladder.order(drawn, 8, texts, seed)]
    loose, found, least = (
        sum(8 * max(each[at : at + 8]) for at in range(0, len(each), 8)) / sum(each)
        for each in (at_random, windows, [lengths[at] for at in whole])
    )
    assert least * 0.97 < found < least + (loose - least) / 5


# ---- rungs


RUNGS = """
import sys; sys.path.insert(0, sys.argv[1])
from tests.machine.cuda_stand_in import pretend
pretend(sys.argv[2])
from helpers.machine import runtime
from helpers.tuning import ladder
from tests.tuning_run import task_of
for rung in ladder.rungs(task_of(runtime.detect(False))):
    print("RUNG", rung.name, "|", rung.why_not)
"""


@pytest.mark.once
@pytest.mark.parametrize(("card", "half", "tf32"), [("T4", "fp16", False), ("A100", "bf16", True)])
def test_a_card_gets_the_precision_that_it_multiplies(card, half, tf32):
    done = subprocess.run([sys.executable, "-c", RUNGS, str(ROOT), card], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.removeprefix("RUNG ").split(" | ") for line in done.stdout.splitlines() if line.startswith("RUNG")]
    why_not = {
        name: reason for name, reason in (line if len(line) == 2 else (line[0].rstrip(" |"), "") for line in lines)
    }
    assert list(why_not)[:3] == ["TF32", half, "fused AdamW"]
    assert (why_not["TF32"].strip() == "") is tf32 and "loader workers, pinned memory" in why_not


@pytest.mark.once
def test_what_the_user_or_the_device_rules_out_is_not_tried():
    found = {rung.name: rung.why_not for rung in ladder.rungs(task_of(cpu_here(), precision="fp32"))}
    assert found["bf16"] == "precision='fp32' rules it out" and found["torch.compile"] == "try_compile=False"
    assert "no CUDA GPU" in found["TF32"] and not found["length-grouped batches"]


# ---- TF32


TF32 = """
import sys; sys.path.insert(0, sys.argv[1])
from tests.machine.cuda_stand_in import pretend
pretend("A100")
import torch
from helpers.machine import runtime
from helpers.tuning import ladder
from tests.tuning_run import task_of
seen = []
class Watched(ladder.WindowTrainer):
    def training_step(self, *args, **kwargs):
        seen.append(torch.backends.cuda.matmul.fp32_precision)
        return super().training_step(*args, **kwargs)
ladder.WindowTrainer = Watched
task = task_of(runtime.detect(False))
for tf32 in (False, True, False):
    seen.append("window")
    ladder.window(task, task.start | {"tf32": tf32}, 8)
    assert torch.backends.cuda.matmul.fp32_precision != "tf32"
print("SEEN", *seen)
"""


@pytest.mark.once
def test_each_window_has_the_tf32_that_it_asks_for_and_puts_it_back(tmp_path):
    """transformers caches its setter: False, True, False would leave TF32 on."""
    done = subprocess.run([sys.executable, "-c", TF32, str(ROOT)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = next(line for line in done.stdout.splitlines() if line.startswith("SEEN")).split()[1:]
    windows = " ".join(seen).split("window")[1:]
    assert [{each == "tf32" for each in window.split()} for window in windows] == [{False}, {True}, {False}]


# ---- windows and the climb


@pytest.fixture(scope="module")
def task():
    torch.set_num_threads(1)
    return task_of(cpu_here())


@pytest.mark.once
def test_a_window_is_real_training_that_leaves_nothing_behind(task, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    before = [weight.clone() for weight in task.model.parameters()]
    found = ladder.window(task, task.start, 16)
    assert found.examples_per_second > 0 and found.step_seconds > 0 and math.isfinite(found.loss)
    assert all(torch.equal(a, b) for a, b in zip(before, task.model.parameters(), strict=True))
    assert [*tmp_path.iterdir()] == []


@pytest.mark.once
def test_a_hopeless_setting_is_given_up_in_its_warm_up(task):
    with pytest.raises(TooSlow, match="gave up: 1 steps took"):
        ladder.window(task, task.start, 16, patience=1e-6)


def speeds(monkeypatch, times: dict[str, float], seconds: float = 0.1, noise: float = 0.02):
    """Windows whose speed is 100 examples a second, times those of the settings' values, on a clock that they alone move.

    The ladder itself is real.
    """
    draw, calls = random.Random(0), []
    monkeypatch.setattr(ladder, "time", SimpleNamespace(monotonic=lambda: len(calls) * seconds))
    monkeypatch.setattr(Task, "too_large", lambda task, settings: False)

    def window(task, settings, examples, patience=0.0):
        calls.append(settings)
        speed = 100 * math.prod(times.get(str(value), 1.0) for value in settings.values()) * draw.gauss(1, noise)
        if speed < 0:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return Window(speed, 8 / speed, 1.0, None, 1.0)

    monkeypatch.setattr(ladder, "window", window)
    return calls


@pytest.mark.once
def test_each_rung_comes_on_top_of_what_was_kept(task, monkeypatch):
    speeds(monkeypatch, {"group_by_length": 1.5, "eager": 0.7, "16": 1.3, "32": 0.8})
    tried = ladder.climb(task, 60)
    kept = [each.name for each in tried if each.kept]
    assert kept == ["stock Trainer", "length-grouped batches", "batch 16"]
    chosen = ladder.chosen(tried)
    assert (chosen["train_sampling_strategy"], chosen[BATCH], chosen["attn_implementation"]) == (
        "group_by_length",
        16,
        "sdpa",
    )
    assert "batch 64" not in [each.name for each in tried]  # 32 did not help
    assert tried[-1].name.startswith("all that was kept") and "1.9" in tried[-1].verdict


@pytest.mark.once
def test_where_nothing_helps_the_stock_trainer_stays_and_one_sentence_says_so(task, monkeypatch, capsys):
    calls = speeds(monkeypatch, {})
    tried = ladder.climb(task, 60)
    assert ladder.chosen(tried) == task.start and [each.kept for each in tried].count(True) == 1
    assert capsys.readouterr().out.count("Nothing was faster than the stock Trainer here") == 1
    assert len(calls) < 2 * 9 * len(tried)


@pytest.mark.once
def test_memory_savers_are_tried_only_with_the_batch_that_did_not_fit(task, monkeypatch):
    speeds(monkeypatch, {"16": -1.0})
    tried = {each.name: each for each in ladder.climb(task, 60)}
    assert tried["batch 16"].verdict == "does not fit into memory"
    assert tried["gradient checkpointing, batch 16"].change == {"gradient_checkpointing": True, BATCH: 16}
    assert "8-bit AdamW, batch 16" in tried and "batch 32" not in tried


@pytest.mark.once
def test_the_trials_end_in_their_time_and_the_first_useful_rung_within_a_third_of_it(task, monkeypatch):
    """Windows of 3 seconds in two minutes: only a few rungs fit."""
    calls, said = speeds(monkeypatch, {"True": 1.4}, seconds=3.0), {}  # bf16
    monkeypatch.setattr(ladder.tracking, "say", lambda line: said.setdefault(line, 3.0 * len(calls)))
    tried = ladder.climb(task, 120)
    useful = next(at for line, at in said.items() if line.startswith("bf16: kept"))
    assert useful <= 2 * 3 + 120 / 3 and 3.0 * len(calls) <= 120 + 2 * 3
    assert any("no time of tuning_minutes is left" in each.verdict for each in tried)
    assert ", 6 pairs)" in tried[-1].verdict  # it had its time


@pytest.mark.once
def test_where_no_change_could_be_timed_that_is_said_and_nothing_is_called_slower(task, monkeypatch, capsys):
    speeds(monkeypatch, {}, seconds=30.0)
    tried = ladder.climb(task, 120)
    assert ladder.chosen(tried) == task.start and not any(each.ratios for each in tried)
    said = capsys.readouterr().out
    assert "No change could be timed: raise tuning_minutes" in said and "Nothing was faster" not in said


@pytest.mark.once
def test_a_second_run_reads_the_timings(task, monkeypatch, tmp_path):
    calls = speeds(monkeypatch, {"group_by_length": 1.5})
    first = ladder.climbed(task, tmp_path, seconds=60)
    count = len(calls)
    assert ladder.climbed(task, tmp_path, seconds=60) == first and len(calls) == count


@pytest.mark.once
def test_a_rung_that_fails_is_named_and_the_climb_goes_on(task, monkeypatch):
    def window(task, settings, examples, patience=0.0):
        if settings["attn_implementation"] == "eager":
            raise RuntimeError("no kernel image is available")
        return Window(100.0, 0.08, 1.0, None, 1.0)

    monkeypatch.setattr(ladder, "window", window)
    rung = Rung("attention written out", {"attn_implementation": "eager"})
    found = ladder.attempt(task, rung, task.start, 8, time.monotonic() + 9, 0.0)
    assert found.verdict == "failed: RuntimeError: no kernel image is available" and not found.kept


@pytest.mark.once
def test_a_signal_during_a_window_ends_the_climb(task, monkeypatch):
    def window(task, settings, examples, patience=0.0):
        raise Stopped("SIGTERM at step 2")

    monkeypatch.setattr(ladder, "window", window)
    rung = Rung("attention written out", {"attn_implementation": "eager"})
    with pytest.raises(Stopped, match="SIGTERM"):
        ladder.attempt(task, rung, task.start, 8, time.monotonic() + 9, 0.0)


@pytest.mark.once
def test_a_smaller_batch_that_is_asked_for_is_the_start_and_a_larger_one_the_only_one_tried(monkeypatch):
    small, large = (task_of(cpu_here(), batch_size=size) for size in (4, 24))
    speeds(monkeypatch, {"24": 1.3})
    assert small.start[BATCH] == 4 and large.start[BATCH] == 8
    assert not [each for each in ladder.climb(small, 60) if each.name.startswith("batch")]
    assert [each.name for each in ladder.climb(large, 60) if each.name.startswith("batch")] == ["batch 24"]


@pytest.mark.slow
@pytest.mark.skipif(not xla.installed(), reason="torch_xla is not installed")
def test_on_eight_virtual_devices_real_windows_are_compared_until_the_rule_decides(tmp_path):
    """Sixteen real windows; their speed is that of a machine whose steps take as long as what they pad."""
    from tests.tuning.test_training import in_process

    changes = [{"pad_to": 16}, {"bf16": True}]
    (found,) = in_process((tmp_path / "xla", {"kind": "xla", "compare": changes}))
    shorter, same = found["compared"]
    assert shorter["kept"] and shorter["verdict"] == "kept: 2.00 x (2.00 to 2.00, 6 pairs)"
    assert not same["kept"] and same["verdict"] == "not kept: 1.00 x (1.00 to 1.00, 2 pairs)"
    # Within a pair they take turns, the other way round every second time.
    assert shorter["changed"] == 3 * [False, True, True, False] and same["changed"] == [False, True, True, False]
    assert all(0 < each["window"]["loss"] < 3 and each["window"]["step_seconds"] > 0 for each in (shorter, same))


# ---- utilisation


@pytest.mark.once
@pytest.mark.parametrize(("busy", "says"), [(0.4, "below 70%: the device waited. Raise batch_size"), (0.9, "was busy")])
def test_below_seventy_percent_the_line_says_what_to_change(busy, says):
    watch = Utilisation(cpu_here())
    watch.samples = [(1, busy, None), (2, busy, None)]
    assert says in watch.advice()
    watch.samples = [(1, None, None)]
    assert watch.advice() == "This device does not tell its utilisation."
