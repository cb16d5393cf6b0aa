"""The classifier's trainer: padding, order of texts, exact resume, XLA on eight virtual devices; and what quality means."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import helpers
from helpers.machine import xla
from helpers.tuning.evaluation import START, TUNED, paired_seeds, scores, verdict
from helpers.tuning.parameters import TuningParameters
from helpers.tuning.training import BATCH, Task
from tests import harness
from tests.harness import cpu_here
from tests.tuning_run import LENGTH, task_of, trainer_of

DRIVER = Path(__file__).resolve().parents[1] / "tuning_run.py"
KEYS = ("input_ids", "attention_mask")


@pytest.fixture(scope="module")
def cpu():
    torch.set_num_threads(1)
    return cpu_here()


def in_process(*runs: tuple[Path, dict]) -> list[dict]:
    arguments = [argument for folder, options in runs for argument in (str(folder), json.dumps(options))]
    on_xla = any(options.get("kind") == "xla" for _, options in runs)
    process = harness.run(DRIVER, *arguments, xla=on_xla, TF_CPP_MIN_LOG_LEVEL="3")
    assert process.returncode == 0, process.stderr[-3000:]
    lines = [line for line in process.stdout.splitlines() if line.startswith("RESULT ")]
    return [json.loads(line.removeprefix("RESULT ")) for line in lines]


@pytest.mark.once
def test_the_first_step_of_a_notebook_is_that_of_its_first_trainer(cpu, tmp_path, monkeypatch):
    monkeypatch.setattr(helpers, "began", time.monotonic() - 1_000, raising=False)
    monkeypatch.setattr(helpers, "first_step_seconds", None, raising=False)
    trainers = [trainer_of(cpu, tmp_path / name, {}) for name in ("window", "run")]  # of the ladder, and what follows
    found = []
    for trainer in trainers:
        trainer.train()
        found.append(trainer.results()["train"]["first_step_seconds"])
    assert found[0] == found[1] >= 1_000


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


@pytest.mark.once
def test_a_grouped_run_that_stops_in_its_second_epoch_and_resumes_ends_with_the_same_weights(tmp_path):
    grouped = {"settings": {"train_sampling_strategy": "group_by_length"}, "steps": 12}  # 8 steps an epoch
    whole, stopped, resumed = in_process(
        (tmp_path / "whole", grouped), (tmp_path / "cut", {**grouped, "stop_after": 10}), (tmp_path / "cut", grouped)
    )
    assert stopped["train"]["steps"] == resumed["train"]["resumed_from_step"] == 10
    assert (resumed["weights"], resumed["losses"]) == (whole["weights"], whole["losses"])


@pytest.mark.skipif(not xla.installed(), reason="torch_xla is not installed")
def test_eight_devices_train_without_recompiling_and_evaluate_every_row(tmp_path):
    found, eager = in_process(
        (tmp_path / "xla", {"kind": "xla", "settings": {"bf16": True}}),
        (tmp_path / "eager", {"kind": "xla", "settings": {"attn_implementation": "eager"}}),
    )
    for each in (found, eager):
        assert each["xla"]["compiles_after_warmup"] == each["xla"]["host_syncs_per_step"] == 0
    assert len(found["logits"]) == 19 and found["train"]["loss_last"] < 2  # 19 is no multiple of eight


@pytest.mark.once
def test_a_larger_batch_sees_as_many_examples_at_a_rate_that_grows_with_its_square_root(cpu):
    task = task_of(cpu, max_steps=12)
    start, larger = task.plan(task.start), task.plan(task.start | {BATCH: 32, "bf16": True})
    assert (larger.max_steps * larger.batch_size, larger.precision) == (start.max_steps * start.batch_size, "bf16")
    assert larger.learning_rate == pytest.approx(2 * start.learning_rate)


@pytest.mark.once
@pytest.mark.once
def test_a_batch_in_four_parts_has_the_loss_of_a_whole_one(cpu, tmp_path):
    found = []
    for parts in (1, 4):
        trainer = trainer_of(cpu, tmp_path / str(parts), {BATCH: 16}, steps=1)
        for module in trainer.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        trainer.args.per_device_train_batch_size = trainer._train_batch_size = 16 // parts
        trainer.args.gradient_accumulation_steps = parts
        trainer.train()
        found.append((trainer.state.log_history[0]["loss"], trainer.state.log_history[0]["grad_norm"]))
    assert found[1] == pytest.approx(found[0], rel=1e-3)


def test_a_batch_that_the_rows_do_not_fill_is_refused(cpu, tmp_path):
    with pytest.raises(ValueError, match="batch_size=8: a batch needs as many training rows, and there are 5"):
        trainer_of(cpu, tmp_path, {}, count=5)


@pytest.mark.once
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_rows", -1),
        ("max_length", 4),
        ("tuning_minutes", 0.0),
        ("paired_seeds", -1),
        ("text", " "),
        ("precision", "fp8"),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(name, value, tmp_path):
    given = {name: field.default for name, field in TuningParameters.model_fields.items()}
    given |= {"data_source": "sample", "base_model": "sample", "output_dir": str(tmp_path)}
    assert len(given) <= 20
    TuningParameters(**given)
    with pytest.raises(ValueError, match=name):
        TuningParameters(**given | {name: value})


@pytest.mark.once
def test_more_tokens_than_the_model_has_positions_for_are_refused(cpu):
    task = task_of(cpu)
    params = task.params.model_copy(update={"max_length": 600})
    with pytest.raises(ValueError, match="max_length=600: 'sample' reads 512 tokens at most"):
        Task.load(params, task.texts, cpu)


# ---- quality


@pytest.mark.once
def test_f1_is_the_mean_over_the_labels_that_have_a_row():
    found = scores([0, 0, 1, 1, 2], [0, 1, 1, 1, 0])
    label_0, label_1 = 2 * 0.5 * 0.5 / (0.5 + 0.5), 2 * 1 * (2 / 3) / (1 + 2 / 3)  # precision and recall of each
    assert found == {"f1": pytest.approx((label_0 + label_1) / 2), "accuracy": 0.6}


def runs(*pairs: tuple[float, float]) -> dict:
    """F1 (stock, tuned) a seed."""
    return {seed: {START: {"f1": before}, TUNED: {"f1": after}} for seed, (before, after) in enumerate(pairs)}


@pytest.mark.once
def test_quality_is_kept_only_where_the_seeds_show_it():
    same = verdict(runs((0.800, 0.801), (0.600, 0.599), (0.810, 0.811)))
    assert same.quality_kept and "as good as the stock Trainer" in same.why
    wide = verdict(runs((0.80, 0.79), (0.60, 0.61), (0.81, 0.80)))
    assert wide.quality_kept is None and "-0.0033 (-0.0320 to +0.0254 over 3 seeds): not decided" in wide.why
    lower = verdict(runs((0.673, 0.609), (0.680, 0.603), (0.628, 0.615)))  # each seed lost, by very different amounts
    assert lower.quality_kept is None and "lower with each of the 3 seeds" in lower.why
    assert "better than" in verdict(runs((0.80, 0.85), (0.60, 0.66), (0.81, 0.86))).why
    worse = verdict(runs((0.80, 0.78), (0.60, 0.57), (0.40, 0.38)))  # seeds differ more than stock and tuned
    assert worse.quality_kept is False and "WORSE" in worse.why and "batch_size" in worse.why
    few = verdict(runs((0.8, 0.7), (0.8, 0.7)))
    assert few.quality_kept is None and few.why.startswith("Quality: not decided")


@pytest.mark.once
def test_where_nothing_was_kept_one_run_stands(cpu, tmp_path):
    task = task_of(cpu, max_steps=4)
    trainer = trainer_of(cpu, tmp_path, {}, steps=4)
    trainer.train()
    found = paired_seeds(trainer, task, tmp_path, train=None, seconds=600)  # nothing may be trained
    assert list(found.runs[0]) == [TUNED] and "trained once" in found.why


@pytest.mark.once
def test_pairs_are_trained_as_far_as_the_time_goes(cpu, tmp_path):
    task = task_of(cpu, max_steps=4)
    trainer = trainer_of(cpu, tmp_path / "first", {BATCH: 16}, steps=2)
    trainer.train()
    trained = []

    def train(settings, folder, seed):
        trained.append((seed, settings[BATCH]))
        other = trainer_of(cpu, folder, settings, steps=2)
        other.train()
        return other

    assert paired_seeds(trainer, task, tmp_path, train, seconds=0).quality_kept is None and trained == []
    found = paired_seeds(trainer, task, tmp_path, train, seconds=600)
    assert trained == [(0, 8), (1, 8), (1, 16), (2, 8), (2, 16)] and len(found.runs) == 3 and "3 seeds" in found.why
