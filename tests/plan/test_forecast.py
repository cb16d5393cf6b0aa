"""helpers.plan.forecast: memory and time as intervals, what a results.json adds, and which of two machines is faster."""

import functools
import json
import math
from dataclasses import replace

import pytest

from helpers.plan.counting import Count, count
from helpers.plan.forecast import (
    ADAMW_BYTES,
    BALANCE,
    COMPILATION,
    CONSTANT,
    EITHER_WAY,
    RATIO,
    SAME_CARD,
    SIZE,
    SIZE_UNFUSED,
    SIZES,
    Measured,
    Work,
    clipped,
    forecast,
    forecast_run,
    is_faster,
    memory,
    step_seconds,
)
from helpers.plan.machines import machine, runtime_of, usd_per_hour
from helpers.plan.settings import Recipe, plan
from tests.harness import cpu_here
from tests.workloads import bert, stack

pytestmark = pytest.mark.once

RECIPE = Recipe(batch_size=8, learning_rate=1e-3, max_steps=50, sequence_length=16)
SMALL = stack(3)


def counted(peak: int, gradients: int = 0, **changes) -> Count:
    nothing = dict.fromkeys(Count.__dataclass_fields__, 0)
    return Count(**nothing | {"step_peak": peak, "gradients": gradients} | changes)


# -- memory --


@pytest.mark.parametrize(("gigabytes", "fits"), [(13.4, "no"), (13.6, "tight"), (20.8, "tight"), (21.0, "yes")])
def test_what_fits_follows_from_the_whole_interval_with_the_drivers_context(gigabytes, fits):
    held = memory(counted(15 * 10**9), "cuda", int(gigabytes * 10**9))
    assert (held.peak.low, held.peak.high) == (0.9 * 15e9, 1.3 * 15e9 + 1.4e9)
    assert held.fits == fits


def test_processes_hold_their_gradients_once_more_to_exchange_them():
    one, two = (memory(counted(10, 4), "cuda", None, processes=processes).peak.value for processes in (1, 2))
    assert two - one == 4
    assert memory(counted(10, 4), "xla", None, processes=8).peak == memory(counted(10, 4), "xla", None).peak


def test_a_run_may_take_four_fifths_of_a_computers_memory():
    assert memory(counted(80), "cpu", 100).capacity == 80 and memory(counted(80), "xla", 100).capacity == 100


@functools.cache
def bert_large():
    """24 layers of 1,024 dimensions on 512 tokens, without weights."""
    import torch

    with torch.device("meta"):
        sizes = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096, "vocab_size": 30_522}
        return replace(bert(24, attention="eager", max_position_embeddings=512, **sizes), length=512)


def test_bert_large_on_a_v100_is_where_hugging_face_measured_it():
    """Megabytes of nvidia-smi for batches of 512 tokens, documentation of transformers 4.x."""
    for megabytes, precision, options in (
        (14_949, "fp32", {"examples": 4}),
        (8_681, "fp32", {"examples": 1, "accumulating": True}),
        (6_775, "fp32", {"examples": 1, "accumulating": True, "checkpointing": True}),
        (13_275, "fp16", {"examples": 4}),
    ):
        span = memory(count(bert_large(), kind="cuda", precision=precision, **options), "cuda", None).peak
        assert span.low <= megabytes * 2**20 <= span.high, (megabytes, precision, options)


# -- time --


def work(flops: float, trained: int = 0, accumulation: int = 1) -> Work:
    return Work(flops=flops, trained=trained, launches=0, accumulation=accumulation)


def seconds(name: str, *, workload=SMALL, precision="fp16", flops=6.5e12, accumulation=1, **how):
    return step_seconds(workload, work(flops, 10**6, accumulation), machine(name), precision, **how)


def test_a_step_takes_what_published_runs_made_of_their_bound():
    bound = 6.5e12 / 65e12 + ADAMW_BYTES * 1e6 / 320e9  # products, and what AdamW reads and writes
    for fused, slope in ((False, SIZE_UNFUSED), (True, SIZE)):
        span = seconds("T4", fused=fused)
        log = CONSTANT["cuda"] + BALANCE * math.log(65e12 / 320e9) + slope * math.log(0.1)
        assert span.value == pytest.approx(bound * math.exp(log)) and span.basis == "published runs"
        assert span.high == pytest.approx(span.value * EITHER_WAY) and span.low >= bound


def test_no_step_is_faster_than_peak_and_bandwidth_allow():
    """What the fit would allow on a device that has little of a peak for its bandwidth, in micro-batches of a minute."""
    long = step_seconds(SMALL, work(60 * 8.1e12), machine("T4"), "fp32")
    assert long.low == pytest.approx(60) and long.high > 60


def test_a_smaller_micro_batch_than_any_published_takes_at_most_what_the_smallest_takes():
    tiny, smallest = (step_seconds(SMALL, work(ideal * 65e12), machine("T4"), "fp16") for ideal in (1e-5, SIZES[0]))
    assert tiny.high == pytest.approx(smallest.high) and tiny.low < smallest.low / 100
    assert clipped(1e-5) == clipped(SIZES[0]) and clipped(9.0) == math.log(SIZES[1])


def test_bert_large_on_a_v100_takes_as_long_as_hugging_face_measured():
    """Four examples of 512 tokens: 8.86 a second in fp32, 18.64 in fp16 (docs/results/public_runs.json)."""
    for precision, rate in (("fp32", 8.86), ("fp16", 18.64)):
        step = count(bert_large(), kind="cuda", precision=precision, examples=4)
        numbers = Work(flops=step.flops, trained=step.trained, launches=step.launches)
        span = step_seconds(bert_large(), numbers, machine("V100"), precision)
        assert span.low <= 4 / rate <= span.high, (precision, span)


def test_accumulation_repeats_the_micro_batch():
    one, four = (step_seconds(SMALL, work(1e12, accumulation=times), machine("T4"), "fp16") for times in (1, 4))
    assert four.value == pytest.approx(4 * one.value)


def test_of_a_recurrence_and_of_a_cpu_nothing_is_guessed():
    assert seconds("T4", workload=replace(SMALL, recurrent=True)) is None
    assert seconds("CPU", precision="fp32") is None


# -- a results.json of the same machine --


def results_file(folder, **changed):
    """What a run of SMALL on a T4 leaves: 10 steps of 3 TFLOP in 20 seconds of training."""
    found = {
        "train": {"steps": 10, "seconds": 26.0, "compile_seconds": 1.0, "evaluate_and_save_seconds": 5.0},
        "plan": {
            "precision": "fp16",
            "gradient_accumulation_steps": 3,
            "memory": {"flops": 1e12, "trained": 10**6, "launches": 0},
        },
        "forecast": {"notebook": SMALL.notebook, "model": SMALL.name},
        "runtime": {"device_name": "Tesla T4", "device_count": 1},
    }
    file = folder / "results.json"
    file.write_text(json.dumps(found | changed))
    return file


def test_a_run_on_the_same_machine_takes_the_place_of_published_ones(tmp_path):
    measured = [Measured.read(results_file(tmp_path))]
    same = seconds("T4", measured=measured)
    assert same.value == pytest.approx(2.0 * 6.5 / 3) and same.high == pytest.approx(1.2 * same.value)
    other = seconds("T4", measured=measured, workload=replace(SMALL, name="another"))
    assert (other.value, other.high) == (pytest.approx(same.value), pytest.approx(2 * same.value))
    for elsewhere, error in (("L4", RATIO), ("2xT4", SAME_CARD)):
        moved = seconds(elsewhere, measured=measured, precision="fp16")
        assert moved.basis == "measured on T4, by the ratio of both machines"
        assert moved.high == pytest.approx(error * moved.value)
    ratio_of_both = seconds("L4").value / seconds("T4", flops=1e12, accumulation=3).value
    assert seconds("L4", measured=measured).value == pytest.approx(2.0 * ratio_of_both)
    assert seconds("L4", measured=measured, workload=replace(SMALL, name="another")).basis == "published runs"
    recurrent = replace(SMALL, name="another", recurrent=True)
    assert seconds("T4", measured=measured, workload=recurrent) is None  # another model says nothing of a recurrence


def test_a_run_on_a_cpu_says_what_this_cpu_takes(tmp_path):
    for device, is_measured in (("some CPU", True), ("Tesla T4", False)):
        measured = Measured.read(results_file(tmp_path, runtime={"device_name": device, "device_count": 1}))
        assert ("measured (test)" in str(seconds("CPU", precision="fp16", measured=[measured]))) == is_measured


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"train": {"steps": 0}}'])
def test_a_file_that_is_no_results_of_a_run_is_refused_naming_it(tmp_path, text):
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"measured=.*results\.json.*no results.json of a run that trained"):
        Measured.read(path)


# -- a run --


def forecasted(name="T4", recipe=RECIPE, **options):
    place = machine(name)
    return forecast(SMALL, plan(recipe, SMALL, runtime_of(place)), place, **options)


def test_a_run_costs_its_hours():
    hourly = usd_per_hour(machine("T4"))
    found = forecasted()
    assert found.usd.value == pytest.approx(found.seconds.value / 3600 * hourly)
    assert forecasted("2xT4").usd is None


def test_measured_stands_beside_the_forecast_and_what_lies_outside_is_said():
    found = forecasted()
    cost = {"steps": 50, "compile_seconds": 0, "evaluate_and_save_seconds": 0, "peak_memory_bytes": 10**12}
    inside, outside = (
        [row["inside"] for row in found.compared(cost | {"seconds": factor * found.seconds.high})]
        for factor in (0.9, 1.1)
    )
    assert inside == [True, False] and outside == [False, False]


def test_a_run_that_was_only_found_finished_has_no_memory_of_its_own():
    cost = {"steps": 50, "seconds": 1, "compile_seconds": 0, "evaluate_and_save_seconds": 0, "peak_memory_bytes": 1}
    assert forecasted().compared(cost | {"resumed_from_step": 50})[1]["inside"] is None


def test_results_are_json_and_say_what_the_time_leaves_out():
    found = json.loads(json.dumps(forecasted().results(), allow_nan=False))
    assert "download" in found["left_out"] and found["run_seconds"]["low"] < found["run_seconds"]["high"]


def test_of_a_cpus_memory_nothing_is_forecast_in_a_notebook():
    """What its process takes beside the tensors is not counted."""
    runtime = cpu_here()
    run = forecast_run(SMALL, plan(RECIPE, SMALL, runtime), runtime)
    assert run.step is None and run.memory is None
    assert [row["forecast"] for row in run.rows()] == ["time of this run"]


def test_a_run_includes_trials_evaluations_and_compilation():
    alone = forecasted("v5e-1")
    trained = alone.step.scaled(alone.plan.max_steps)
    assert (alone.seconds.low, alone.seconds.high) == (
        trained.low + COMPILATION["xla"][0],
        trained.high + COMPILATION["xla"][1],
    )
    more = forecasted(recipe=replace(RECIPE, evaluated=3 * RECIPE.batch_size, trial_seconds=60.0))
    assert more.seconds.value == pytest.approx(more.step.value * (more.plan.max_steps + 1) + 60)


# -- which machine --


def at(name: str, flops: float = 2e12, accumulation: int = 1, trained: int = 10**7):
    """The forecast of a step of so many FLOPs on a machine, in its best precision."""
    precision = runtime_of(machine(name)).precision
    step = step_seconds(SMALL, work(flops, trained, accumulation), machine(name), precision)
    return replace(forecasted(name), step=step)


def test_what_two_machines_share_cancels():
    """An interval of 3.5 for each alone would leave twice the speed undecided."""
    one, two = at("T4", accumulation=2), at("2xT4")
    assert one.step.low < two.step.high  # the intervals overlap
    assert is_faster(two, one) and not is_faster(one, two)
    # Of one kind and of several; two kinds share no error.
    for name, flops, told_apart in (("L4", 2 * RATIO, True), ("v5e-1", 2 * RATIO, False)):
        slower = replace(at(name), step=one.step.scaled(flops / 2 * 1.01))
        assert is_faster(one, slower) is told_apart


def test_what_makes_a_tiny_micro_batch_uncertain_does_not_cancel():
    normal, tiny = (at("T4", flops=65e12 * ideal, trained=0) for ideal in (0.01, 1e-4))
    needed = SAME_CARD * SIZES[0] / 1e-4
    for factor, told_apart in ((0.99, False), (1.01, True)):
        slower = replace(normal, step=normal.step.scaled(factor * needed * tiny.step.value / normal.step.value))
        assert is_faster(tiny, slower) is told_apart
