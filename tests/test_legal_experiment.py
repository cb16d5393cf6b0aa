"""The plan of a legal run, its floating-point operations, and what its time costs."""

from __future__ import annotations

from dataclasses import replace

import jupytext
import pytest
import torch
from datasets import Dataset
from trl.trainer.utils import compute_flops_per_token

from helpers.legal import experiment
from helpers.legal.layout import IGNORED
from helpers.legal.model import load_model
from helpers.legal.parameters import LegalParameters, recipe
from helpers.legal.records import split_records
from helpers.legal.training import workload
from helpers.plan import settings as planner

from .harness import NOTEBOOKS, cpu_here
from .launched import LEGAL
from .test_legal_model import loaded, runtime

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def prepared():
    params = LegalParameters(**LEGAL, output_dir="unset")
    data = experiment.load_data(params)
    model, tokenizer = load_model(params, runtime())
    return params, model, experiment.encode(data.splits, tokenizer, params), data


def test_the_split_is_of_the_records_that_are_kept(prepared):
    params, _, encoded, data = prepared
    assert data.splits == split_records(data.report.kept, params.seed)
    lengths = dict(zip((r.id for r in data.report.kept), encoded.layout.lengths(data.report.kept), strict=True))
    out = {name for name, length in lengths.items() if length > 384}
    assert 0 < len(out) < len(lengths)
    assert {row["id"] for row in encoded.not_used} == out
    assert {(row["defect"], row["set_aside"]) for row in encoded.not_used} == {("too long", True)}
    for name, records in vars(encoded.splits).items():
        assert records == tuple(r for r in getattr(data.splits, name) if r.id not in out)


def test_short_examples_share_longer_blocks_unless_a_length_is_set(prepared):
    params, _, encoded, data = prepared
    assert (encoded.max_length, encoded.block_length) == (384, 384)
    tokenizer = encoded.layout.tokenizer
    free = experiment.encode(data.splits, tokenizer, params.model_copy(update={"max_length": 0}))
    assert free.max_length < free.block_length == 1024
    assert free.why.endswith("in blocks of 1,024")
    assert 1.5 * free.blocks < len(free.splits.train)
    padded = experiment.encode(data.splits, tokenizer, params.model_copy(update={"max_length": 0, "packing": "padded"}))
    assert (padded.block_length, padded.blocks) == (free.max_length, len(padded.splits.train))


def test_activations_are_recomputed_only_where_one_block_does_not_fit_otherwise(prepared):
    params, model, encoded, _ = prepared
    _, step = experiment.plan(model, encoded, params, runtime())
    with_all, without = (planner.memory_of(step, runtime(), 1, 4, checkpointing) for checkpointing in (False, True))
    middle = (with_all.peak.low + without.peak.high) / 2 / 0.8
    roomy, tight, none = (replace(runtime(), memory=int(memory)) for memory in (8 * middle, middle, 0.3 * middle))
    assert without.peak.high < with_all.peak.low
    assert not experiment.plan(model, encoded, params, roomy)[0].gradient_checkpointing
    plan, _ = experiment.plan(model, encoded, params, tight)
    assert plan.gradient_checkpointing
    assert plan.batch_size == LEGAL["batch_size"]
    assert "does not fit without" in str(plan)
    with pytest.raises(planner.DoesNotFit, match="need at least"):
        experiment.plan(model, encoded, params, none)


def test_flops_of_full_fine_tuning_are_those_of_trl():
    model, _ = loaded(method="full")
    on_xla = replace(runtime(), kind="xla")  # whose attention is not fused: TRL counts no recomputed scores either
    counted = planner.memory_of(workload(model, "sample", 1024, "full"), on_xla, 2, 2, False).count
    assert counted.flops / (2 * 1024) == pytest.approx(compute_flops_per_token(model.config, 1024), rel=1e-3)


def test_the_trainers_flops_leave_recomputation_out(prepared, tmp_path):
    params, model, encoded, _ = prepared
    found = []
    for checkpointing in (False, True):
        asked = params.model_copy(update={"gradient_checkpointing": checkpointing})
        plan, step = experiment.plan(model, encoded, asked, runtime())
        trainer = experiment.legal_trainer(model, encoded, asked, plan, step, runtime(), tmp_path)
        assert plan.gradient_checkpointing == checkpointing
        found.append(trainer.meter.flops_per_token)
    assert found[0] == found[1] > 6 * sum(p.numel() for p in model.parameters())


def test_cost_counts_the_steps_and_seconds_of_all_sessions():
    train = {"seconds": 130.0, "compile_seconds": 20.0, "evaluate_and_save_seconds": 10.0, "steps": 50}
    train |= {"fill": 0.9, "useful_tokens_per_second": 10.0, "resumed_from_step": 40, "mfu": None}
    train |= dict.fromkeys(("loss_first", "loss_last", "examples_per_second", "tokens_per_second"), 1.0)
    rows = {row["measured"]: row[""] for row in experiment.cost({"train": train | {"peak_memory_bytes": None}})}
    assert rows["time of 1,000 more steps"] == "33 min"  # 100 seconds of training for 50 steps
    assert rows["packing efficiency"] == "90.0%"
    assert rows["resumed from step"] == 40


def test_the_recipes_batch_is_a_multiple_of_the_devices():
    assert [recipe(blocks, 512, "lora", 2).batch_size for blocks in (1, 24, 40, 1000)] == [2, 2, 4, 16]
    assert [recipe(blocks, 512, "lora").batch_size for blocks in (1, 24, 40, 1000)] == [1, 3, 5, 16]


# ---- the loss in plain code


PLAIN = next(
    cell.source
    for cell in jupytext.read(NOTEBOOKS / "source/legal_cot_sft.py").cells
    if "completion_loss" in cell.source and cell.cell_type == "code"
)


@pytest.mark.parametrize(
    "changes",
    [{"method": "lora"}, {"method": "full", "layout": "instruction"}, {"method": "full", "packing": "padded"}],
    ids=lambda each: "-".join(each.values()),
)
def test_the_notebooks_plain_loss_of_each_record_alone_is_the_trainers_of_packed_ones(changes, tmp_path):
    params = LegalParameters(**LEGAL | {"max_length": 1024} | changes, output_dir=str(tmp_path))
    machine = cpu_here()
    model, tokenizer = load_model(params, machine)
    encoded = experiment.encode(experiment.load_data(params).splits, tokenizer, params)
    plan, step = experiment.plan(model, encoded, params, machine)
    names = {"experiment": experiment, "model": model, "encoded": encoded, "params": params, "folder": tmp_path}
    names |= {"plan": plan, "step": step, "machine": machine}
    exec(PLAIN, names)
    assert names["plain"] == pytest.approx(names["packed"], rel=1e-6)
    trainer, pair = names["trainer"], [encoded.layout.example(record) for record in names["pair"]]
    rows = trainer._prepare_dataset(
        Dataset.from_list(pair), tokenizer, trainer.args, trainer.args.packing, None, "eval"
    )
    blocks = [row for row in rows["labels"] if {*row} != {IGNORED}]
    assert len(blocks) == (2 if params.packing == "padded" else 1)
    assert len(names["nats"]) == sum(label != IGNORED for row in blocks for label in row)
    # Blind to the border, or to the prompt, it would be another number.
    whole = torch.tensor([[token for _, ids in encoded.layout.tokens(names["pair"]) for token in ids]])
    with torch.no_grad():
        blind = trainer.model(whole, labels=whole).loss.item()
    assert blind != pytest.approx(names["packed"], rel=1e-3)
    assert not trainer.model.training
