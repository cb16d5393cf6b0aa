"""Training on TorchTPU's device `tpu`, which XLA's CPU stands in for: `make test-torchtpu`, with tests/requirements-torchtpu.txt."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from helpers.machine import runtime, torch_tpu
from tests.test_resume import result, run

ROOT = Path(__file__).resolve().parents[2]
here = pytest.mark.skipif(not torch_tpu.installed(), reason="torch_tpu is not installed: run `make test-torchtpu`")
SMALL = {"model": "llama", "dropout": 0.0, "width": 16, "length": 8, "steps": 4, "save_steps": 2, "accumulation": 1}


@pytest.mark.once
def test_an_unknown_engine_is_refused_with_the_choices(monkeypatch):
    monkeypatch.setenv("TPU_ENGINE", "jax")
    with pytest.raises(
        ValueError, match="TPU_ENGINE='jax' in the environment: give 'auto', 'torch_xla' or 'torch_tpu'"
    ):
        runtime.detect(True)


@pytest.mark.once
def test_where_torch_tpu_is_asked_for_and_absent_the_run_goes_on_with_the_reason(monkeypatch):
    if torch_tpu.installed():
        pytest.skip("it is installed here")
    monkeypatch.setenv("TPU_ENGINE", "torch_tpu")
    with pytest.warns(UserWarning, match="torch_tpu is not installed: going on without a TPU"):
        assert runtime.detect(True).kind == "cpu"


@here
def test_accelerate_does_not_know_the_device_by_itself():
    code = (
        "from tests.machine import tpu_stand_in; tpu_stand_in.start(); from helpers.machine import torch_tpu; "
        "assert torch_tpu.teach_accelerate(), 'accelerate knows tpu now: teach_accelerate can go'; "
        "assert not torch_tpu.teach_accelerate()"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@here
def test_the_losses_are_those_of_the_cpu_and_a_killed_run_ends_with_the_same(tmp_path):
    cpu = result(run(tmp_path / "cpu", **SMALL))
    tpu = result(run(tmp_path / "tpu", fresh=True, kind="tpu", **SMALL))
    assert tpu["losses"] == pytest.approx(cpu["losses"], abs=1e-5)
    run(tmp_path / "killed", fresh=True, kind="tpu", kill_step=4, **SMALL)
    resumed = result(run(tmp_path / "killed", fresh=True, kind="tpu", **SMALL))
    assert resumed["train"]["resumed_from_step"] == 2
    whole, ended = (tmp_path / name / "checkpoint-4/model.safetensors" for name in ("tpu", "killed"))
    assert whole.read_bytes() == ended.read_bytes()
