"""Runs that others published: what the file says, and the interval of a step that benchmarks/public_runs.py makes of them."""

import importlib.util
import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from helpers.plan import forecast
from helpers.plan.forecast import ALLOCATED, SIZES
from tests.harness import ROOT

pytestmark = pytest.mark.once

sys.path.append(str(ROOT / "benchmarks"))  # where `report` is
SPEC = importlib.util.spec_from_file_location("public_runs", ROOT / "benchmarks/public_runs.py")
public_runs = importlib.util.module_from_spec(SPEC)
sys.modules["public_runs"] = public_runs
SPEC.loader.exec_module(public_runs)

FOUND = json.loads(public_runs.RUNS.read_text())
RUNS = public_runs.load()
RATES = {
    *("seconds_per_step", "samples_per_second", "tokens_per_second", "tokens_per_second_a_device"),
    *("samples_in_seconds", "steps_in_seconds", "mfu"),
}


def test_there_are_thirty_runs_of_gpus_and_tpus_and_each_says_where_it_is_from():
    assert len(RUNS) >= 30 and {run.kind for run in RUNS} == {"cuda", "xla"}
    for source in FOUND["sources"].values():
        assert source["url"].startswith("https://") and source["title"] and source["software"], source
        assert 2019 <= int(source["date"][:4]) <= 2026, source
    for run in FOUND["runs"]:
        assert len(RATES & set(run)) == 1, run
        assert run["method"] in ("full", "lora", "qlora"), run
    assert {run["source"] for run in FOUND["runs"]} == set(FOUND["sources"])
    assert {run["model"] for run in FOUND["runs"]} == set(FOUND["models"])


def test_no_run_is_listed_twice_and_none_is_faster_than_its_device_allows():
    lines = [json.dumps(run, sort_keys=True) for run in FOUND["runs"]]
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


@pytest.mark.parametrize(
    ("rate", "seconds"),
    [
        ({"seconds_per_step": 3.0}, 3.0),
        ({"steps_in_seconds": [10, 30.0]}, 3.0),
        ({"samples_in_seconds": [100, 10.0]}, 4.8),  # 48 examples a step
        ({"samples_per_second": 16.0}, 3.0),
        ({"tokens_per_second": 1600.0}, 3.0),
        ({"tokens_per_second_a_device": 800.0}, 3.0),
        ({"mfu": 0.5}, 12.0),  # three micro-batches of 2 s at the peak
    ],
)
def test_every_way_of_reporting_comes_to_the_seconds_of_an_optimizer_step(rate, seconds):
    run = {"examples": 8, "devices": 2, "accumulation": 3, "length": 100}
    assert public_runs._seconds(run | rate, useful=2.0) == pytest.approx(seconds)


def test_the_planner_has_the_numbers_of_the_fit():
    assert public_runs.planner(RUNS) == {name: getattr(forecast, name) for name in public_runs.planner(RUNS)}
    told = [run for run in RUNS if SIZES[0] < run.ideal < SIZES[1]]
    assert min(run.ideal for run in RUNS) > SIZES[0] * 0.9 and len(told) > 0.7 * len(RUNS)


def test_every_second_source_chooses_and_the_others_do_not():
    sides = {run.about["source"]: run.chooses for run in RUNS}
    assert [sides[name] for name in FOUND["sources"]] == [place % 2 == 0 for place in range(len(sides))]
    changed = [run if run.chooses else replace(run, seconds=9 * run.seconds) for run in RUNS]
    assert public_runs.planner(changed) == public_runs.planner(RUNS)


def test_the_rule_of_the_centre_is_chosen_where_a_choosing_source_is_left_out_and_nowhere_else():
    chosen = [run for run in RUNS if run.chooses]
    *_, held = public_runs.chosen_fit(RUNS)
    assert held == {rule: round(public_runs.left_out(chosen, rule), 3) for rule in public_runs.CENTRES}
    assert public_runs.chosen_fit(chosen)[1:] == public_runs.chosen_fit(RUNS)[1:]


def test_nine_tenths_of_what_chose_nothing_lie_in_an_interval_of_a_factor_of_three_and_a_half():
    found = public_runs.tested(RUNS)
    assert sum(found["inside"].values()) >= 0.9 * sum(found["of"].values()) and found["width"] <= 3.5
    stored = json.loads(public_runs.FIT.read_text())
    assert (stored["tested"], stored["planner"]) == (found, public_runs.planner(RUNS))


def test_pairs_that_chose_nothing_are_decided_and_right():
    found = public_runs.tested(RUNS)
    assert found["decided"] >= 0.6 * found["pairs"] and found["right"] >= 0.95 * found["decided"]


def test_the_residual_of_a_run_is_that_of_a_fit_without_it():
    _, residuals = public_runs.fit(RUNS)
    for at in (0, 60, len(RUNS) - 1):
        source = RUNS[at].about["source"]
        alone = [replace(run, about=run.about | {"source": f"{at}"}) if run is RUNS[at] else run for run in RUNS]
        weighed = public_runs.fit(alone)[1][at]
        rest, _ = public_runs.fit([run for run in RUNS if run is not RUNS[at]])
        left = RUNS[at].slowdown - float(np.dot(RUNS[at].features, rest))
        # Without the run its source weighs a little more, which is the whole difference.
        assert residuals[at] == pytest.approx(left, abs=0.05) and weighed == pytest.approx(left, abs=0.05), source


def test_what_a_gpu_takes_beside_tensors_is_what_published_runs_took():
    least, most, context = ALLOCATED["cuda"]
    for line in FOUND["memory"]:
        assert line["context_megabytes"] * 2**20 <= 1.01 * context
    told = [run for run in FOUND["runs"] if "reserved_gibibytes" in run]
    assert told
    for run in told:
        assert least <= run["reserved_gibibytes"] / run["allocated_gibibytes"] <= most
