"""helpers.interruption: SIGTERM, a loss that is no number, memory that does not suffice."""

import math
import os
import random
import signal
import threading

import pytest

pytestmark = pytest.mark.once

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import TrainerControl  # noqa: E402

from helpers.interruption import FiniteGuard, Preemption, is_out_of_memory, smaller_micro_batch  # noqa: E402

# -- preemption --


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def asked_to_stop(preemption: Preemption) -> tuple[bool, bool]:
    control = TrainerControl()
    preemption.on_step_end(None, None, control)
    return control.should_save, control.should_training_stop


@pytest.fixture
def arrived():
    """Signals that a handler of somebody else's got; installed before and removed after the test."""
    seen = []
    previous = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    yield seen
    signal.signal(signal.SIGTERM, previous)


def test_sigterm_only_sets_a_flag(arrived):
    with Preemption() as preemption:
        terminate()
        assert preemption.requested
    assert arrived == []


def test_the_step_boundary_after_sigterm_saves_and_stops(arrived):
    with Preemption() as preemption:
        assert asked_to_stop(preemption) == (False, False)
        terminate()
        assert asked_to_stop(preemption) == (True, True)


def test_the_previous_handler_is_back_afterwards(arrived):
    with Preemption():
        pass
    terminate()
    assert arrived == [signal.SIGTERM]


def test_the_previous_handler_is_back_after_an_error(arrived):
    with pytest.raises(OSError), Preemption():
        raise OSError("disk")
    terminate()
    assert arrived == [signal.SIGTERM]


def test_a_second_run_starts_without_the_flag_of_the_first(arrived):
    preemption = Preemption()
    with preemption:
        terminate()
    with preemption:
        assert not preemption.requested


def test_the_flag_outlives_the_block_for_the_one_who_asks_afterwards(arrived):
    with Preemption() as preemption:
        terminate()
    assert preemption.requested


def test_nested_runs_give_back_each_others_handlers(arrived):
    with Preemption() as outer:
        with Preemption() as inner:
            terminate()
        assert inner.requested
        terminate()
        assert outer.requested
    terminate()
    assert arrived == [signal.SIGTERM]


def test_entering_the_same_one_twice_still_gives_the_handler_back(arrived):
    preemption = Preemption()
    with preemption, preemption:
        pass
    terminate()
    assert arrived == [signal.SIGTERM]


def test_outside_the_main_thread_it_does_nothing_and_does_not_fail(arrived):
    results = []

    def run():
        with Preemption() as preemption:
            results.append(asked_to_stop(preemption))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    terminate()
    assert results == [(False, False)] and arrived == [signal.SIGTERM]


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


def test_a_bad_first_step_has_none_before_it():
    assert guard(math.nan, 1.0).first_bad_step() == 0


@pytest.mark.parametrize("position", range(6))
def test_any_micro_batch_of_a_step_makes_the_step_bad(position):
    losses = [1.0] * 6
    losses[position] = math.nan
    assert guard(*losses, accumulation=3).first_bad_step() == position // 3


@pytest.mark.parametrize("losses", [(), (0.0,), (1e38, -1e38, 1e-45)])
def test_finite_losses_leave_nothing_to_report(losses):
    assert guard(*losses).first_bad_step() is None


def test_one_bad_element_of_a_loss_vector_suffices():
    watch = guard(1.0)
    watch.update(torch.tensor([1.0, math.nan, 2.0]), ends_step=True)
    assert watch.first_bad_step() == 1


def test_the_guard_holds_no_graph_of_the_loss():
    watch, weight = FiniteGuard("cpu"), torch.ones((), requires_grad=True)
    watch.update(weight * 2, ends_step=True)
    assert not any(torch.is_tensor(value) and value.requires_grad for value in vars(watch).values())


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


def test_a_ladder_ends_at_one_example_a_device():
    rung, steps = (48, 1), []
    while rung := smaller_micro_batch(*rung, multiple_of=8):
        steps.append(rung)
    assert steps == [(24, 2), (8, 6)]
