"""Start and tuned at equal quality: what is called lost, what is taken back, and a real run that takes it back."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from helpers.tuning import experiment
from helpers.tuning.data import load_labelled
from helpers.tuning.experiment import START, TUNED
from helpers.tuning.parameters import TuningParameters
from helpers.tuning.task import Settings, load_task
from helpers.tuning.training import ClassifierTrainer

from .test_tuning_training import parameters
from .tuning_run import WORDS, rows
from .xla_process import cpu_here

pytestmark = pytest.mark.once


def quality(*pairs: tuple[float, float]) -> dict:
    """Rows of (F1 of the start, F1 tuned) a seed."""
    return {
        seed: {
            name: {"f1": f1, "validation_f1": f1, "training_seconds": seconds}
            for name, f1, seconds in ((START, before, 30.0), (TUNED, after, 10.0))
        }
        for seed, (before, after) in enumerate(pairs)
    }


def test_quality_counts_as_kept_where_the_interval_over_seeds_reaches_the_start():
    same = experiment.verdict(quality((0.80, 0.79), (0.60, 0.61), (0.81, 0.80)))
    assert same.quality_kept and same.speed_up == [3.0, 3.0, 3.0]
    assert same.why == "F1 -0.0033 (-0.0320 to +0.0254 over 3 seeds): not told apart from the start"
    better = experiment.verdict(quality((0.80, 0.85), (0.60, 0.66), (0.81, 0.86)))
    assert better.quality_kept and better.why.endswith("better than the start")
    worse = experiment.verdict(quality((0.80, 0.70), (0.82, 0.71), (0.81, 0.69)))
    assert worse.quality_kept is False and "WORSE" in worse.why
    always = experiment.verdict(
        quality((0.80, 0.78), (0.60, 0.57), (0.40, 0.38))
    )  # seeds differ more than start and tuned
    assert always.quality_kept is False
    assert experiment.verdict(quality((0.8, 0.7))).quality_kept is None
    alone = {0: {"tuned": {"f1": 0.5, "training_seconds": 1.0}}}
    assert experiment.verdict(alone).why == "quality not checked: the start was not trained"
    assert "quality not checked: F1 -0.1000, and one seed" in experiment.verdict(quality((0.8, 0.7))).why


def test_lost_is_a_mean_below_the_start_by_more_than_its_standard_error():
    lost = experiment.quality_lost(quality((0.80, 0.79), (0.60, 0.58), (0.81, 0.80)), TUNED)  # -0.0133, error 0.0033
    assert lost == "tuned: validation F1 -0.0133 against the start, more than its standard error of 0.0033"
    assert not experiment.quality_lost(quality((0.80, 0.78), (0.60, 0.62), (0.81, 0.80)), TUNED)  # -0.0033, 0.0120
    assert not experiment.quality_lost(quality((0.80, 0.81), (0.60, 0.61)), TUNED)
    assert not experiment.quality_lost(quality((0.80, 0.10)), TUNED)  # one seed has no spread


def test_only_what_changes_the_learning_is_taken_back_one_after_the_other():
    start = Settings(batch_size=8, length=64, start_batch_size=8)
    same = dataclasses.replace(start, attention="eager", dataloader_workers=2, compiled=True)
    assert experiment.steps_back(same, start) == {}
    learnt = {"padding": "grouped", "precision": "bf16", "length": 48, "optimizer": "adamw_bnb_8bit", "tf32": True}
    tuned = dataclasses.replace(same, **learnt, batch_size=32, gradient_checkpointing=True)
    back = experiment.steps_back(tuned, start)
    assert [*back] == [
        "not grouped",
        "full length",
        "first optimizer",
        "first batch size",
        "first precision",
    ]
    taken = [after.changes(before) for before, after in itertools.pairwise([tuned, *back.values()])]
    assert taken == [
        [{"changed": "padding", "from": "grouped", "to": "dynamic"}],
        [{"changed": "length", "from": 48, "to": 64}],
        [{"changed": "optimizer", "from": "adamw_bnb_8bit", "to": "adamw_torch_fused"}],
        [
            {"changed": "batch_size", "from": 32, "to": 8},
            {"changed": "gradient_checkpointing", "from": True, "to": False},
        ],
        [{"changed": "precision", "from": "bf16", "to": "fp32"}, {"changed": "tf32", "from": True, "to": False}],
    ]
    assert back["first precision"] == same


@pytest.fixture
def compared(tmp_path):
    """`compare` of settings that differ from the start as asked, on colours, for two seeds."""
    torch.set_num_threads(1)
    colours = tuple(WORDS)
    lines = [f"{text},{colours[label]}" for text, label in rows(400)]
    (tmp_path / "texts.csv").write_text("text,label\n" + "\n".join(lines) + "\n", encoding="utf-8")
    asked = {"data_source": str(tmp_path / "texts.csv"), "max_length": 16, "max_steps": 60, "learning_rate": 1e-3}
    params = TuningParameters(**parameters(further_seeds=1, evaluations=1, patience=0, **asked))
    task = load_task(params, load_labelled(params.data_source), cpu_here())

    def run(spent: float = 0.0, **changes):
        settings = dataclasses.replace(task.start, **changes)
        trainer = ClassifierTrainer(task, settings, tmp_path / "tuned-0", seed=0)
        trainer.train()
        return experiment.compare(trainer, task, tmp_path, spent=spent)

    return run


@pytest.mark.slow
def test_a_batch_that_leaves_too_few_steps_is_taken_back(compared, capsys):
    """Three steps of 160 examples learn nothing of what sixty of 8 do; grouping goes first and does not help."""
    found = compared(batch_size=160, padding="grouped", attention="eager")
    assert found.chosen == "first batch size"
    settings = found.trainer.settings
    assert settings.batch_size == 8 and settings.padding == "dynamic" and settings.attention == "eager"
    assert found.trainer.args.seed == 0
    assert list(found.rows) == [0, 1]
    for models in found.rows.values():
        assert set(models) == {TUNED, START, "not grouped", "first batch size"}
        assert (
            models["not grouped"]["steps"] == models[TUNED]["steps"] == 3 and models["first batch size"]["steps"] == 60
        )
        assert models["first batch size"]["f1"] > models[TUNED]["f1"] + 0.2
    assert found.verdict.f1 == {name: [m[name]["f1"] for m in found.rows.values()] for name in (START, found.chosen)}
    assert found.verdict.quality_kept
    said = capsys.readouterr().out
    assert "tuned: validation F1 -0." in said and "not grouped: validation F1 -0." in said


def test_settings_that_lose_nothing_stay(compared):
    found = compared(attention="eager")
    assert found.chosen == TUNED and found.trainer.settings.attention == "eager"
    assert all(set(models) == {TUNED, START} for models in found.rows.values())


def test_runs_that_no_time_is_left_for_are_left_out_and_quality_counts_as_not_checked(compared, capsys):
    found = compared(attention="eager", spent=59.9999 * 60)
    assert {seed: list(models) for seed, models in found.rows.items()} == {0: [TUNED]}
    assert found.chosen == TUNED and found.verdict.quality_kept is None
    assert found.verdict.why == "quality not checked: the start was not trained"
    assert "start is left out: " in capsys.readouterr().out
