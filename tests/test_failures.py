"""NaN and lack of memory, for real: the run stops or goes on as promised, and says what it did."""

from __future__ import annotations

import pytest

from helpers.machine import xla
from helpers.run import checkpoint

from .test_resume import SLOW_ON_XLA, result, run


@pytest.mark.parametrize("kind", SLOW_ON_XLA)
def test_a_loss_that_is_no_number_stops_the_run_before_it_is_saved(kind, tmp_path):
    stopped = run(tmp_path, kind=kind, nan_step=6, logging_steps=4, save_steps=4)
    assert stopped.returncode == 1
    assert "NonFiniteLoss: loss is nan (first at step 6, noticed at step 8); nothing was saved since." in stopped.stderr
    assert "The last good checkpoint is checkpoint-4" in stopped.stderr
    assert "Lower learning_rate (now 0.003)" in stopped.stderr
    assert checkpoint.newest_whole(tmp_path)[0].name == "checkpoint-4"


LARGE = {"batch_size": 64, "accumulation": 1, "blocks": 64, "steps": 3, "save_steps": 3, "dropout": 0.0}


@pytest.mark.once
def test_out_of_memory_halves_the_micro_batch_and_keeps_the_effective_batch_and_the_result(tmp_path):
    roomy = result(run(tmp_path / "roomy", **LARGE))
    tight = result(run(tmp_path / "tight", **LARGE, exhaust_above=20))
    assert (roomy["plan"]["per_device_batch_size"], tight["plan"]["per_device_batch_size"]) == (64, 16)
    assert tight["plan"]["batch_size"] == roomy["plan"]["batch_size"] == 64
    assert tight["plan"]["learning_rate"] == roomy["plan"]["learning_rate"]
    halved = [each.partition(":")[0] for each in tight["train"]["messages"] if "micro-batch" in each]
    assert halved == [
        "out of memory with micro-batch 64",
        "out of memory with micro-batch 32",
    ]
    assert tight["losses"] == pytest.approx(roomy["losses"], rel=1e-5)


@pytest.mark.once
def test_out_of_memory_at_one_example_names_what_to_change(tmp_path):
    stopped = run(tmp_path, **{**LARGE, "batch_size": 2, "blocks": 4}, exhaust_above=0)
    assert stopped.returncode == 1
    assert "no smaller micro-batch keeps 2 examples a step. Set gradient_checkpointing=True" in stopped.stderr


@pytest.mark.slow
@pytest.mark.skipif(not xla.installed(), reason="torch_xla is not installed")
def test_resource_exhausted_on_xla_goes_on_with_half_the_micro_batch(tmp_path):
    options = {"kind": "xla", "batch_size": 16, "accumulation": 1, "blocks": 64, "steps": 4, "dropout": 0.0}
    roomy = result(run(tmp_path / "roomy", **options))
    tight = result(run(tmp_path / "tight", **options, exhaust_above=8))
    assert tight["train"]["messages"][0].startswith(
        "out of memory with micro-batch 16: going on with 8 x 2 accumulation"
    )
    assert tight["plan"]["batch_size"] == 16
    assert tight["losses"] == pytest.approx(roomy["losses"], rel=1e-5)
    assert tight["sharding"] == ["{devices=[8,1]0,1,2,3,4,5,6,7}"] * 2
