"""Fine-tuning runs in their own processes: CPU beside 8 virtual XLA devices, adapters and full weights, killed and resumed."""

import functools
from pathlib import Path

import pytest
import torch
from datasets import Dataset

from helpers.legal.packing import IGNORED, FixedBlocks, masks_of, summed_loss
from helpers.legal.training import LegalTrainer, sft_config
from helpers.machine import xla
from tests import harness
from tests.harness import assert_killed_run_ends_as, cpu_here
from tests.legal_run import rows
from tests.models import tiny
from tests.train.test_trainer import ON_XLA, SLOW_ON_XLA
from tests.workloads import plan_by_hand

from .test_model import loaded

DRIVER = "tests.legal_run"
METHODS = ("lora", "full")
PARITY = {"steps": 20, "save_steps": 10, "dropout": 0.0}
DROPOUT = {"method": "lora", "steps": 14, "logging_steps": 6, "save_steps": 6, "dropout": 0.1}
HALF_BASE = {"method": "lora", "steps": 4, "precision": "bf16", "dropout": 0.0}
CUT = {"method": "full", "steps": 4}
ALIKE = {method: {"method": method, **PARITY} for method in METHODS} | {"dropout": DROPOUT}
RUNS = {
    "cpu": {
        **ALIKE,
        "half base": HALF_BASE,
        "one batch of eight": {**CUT, "batch_size": 8, "accumulation": 1},
        "eight of one": {**CUT, "batch_size": 1, "accumulation": 8},
        "one token": {"method": "lora", "steps": 8, "save_steps": 2, "alphabets": [[100, 101], [3, 4]]},
    },
    "xla": {
        **ALIKE,
        "half base": {**HALF_BASE, "checkpointing": True},
    },
}


run = functools.partial(harness.train, DRIVER)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """(folder, results) of a run of RUNS; all of a kind share a process, which imports and compiles once.

    Where torch_xla is installed, the CPU makes those runs alone that XLA makes too.
    """

    @functools.cache
    def all_of(kind: str) -> dict[str, tuple[Path, dict]]:
        names = [name for name in RUNS[kind] if not xla.installed() or name in RUNS["xla"]]
        folders = [tmp_path_factory.mktemp(kind) for _ in names]
        runs = [(folder, {"kind": kind, **RUNS[kind][name]}) for folder, name in zip(folders, names, strict=True)]
        outcomes = harness.results(harness.train_all(DRIVER, runs))
        return dict(zip(names, zip(folders, outcomes, strict=True), strict=True))

    return lambda kind, name: all_of(kind)[name]


# ---- the loss


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", SLOW_ON_XLA)
def test_the_evaluation_loss_is_the_mean_over_all_labels_of_plain_passes(kind, method, finished):
    _, outcome = finished(kind, method)
    assert outcome["loss_by_hand"] == pytest.approx(outcome["eval_losses"][-1], rel=1e-5)
    assert outcome["held_out_loss_by_hand"] == pytest.approx(outcome["held_out_loss"], rel=1e-5)
    assert outcome["held_out_loss"] != pytest.approx(outcome["eval_losses"][-1], rel=1e-3)


@pytest.mark.once
def test_one_batch_of_eight_and_eight_of_one_give_the_same_losses(finished):
    (_, whole), (_, parts) = finished("cpu", "one batch of eight"), finished("cpu", "eight of one")
    assert whole["losses"] and whole["grad_norms"] and whole["eval_losses"]
    assert parts["losses"] == pytest.approx(whole["losses"], rel=1e-5)
    assert parts["grad_norms"] == pytest.approx(whole["grad_norms"], rel=1e-4)
    assert parts["eval_losses"] == pytest.approx(whole["eval_losses"], rel=1e-5)


# ---- TRL


TEXTS = [{"prompt": f"Name {n}.", "completion": f" It is {n * n}, and no more than that."} for n in range(40)]


@pytest.mark.once
def test_rows_and_losses_are_those_of_trls_own_trainer(tmp_path):
    from trl import SFTTrainer

    planned = plan_by_hand(cpu_here(), batch_size=4, steps=3, length=128)
    arguments = sft_config(planned, cpu_here(), tmp_path, length=128, seed=1, eval_steps=9, save_steps=9)
    data = {"train_dataset": Dataset.from_list(TEXTS), "eval_dataset": Dataset.from_list(TEXTS[:8])}
    trainers, losses = [], []
    for make, options in ((SFTTrainer, {}), (LegalTrainer, {"plan": planned, "runtime": cpu_here()})):
        model, tokenizer = loaded(method="full", seed=3)
        trainers.append(make(model, args=arguments, processing_class=tokenizer, **data, **options))
    theirs, ours = trainers
    blocks = len(theirs.train_dataset)
    for name in ("input_ids", "labels"):
        assert ours.train_dataset[name][:blocks] == theirs.train_dataset[name][:]
    for trainer in trainers:
        batch = trainer.data_collator([trainer.train_dataset[n] for n in range(blocks)])
        labels = (batch["labels"] != IGNORED).sum() if trainer is ours else None
        losses.append(trainer.compute_loss(trainer.model, batch, num_items_in_batch=labels).item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.once
@pytest.mark.parametrize("cap", [None, 5.0])
@pytest.mark.parametrize(("tile", "compact"), [(7, True), (7, False), (2048, True)])
def test_the_loss_in_tiles_is_the_plain_one_with_its_gradients(cap, tile, compact):
    sizes = {"vocab_size": 60, "head_dim": 8, "attn_logit_softcapping": None, "attn_implementation": "eager"}
    model = tiny("Gemma2", final_logit_softcapping=cap, **sizes)
    batch = FixedBlocks(32, 0, compact)(rows(6, 60, seed=0))
    mask = masks_of(batch["segment_ids"], model.config, torch.float32)
    logits = model(batch["input_ids"], position_ids=batch["position_ids"], attention_mask=mask).logits
    next_labels = batch["labels"][:, 1:].flatten()
    plain = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), next_labels, reduction="sum")
    in_tiles = summed_loss(model, batch, tokens=tile)
    assert in_tiles.item() == pytest.approx(plain.item(), rel=1e-5)
    gradients = []
    for loss in (plain, in_tiles):
        model.zero_grad()
        loss.backward()
        gradients.append([weight.grad for weight in model.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)


# ---- resume


@pytest.mark.parametrize("kind", SLOW_ON_XLA)
def test_a_killed_run_ends_with_identical_weights_and_optimizer(kind, finished, tmp_path):
    whole = finished(kind, "dropout")
    assert_killed_run_ends_as(whole, run, tmp_path, 12, 6, fresh=kind == "cpu", kind=kind, **DROPOUT)


@pytest.mark.once
def test_the_best_adapter_is_loaded_at_the_end(finished):
    # It learns to write one token and is evaluated on another: soon its loss rises.
    _, outcome = finished("cpu", "one token")
    assert outcome["best_step"] < 8
    assert outcome["loss_by_hand"] == pytest.approx(min(outcome["eval_losses"]), rel=1e-4)
    assert f"loaded checkpoint-{outcome['best_step']}" in outcome["train"]["messages"][-1]


# ---- XLA


@ON_XLA
@pytest.mark.parametrize("method", METHODS)
def test_xla_and_a_cpu_give_the_same_losses_and_nothing_compiles_late(method, finished):
    (_, on_cpu), (_, on_xla) = finished("cpu", method), finished("xla", method)
    assert len(on_cpu["losses"]) == 20 and on_cpu["eval_losses"]
    assert on_xla["losses"] == pytest.approx(on_cpu["losses"], rel=1e-4)
    assert on_xla["eval_losses"] == pytest.approx(on_cpu["eval_losses"], rel=1e-4)
    assert on_xla["late"]["compiles"] == 0


@ON_XLA
def test_no_value_leaves_the_device_between_two_logs(finished):
    _, outcome = finished("xla", "dropout")
    transfers = outcome["transfers"]  # transfers and .item() calls so far, at the end of each step
    between = {step: transfers[step - 1] - transfers[step - 2] for step in range(3, 14)}
    # What a log and an evaluation (6, 12) move is seen at the end of the step after them.
    assert {step for step, moved in between.items() if moved} == {7, 13}
    assert outcome["late"] == {"compiles": 0, "transfers": 0}


@ON_XLA
def test_on_xla_a_bf16_base_with_checkpointing_trains_as_on_a_cpu(finished):
    (_, on_cpu), (_, on_xla) = finished("cpu", "half base"), finished("xla", "half base")
    assert on_xla["dtypes"] == on_cpu["dtypes"] == ["torch.bfloat16", "torch.float32"] and on_cpu["losses"]
    assert on_xla["losses"] == pytest.approx(on_cpu["losses"], rel=1e-2)
