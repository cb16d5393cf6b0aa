"""The classifier's trainer: padding, order of texts, exact resume, XLA on eight virtual devices; and what quality means."""

import numpy as np
import pytest
import torch

from helpers.tuning.evaluation import Trial, compare_quality, f1_difference, scores
from helpers.tuning.training import BATCH, RATE, Task, predictions, run_trial, trained
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
    assert np.allclose(dynamic.logits(rows), fixed.logits(rows), atol=1e-5)


def test_grouped_batches_hold_every_text_once_in_another_order_each_epoch_and_pad_less(cpu, tmp_path):
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


def test_a_grouped_run_that_stops_in_its_second_epoch_and_resumes_ends_with_the_same_weights(tmp_path):
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


def test_f1_is_the_mean_over_the_labels_that_have_a_row():
    from sklearn.metrics import f1_score

    predicted, labels = [0, 0, 1, 1, 2], [0, 1, 1, 1, 0]
    expected = f1_score(labels, predicted, labels=[0, 1], average="macro")
    assert scores(predicted, labels) == {"f1": pytest.approx(expected), "accuracy": 0.6}


def test_the_differences_and_their_intervals_are_those_of_paired_texts():
    from scipy import stats

    draw = np.random.default_rng(0)
    labels = draw.integers(1, 6, 400)  # no text has the label 0, which is predicted
    predicted = [np.where(draw.random((2, 400)) < share, labels, 0) for share in (0.6, 0.8)]
    losses = draw.gamma(1.0, 1.0, (2, 400))
    losses = losses, losses + draw.normal(0.1, 0.2, (2, 400))
    stock, tuned = (
        [Trial({}, seed, seconds, [*losses[side][seed]], [*predicted[side][seed]]) for seed in range(2)]
        for side, seconds in enumerate((4.0, 1.0))
    )
    one, two = compare_quality(labels, stock[:1], tuned[:1]), compare_quality(labels, stock, tuned)
    paired = stats.ttest_rel(losses[1][0], losses[0][0]).confidence_interval(0.95)
    assert (one.loss.low, one.loss.high) == pytest.approx(paired, abs=3e-3)
    assert two.speed == 4.0 and two.loss.value == pytest.approx((losses[1] - losses[0]).mean())
    expected = [
        scores(predicted[1][seed], labels)["f1"] - scores(predicted[0][seed], labels)["f1"] for seed in range(2)
    ]
    assert two.f1.value == pytest.approx(np.mean(expected)) and 0 < two.f1.low < two.f1.value < two.f1.high
    same = f1_difference(labels, predicted[0], predicted[0])
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)
    few = f1_difference(labels[:19], predicted[0][:, :19], predicted[1][:, :19])
    assert (few.low, few.high) == (-np.inf, np.inf) and "too few for an interval: 19" in str(few)


def test_a_trial_is_gone_on_with_and_its_dev_losses_are_those_of_its_model(cpu, tmp_path):
    task = task_of(cpu, max_steps=4)
    settings = task.start | {BATCH: 16, RATE: 2e-3}
    first = run_trial(task, settings, tmp_path, seed=1, examples=32)
    again = run_trial(task, settings, tmp_path, seed=1, examples=32)  # reads its checkpoint
    assert again.dev_losses == first.dev_losses and len(first.dev_losses) == len(task.texts.validation)
    trainer = trained(task, settings, tmp_path, seed=1, examples=32)
    assert trainer.state.global_step == 2 and trainer.args.learning_rate == 2e-3
    assert first.dev_loss == pytest.approx(trainer.evaluate()["eval_loss"], rel=1e-3)
    assert predictions(trainer).shape == (len(task.texts.test),)
