"""helpers.train.meter: counts, clocks that keep evaluation apart, MFU against a named peak."""

import signal
import time

import pytest

from helpers.machine.runtime import Runtime
from helpers.train.meter import Meter

from .test_resume import result, run

pytestmark = pytest.mark.once

torch = pytest.importorskip("torch")


def runtime(name: str = "x86_64", precision: str = "fp32", devices: int = 1) -> Runtime:
    """A CPU by kind, so that nothing here needs the device that it is named after."""
    return Runtime(
        kind="cpu",
        reason="built by hand",
        device_name=name,
        device_count=devices,
        memory=None,
        compute_capability=None,
        precision=precision,
        precision_reason="built by hand",
        torch="2.9.0",
        torch_xla=None,
    )


def batch(*shape: int) -> dict:
    return {"input_ids": torch.zeros(shape, dtype=torch.long), "labels": torch.zeros(shape[0], dtype=torch.long)}


def at(seconds: float, *, aside: float = 0.0, compiling: float = 0.0, tokens: int = 0, examples: int = 0) -> dict:
    return {
        "examples": examples,
        "tokens": tokens,
        "seconds": seconds,
        "aside_seconds": aside,
        "compile_seconds": compiling,
    }


# -- counts --


def test_examples_and_positions_add_up_over_micro_batches():
    meter = Meter(runtime(), 1.0)
    meter.start()
    for shape in ((4, 16), (4, 16), (3, 8)):
        meter.count(batch(*shape))
    assert (meter.examples, meter.tokens) == (11, 4 * 16 + 4 * 16 + 3 * 8)


def test_every_column_of_texts_counts_and_a_pair_is_one_example():
    meter = Meter(runtime(), 1.0)
    meter.count({"anchor_input_ids": torch.zeros(2, 7), "positive_input_ids": torch.zeros(2, 5)})
    assert (meter.examples, meter.tokens) == (2, 24)


# -- clocks --


def busy(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def test_processor_time_counts_neither_waiting_nor_what_is_aside_and_goes_on_in_the_next_session():
    meter = Meter(runtime(), 1.0)
    meter.start()
    busy(0.2)
    time.sleep(0.5)
    with meter.aside():
        busy(0.4)
    state = meter.state()
    assert 0.2 <= state["processor_seconds"] < 0.4
    meter = Meter(runtime(), 1.0)
    meter.start(state)
    busy(0.2)
    meter.close()
    assert 0.4 <= meter.processor_seconds < 0.6


def test_the_state_saved_inside_a_checkpoint_counts_the_saving_so_far_as_aside():
    meter = Meter(runtime(), 1.0)
    meter.start()
    with meter.aside():
        time.sleep(0.3)
        state = meter.state()  # as written into the checkpoint that is being saved
    assert state["seconds"] - state["aside_seconds"] < 0.2


def test_training_seconds_leave_out_compilation_and_what_was_put_aside():
    meter = Meter(runtime(), 1.0)
    meter.start(at(10.0, aside=3.0, compiling=2.0))
    meter._mark = None
    assert meter.training_seconds() == 5.0


def test_logs_of_a_real_run_carry_training_seconds_without_its_evaluations(tmp_path):
    options = {"steps": 4, "save_steps": 2, "accumulation": 1}
    killed = run(tmp_path, **options, kill_step=4)
    assert killed.returncode == -signal.SIGKILL
    outcome = result(run(tmp_path, **options, evaluation_pause=2.0))  # from step 2: one evaluation sleeps
    history = outcome["log_history"]
    assert [entry["step"] for entry in history if "loss" in entry] == [1, 2, 3, 4]
    assert [entry["step"] for entry in history if "eval_loss" in entry] == [2, 4]
    logged = [entry["training_seconds"] for entry in history if "loss" in entry or "eval_loss" in entry]
    assert len(logged) == 6 and logged == sorted(logged) and logged[0] > 0  # a resume goes on counting
    assert outcome["train"]["seconds"] - logged[-1] >= 2.0
    assert outcome["train"]["evaluate_and_save_seconds"] >= 2.0


# -- rates --


def test_rates_are_over_training_time_alone():
    meter = Meter(runtime(), 1.0)
    meter.start(at(10.0, aside=3.0, compiling=2.0, tokens=5_000, examples=50))
    meter._mark = None
    results = meter.results()
    assert (results["tokens_per_second"], results["examples_per_second"]) == (1_000.0, 10.0)
    assert (results["seconds"], results["evaluate_and_save_seconds"], results["compile_seconds"]) == (10.0, 3.0, 2.0)


@pytest.mark.parametrize(
    ("name", "precision", "devices", "expected"),
    [
        # 1,000 tokens/s x 6.5e9 FLOP = 6.5 TFLOP/s, of 65 (fp16) or 8.1 (fp32); 6.5 of 197 and of 4 x 197.
        ("Tesla T4", "fp16", 1, 0.1),
        ("Tesla T4", "fp32", 1, 0.8025),
        ("TPU v5e", "bf16", 1, 0.033),
        ("TPU v5e", "bf16", 4, 0.0082),
    ],
)
def test_mfu_agrees_with_hand_arithmetic(name, precision, devices, expected):
    meter = Meter(runtime(name, precision, devices), flops_per_token=6.5e9)
    meter.start(at(7.0, aside=2.0, tokens=5_000))
    meter._mark = None
    assert meter.results()["mfu"] == pytest.approx(expected, abs=5e-5)


def test_peak_memory_of_a_cpu_run_grows_with_what_was_touched():
    before = runtime().engine.peak_memory()
    block = torch.ones((before + 2**26) // 4)  # more than the peak so far, whatever ran before
    assert runtime().engine.peak_memory() >= block.nbytes
