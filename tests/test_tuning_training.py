"""The classifier's trainer: its loss by hand, its order of texts, exact resume, and XLA on eight virtual devices."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score

from helpers.machine import xla
from helpers.tuning.evaluation import IGNORED, choose_threshold, predict, scores
from helpers.tuning.parameters import TuningParameters
from helpers.tuning.task import Settings, encode
from helpers.tuning.training import whole_batches

from . import forked
from .tuning_run import LENGTH, rows, tiny, trainer_of
from .xla_process import cpu_here

DRIVER = Path(__file__).with_name("tuning_run.py")
WEIGHTS = np.array([0.5, 1.0, 3.0])
KEYS = ("input_ids", "attention_mask")


@pytest.fixture(scope="module")
def cpu():
    torch.set_num_threads(1)
    return cpu_here()


def in_process(*runs: tuple[str, dict]) -> list[dict]:
    arguments = [argument for folder, options in runs for argument in (str(folder), json.dumps(options))]
    on_xla = any(options.get("kind") == "xla" for _, options in runs)
    process = forked.run(DRIVER, *arguments, xla=on_xla, TF_CPP_MIN_LOG_LEVEL="3")
    assert process.returncode == 0, process.stderr[-3000:]
    return [
        json.loads(line.removeprefix("RESULT ")) for line in process.stdout.splitlines() if line.startswith("RESULT ")
    ]


# ---- the loss


def loss_by_hand(logits: torch.Tensor, labels: list[int], weights) -> float:
    """Mean over rows of weight x -log softmax, row by row."""
    total = 0.0
    for row, label in zip(logits.double(), labels, strict=True):
        total -= float(weights[label] * (row[label] - torch.logsumexp(row, 0)))
    return total / len(labels)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
def test_the_loss_is_the_mean_of_weighted_cross_entropies_and_rows_without_a_label_do_not_count(weights, cpu, tmp_path):
    trainer = trainer_of(cpu, tmp_path, {}, weights=weights)
    model = trainer.model.eval()
    examples = encode(rows(6), trainer.processing_class, LENGTH)
    filled = trainer.data_collator(whole_batches(examples, 8))
    assert filled["labels"].tolist()[6:] == [IGNORED, IGNORED]
    loss = trainer.compute_loss(model, filled).item()
    alone = [model(**{k: v[None] for k, v in batch.items() if k != "labels"}).logits[0] for batch in unpadded(examples)]
    by_hand = loss_by_hand(
        torch.stack(alone), [label for _, label in rows(6)], np.ones(3) if weights is None else weights
    )
    assert loss == pytest.approx(by_hand, rel=1e-4)


def unpadded(examples):
    return [{name: torch.tensor(value) for name, value in row.items()} for row in examples]


def test_every_padding_gives_the_same_logits(cpu, tmp_path):
    found = []
    for padding in ("fixed", "dynamic", "grouped"):
        trainer = trainer_of(cpu, tmp_path / padding, {"padding": padding})
        batch = trainer.data_collator(encode(rows(3), trainer.processing_class, LENGTH))
        longest = max(len(row["input_ids"]) for row in encode(rows(3), trainer.processing_class, LENGTH))
        assert batch["input_ids"].shape[1] == (LENGTH if padding == "fixed" else longest)
        found.append(trainer.logits(encode(rows(19), trainer.processing_class, LENGTH)))
    assert np.allclose(found[0], found[1], atol=1e-5) and np.allclose(found[0], found[2], atol=1e-5)


def test_accumulation_gives_the_weights_of_the_whole_batch(cpu, tmp_path):
    import dataclasses

    states = []
    for name, micro in (("whole", 8), ("halves", 4)):
        trainer = trainer_of(cpu, tmp_path / name, {}, steps=2, weights=WEIGHTS)
        for module in trainer.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        trainer.args.per_device_train_batch_size = trainer._train_batch_size = micro
        trainer.args.gradient_accumulation_steps = trainer.accelerator.gradient_accumulation_steps = 8 // micro
        trainer.plan = dataclasses.replace(
            trainer.plan, per_device_batch_size=micro, gradient_accumulation_steps=8 // micro
        )
        trainer.train()
        states.append({n: p.detach().clone() for n, p in trainer.model.named_parameters()})
    assert all(torch.allclose(states[0][name], states[1][name], atol=2e-5) for name in states[0])


# ---- scores


def test_scores_are_sklearns_and_the_threshold_is_the_best_of_all():
    draw = np.random.default_rng(0)
    logits, labels = draw.normal(size=(60, 2)), draw.integers(0, 2, 60)
    logits[:, 1] += labels
    threshold = choose_threshold(logits, labels)
    probability = 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))
    best = max(f1_score(labels, probability >= cut) for cut in probability)
    assert f1_score(labels, predict(logits, threshold)) == pytest.approx(best)
    assert scores(logits, labels, threshold)["f1"] == pytest.approx(best)
    assert scores(logits, labels)["f1"] == pytest.approx(f1_score(labels, logits.argmax(1)))
    many = draw.normal(size=(60, 4))
    assert choose_threshold(many, labels) is None
    assert scores(many, labels)["accuracy"] == pytest.approx((many.argmax(1) == labels).mean())


# ---- the order of texts


def test_grouped_batches_hold_every_text_once_in_another_order_each_epoch_and_pad_less(cpu, tmp_path):
    def epochs(padding: str) -> list[list[dict]]:
        trainer = trainer_of(cpu, tmp_path / padding, {"padding": padding}, count=200)
        loader = trainer.get_train_dataloader()
        return [[*loader] for _epoch in range(2) if loader.set_epoch(_epoch) is None]

    def texts(epoch) -> list[str]:
        return [
            str(ids[mask == 1].tolist()) for batch in epoch for ids, mask in zip(*map(batch.get, KEYS), strict=True)
        ]

    def padding(epoch) -> int:
        return sum(int((batch["attention_mask"] == 0).sum()) for batch in epoch)

    grouped, plain = epochs("grouped"), epochs("dynamic")
    assert sorted(texts(grouped[0])) == sorted(texts(grouped[1])) == sorted(texts(plain[0]))
    assert texts(grouped[0]) != texts(grouped[1])
    assert padding(grouped[0]) < 0.7 * padding(plain[0])


@pytest.mark.once
def test_a_grouped_run_that_stops_in_its_second_epoch_and_resumes_ends_with_the_same_weights(tmp_path):
    grouped = {"settings": {"padding": "grouped"}, "steps": 12, "rows": 64}  # 8 steps an epoch
    whole, stopped, resumed = in_process(
        (tmp_path / "whole", grouped),
        (tmp_path / "cut", {**grouped, "stop_after": 10}),
        (tmp_path / "cut", grouped),
    )
    assert stopped["train"]["steps"] == 10
    assert resumed["train"]["resumed_from_step"] == 10
    assert resumed["weights"] == whole["weights"]
    assert resumed["f1"] == whole["f1"]


# ---- XLA


@pytest.mark.skipif(not xla.installed(), reason="torch_xla is not installed")
def test_eight_devices_train_without_recompiling_and_evaluate_every_row(tmp_path):
    found, eager = in_process(
        (tmp_path / "xla", {"kind": "xla", "settings": {"precision": "bf16", "attention": "sdpa"}}),
        (tmp_path / "eager", {"kind": "xla", "settings": {"attention": "eager"}}),
    )
    assert eager["xla"]["host_syncs_per_step"] == 0
    assert found["xla"] == {"compiles": found["xla"]["compiles"], "compiles_after_warmup": 0, "host_syncs_per_step": 0}
    assert len(found["logits"]) == 19  # no multiple of eight
    assert found["train"]["loss_last"] < 2
    assert len(found["f1"]) == 2


# ---- what is refused


def parameters(**changed) -> dict:
    given = {
        "data_source": "sample",
        "output_dir": "out",
        "max_steps": 0,
        "batch_size": 0,
        "learning_rate": 0.0,
        "seed": 0,
        "max_hours": 0.0,
        "resume": True,
        "use_tpu": False,
        "precision": "auto",
        "report_to": "none",
        "base_model": "sample",
        "num_rows": 0,
        "eval_rows": 0,
        "positive_label": "",
        "class_weights": True,
        "max_length": 64,
        "start_batch_size": 8,
        "largest_batch_size": 64,
        "window_examples": 64,
        "repetitions": 3,
        "try_compile": False,
        "compare_start": True,
        "further_seeds": 0,
        "patience": 2,
        "evaluations": 3,
        "logging_steps": 10,
        "text": "a text",
    }
    return {**given, **changed}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_rows", -1),
        ("max_length", 4),
        ("start_batch_size", 0),
        ("largest_batch_size", 4),
        ("window_examples", 8),
        ("repetitions", 1),
        ("evaluations", 0),
        ("further_seeds", -1),
        ("text", " "),
        ("class_weights", "true"),
        ("precision", "fp8"),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(name, value):
    TuningParameters(**parameters())
    with pytest.raises(ValueError, match=name):
        TuningParameters(**parameters(**{name: value}))


def test_a_batch_that_the_rows_do_not_fill_is_refused(cpu, tmp_path):
    with pytest.raises(ValueError, match="batch_size=8: a batch of 8 needs as many training rows, and there are 5"):
        trainer_of(cpu, tmp_path, {}, count=5)


def test_the_learning_rate_grows_with_the_square_root_of_the_batch():
    assert Settings(batch_size=32, length=8, start_batch_size=8).learning_rate_factor == 2
    assert Settings(batch_size=32, length=8).learning_rate_factor == 1


def test_the_sample_is_the_same_each_time():
    (first, tokenizer), (second, other) = tiny(), tiny()
    assert tokenizer.get_vocab() == other.get_vocab()
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
