"""helpers.planning.estimate: memory, time and cost with their intervals, against hand arithmetic and against each other."""

import json
import math
from dataclasses import replace

import pytest

from helpers import hardware
from helpers.planning import prices
from helpers.planning.calibration import Calibration, Measured, Size, StepModel
from helpers.planning.catalogue import BUILDERS, MODELS, job
from helpers.planning.estimate import BETWEEN_DEVICES, LEAST_SHARE, SHARE, TIME_SPREAD, outlook, step_seconds
from helpers.planning.memory import memory
from helpers.planning.ranges import BOUND, COUNTED, MEASURED, SCALED

pytestmark = pytest.mark.once

MACHINES = [hardware.machine(name) for name in (*hardware.NAMES, "2xT4", "4xA100")]
BERT = job("hardware_tuning")


def calibration(device="NVIDIA A100-SXM4-40GB", kind="cuda", name="hardware_tuning", precision="bf16", ratio=1.0):
    """A device on which a step takes 10 ms and its products run at 100 TFLOP/s."""
    time = StepModel(fixed=0.01, per_weight_flop=1e-14, per_pair_flop=1e-14)
    chosen = job(name, "small" if kind == "cpu" else "")
    size = Size(sequences=16, length=192, seconds=0.05, seconds_range=(0.05, 0.05), peak_bytes=1)
    found = Measured(
        job=name,
        model=chosen.model,
        precision=precision,
        sizes=(size,),
        time=time,
        flops_per_second=1e13,
        memory_ratio=ratio,
    )
    return Calibration(
        kind=kind,
        device=device,
        count=1,
        cores=1,
        threads=1,
        date="2026-11-21",
        versions={"torch": "2.13.0", "torch_xla": None},
        matmul_flops_per_second=2e14,
        copy_bytes_per_second=1e12,
        jobs=(found,),
    )


# -- everything has an answer --


@pytest.mark.parametrize("where", MACHINES, ids=lambda machine: machine.name)
@pytest.mark.parametrize("name", BUILDERS)
def test_every_job_has_an_outlook_on_every_machine(name, where):
    found = outlook(job(name), where)
    assert found.batch_size == found.per_device_batch_size * found.devices * found.gradient_accumulation_steps
    assert found.memory.peak.low < found.memory.peak.value < found.memory.peak.high
    if where.kind == "cpu":
        assert found.fits is None and found.run_seconds is None and found.run_usd is None
    else:
        assert found.step_seconds.low < found.step_seconds.high and found.step_seconds.basis == BOUND
        assert found.largest_batch >= found.per_device_batch_size
    json.dumps(found.as_dict(), allow_nan=False)


@pytest.mark.parametrize("name", BUILDERS)
def test_the_largest_batch_is_the_largest(name):
    chosen, where = job(name), hardware.machine("T4")
    found = outlook(chosen, where)
    held = [
        memory(chosen, "cuda", "fp16", count * chosen.views, chosen.length).peak.value
        for count in (found.largest_batch, found.largest_batch + 1)
    ]
    assert held[0] <= SHARE * 16e9 < held[1]


# -- memory --


def test_memory_by_part_agrees_with_hand_arithmetic():
    # BERT-base at batch 16 x 192 in fp16 on CUDA: fp32 weights, gradients and two moments; half copies of the matrices.
    held = memory(BERT, "cuda", "fp16", 16, 192)
    weights = 109_483_778
    assert (held.weights, held.gradients, held.optimizer) == (4 * weights, 4 * weights, 8 * weights)
    matrices = 12 * (4 * 768**2 + 2 * 768 * 3072) + 768**2 + 768 + 768 * 2 + 2
    assert held.casts == 2 * matrices
    layer = (
        4 * (2 * 768 + 4) + 2 * (8 * 768 + 2 * 3072) + 2 * 768 + 4 * 12
    )  # bytes a token, fused attention's sums included
    assert held.activations == 16 * 192 * (12 * layer + 4 * (768 + 2) + 768)


def test_the_peak_is_below_the_sum_of_its_parts_where_gradients_replace_activations():
    held = memory(BERT, "cuda", "fp32", 8, 128)
    assert held.weights + held.optimizer < held.peak.value < sum(held.parts.values()) + 1e9
    tiny = memory(BERT, "cuda", "fp32", 1, 8)
    assert tiny.peak.value == pytest.approx(16 * BERT.updated, rel=0.01)  # the end of backward is the fullest


def test_accumulated_gradients_are_there_beside_the_activations():
    apart, together = (memory(BERT, "cuda", "fp16", 16, 192, accumulating=on).peak.value for on in (False, True))
    assert together - apart == 4 * BERT.updated


def test_unfused_attention_grows_with_the_square_of_the_length():
    extra = [
        (held := memory(BERT, "cuda", "bf16", 4, length)).activations_unfused - held.activations_fused
        for length in (256, 512)
    ]
    assert extra[1] / extra[0] == pytest.approx(4, rel=0.02)


def test_checkpointing_keeps_little_more_than_inputs():
    chosen = job("legal_cot_sft")
    plain, checkpointed = (memory(chosen, "cuda", "bf16", 4, 1024, checkpointing=on) for on in (False, True))
    inputs = 4 * 4 * 1024 * 896 * 24
    assert checkpointed.activations == pytest.approx(inputs + plain.activations / 24)


def test_logits_exist_a_tile_at_a_time():
    chosen = job("legal_cot_sft")
    few, many = (memory(chosen, "cuda", "bf16", count, 1024).logits for count in (2, 16))
    assert few == many == 2048 * 151_936 * 6  # half-precision logits beside fp32 log-probabilities


def test_frozen_weights_are_halved_in_bf16_and_not_in_fp16():
    chosen = job("legal_cot_sft")
    base, adapters = 494_032_768, 17_596_416
    assert memory(chosen, "cuda", "bf16", 1, 1024).weights == 2 * base + 4 * adapters
    assert memory(chosen, "cuda", "fp16", 1, 1024).weights == 4 * (base + adapters)


def test_a_measured_ratio_moves_memory_and_narrows_it():
    counted = memory(BERT, "cuda", "bf16", 16, 192).peak
    found = calibration(ratio=1.1).jobs[0]
    measured = memory(BERT, "cuda", "bf16", 16, 192, measured=found).peak
    assert measured.value == pytest.approx(1.1 * counted.value)
    assert (counted.basis, measured.basis) == (COUNTED, MEASURED)
    assert measured.high / measured.low < counted.high / counted.low


# -- time --


def test_a_datasheet_bound_is_the_whole_peak_and_a_share_of_it():
    chosen, where = BERT, hardware.machine("T4")
    found = step_seconds(chosen, where, "fp16", 16, 192)
    products = 6 * (16 * 192 * 12 * (4 * 768**2 + 2 * 768 * 3072) + 16 * (768**2 + 2 * 768))
    pairs = 6 * 2 * 16 * 192**2 * 12 * 768
    bound = (products + pairs) / 65e12 + 28 * 109_483_778 / 320e9
    assert found.low == pytest.approx(bound) and found.high == pytest.approx(bound / LEAST_SHARE)
    assert found.value is None  # a bound is no guess


def test_twice_the_devices_halve_the_products_and_not_the_update():
    one, two = (step_seconds(BERT, hardware.machine(name), "fp16", 1024, 192).low for name in ("T4", "2xT4"))
    update = 28 * BERT.updated / 320e9
    assert two - update == pytest.approx((one - update) / 2)


def test_a_recurrence_has_no_bound_from_above():
    found = outlook(job("tinystories_reservoir"), hardware.machine("T4"))
    assert found.step_seconds.high == math.inf and found.as_dict()["step_seconds"]["high"] is None


def test_a_calibrated_device_answers_with_what_was_measured():
    found = step_seconds(BERT, hardware.machine("A100"), "bf16", 16, 192, [calibration()])
    expected = 0.01 + 1e-14 * sum(BERT.flops(16, 192))
    assert found.basis == MEASURED and found.value == pytest.approx(expected)
    assert found.high == pytest.approx(expected * (1 + TIME_SPREAD))


def test_what_is_far_from_what_was_measured_has_a_wider_interval():
    near, far = (
        step_seconds(BERT, hardware.machine("A100"), "bf16", count, 192, [calibration()]) for count in (16, 512)
    )
    assert far.high / far.low > near.high / near.low


def test_another_gpu_is_scaled_between_the_ratios_of_peaks_and_bandwidths():
    found = step_seconds(BERT, hardware.machine("T4"), "fp16", 16, 192, [calibration()])
    there = 0.01 + 1e-14 * sum(BERT.flops(16, 192))
    assert found.basis == SCALED
    assert found.low == pytest.approx(there * (312 / 65) / BETWEEN_DEVICES)
    assert found.high == pytest.approx(there * (1555 / 320) * BETWEEN_DEVICES)
    assert found.low < found.value < found.high


@pytest.mark.parametrize("kind", ["cpu", "xla"])
def test_a_measurement_on_another_kind_of_device_says_nothing(kind):
    other = calibration(device="x86", kind=kind, precision="fp32")
    assert step_seconds(BERT, hardware.machine("T4"), "fp16", 16, 192, [other]).basis == BOUND


def test_another_model_on_the_same_device_is_scaled_at_its_rate():
    chosen = replace(BERT, model="phobert")
    found = step_seconds(chosen, hardware.machine("A100"), "bf16", 16, 192, [calibration()])
    assert found.basis == SCALED and found.value == pytest.approx(sum(chosen.flops(16, 192)) / 1e13)


def test_a_cpu_is_known_only_by_measurement():
    where, small = hardware.machine("CPU"), job("hardware_tuning", "small")
    assert step_seconds(small, where, "fp32", 8, 64) is None
    found = step_seconds(small, where, "fp32", 8, 64, [calibration("EPYC", "cpu", precision="fp32")])
    assert found.basis == MEASURED


# -- run and cost --


def test_a_run_is_its_steps_and_costs_its_hours():
    found = outlook(BERT, hardware.machine("T4"), examples=24_048, epochs=3)
    assert found.steps == 3 * 1503 and found.batch_size == 16
    assert found.run_seconds.low == pytest.approx(4509 * found.step_seconds.low)
    assert found.run_usd.high == pytest.approx(found.run_seconds.high / 3600 * prices.TABLE["T4"].usd_per_hour)


def test_a_tpu_takes_the_recipes_factors_and_sees_as_much_text():
    gpu, tpu = (outlook(job("tinystories_reservoir"), hardware.machine(name)) for name in ("T4", "v5e-8"))
    assert (tpu.batch_size, gpu.batch_size) == (128, 64)
    assert tpu.learning_rate == pytest.approx(1.2 * gpu.learning_rate)
    assert tpu.steps * tpu.batch_size == gpu.steps * gpu.batch_size


def test_a_batch_is_rounded_up_to_what_devices_share():
    found = outlook(job("legal_cot_sft"), hardware.machine("v5e-8"), examples=100)
    assert found.batch_size == 16 and "multiple of 8" in found.reasons["batch_size"]


def test_what_does_not_fit_is_checkpointed_and_then_said_to_be_short():
    chosen = job("legal_cot_sft")
    long = outlook(chosen, hardware.machine("RTX 3050"), length=2048)
    assert long.gradient_checkpointing and long.fits and long.shortfall == 0
    hopeless = outlook(chosen, hardware.machine("RTX 3050"), length=100_000)
    assert hopeless.fits is False and hopeless.largest_batch == 0 and hopeless.run_seconds is None
    held = memory(chosen, "cuda", "bf16", 1, 100_000, checkpointing=True).peak.value
    assert hopeless.shortfall == pytest.approx(held - SHARE * 8e9)


@pytest.mark.parametrize("name", ["examples", "steps", "epochs", "batch_size", "length"])
def test_a_negative_number_is_refused_naming_it(name):
    with pytest.raises(ValueError, match=f"^{name}=-1: is negative"):
        outlook(BERT, hardware.machine("T4"), **{name: -1})


def test_a_batch_that_devices_cannot_share_is_refused_with_one_that_they_can():
    with pytest.raises(ValueError, match="multiple of 8; try 8"):
        outlook(BERT, hardware.machine("v5e-8"), batch_size=12)


@pytest.mark.parametrize(("where", "precision"), [("T4", "bf16"), ("v5e-1", "fp16"), ("CPU", "fp16"), ("T4", "int8")])
def test_a_precision_that_is_not_there_is_refused(where, precision):
    with pytest.raises(ValueError, match=r"^precision="):
        outlook(BERT, hardware.machine(where), precision=precision)


def test_graphmer_needs_roots_beside_its_leaf_slots():
    with pytest.raises(ValueError, match=r"^length=70.*more than 70"):
        outlook(job("graphmer_se"), hardware.machine("T4"), length=70)


def test_every_model_of_every_job_can_be_planned():
    for name, models in MODELS.items():
        for model in models:
            assert outlook(job(name, model), hardware.machine("H200")).fits
