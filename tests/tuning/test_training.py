"""The classifier's trainer: padding, order of texts, exact resume, XLA on eight virtual devices; and what quality means."""

import functools

import numpy as np
import pytest
import torch

from helpers.tuning.evaluation import Trial, macro_f1
from helpers.tuning.parameters import learning_rate
from helpers.tuning.training import BATCH, RATE, ClassifierTrainer, folder_of, load_task, run_trial
from tests.harness import assert_killed_run_ends_as, cpu_here, result, train
from tests.tuning_run import LENGTH, task_of, trainer_of

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def cpu():
    torch.set_num_threads(1)
    return cpu_here()


def test_padding_changes_no_logit(cpu, tmp_path):
    dynamic, fixed = (trainer_of(cpu, tmp_path / str(pad), {"pad_to_multiple_of": pad}) for pad in (None, LENGTH))
    rows = task_of(cpu).rows("test")
    assert fixed.data_collator(rows[:3])["input_ids"].shape[1] == LENGTH
    assert dynamic.data_collator(rows[:3])["input_ids"].shape[1] == max(len(row["input_ids"]) for row in rows[:3])
    assert np.allclose(dynamic.logits("test"), fixed.logits("test"), atol=1e-5)


def test_a_grouped_run_killed_in_its_second_epoch_ends_the_same(tmp_path):
    grouped = {"settings": {"train_sampling_strategy": "group_by_length"}, "steps": 18}  # 8 steps an epoch
    run = functools.partial(train, "tests.tuning_run")
    whole = tmp_path / "whole", result(run(tmp_path / "whole", **grouped))
    assert_killed_run_ends_as(whole, run, tmp_path / "cut", 14, 12, **grouped)


def test_more_tokens_than_the_model_has_positions_for_are_refused(cpu):
    task = task_of(cpu)
    params = task.params.model_copy(update={"max_length": 600})
    with pytest.raises(ValueError, match="max_length=600: the model reads 512 tokens at most"):
        load_task(params, task.texts, cpu)


# ---- quality


def test_f1_is_sklearns_over_the_labels_that_have_a_text():
    from sklearn.metrics import f1_score

    draw = np.random.default_rng(0)
    labels, predicted = draw.integers(0, 5, 300), draw.integers(0, 7, 300)
    expected = f1_score(labels, predicted, labels=range(5), average="macro")
    assert macro_f1(labels, predicted) == pytest.approx(expected)


def test_differences_and_their_intervals_are_those_of_paired_texts():
    from scipy import stats

    draw = np.random.default_rng(0)
    labels = draw.integers(1, 6, 400)  # no text has the label 0, which is predicted
    predicted = [np.where(draw.random(400) < share, labels, 0) for share in (0.6, 0.8)]
    before = draw.gamma(1.0, 1.0, 400)
    after = before + draw.normal(0.1, 0.2, 400)
    reference, tuned = Trial({}, 4.0, before, predicted[0], 0.0, 0.0), Trial({}, 1.0, after, predicted[1], 0.0, 0.0)
    tuned.compare(reference, labels)
    paired = stats.ttest_rel(after, before).confidence_interval(0.95)
    assert (tuned.loss.low, tuned.loss.high) == pytest.approx(paired, abs=3e-3) and tuned.speed == 4.0
    assert tuned.f1.value == pytest.approx(macro_f1(labels, predicted[1]) - macro_f1(labels, predicted[0]))


def test_the_rate_falls_with_the_weights_of_the_model():
    sizes = {"tiny": 200_000, "MiniLM": 22_742_861, "BERT-base": 109_486_085, "BERT-large": 335_143_938}
    assert [learning_rate(weights) for weights in sizes.values()] == [1e-3, 2e-4, 4e-5, 1e-5]


def test_a_trial_goes_on_and_its_dev_losses_are_those_of_its_model(cpu, tmp_path):
    task = task_of(cpu)
    settings = task.start | {BATCH: 19, RATE: 2e-3}  # one batch of dev texts
    first = run_trial(task, settings, tmp_path, 38)
    again = run_trial(task, settings, tmp_path, 38)  # reads its checkpoint
    assert again.dev_losses == first.dev_losses and len(first.dev_losses) == len(task.texts.validation)
    trainer = ClassifierTrainer(task, settings, folder_of(settings, tmp_path, 38), 38)
    trainer.train()
    assert trainer.state.global_step == 2 and trainer.args.learning_rate == 2e-3
    assert first.dev_loss == pytest.approx(trainer.evaluate()["eval_loss"], rel=1e-3)
    assert trainer.logits("test").shape == (len(task.texts.test), 3)
