"""helpers.train.interruption: signals, a loss that is no number, memory that does not suffice."""

import math
import random
import signal

import pytest
import torch
from transformers import TrainerControl

from helpers.train.interruption import (
    SIGNALS,
    Stops,
    all_finite,
    is_out_of_memory,
    smaller_micro_batch,
)

pytestmark = pytest.mark.once

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


def test_a_signal_stops_at_the_step_boundary_a_second_interrupt_is_one_and_the_former_handlers_come_back(arrived):
    with Stops().listening() as stops:
        assert asked_to_stop(stops) == (False, False)
        signal.raise_signal(signal.SIGTERM)
        assert asked_to_stop(stops) == (True, True)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert stops.reason == "SIGTERM"
    assert not stops.reason and not arrived
    for number in SIGNALS:
        signal.raise_signal(number)
    assert arrived == SIGNALS


def test_a_signal_that_was_ignored_stays_ignored():
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Stops().listening() as stops:
            signal.raise_signal(signal.SIGHUP)
            assert not stops.reason
    finally:
        signal.signal(signal.SIGHUP, previous)


# -- what is no number --


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_bad_number_among_all_tensors_is_found(bad, dtype):
    tensors = [torch.zeros(3, 5, dtype=dtype), torch.zeros((), dtype=torch.int64), torch.zeros(0)]
    assert all_finite(tensors)
    tensors[0][1, 3] = bad
    assert not all_finite(tensors)


# -- memory --


def test_a_real_failure_of_the_cpu_allocator_is_out_of_memory():
    with pytest.raises(RuntimeError) as raised:
        torch.empty(10**15)
    assert is_out_of_memory(raised.value)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of"),
            True,
        ),
        (RuntimeError("CUDA error: out of memory"), True),
        (ValueError("RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 4.00G."), True),
        (MemoryError(), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"), False),
        (OSError(28, "No space left on device"), False),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (KeyboardInterrupt(), False),
    ],
    ids=lambda value: repr(value)[:48],
)
def test_what_devices_say_when_memory_runs_out_is_told_from_other_errors(error, expected):
    assert is_out_of_memory(error) == expected


def test_a_smaller_micro_batch_keeps_the_product_and_at_least_halves():
    chance = random.Random(0)
    for _ in range(500):
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
