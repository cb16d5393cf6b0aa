"""The classifier's trainer: padding, order of texts, exact resume, XLA on eight virtual devices; and what quality means."""

import numpy as np
import pytest
import torch

from helpers.tuning.evaluation import Trial, compare_quality, f1_difference, macro_f1
from helpers.tuning.parameters import learning_rate
from helpers.tuning.training import BATCH, RATE, Task, run_trial, trained
from tests.harness import cpu_here, results, train_all
from tests.tuning_run import LENGTH, task_of, trainer_of

pytestmark = pytest.mark.once

KEYS = ("input_ids", "attention_mask")


@pytest.fixture(scope="module")
def cpu():
    torch.set_num_threads(1)
    return cpu_here()


def test_padding_changes_no_logit(cpu, tmp_path):
    dynamic, fixed = (trainer_of(cpu, tmp_path / str(pad), {"pad_to": pad} if pad else {}) for pad in (0, LENGTH))
    rows = task_of(cpu).rows("test")
    assert fixed.data_collator(rows[:3])["input_ids"].shape[1] == LENGTH
    assert dynamic.data_collator(rows[:3])["input_ids"].shape[1] == max(len(row["input_ids"]) for row in rows[:3])
    assert np.allclose(dynamic.logits("test"), fixed.logits("test"), atol=1e-5)


def test_grouped_batches_hold_every_text_once_and_pad_less(cpu, tmp_path):
    def epochs(strategy: str) -> list[list[dict]]:
        trainer = trainer_of(cpu, tmp_path / strategy, {"train_sampling_strategy": strategy}, count=200)
        loader = trainer.get_train_dataloader()
        return [[*loader] for epoch in range(2) if loader.set_epoch(epoch) is None]

    def texts(epoch) -> list[str]:
        return [
            str(ids[mask == 1].tolist()) for batch in epoch for ids, mask in zip(*map(batch.get, KEYS), strict=True)
        ]

    def padding(epoch) -> int:
        return sum(int((batch["attention_mask"] == 0).sum()) for batch in epoch)

    grouped, plain = epochs("group_by_length"), epochs("random")
    assert sorted(texts(grouped[0])) == sorted(texts(grouped[1])) == sorted(texts(plain[0]))
    assert texts(grouped[0]) != texts(grouped[1]) and padding(grouped[0]) < 0.7 * padding(plain[0])


def test_a_grouped_run_resumed_in_its_second_epoch_has_the_same_weights(tmp_path):
    grouped = {"settings": {"train_sampling_strategy": "group_by_length"}, "steps": 12}  # 8 steps an epoch
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    runs = [(whole, grouped), (cut, {**grouped, "stop_after": 10}), (cut, grouped)]
    whole, stopped, resumed = results(train_all("tests.tuning_run", runs))
    assert stopped["train"]["steps"] == resumed["train"]["resumed_from_step"] == 10
    assert (resumed["weights"], resumed["losses"]) == (whole["weights"], whole["losses"])


def test_a_larger_batch_sees_as_many_examples_at_the_rate_of_its_settings(cpu):
    task = task_of(cpu, max_steps=12)
    start, larger = task.plan(task.start), task.plan(task.start | {BATCH: 32, RATE: 5e-3, "bf16": True})
    assert (larger.max_steps * larger.batch_size, larger.precision) == (start.max_steps * start.batch_size, "bf16")
    assert (start.learning_rate, larger.learning_rate) == (1e-3, 5e-3)


def test_a_batch_that_the_rows_do_not_fill_is_refused(cpu, tmp_path):
    with pytest.raises(ValueError, match="batch_size=8: a batch needs as many training rows, and there are 5"):
        trainer_of(cpu, tmp_path, {}, count=5)


def test_more_tokens_than_the_model_has_positions_for_are_refused(cpu):
    task = task_of(cpu)
    params = task.params.model_copy(update={"max_length": 600})
    with pytest.raises(ValueError, match="max_length=600: 'sample' reads 512 tokens at most"):
        Task.load(params, task.texts, cpu)


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
    runs = []
    for losses, labelled, seconds in zip((before, after), predicted, (4.0, 1.0), strict=True):
        runs.append(Trial({}, seconds, losses, labelled, losses.mean(), macro_f1(labels, labelled)))
    quality = compare_quality(labels, *runs)
    paired = stats.ttest_rel(after, before).confidence_interval(0.95)
    assert (quality.loss.low, quality.loss.high) == pytest.approx(paired, abs=3e-3)
    assert quality.speed == 4.0 and quality.f1.value == pytest.approx(runs[1].dev_f1 - runs[0].dev_f1)
    assert 0 < quality.f1.low < quality.f1.value < quality.f1.high
    same = f1_difference(labels, predicted[0], predicted[0])
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)


def test_the_rate_falls_with_the_weights_of_the_model():
    sizes = {"tiny": 200_000, "MiniLM": 22_742_861, "BERT-base": 109_486_085, "BERT-large": 335_143_938}
    assert [learning_rate(weights) for weights in sizes.values()] == [1e-3, 2e-4, 4e-5, 1e-5]


def test_a_trial_goes_on_and_its_dev_losses_are_those_of_its_model(cpu, tmp_path):
    task = task_of(cpu, max_steps=4)
    settings = task.start | {BATCH: 16, RATE: 2e-3}
    first = run_trial(task, settings, tmp_path, seed=1, examples=32)
    again = run_trial(task, settings, tmp_path, seed=1, examples=32)  # reads its checkpoint
    assert again.dev_losses == first.dev_losses and len(first.dev_losses) == len(task.texts.validation)
    trainer = trained(task, settings, tmp_path, seed=1, examples=32)
    assert trainer.state.global_step == 2 and trainer.args.learning_rate == 2e-3
    assert first.dev_loss == pytest.approx(trainer.evaluate()["eval_loss"], rel=1e-3)
    assert trainer.logits("test").shape == (len(task.texts.test), 3)
