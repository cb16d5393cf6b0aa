"""Runs that others published: what the file says, and the interval of a step that benchmarks/public_runs.py makes of them."""

import importlib.util
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.plan.memory import BESIDE
from helpers.plan.speed import PUBLIC, SIZES

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benchmarks"))  # where `report` is
SPEC = importlib.util.spec_from_file_location("public_runs", ROOT / "benchmarks/public_runs.py")
public_runs = importlib.util.module_from_spec(SPEC)
sys.modules["public_runs"] = public_runs
SPEC.loader.exec_module(public_runs)

FOUND = json.loads(public_runs.RUNS.read_text(encoding="utf-8"))
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
    assert public_runs.planner(RUNS) == PUBLIC
    told = [run for run in RUNS if SIZES[0] < run.ideal < SIZES[1]]
    assert min(run.ideal for run in RUNS) > SIZES[0] * 0.9 and len(told) > 0.7 * len(RUNS)


def test_nine_tenths_of_what_was_left_out_lie_in_an_interval_of_a_factor_of_five():
    found = public_runs.held_out(RUNS)
    for kind in ("cuda", "xla"):
        assert found["runs"]["inside"][kind] >= 0.9 * found["runs"]["of"][kind]
        assert found["runs"]["width"][kind] <= 5
    assert public_runs.share_inside(found["sources"]) >= 0.9 and found["sources"]["widest"] <= 5
    stored = json.loads(public_runs.FIT.read_text(encoding="utf-8"))
    assert stored["held_out"] == found and stored["planner"] == {kind: list(line) for kind, line in PUBLIC.items()}


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


def test_an_interval_is_the_shortest_that_holds_enough_and_no_wider_than_the_widest():
    even = np.linspace(0, 1, 101)
    low, high = public_runs.interval(even)
    assert np.mean((even >= low) & (even <= high)) >= public_runs.HELD and high - low < 1
    wild = np.array([0.0, 0.1, 0.2, 9.0])
    low, high = public_runs.interval(wild)
    assert low <= 0.0 and 0.2 <= high < 9.0 and math.exp(high - low) <= public_runs.WIDEST


def test_the_nearest_run_is_of_the_same_kind_and_size():
    run = next(each for each in RUNS if each.source["title"].startswith("earino"))
    assert public_runs.nearest(RUNS, "cuda", run.ideal, run.balance, fused=False) is run
    assert public_runs.nearest(RUNS, "xla", 0.01, 240.0, fused=True).kind == "xla"


def test_what_a_gpu_takes_beside_tensors_is_what_published_runs_took():
    (least, most), (low, high) = BESIDE["cuda"]
    for line in FOUND["memory"]:
        assert low <= line["context_megabytes"] * 2**20 <= 1.01 * high
    told = [run for run in FOUND["runs"] if "reserved_gibibytes" in run]
    assert told
    for run in told:
        assert least <= run["reserved_gibibytes"] / run["allocated_gibibytes"] <= most
