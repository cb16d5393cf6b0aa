"""NaN, fp16 that overflows and lack of memory, for real: the run stops or goes on as promised, and says what it did."""

import pytest

from helpers.run import checkpoint

from .harness import fingerprint, result
from .test_resume import ON_XLA, SLOW_ON_XLA, run

ONCE = [pytest.mark.once]
SLOW_XLA = [ON_XLA, pytest.mark.slow]


@pytest.mark.parametrize(
    ("kind", "fault", "step", "said"),
    [
        pytest.param("cpu", "nan_step", 6, "loss is nan (first at step 6, noticed at step 8)", marks=ONCE),
        pytest.param("cpu", "nan_gradient_step", 8, "a weight is nan", marks=ONCE),
        pytest.param("cpu", "nan_moment_step", 8, "an optimizer state is nan", marks=ONCE),
        pytest.param("xla", "nan_step", 6, "loss is nan (first at step 6, noticed at step 8)", marks=SLOW_XLA),
    ],
)
def test_what_is_no_number_stops_the_run_and_is_in_no_checkpoint(kind, fault, step, said, tmp_path):
    stopped = run(tmp_path, **{"kind": kind, "logging_steps": 4, fault: step})
    assert stopped.returncode == 1 and f"NonFiniteLoss: {said}" in stopped.stderr
    assert "The last good checkpoint is checkpoint-4" in stopped.stderr
    assert "Lower learning_rate (now 0.003) or set precision='fp32' (now 'fp32')" in stopped.stderr
    assert [path.name for path in checkpoint.listed(tmp_path)] == ["checkpoint-4", "checkpoint-0"]
    assert checkpoint.newest_whole(tmp_path)[0].name == "checkpoint-4"


LARGE = {"batch_size": 64, "accumulation": 1, "blocks": 64, "steps": 3, "save_steps": 3, "dropout": 0.0}


@pytest.mark.parametrize("kind", SLOW_ON_XLA)
def test_out_of_memory_halves_the_micro_batch_and_keeps_the_effective_batch_and_the_result(kind, tmp_path):
    roomy = result(run(tmp_path / "roomy", kind=kind, **LARGE, eval_strategy="no"))
    tight = result(run(tmp_path / "tight", kind=kind, **LARGE, eval_strategy="no", exhaust_above=20))
    assert roomy["plan"]["gradient_accumulation_steps"] == 1 and tight["plan"]["gradient_accumulation_steps"] == 4
    assert tight["plan"]["batch_size"] == roomy["plan"]["batch_size"] == 64
    assert tight["plan"]["learning_rate"] == roomy["plan"]["learning_rate"]
    halved = [each.partition(":")[0] for each in tight["train"]["messages"] if "micro-batch" in each]
    assert halved == ["out of memory with micro-batch 64", "out of memory with micro-batch 32"]
    assert tight["losses"] == pytest.approx(roomy["losses"], rel=1e-5)
    assert kind == "cpu" or tight["sharding"] == ["{devices=[8,1]0,1,2,3,4,5,6,7}"] * 2


@pytest.mark.once
def test_an_operation_without_a_kernel_that_repeats_itself_is_named_and_the_run_goes_on(tmp_path):
    stock = result(run(tmp_path / "stock", steps=3, save_steps=3, card="A100"))
    ended = result(run(tmp_path / "run", steps=3, save_steps=3, card="A100", unrepeatable=True))
    assert ended["train"]["messages"][0].endswith(
        "max_unpooling2d_forward_out does not have a deterministic implementation"
    )
    assert ended["losses"] == stock["losses"]


@pytest.mark.once
def test_out_of_memory_at_one_example_names_what_to_change(tmp_path):
    stopped = run(tmp_path, **{**LARGE, "batch_size": 2, "blocks": 4}, exhaust_above=0)
    assert stopped.returncode == 1
    assert (
        "no smaller micro-batch keeps 2 examples a step. Set a smaller batch_size, gradient_checkpointing=True"
        in stopped.stderr
    )


# -- fp16: a real GradScaler and fused AdamW, on the CPU --


def rates(of: dict) -> list[float]:
    return [entry["learning_rate"] for entry in of["log_history"] if "loss" in entry]


@pytest.mark.once
def test_skipped_steps_are_counted_and_the_learning_rate_waits_for_them_also_after_a_kill(tmp_path):
    options = {"steps": 8, "save_steps": 4, "accumulation": 1, "scale": 1024.0}
    plain = result(run(tmp_path / "plain", **options))
    skips = options | {"overflows": [3, 5]}
    skipped = result(run(tmp_path / "skipped", **skips))
    assert (plain["train"]["skipped_steps"], skipped["train"]["skipped_steps"]) == (0, 2)
    expected = rates(plain)
    # Rates of a schedule that stands still in the steps 3 and 5.
    assert rates(skipped) == pytest.approx([expected[at] for at in (0, 1, 2, 2, 3, 3, 4, 5)])
    assert run(tmp_path / "killed", **skips, kill_step=7).returncode == -9
    assert result(run(tmp_path / "killed", **skips))["train"]["skipped_steps"] == 2
    assert fingerprint(tmp_path / "killed", 8) == fingerprint(tmp_path / "skipped", 8)


@pytest.mark.once
def test_a_run_that_learns_nothing_stops_and_says_what_to_change(tmp_path):
    stopped = run(tmp_path, accumulation=1, scale=2.0, overflows=[2, 3, 4])
    assert stopped.returncode == 1
    assert "skipped 2 steps, and its loss scale is 0.5 at step 3: gradients overflow" in stopped.stderr
    assert "precision='fp32'" in stopped.stderr
