"""helpers.planning.calibration: fits that recover what made the times, real steps on this machine, and its file."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.hardware import machine
from helpers.planning import calibration
from helpers.planning.calibration import Size, StepModel
from helpers.planning.catalogue import job

from .xla_process import cpu_here

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]
SMALL = job("hardware_tuning", "small")


def times(model: StepModel, sizes, noise=0.0) -> list[Size]:
    return [
        Size(
            sequences=count,
            length=length,
            seconds=model.seconds(SMALL, count, length) * (1 + noise * (-1) ** index),
            seconds_range=(0.0, 1.0),
            peak_bytes=None,
        )
        for index, (count, length) in enumerate(sizes)
    ]


def test_a_fit_recovers_the_coefficients_that_made_the_times():
    true = StepModel(fixed=3e-3, per_weight_flop=2e-11, per_pair_flop=9e-11)
    found = calibration.fit(SMALL, times(true, calibration.SMALL_SIZES))
    for name in ("fixed", "per_weight_flop", "per_pair_flop"):
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=1e-6)


def test_a_noisy_fit_has_no_negative_coefficient_and_predicts_within_the_noise():
    true = StepModel(fixed=0.0, per_weight_flop=2e-11, per_pair_flop=0.0)
    found = calibration.fit(SMALL, times(true, calibration.SMALL_SIZES, noise=0.05))
    assert min(found.fixed, found.per_weight_flop, found.per_pair_flop) >= 0
    assert found.seconds(SMALL, 16, 96) == pytest.approx(true.seconds(SMALL, 16, 96), rel=0.1)


@pytest.fixture(scope="module")
def measured():
    cpu_here()
    return calibration.calibrate(["hardware_tuning"], sizes=((2, 16), (6, 16), (2, 48)), repeats=2)


def test_real_steps_of_a_job_are_measured_here(measured):
    (found,) = measured.jobs
    assert (measured.kind, found.job, found.model, found.precision) == ("cpu", "hardware_tuning", "small", "fp32")
    assert [(size.sequences, size.length) for size in found.sizes] == [(2, 16), (6, 16), (2, 48)]
    assert all(size.seconds > 0 and size.peak_bytes > 16 * SMALL.updated for size in found.sizes)
    assert found.flops_per_second > 0 and measured.matmul_flops_per_second > 0 and measured.copy_bytes_per_second > 0


def test_counted_memory_is_within_fifteen_percent_of_measured(measured):
    assert measured.jobs[0].memory_ratio == pytest.approx(1, abs=0.15)


def test_a_calibration_comes_back_from_its_file(measured, tmp_path):
    path = calibration.save(measured, tmp_path / "calibration.json")
    assert calibration.load([path]) == [measured]


@pytest.mark.parametrize("text", ["", "{", "{}", '{"schema": 99, "jobs": []}', '{"schema": 1, "jobs": []}', "[]"])
def test_a_file_that_is_no_calibration_is_refused_naming_it(tmp_path, text):
    path = tmp_path / "calibration.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"calibration=.*calibration\.json.*make it anew"):
        calibration.load([path])


def test_a_calibration_is_for_its_own_kind_of_device(measured):
    assert measured.is_for(machine("CPU")) and not measured.is_for(machine("T4"))
    gpu = replace(measured, kind="cuda", device="Tesla T4")
    assert gpu.is_for(machine("T4")) and gpu.is_for(machine("2xT4")) and not gpu.is_for(machine("V100"))


def test_graphmers_lengths_hold_its_leaf_slots():
    assert calibration.sizes_of(job("graphmer_se"), [(2, 64)]) == [(2, 134)]
    assert calibration.sizes_of(SMALL, [(2, 64)]) == [(2, 64)]


def test_one_thread_is_timed_by_its_own_clock():
    import time

    import torch

    expected = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    assert calibration.clock_for("cpu") is expected and calibration.clock_for("cuda") is time.perf_counter


def test_the_command_writes_what_the_planner_then_reads(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment |= {"USE_TORCH_XLA": "0"}
    code = (
        "from helpers.planning import calibration as c; c.SMALL_SIZES = ((2, 16), (6, 16), (2, 48)); "
        "raise SystemExit(c.main(['hardware_tuning']))"
    )
    made = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr[-2000:]
    command = [
        sys.executable,
        "-m",
        "helpers.plan",
        "hardware_tuning",
        "--model",
        "small",
        "--hardware",
        "CPU",
        "--json",
    ]
    planned = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(planned.stdout)["outlooks"][0]["step_seconds"]["basis"] == "measured"


def test_an_unknown_job_is_refused_before_anything_is_measured():
    with pytest.raises(ValueError, match="unknown"):
        calibration.calibrate(["nothing"])


def test_the_processor_has_a_name():
    assert calibration.cpu_name() and cpu_here().kind == "cpu"
