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


def test_every_process_has_a_batch_of_the_same_size():
    meter = Meter(runtime(), 1.0)
    meter.start()
    meter.count(batch(4, 16), processes=2)
    assert (meter.examples, meter.tokens) == (8, 128)


def test_a_batch_of_plain_vectors_counts_one_token_an_example():
    meter = Meter(runtime(), 1.0)
    meter.count({"values": torch.zeros(5)})
    assert (meter.examples, meter.tokens) == (5, 5)


def test_what_is_no_tensor_and_what_has_no_batch_axis_is_passed_over():
    meter = Meter(runtime(), 1.0)
    meter.count({"text": ["a", "b"], "temperature": torch.tensor(2.0), **batch(2, 7)})
    assert (meter.examples, meter.tokens) == (2, 14)


def test_several_views_of_an_example_count_all_their_positions():
    meter = Meter(runtime(), 1.0)
    meter.count({"input_ids": torch.zeros(2, 3, 7)})  # [B, V, T]
    assert (meter.examples, meter.tokens) == (2, 42)


def test_a_mask_with_more_axes_than_positions_does_not_inflate_the_count():
    meter = Meter(runtime(), 1.0)
    meter.count({"attention_mask": torch.ones(2, 1, 7, 7), **batch(2, 7)})
    assert (meter.examples, meter.tokens) == (2, 14)


def test_every_column_of_texts_counts_and_a_pair_is_one_example():
    meter = Meter(runtime(), 1.0)
    meter.count({"anchor_input_ids": torch.zeros(2, 7), "positive_input_ids": torch.zeros(2, 5)})
    assert (meter.examples, meter.tokens) == (2, 24)


def test_the_order_of_the_columns_does_not_change_the_count():
    meter = Meter(runtime(), 1.0)
    meter.count(dict(reversed(batch(2, 7).items())))  # labels [B] before input_ids [B, T]
    assert (meter.examples, meter.tokens) == (2, 14)


# -- clocks --


def test_time_aside_is_no_training_time():
    meter = Meter(runtime(), 1.0)
    meter.start()
    time.sleep(0.02)
    with meter.aside():
        time.sleep(0.3)
    meter.close()
    assert meter.aside_seconds >= 0.3
    assert 0.02 <= meter.seconds - meter.aside_seconds < 0.3


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


def test_time_aside_counts_when_the_work_in_it_fails():
    meter = Meter(runtime(), 1.0)
    meter.start()
    with pytest.raises(OSError), meter.aside():
        time.sleep(0.01)
        raise OSError("disk")
    assert meter.aside_seconds >= 0.01


def test_a_stopped_clock_stands_still():
    meter = Meter(runtime(), 1.0)
    meter.start()
    meter.close()
    before = meter.state()
    time.sleep(0.01)
    assert meter.state() == before


def test_a_resumed_run_goes_on_from_what_was_counted():
    first = Meter(runtime(), 1.0)
    first.start()
    first.count(batch(4, 16))
    time.sleep(0.01)
    state = first.state()
    second = Meter(runtime(), 1.0)
    second.start(state)
    second.count(batch(4, 16))
    time.sleep(0.01)
    second.close()
    assert (second.examples, second.tokens) == (8, 128)
    assert second.seconds >= state["seconds"] + 0.01


def test_starting_again_without_a_state_starts_from_nothing():
    meter = Meter(runtime(), 1.0)
    meter.start(at(100.0, aside=50.0, tokens=64, examples=4))
    meter.start()
    assert (meter.examples, meter.tokens, meter.aside_seconds) == (0, 0, 0) and meter.state()["seconds"] < 50


def test_the_state_saved_inside_a_checkpoint_counts_the_saving_so_far_as_aside():
    meter = Meter(runtime(), 1.0)
    meter.start()
    with meter.aside():
        time.sleep(0.3)
        state = meter.state()  # as written into the checkpoint that is being saved
    assert state["seconds"] - state["aside_seconds"] < 0.2


def test_an_evaluation_outside_the_run_leaves_the_clock_alone():
    meter = Meter(runtime(), 1.0)
    with meter.aside():  # before training
        time.sleep(0.05)
    meter.start()
    assert meter.aside_seconds == 0.0
    meter.close()
    before = meter.state()
    with meter.aside():  # and after it
        time.sleep(0.05)
    assert meter.state() == before


def test_work_outside_the_run_may_fail_as_it_likes():
    with pytest.raises(OSError, match="disk"), Meter(runtime(), 1.0).aside():
        raise OSError("disk")


def test_training_seconds_leave_out_compilation_and_what_was_put_aside():
    meter = Meter(runtime(), 1.0)
    meter.start(at(10.0, aside=3.0, compiling=2.0))
    meter._mark = None
    assert meter.training_seconds() == 5.0


def test_training_seconds_stand_still_while_something_else_is_done():
    meter = Meter(runtime(), 1.0)
    meter.start()
    time.sleep(0.01)
    with meter.aside():
        before = meter.training_seconds()
        time.sleep(0.3)
        assert meter.training_seconds() - before < 0.2
    assert meter.training_seconds() >= before >= 0.01


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


def test_mfu_names_the_peak_that_it_is_held_against():
    peak = Meter(runtime("Tesla T4", "fp16"), 1.0).results()["mfu_peak"]
    assert peak == "65 TFLOP/s fp16 a device (NVIDIA T4 datasheet (2018))"


@pytest.mark.parametrize(("name", "precision"), [("x86_64", "fp32"), ("NVIDIA L40S", "bf16"), ("Tesla T4", "bf16")])
def test_without_a_datasheet_peak_there_is_no_mfu(name, precision):
    results = Meter(runtime(name, precision), 1.0).results()
    assert results["mfu"] is None and results["mfu_peak"] is None


def test_a_run_that_did_nothing_has_rates_of_zero():
    results = Meter(runtime(), 1.0).results()
    assert (results["examples_per_second"], results["tokens_per_second"]) == (0.0, 0.0)


def test_peak_memory_of_a_cpu_run_grows_with_what_was_touched():
    before = runtime().engine.peak_memory()
    block = torch.ones((before + 2**26) // 4)  # more than the peak so far, whatever ran before
    assert runtime().engine.peak_memory() >= block.nbytes
