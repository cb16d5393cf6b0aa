"""The plan of a legal run and what its time costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.legal import experiment
from helpers.legal.parameters import model_size
from helpers.legal.records import split_records

from .test_legal_model import runtime
from .test_legal_processes import PARAMS

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def prepared():
    params = replace(PARAMS, num_processes=1)
    data = experiment.load_data(params)
    model, tokenizer = experiment.load_model(params, runtime())
    return params, model, experiment.encode(data.splits, tokenizer, params), data


def test_the_split_is_of_the_records_that_are_kept(prepared):
    params, _, encoded, data = prepared
    assert data.splits == split_records(data.report.kept, params.seed)
    assert len(encoded.train) == len(data.splits.train)


def test_short_examples_share_longer_blocks_unless_a_length_is_set(prepared):
    params, _, encoded, data = prepared
    assert (encoded.max_length, encoded.block_length) == (384, 384)
    tokenizer = encoded.layout.tokenizer
    free = experiment.encode(data.splits, tokenizer, replace(params, max_length=0))
    assert free.max_length < free.block_length == 1024
    assert free.why.endswith("in blocks of 1,024")
    assert 1.5 * free.blocks < len(free.train)
    padded = experiment.encode(data.splits, tokenizer, replace(params, max_length=0, packing="padded"))
    assert (padded.block_length, padded.blocks) == (free.max_length, len(padded.train))


def test_activations_are_recomputed_only_where_one_block_does_not_fit_otherwise(prepared):
    params, model, encoded, _ = prepared
    size = model_size(model)
    one_block = size.bytes_fixed() + encoded.block_length * size.bytes_per_token()
    roomy, tight, none = (replace(runtime(), memory=int(share * one_block / 0.8)) for share in (8, 0.9, 0.01))
    assert not experiment.plan(model, encoded, params, roomy).gradient_checkpointing
    plan = experiment.plan(model, encoded, params, tight)
    assert plan.gradient_checkpointing
    assert plan.batch_size == PARAMS.batch_size
    assert "one block does not fit without" in str(plan)
    with pytest.raises(ValueError, match="needs about"):
        experiment.plan(model, encoded, params, none)


def test_cost_counts_the_steps_and_seconds_of_all_sessions():
    measured = {"seconds": 130.0, "compile_seconds": 20.0, "evaluate_and_save_seconds": 10.0, "steps": 50}
    assert experiment.cost(measured | {"resumed_from_step": 40}, price_an_hour=1.8) == (
        "1,000 steps at the measured 0.50 steps/s: 0.56 hours, 1.00 at 1.8 an hour"
    )
