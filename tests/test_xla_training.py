"""What the TPU rules promise, on 8 virtual XLA devices: same losses as a CPU, one compilation, no host sync, real shards."""

import functools

import pytest

from helpers.machine import xla

from .harness import result
from .test_resume import ON_XLA, run

pytestmark = ON_XLA
STEPS = 20
SPLIT_OVER_8 = "{devices=[8,1]0,1,2,3,4,5,6,7}"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Results of runs by their options; each runs once."""
    common = {"steps": STEPS, "dropout": 0.0, "save_steps": 10, "accumulation": 1, "blocks": 80}

    @functools.cache
    def of(**options) -> dict:
        return result(run(tmp_path_factory.mktemp("run"), **common | options))

    return of


def test_eight_xla_devices_and_a_cpu_give_the_same_losses_in_fp32(finished):
    on_cpu, on_xla = finished(kind="cpu"), finished(kind="xla")
    assert len(on_cpu["losses"]) == STEPS and on_cpu["eval_losses"]
    assert on_xla["losses"] == pytest.approx(on_cpu["losses"], rel=1e-4)
    assert on_xla["eval_losses"] == pytest.approx(on_cpu["eval_losses"], rel=1e-4)
    assert on_xla["xla"]["compiles_after_warmup"] == 0


def test_after_a_resume_batches_are_split_over_all_devices_and_every_step_is_one_graph(tmp_path):
    options = {"kind": "xla", "steps": 8, "save_steps": 4, "blocks": 80, "accumulation": 1}
    run(tmp_path, **options, kill_step=6)
    resumed = result(run(tmp_path, **options))
    assert resumed["train"]["resumed_from_step"] == 4
    assert resumed["sharding"] == [SPLIT_OVER_8, SPLIT_OVER_8]
    assert resumed["xla"]["compiles_after_warmup"] == 0  # of steps the first alone is warm-up


def test_a_rate_of_zero_is_no_constant_of_the_graph_unless_it_always_is_zero():
    groups = [{"lr": 0.0, "initial_lr": 1e-3}, {"lr": 0.0, "initial_lr": 0.0}, {"lr": 1e-4, "initial_lr": 1e-3}]
    assert xla.rates_above_zero(groups) == pytest.approx([1e-33, 0.0, 1e-4], abs=0)


def test_gradient_checkpointing_gives_the_identical_loss(finished):
    options = {"model": "llama", "steps": 6, "save_steps": 6, "kind": "xla"}
    plain = finished(**options, precision="fp32")
    assert finished(**options, precision="fp32", checkpointing=True)["losses"] == plain["losses"]


def test_a_transformer_gives_the_losses_of_a_cpu_on_eight_devices_also_in_bf16_and_without_a_host_sync(finished):
    options = {"model": "llama", "steps": 6, "save_steps": 6}
    on_cpu = finished(**options, kind="cpu")
    losses = []
    for precision, tolerance in (("fp32", 1e-4), ("bf16", 2e-2)):
        on_xla = finished(**options, kind="xla", precision=precision)
        assert on_xla["losses"] == pytest.approx(on_cpu["losses"], rel=tolerance)
        # Its batches have no attention mask, for which transformers would read the positions in every micro-batch.
        assert on_xla["xla"]["host_syncs_per_step"] == 0 and on_xla["xla"]["compiles_after_warmup"] == 0
        losses.append(on_xla["losses"])
    assert losses[0] != losses[1]  # bf16 is another number
