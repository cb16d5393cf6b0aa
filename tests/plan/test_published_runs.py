"""Runs that others published: what the file says, and the interval of a step that benchmarks/public_runs.py makes of them."""

import importlib
import json
import sys

import pytest

from helpers.plan import forecast
from helpers.plan.forecast import ALLOCATED, SIZES
from tests.harness import ROOT, read_json

pytestmark = pytest.mark.once

sys.path.append(str(ROOT / "benchmarks"))
public_runs = importlib.import_module("public_runs")

FOUND = read_json(public_runs.RUNS)
RUNS = public_runs.load()


def test_no_run_is_listed_twice_and_none_is_faster_than_its_device_allows():
    lines = [json.dumps(run, sort_keys=True) for run in FOUND["runs"]]
    assert len(lines) >= 30 and {run.kind for run in RUNS} == {"cuda", "xla"}
    assert len(lines) == len(set(lines))
    for run in RUNS:
        assert 0.02 < run.bound / run.seconds < 1, str(run)


def test_a_step_is_counted_as_the_planner_counts_it():
    """BERT-large, 10 x 384 tokens on a V100 in fp16, 45.2 samples a second."""
    run = next(each for each in RUNS if each.about.get("samples_per_second") == 45.2)
    flops = (6 * 302.3e6 + 12 * 24 * 1024 * 384) * 3840
    assert run.ideal == pytest.approx(flops / 125e12)
    assert run.bound == pytest.approx(flops / 125e12 + 28 * 302.3e6 / 900e9)
    assert run.seconds == pytest.approx(10 / 45.2)


def test_the_planner_has_the_numbers_of_the_fit():
    assert public_runs.planner(RUNS) == {name: getattr(forecast, name) for name in public_runs.planner(RUNS)}
    told = [run for run in RUNS if SIZES[0] < run.ideal < SIZES[1]]
    assert min(run.ideal for run in RUNS) > SIZES[0] * 0.9 and len(told) > 0.7 * len(RUNS)


def test_nine_tenths_of_what_chose_nothing_lie_in_an_interval_of_a_factor_of_three_and_a_half():
    found = public_runs.tested(RUNS)
    assert sum(found["inside"].values()) >= 0.9 * sum(found["of"].values()) and found["width"] <= 3.5
    stored = read_json(public_runs.FIT)
    assert (stored["tested"], stored["planner"]) == (found, public_runs.planner(RUNS))


def test_pairs_that_chose_nothing_are_decided_and_right():
    found = public_runs.tested(RUNS)
    assert found["decided"] >= 0.6 * found["pairs"] and found["right"] >= 0.95 * found["decided"]


def test_what_a_gpu_takes_beside_tensors_is_what_published_runs_took():
    least, most, context = ALLOCATED["cuda"]
    for line in FOUND["memory"]:
        assert line["context_megabytes"] * 2**20 <= 1.01 * context
    told = [run for run in FOUND["runs"] if "reserved_gibibytes" in run]
    assert told
    for run in told:
        assert least <= run["reserved_gibibytes"] / run["allocated_gibibytes"] <= most
