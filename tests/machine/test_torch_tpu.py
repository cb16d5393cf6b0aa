"""Training on TorchTPU's device `tpu`, which XLA's CPU stands in for: `make test-torchtpu`, with tests/requirements-torchtpu.txt."""

import functools
import re

import pytest

from helpers.machine import runtime, torch_tpu
from tests import harness
from tests.harness import assert_killed_run_ends_as, result

from .test_cards import DRIVER, ROOMS

here = pytest.mark.skipif(not torch_tpu.installed(), reason="torch_tpu is not installed: run `make test-torchtpu`")


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
def test_several_chips_are_refused_with_torch_xla_as_the_way():
    code = (
        "from tests.machine import tpu_stand_in; tpu_stand_in.load(chips=4); "
        "from helpers.machine import runtime; runtime.detect(True)"
    )
    refused = harness.python("-c", code)
    expected = r"ValueError: use_tpu=True: .*for all chips of a TPU install torch_xla \(4 chips are there\)"
    assert refused.returncode == 1 and re.match(expected, refused.stderr.splitlines()[-1])


run = functools.partial(harness.train, DRIVER)


@here
@pytest.mark.parametrize("room", ROOMS)
def test_each_trainer_has_the_losses_of_the_cpu(room, tmp_path):
    cpu, tpu = (result(run(tmp_path / kind, room=room, kind=kind, dropout=0.0)) for kind in ("cpu", "tpu"))
    assert tpu["device"].startswith("tpu") and len(tpu["losses"]) == 4
    assert tpu["losses"] == pytest.approx(cpu["losses"], abs=1e-5)
    assert tpu["eval_losses"] == pytest.approx(cpu["eval_losses"], abs=1e-5)


@here
@pytest.mark.parametrize("room", ROOMS)
def test_a_killed_trainer_ends_with_identical_weights_with_dropout(room, tmp_path):
    options = {"room": room, "kind": "tpu"}
    whole = tmp_path / "whole", result(run(tmp_path / "whole", **options))
    assert_killed_run_ends_as(whole, run, tmp_path / "killed", 4, 2, **options)
