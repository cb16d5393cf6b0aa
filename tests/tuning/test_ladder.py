"""The ladder: its rule against arithmetic, its rungs on every card, its budget, and TF32 that is put back."""

import dataclasses
import itertools
import math
import random
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import binom
from transformers.trainer_pt_utils import LengthGroupedSampler

from helpers.train.interruption import Stopped
from helpers.tuning import ladder, windows
from helpers.tuning.evaluation import Trial
from helpers.tuning.ladder import Outcome, Rung, decision, interval
from helpers.tuning.training import BATCH, EXAMPLES, RATE, Task, Utilisation
from helpers.tuning.windows import Window, grouped_order, measure_window
from tests.harness import ROOT, cpu_here, printed
from tests.tuning_run import rows, task_of

pytestmark = pytest.mark.once

# ---- the rule


def test_a_change_that_does_nothing_is_kept_in_three_of_a_hundred_cases_at_most():
    """All orders of nine pairs, each faster or slower with the same chance: exactly, whatever the noise is like."""
    kept = 0
    for signs in itertools.product((0.9, 1.1), repeat=9):
        ended = next(count for count in range(1, 10) if decision([*signs[:count]]) is not Outcome.NOT_DECIDED)
        kept += decision([*signs[:ended]]) is Outcome.KEPT
    assert kept / 2**9 == pytest.approx(1 / 64 + 6 / 64 / 8) and kept / 2**9 < 0.03


@pytest.mark.parametrize("pairs", [6, 7, 8, 9])
def test_the_interval_is_the_narrowest_that_holds_the_median_with_at_least_95_percent(pairs):
    """Of the order statistics: the median lies outside where too few or too many ratios lie below it."""
    low, high = interval([*range(1, pairs + 1)])
    outside, outside_a_narrower_one = 2 * binom.cdf([low - 1, low], pairs, 0.5)
    assert high == pairs + 1 - low and outside <= 0.05 < outside_a_narrower_one


# ---- windows


@pytest.mark.parametrize("texts", [240, 8000])
def test_a_grouped_window_saves_most_of_the_padding_that_a_whole_run_saves_and_never_more(texts):
    draw = random.Random(0)
    lengths = [min(64, 3 + int(draw.expovariate(0.1))) for _ in range(texts)]
    whole = [*LengthGroupedSampler(8, lengths=lengths, generator=torch.Generator().manual_seed(0))]
    at_random, windows = [], []
    for seed in range(20):
        at_random += (drawn := random.Random(seed).choices(lengths, k=12 * 8))
        windows += [drawn[at] for at in grouped_order(drawn, 8, texts, seed)]
    loose, found, least = (
        sum(8 * max(each[at : at + 8]) for at in range(0, len(each), 8)) / sum(each)
        for each in (at_random, windows, [lengths[at] for at in whole])
    )
    assert least * 0.97 < found < least + (loose - least) / 5


# ---- rungs


def test_what_the_user_or_the_device_rules_out_is_not_tried():
    found = {rung.name: rung.why_not for rung in ladder.rungs(task_of(cpu_here(), precision="fp32"))}
    assert found["bf16"] == "precision='fp32' rules it out" and found["torch.compile"] == "try_compile=False"
    assert "has no TF32" in found["TF32"] and not found["length-grouped batches"]


# ---- TF32


TF32 = """
import sys; sys.path.insert(0, sys.argv[1])
from tests.machine.cuda_stand_in import pretend
pretend("A100")
import torch
from helpers.machine import runtime
from helpers.tuning import windows
from tests.tuning_run import rows, task_of
seen = []
class Watched(windows.WindowTrainer):
    def training_step(self, *args, **kwargs):
        seen.append(torch.backends.cuda.matmul.fp32_precision)
        return super().training_step(*args, **kwargs)
windows.WindowTrainer = Watched
task = task_of(runtime.detect(False))
for tf32 in (False, True, False):
    seen.append("window")
    windows.measure_window(task, task.start | {"tf32": tf32}, 8)
    assert torch.backends.cuda.matmul.fp32_precision != "tf32"
print("SEEN", *seen)
"""


def test_each_window_has_the_tf32_that_it_asks_for_and_puts_it_back(tmp_path):
    """transformers caches its setter: False, True, False would leave TF32 on."""
    windows = printed("-c", TF32, ROOT, cwd=tmp_path).rsplit("SEEN ", 1)[1].split("window")[1:]
    assert [{each == "tf32" for each in window.split()} for window in windows] == [{False}, {True}, {False}]


# ---- windows and the climb


@pytest.fixture(scope="module")
def task():
    torch.set_num_threads(1)
    return task_of(cpu_here())


def test_a_window_is_real_training_that_leaves_nothing_behind(task, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    before = [weight.clone() for weight in task.model.parameters()]
    window = measure_window(task, task.start, 16)
    assert window.examples_per_second > 0 and window.step_seconds > 0 and math.isfinite(window.loss)
    assert all(torch.equal(a, b) for a, b in zip(before, task.model.parameters(), strict=True))
    assert [*tmp_path.iterdir()] == []


class Hanging(list):
    """Rows that a worker never gets beyond the third of."""

    def __getitem__(self, place):
        while place > 3:
            time.sleep(1)
        return super().__getitem__(place)


def test_a_loaders_worker_that_hangs_is_an_answer_and_not_a_window_without_end(task, monkeypatch):
    monkeypatch.setattr(windows, "WORKER_SECONDS", 3)
    monkeypatch.setattr(windows, "warm_up_rows", lambda rows, settings, batch, steps: Hanging(rows[: 2 * batch]))
    real = windows.WindowTrainer.__init__

    def init(self, *args, train, **kwargs):
        real(self, *args, train=Hanging(train), **kwargs)

    monkeypatch.setattr(windows.WindowTrainer, "__init__", init)
    with pytest.raises(RuntimeError, match="DataLoader timed out after 3 seconds"):
        measure_window(task, task.start | {"dataloader_num_workers": 1}, 16)


def test_each_length_of_a_compiled_step_is_met_before_the_clock_starts(task):
    rows = task.rows("train")
    warm = windows.warm_up_rows(rows, {"torch_compile": True, "pad_to_multiple_of": 4}, 8, 2)
    lengths = {-(-len(row["input_ids"]) // 4) * 4 for row in warm}
    assert lengths >= {-(-len(row["input_ids"]) // 4) * 4 for row in rows} and len(warm) % 8 == 0


# ---- the climb


def speeds(monkeypatch, times: dict[str, float], seconds: float = 0.1):
    """Windows whose speed is 100 examples a second, times those of the settings' values, on a clock that they alone move.

    The ladder itself is real.
    """
    draw, calls = random.Random(0), []
    monkeypatch.setattr(ladder, "time", SimpleNamespace(monotonic=lambda: len(calls) * seconds))
    monkeypatch.setattr(Task, "too_large", lambda task, settings: False)
    monkeypatch.setattr(ladder, "cpu_multiplies_bf16", lambda: True)

    def window(task, settings, examples):
        calls.append(settings)
        speed = 100 * math.prod(times.get(str(value), 1.0) for value in settings.values()) * draw.gauss(1, 0.02)
        if settings.get("bf16"):
            speed *= 1.3 if settings[BATCH] >= times.get("bf16 from", math.inf) else 0.8
        if speed < 0:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return Window(speed, 8 / speed, 1.0)

    monkeypatch.setattr(ladder, "measure_window", window)
    return calls


def kept_names(tried) -> list[str]:
    return [rung.name for rung in tried if rung.outcome is Outcome.KEPT]


def test_the_batch_comes_first_and_each_rung_on_top_of_what_was_kept(monkeypatch):
    task = task_of(cpu_here(), max_steps=600)
    speeds(monkeypatch, {"group_by_length": 1.5, "16": 1.3, "32": 1.6, "64": 2.0, "128": 1.5, "bf16 from": 64})
    tried = ladder.climb(task, 60)
    assert kept_names(tried) == ["batch 16", "batch 32", "batch 64", "length-grouped batches", "bf16"]
    assert ladder.chosen(tried)[BATCH] == 64  # beyond it nothing is gained


def test_precision_is_asked_again_where_the_batch_grew_once_more(monkeypatch):
    """Here only longer batches of one length are faster when they are larger, and bf16 only in those."""
    task = task_of(cpu_here(), max_steps=600)
    speeds(monkeypatch, {"group_by_length": 1.5, "bf16 from": 16})
    real = ladder.measure_window

    def window(task, settings, examples):
        result = real(task, settings, examples)
        factor = 1.3 if settings[BATCH] == 16 and settings["train_sampling_strategy"] == "group_by_length" else 1.0
        return Window(result.examples_per_second * factor, result.step_seconds, 1.0)

    monkeypatch.setattr(ladder, "measure_window", window)
    tried = ladder.climb(task, 600)
    outcomes = [(rung.name, rung.outcome) for rung in tried if rung.name in ("batch 16", "bf16")]
    assert outcomes == [
        ("batch 16", Outcome.NOT_FASTER),
        ("bf16", Outcome.NOT_FASTER),
        ("batch 16", Outcome.KEPT),
        ("bf16", Outcome.KEPT),
    ]


def test_where_nothing_helps_the_stock_trainer_stays(task, monkeypatch, tmp_path):
    calls = speeds(monkeypatch, {})
    tried = ladder.climb(task, 60)
    assert ladder.chosen(tried) == task.start and not kept_names(tried)
    assert len(calls) < 2 * 9 * len(tried)
    same = ladder.Climb(task, 60).attempt(Rung("bf16", {"bf16": True}))
    assert same.outcome is Outcome.NOT_FASTER and "2 pairs" in same.detail
    assert [settings.get("bf16", False) for settings in calls[-4:]] == [False, True, True, False]  # taking turns
    raced = ladder.race(task, tried, tmp_path, seconds=60)
    assert raced.outcome is Outcome.NOT_FASTER and raced.trials == [] and "Nothing was faster" in raced.detail


def test_a_batch_that_does_not_fit_is_tried_with_gradient_checkpointing(monkeypatch):
    task = task_of(cpu_here(), max_steps=600)
    speeds(monkeypatch, {"16": -1.0})
    tried = {rung.name: rung for rung in ladder.climb(task, 60)}
    assert tried["batch 16"].outcome is Outcome.TOO_LARGE and "batch 32" not in tried
    assert tried["gradient checkpointing, batch 16"].change == {"gradient_checkpointing": True, BATCH: 16}


def test_the_windows_end_in_their_time(task, monkeypatch):
    """Windows of 3 seconds in 50: only one rung fits."""
    calls = speeds(monkeypatch, {"group_by_length": 1.4}, seconds=3.0)
    tried = ladder.climb(task, 50)
    assert kept_names(tried) == ["length-grouped batches"] and 3.0 * len(calls) <= 50 + 2 * 3
    assert any("no time of tuning_minutes is left" in rung.detail for rung in tried)


def test_a_rung_that_fails_is_named_and_a_signal_during_a_window_ends_the_climb(task, monkeypatch):
    speeds(monkeypatch, {})
    climb, errors = (
        ladder.Climb(task, 900),
        [Stopped("SIGTERM at step 2"), RuntimeError("no kernel image is available")],
    )

    def window(task, settings, examples):
        raise errors.pop()

    monkeypatch.setattr(ladder, "measure_window", window)
    failed = climb.attempt(Rung("torch.compile", {"torch_compile": True}))
    assert failed.verdict == "failed: RuntimeError: no kernel image is available"
    with pytest.raises(Stopped, match="SIGTERM"):
        climb.attempt(Rung("bf16", {"bf16": True}))


def test_a_smaller_batch_that_is_asked_for_is_the_start_and_a_larger_one_the_only_one_tried(monkeypatch):
    small, large = (task_of(cpu_here(), batch_size=size) for size in (4, 24))
    speeds(monkeypatch, {"24": 1.3})
    assert small.start[BATCH] == 4 and large.start[BATCH] == 8
    assert not [rung for rung in ladder.climb(small, 60) if rung.name.startswith("batch")]
    assert [rung.name for rung in ladder.climb(large, 60) if rung.name.startswith("batch")] == ["batch 24"]


# ---- quality


DEV = 400  # texts
SECONDS = {8: 100.0, 16: 60.0, 32: 40.0}  # of a run with this batch


def plant(
    monkeypatch, losses: dict[tuple, float], seconds: dict[int, float] = SECONDS, noise: float = 0.3, wrong=()
) -> list:
    """Trials whose dev losses are those of (batch, rate), text by text with noise of its own; the race itself is real.

    wrong: batches whose runs give a wrong label to more texts, whatever their loss. On twice the examples the loss is 0.3 lower.
    """
    draw, calls = np.random.default_rng(0), []
    texts, chance = draw.gamma(1.0, 1.0, size=DEV), draw.random(DEV)  # how hard each text is

    def trial(task, settings, folder, *, seed, examples):
        times = settings.get(EXAMPLES, 1)
        calls.append((settings[BATCH], settings[RATE], seed))
        shift = losses[settings[BATCH], settings[RATE]] - 1.0 - 0.3 * (times - 1)
        dev_losses = texts * 0.5 + 0.5 + shift + draw.normal(0, noise, DEV)
        labels = np.array([label for _, label in task.texts.validation])
        accuracy = 0.5 if settings[BATCH] in wrong else 0.8 - shift / 3
        correct = chance + draw.normal(0, 0.03, DEV) < accuracy
        predictions = np.where(correct, labels, (labels + 1) % 3)
        return Trial(settings, seed, times * seconds[settings[BATCH]], [*dev_losses], predictions.tolist())

    monkeypatch.setattr(ladder, "run_trial", trial)
    return calls


@pytest.fixture
def race(task, tmp_path):
    """Races after a climb that kept four times the batch, on enough dev texts."""
    kept = task.start | {BATCH: 32}
    windows = [Window(100.0 * factor, 0.08 / factor, 1.0) for factor in (1, 2)]
    tried = [
        ladder.Tried("stock Trainer", {}, task.start, Outcome.START, window=windows[0]),
        ladder.Tried("batch 32", {BATCH: 32}, kept, Outcome.KEPT, ratios=[2.0] * 6, window=windows[1]),
    ]
    task = task_of(cpu_here(), max_steps=600)

    def race(texts=DEV, seconds=1e6):
        given = dataclasses.replace(task.texts, validation=rows(texts, seed=1))
        return ladder.race(dataclasses.replace(task, texts=given), tried, tmp_path, seconds=seconds)

    return race


RATES = [(8, 1e-3), (32, 4e-3), (32, 2e-3), (16, 2e-3), (16, 1e-3 * math.sqrt(2))]


def losses_of(*values: float) -> dict[tuple, float]:
    return dict(zip(RATES, values, strict=True))


@pytest.mark.parametrize(
    ("planted", "settings", "outcome"),
    [
        (losses_of(1.0, 0.7, 1.0, 1.0, 1.0), (32, 4e-3, 1), Outcome.KEPT),
        (losses_of(1.0, 1.3, 0.7, 1.0, 1.0), (32, 2e-3, 1), Outcome.KEPT),
        (losses_of(1.0, 1.1, 1.1, 1.0, 1.0), (32, 4e-3, 2), Outcome.KEPT),
        (losses_of(1.0, 1.7, 1.7, 0.7, 1.0), (16, 2e-3, 1), Outcome.KEPT),
        (losses_of(1.5, 2.2, 2.2, 2.2, 2.2), (8, 1e-3, 1), Outcome.WORSE),
    ],
    ids=["times k", "root of k", "twice the examples", "half the batch", "all lose"],
)
def test_good_and_bad_settings_that_are_planted_are_decided(race, task, monkeypatch, planted, settings, outcome):
    monkeypatch.setattr(Task, "loss_of_frequencies", lambda task: 2.0)
    calls = plant(monkeypatch, planted)
    monkeypatch.setattr(ladder, "candidates", lambda task, fastest, real=ladder.candidates: real(task, fastest)[:-1])
    raced = race()
    chosen = (raced.settings[BATCH], raced.settings[RATE], raced.settings.get(EXAMPLES, 1))
    assert chosen == pytest.approx(settings) and raced.outcome is outcome
    if outcome is Outcome.KEPT:
        assert [trial.seed for trial in raced.trials if trial.settings == raced.settings] == [0, 1, 2]
        assert [trial.seed for trial in raced.trials if trial.settings == task.start] == [0, 1, 2]
        assert raced.judged[-1].quality.speed == pytest.approx(100.0 / SECONDS[chosen[0]] / chosen[2])
    else:
        assert {seed for _, _, seed in calls} == {0}
        assert len(calls) == 1 + 6  # batch 16 on twice the examples would be slower than the stock Trainer


def test_a_lower_loss_does_not_hide_that_fewer_texts_get_their_label(race, monkeypatch):
    plant(monkeypatch, dict.fromkeys(RATES, 1.0) | {(32, 4e-3): 0.5}, wrong=(32,))
    first = race().judged[0]
    assert first.settings[BATCH] == 32 and first.quality.loss.high < 0
    assert first.outcome is Outcome.WORSE and first.quality.f1.high < 0


@pytest.mark.parametrize("texts", [DEV, 299], ids=["much noise", "few texts"])
def test_what_the_dev_texts_do_not_show_is_not_decided_and_the_stock_settings_stay(race, task, monkeypatch, texts):
    plant(monkeypatch, dict.fromkeys(RATES, 1.0), noise=9.0)
    monkeypatch.setattr(Task, "loss_of_frequencies", lambda task: 9.0)
    monkeypatch.setattr(ladder, "candidates", lambda task, fastest, real=ladder.candidates: real(task, fastest)[:2])
    raced = race(texts)
    assert raced.outcome is Outcome.NOT_DECIDED and raced.settings == task.start
    assert len(raced.judged) == (2 if texts == DEV else 0)


def test_a_stock_run_that_learned_nothing_is_no_quality_to_keep(race, monkeypatch):
    plant(monkeypatch, dict.fromkeys(RATES, 1.2))
    raced = race()
    assert raced.outcome is Outcome.NOT_DECIDED and "learned next to nothing" in raced.detail


def test_runs_of_a_race_are_as_long_as_the_time_allows_and_none_is_begun_too_late(race, task, monkeypatch):
    calls = plant(monkeypatch, losses_of(1.0, 0.7, 1.0, 1.0, 1.0), {8: 1.0, 16: 1.0, 32: 1.0})
    monkeypatch.setattr(ladder, "time", SimpleNamespace(monotonic=lambda: 10.0 * len(calls)))
    raced = race(seconds=45.0)
    assert 240 <= raced.examples < 4800 and not raced.is_whole and len(calls) <= 4
    trials = 2 * task.params.paired_seeds + 1  # of both with each seed, and one more candidate
    assert trials * raced.examples / task.start[BATCH] * 0.08 <= 0.85 * 45.0
    short = race(seconds=0.5)
    assert short.outcome is Outcome.NOT_DECIDED and "raise tuning_minutes" in short.detail


# ---- utilisation


@pytest.mark.parametrize(("busy", "says"), [(0.4, "below 70%: the device waited. Raise batch_size"), (0.9, "was busy")])
def test_below_seventy_percent_the_line_says_what_to_change(busy, says):
    watch = Utilisation(cpu_here())
    watch.samples = [(1, busy, None), (2, busy, None)]
    assert says in watch.advice()
    watch.samples = [(1, None, None)]
    assert watch.advice() == "This device does not report its utilisation."
