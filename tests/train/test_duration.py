"""How long a run takes, by a clock that the test moves."""

from types import SimpleNamespace

import pytest

from helpers.train.duration import Duration

pytestmark = pytest.mark.once


def told(*, seconds: float, steps: int, first: float = 100.0, eval_steps: int = 0, evaluation: float = 0.0):
    """What is said in a run of so many steps, each of so many seconds but the first, and after which step."""
    clock, lines = SimpleNamespace(now=0.0), []
    duration = Duration(lambda: clock.now, lines.append, evaluation)
    args = SimpleNamespace(eval_strategy="steps" if eval_steps else "no", eval_steps=eval_steps)
    duration.on_train_begin()
    said_after = None
    for step in range(1, steps + 1):
        clock.now += first if step == 1 else seconds
        duration.on_step_end(args, SimpleNamespace(global_step=step, max_steps=steps), None)
        if lines and said_after is None:
            said_after = step
    return duration, lines, said_after


def test_ten_steps_say_once_how_long_the_run_takes_without_the_first():
    duration, [line], step = told(seconds=2, steps=600)
    assert (step, duration.estimated_seconds) == (10, 1200)
    assert line.startswith("this run takes about 20 min, until ") and "ten times the examples about 3.3 h" in line


def test_half_a_minute_is_enough_where_steps_are_slow():
    assert told(seconds=12, steps=50)[2] == 4  # after the first and three of 12 seconds
    assert told(seconds=40, steps=50)[2] == 2


def test_evaluations_are_counted_in_steps():
    duration, _, _ = told(seconds=1, steps=100, eval_steps=30, evaluation=5)
    assert duration.estimated_seconds == 100 + 4 * 5  # after 30, 60, 90 and 100


def test_a_run_that_is_shorter_says_nothing():
    duration, lines, step = told(seconds=1, steps=5)
    assert (duration.estimated_seconds, lines, step) == (None, [], None)
    assert told(seconds=0.1, steps=200)[1] == []
