"""helpers.train.interruption: SIGTERM, a loss that is no number, memory that does not suffice."""

import math
import os
import random
import signal
import threading
import time

import pytest

pytestmark = pytest.mark.once

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import TrainerControl  # noqa: E402

from helpers.train.interruption import (  # noqa: E402
    SIGNALS,
    FiniteGuard,
    Stops,
    all_finite,
    is_out_of_memory,
    smaller_micro_batch,
)

# -- stops --


def asked_to_stop(stops: Stops) -> tuple[bool, bool]:
    control = TrainerControl()
    stops.on_step_end(None, None, control)
    return control.should_save, control.should_training_stop


@pytest.fixture
def arrived():
    """Signals that a handler of somebody else's got; installed before and removed after the test."""
    seen = []
    previous = {number: signal.signal(number, lambda number, frame: seen.append(number)) for number in SIGNALS}
    yield seen
    for number, handler in previous.items():
        signal.signal(number, handler)


def test_the_step_boundary_after_a_signal_saves_and_stops(arrived):
    with Stops().listening() as stops:
        assert asked_to_stop(stops) == (False, False)
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked_to_stop(stops) == (True, True)


def test_a_second_interrupt_is_one(arrived):
    with Stops().listening() as stops:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert stops.reason == "SIGTERM"


def test_the_previous_handlers_are_back_afterwards(arrived):
    with Stops().listening():
        pass
    for number in SIGNALS:
        os.kill(os.getpid(), number)
    assert arrived == SIGNALS


def test_a_signal_that_was_ignored_stays_ignored():
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Stops().listening() as stops:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stops.reason
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_outside_the_main_thread_no_handler_is_touched(arrived):
    results = []

    def run():
        with Stops().listening() as stops:
            results.append(asked_to_stop(stops))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    os.kill(os.getpid(), signal.SIGTERM)
    assert results == [(False, False)] and arrived == [signal.SIGTERM]


def test_the_time_budget_counts_from_when_the_session_began(capsys):
    with Stops(max_hours=1.0).listening(since=time.monotonic() - 3599) as stops:
        assert not stops.reason
        deadline = time.monotonic() + 30
        while not stops.reason and time.monotonic() < deadline:
            time.sleep(0.05)
        assert stops.reason == "max_hours=1"


# -- everything finite --


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_bad_number_among_all_tensors_is_found(bad, dtype):
    tensors = [torch.zeros(3, 5, dtype=dtype), torch.zeros((), dtype=torch.int64), torch.zeros(0)]
    assert all_finite(tensors)
    tensors[0][1, 3] = bad
    assert not all_finite(tensors)


# -- a loss that is no number --


def guard(*losses: float, accumulation: int = 1) -> FiniteGuard:
    """A guard that has seen the losses of micro-batches, `accumulation` to a step."""
    watch = FiniteGuard("cpu")
    for index, loss in enumerate(losses):
        watch.update(torch.tensor(loss), ends_step=(index + 1) % accumulation == 0)
    return watch


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_first_bad_step_is_found_and_later_ones_do_not_move_it(bad):
    assert guard(1.0, 2.0, bad, 3.0, math.nan, math.inf).first_bad_step() == 2


def test_the_guard_reads_no_value_until_it_is_asked():
    # Tensors of the meta device have no values: anything that looked at one would raise.
    watch = FiniteGuard("meta")
    for _ in range(3):
        watch.update(torch.zeros((), device="meta"), ends_step=True)
    with pytest.raises((RuntimeError, NotImplementedError)):
        watch.first_bad_step()


# -- memory --


def test_a_real_failure_of_the_cpu_allocator_is_out_of_memory():
    with pytest.raises(RuntimeError) as raised:
        torch.empty(10**15)
    assert is_out_of_memory(raised.value)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 14.74 GiB"
        ),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 18.5G of 15.75G hbm."),
        ValueError("RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 4.00G."),
        MemoryError(),
    ],
    ids=lambda error: f"{type(error).__name__} {error}"[:48],
)
def test_what_devices_say_when_memory_runs_out_is_recognised(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
        ValueError("batch_size=3: must be a multiple of 8"),
        OSError(28, "No space left on device"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("INVALID_ARGUMENT: argument 3 has another shape"),
        KeyboardInterrupt(),
        SystemExit(1),
    ],
    ids=lambda error: f"{type(error).__name__} {error}"[:48],
)
def test_other_errors_are_not_taken_for_it(error):
    assert not is_out_of_memory(error)


def test_a_smaller_micro_batch_keeps_the_product_and_at_least_halves():
    chance = random.Random(0)
    for _ in range(2_000):
        devices, accumulation = chance.choice([1, 2, 4, 8]), chance.randint(1, 24)
        micro = devices * chance.randint(1, 96)
        found = smaller_micro_batch(micro, accumulation, devices)
        # Independent search: every split of the effective batch, the largest allowed one first.
        splits = [
            (size, micro * accumulation // size)
            for size in range(1, micro * accumulation + 1)
            if micro * accumulation % size == 0 and size % devices == 0 and 2 * size <= micro
        ]
        assert found == (max(splits) if splits else None)
