"""The ladder: its rule against arithmetic, its rungs, its rates, its budget."""

import dataclasses
import itertools
import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import binom

from helpers.train.interruption import NonFiniteLoss, Stopped
from helpers.tuning import ladder
from helpers.tuning.evaluation import Trial, macro_f1
from helpers.tuning.ladder import Outcome, Rung, decision, interval
from helpers.tuning.training import BATCH, EXAMPLES, RATE, measure_window
from tests.harness import ROOT, cpu_here, printed
from tests.tuning_run import rows, task_of, trainer_of

pytestmark = pytest.mark.once

# ---- the rule


def test_a_change_that_does_nothing_is_kept_in_three_of_a_hundred_cases():
    """All orders of nine pairs, each faster or slower with the same chance: exactly, whatever the noise is like."""
    kept = 0
    for signs in itertools.product((0.9, 1.1), repeat=9):
        ended = next(count for count in range(1, 10) if decision([*signs[:count]]) is not Outcome.NOT_DECIDED)
        kept += decision([*signs[:ended]]) is Outcome.KEPT
    assert kept / 2**9 == pytest.approx(1 / 64 + 6 / 64 / 8) and kept / 2**9 < 0.03


@pytest.mark.parametrize("pairs", [6, 7, 8, 9])
def test_the_interval_is_the_narrowest_that_holds_the_median_at_95_percent(pairs):
    """Of the order statistics: the median lies outside where too few or too many ratios lie below it."""
    low, high = interval([*range(1, pairs + 1)])
    outside, outside_a_narrower_one = 2 * binom.cdf([low - 1, low], pairs, 0.5)
    assert high == pairs + 1 - low and outside <= 0.05 < outside_a_narrower_one


# ---- rungs


def test_what_the_user_or_the_device_rules_out_is_not_tried():
    reasons = {rung.name: rung.detail for rung in ladder.rungs(task_of(cpu_here(), precision="fp32"))}
    assert reasons["bf16"] == "precision='fp32' rules it out" and reasons["torch.compile"] == "try_compile=False"
    assert "has no TF32" in reasons["TF32"] and not reasons["length-grouped batches"]


# ---- TF32


TF32 = """
import sys; sys.path.insert(0, sys.argv[1])
from tests.machine.cuda_stand_in import pretend
pretend("A100")
import torch
from helpers.machine import runtime
from helpers.tuning import training
from tests.tuning_run import task_of, trainer_of
seen = []
class Watched(training.WindowTrainer):
    def training_step(self, *args, **kwargs):
        seen.append(torch.backends.cuda.matmul.fp32_precision)
        return super().training_step(*args, **kwargs)
training.WindowTrainer = Watched
task = task_of(runtime.detect(False))
for tf32 in (False, True, False):
    seen.append("window")
    training.measure_window(task, task.start | {"tf32": tf32}, 8)
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
    return task_of(cpu_here(), max_steps=600)


@pytest.mark.parametrize("sampling", ["random", "group_by_length"])
def test_a_window_is_real_training_that_leaves_nothing_behind(task, sampling, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    before = [weight.clone() for weight in task.model.parameters()]
    assert measure_window(task, task.start | {"train_sampling_strategy": sampling}, 16) > 0
    assert all(torch.equal(a, b) for a, b in zip(before, task.model.parameters(), strict=True))
    assert [*tmp_path.iterdir()] == []


def speeds(monkeypatch, times: dict[str, float], seconds: float = 0.1):
    """Windows whose speed is 100 examples a second, times those of the settings' values, on a clock that they alone move.

    The ladder itself is real.
    """
    draw, calls = random.Random(0), []
    monkeypatch.setattr(ladder, "time", SimpleNamespace(monotonic=lambda: len(calls) * seconds))
    monkeypatch.setattr(ladder, "cpu_multiplies_bf16", lambda: True)

    def window(task, settings, examples):
        calls.append(settings)
        speed = 100 * math.prod(times.get(str(value), 1.0) for value in settings.values()) * draw.gauss(1, 0.02)
        if settings.get("bf16"):
            speed *= 1.3 if settings[BATCH] >= times.get("bf16 from", math.inf) else 0.8
        if speed < 0:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return speed

    monkeypatch.setattr(ladder, "measure_window", window)
    return calls


def kept_names(tried) -> list[str]:
    return [rung.name for rung in tried if rung.outcome is Outcome.KEPT]


def test_the_batch_comes_first_and_each_rung_on_what_was_kept(task, monkeypatch):
    speeds(monkeypatch, {"group_by_length": 1.5, "16": 1.3, "32": 1.6, "64": 2.0, "128": 1.5, "bf16 from": 64})
    tried = ladder.climb(task, 60)
    assert kept_names(tried) == ["batch 16", "batch 32", "batch 64", "length-grouped batches", "bf16"]
    assert ladder.chosen(tried)[BATCH] == 64  # beyond it nothing is gained


def test_where_nothing_helps_the_stock_trainer_stays(task, monkeypatch):
    calls = speeds(monkeypatch, {})
    tried = ladder.climb(task, 60)
    assert ladder.chosen(tried) == task.start and not kept_names(tried)
    assert len(calls) < 2 * 9 * len(tried)
    bf16 = [settings.get("bf16", False) for settings in calls]
    first = bf16.index(True)
    assert bf16[first : first + 4] == [True, False, False, True]  # taking turns


def test_a_batch_that_does_not_fit_is_tried_with_gradient_checkpointing(task, monkeypatch):
    speeds(monkeypatch, {"16": -1.0})
    tried = {rung.name: rung for rung in ladder.climb(task, 60)}
    assert "CUDA out of memory" in tried["batch 16"].verdict and "batch 32" not in tried
    assert tried["gradient checkpointing, batch 16"].change == {"gradient_checkpointing": True, BATCH: 16}


def test_the_windows_end_in_their_time(task, monkeypatch):
    calls = speeds(monkeypatch, {"group_by_length": 1.4}, seconds=3.0)
    tried = ladder.climb(task, 62)  # less than every rung needs
    assert 3.0 * len(calls) <= 62 + 2 * 3
    assert any("no time of tuning_minutes is left" in rung.detail for rung in tried)


@pytest.mark.parametrize("error", [RuntimeError("no kernel image"), Stopped("SIGTERM at step 2")])
def test_a_rung_that_fails_is_named_and_a_signal_ends_the_climb(task, monkeypatch, error):
    speeds(monkeypatch, {})
    working = ladder.measure_window

    def window(task, settings, examples):
        if settings.get("bf16"):
            raise error
        return working(task, settings, examples)

    monkeypatch.setattr(ladder, "measure_window", window)
    if isinstance(error, Stopped):
        with pytest.raises(Stopped, match="SIGTERM"):
            ladder.climb(task, 60)
    else:
        assert "failed: no kernel image" in [rung.verdict for rung in ladder.climb(task, 60)]


def test_a_small_batch_that_is_set_is_the_start_a_large_one_the_only_one(monkeypatch):
    small, large = (task_of(cpu_here(), batch_size=size) for size in (4, 24))
    speeds(monkeypatch, {"24": 1.3})
    assert small.start[BATCH] == 4 and large.start[BATCH] == 8
    assert not [rung for rung in ladder.climb(small, 60) if rung.name.startswith("batch")]
    assert [rung.name for rung in ladder.climb(large, 60) if rung.name.startswith("batch")] == ["batch 24"]


# ---- quality

DEV = 400  # texts
START = 1e-3  # learning rate
SECONDS = {8: 100.0, 32: 40.0}  # of a run with this batch


@pytest.fixture
def race(task, monkeypatch, tmp_path):
    """Races on planted dev losses, by batch and rate, after a climb that kept four times the batch; the race itself is real.

    A loss of NaN stops the run. wrong: batches whose runs give a wrong label to more texts, whatever their loss. On twice the examples
    the loss is 0.3 lower.
    """
    draw, calls = np.random.default_rng(0), []
    texts, chance = draw.gamma(1.0, 1.0, size=DEV), draw.random(DEV)  # how hard each text is

    def race(losses: dict, dev=DEV, seconds=1e6, noise=0.3, wrong=()):
        def trial(task, settings, folder, examples):
            calls.append((settings[BATCH], settings[RATE], settings[EXAMPLES]))
            shift = losses.get(calls[-1][:2], 1.5) - 1.0 - 0.3 * (settings[EXAMPLES] - 1)
            if math.isnan(shift):
                raise NonFiniteLoss("loss is nan")
            dev_losses = texts * 0.1 + 0.1 + shift + draw.normal(0, noise, DEV)
            labels = task.texts.validation.label.to_numpy()
            accuracy = 0.3 if settings[BATCH] in wrong else 0.8 - shift / 3
            right = chance + draw.normal(0, 0.03, DEV) < accuracy
            predictions = np.where(right, labels, (labels + 1) % 3)
            f1, loss = macro_f1(labels, predictions), float(dev_losses.mean())
            return Trial(settings, settings[EXAMPLES] * SECONDS[settings[BATCH]], [*dev_losses], predictions, loss, f1)

        monkeypatch.setattr(ladder, "run_trial", trial)
        monkeypatch.setattr(ladder, "time", SimpleNamespace(monotonic=lambda: 10.0 * len(calls)))
        larger = task.start | {BATCH: 32}
        tried = [
            Rung("stock Trainer", {}, "", Outcome.START, [100.0], task.start),
            Rung("batch 32", {BATCH: 32}, "", Outcome.KEPT, [2.0] * 6, larger),
        ]
        given = dataclasses.replace(task.texts, validation=rows(dev, seed=1))
        raced = ladder.race(dataclasses.replace(task, texts=given), tried, tmp_path, seconds=seconds)
        return raced, calls

    return race


def losses(*of_rates: float, **candidates: float) -> dict[tuple, float]:
    """Of the stock batch at 1, 2, 4 and 8 times the rate; of batch 32 with the rates times 2 and 4 beside the best of them."""
    planted = {(8, START * times): loss for times, loss in zip((1, 2, 4, 8), of_rates, strict=False)}
    best = START * (1, 2, 4, 8)[int(np.nanargmin(of_rates))]
    return planted | {(32, best * int(name[1])): loss for name, loss in candidates.items()}


@pytest.mark.parametrize(
    ("planted", "settings", "outcome"),
    [
        (losses(1.0, 1.3, x2=0.7), (32, 2e-3, 1), Outcome.KEPT),
        (losses(1.0, 1.3, x2=1.3, x4=0.7), (32, 4e-3, 1), Outcome.KEPT),
        (losses(1.0, 1.3, x2=1.1, x4=1.1), (32, 2e-3, 2), Outcome.KEPT),
        (losses(1.3, 1.0, 1.2, x2=0.8), (32, 4e-3, 1), Outcome.KEPT),
        (losses(1.3, 1.0, 0.6, math.nan, x2=1.1, x4=1.2), (8, 4e-3, 1), Outcome.WORSE),
    ],
    ids=["root of k", "times k", "twice the examples", "beside a higher rate", "the rate alone wins"],
)
def test_a_batch_is_kept_only_beside_the_best_rate(race, planted, settings, outcome):
    raced, calls = race(planted)
    chosen = (raced.settings[BATCH], raced.settings[RATE], raced.settings[EXAMPLES])
    assert chosen == pytest.approx(settings) and raced.outcome is outcome
    if outcome is Outcome.KEPT:
        assert raced.trials[-1].speed == pytest.approx(100.0 / SECONDS[chosen[0]] / chosen[2])
        assert calls[-1] == pytest.approx(settings)  # nothing is trained after it


def test_a_lower_loss_does_not_hide_that_fewer_texts_get_their_label(race):
    raced, _ = race(losses(1.0, 1.3, x2=0.5), wrong=(32,))
    candidate = next(trial for trial in raced.trials if trial.outcome)
    assert candidate.settings[BATCH] == 32 and candidate.loss.high < 0
    assert candidate.outcome == Outcome.WORSE and candidate.f1.high < 0


def test_too_few_dev_texts_decide_nothing(race, task):
    raced, calls = race(losses(1.0, 0.5), dev=299)
    assert raced.outcome is Outcome.NOT_DECIDED and raced.settings == task.start and not calls


def test_much_noise_is_not_decided_and_the_stock_batch_stays(race):
    raced, _ = race(losses(1.0, 1.5, x2=1.0, x4=1.0), noise=9.0)
    assert raced.outcome is Outcome.NOT_DECIDED and raced.settings == raced.reference


def test_runs_that_learned_nothing_are_no_quality_to_keep(race):
    raced, _ = race(losses(2.2, 2.1, 2.3))  # log 3 is the loss of the label frequencies
    assert raced.outcome is Outcome.NOT_DECIDED and "learned next to nothing: raise learning_rate" in raced.detail


def test_runs_are_as_long_as_the_time_allows_and_none_begins_too_late(race, task):
    raced, calls = race(losses(1.0, 1.3, x2=1.3), seconds=45.0)
    assert 240 <= raced.examples < task.examples and len(calls) <= 4
    assert 6 * raced.examples / 100.0 <= 45.0
    assert race(losses(1.0), seconds=0.5)[0].detail == "No time of tuning_minutes was left for a candidate."


def test_a_second_run_reads_what_was_measured(tmp_path):
    made = [ladder.read_or_make(make, int, tmp_path / "kept.json", True) for make in (lambda: 1, lambda: 2)]
    assert made == [1, 1]


# ---- utilisation


def test_below_seventy_percent_the_line_says_what_to_change(tmp_path):
    trainer = trainer_of(cpu_here(), tmp_path, {})
    assert trainer.advice() == "This device does not report its utilisation."
    trainer.shares = [0.3, 0.5]
    assert "40%, below 70%: the device waited. Raise batch_size" in trainer.advice()
