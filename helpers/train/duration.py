"""How long a run takes, told by its own first steps."""

import math
from collections.abc import Callable
from datetime import datetime, timedelta

from transformers import TrainerCallback

from helpers.show import tables

STEPS, SECONDS = 10, 30.0  # after so many steps of a session, or after so long, whichever comes first


class Duration(TrainerCallback):
    """Says once how long the run takes, when it ends, and how long a run with ten times the examples would take; of a short one nothing.

    The first step of a session is left out, since it may compile. Saving is left out.

    Args:
        clock: gives the seconds of training so far, without compilation and evaluation, once the device has finished its work.
        say: shows a line.
        evaluation: how many steps an evaluation takes as long as.
    """

    def __init__(self, clock: Callable[[], float], say: Callable[[str], None], evaluation: float = 0.0):
        self.clock, self.say, self.evaluation = clock, say, evaluation
        self.estimated_seconds: float | None = None
        self._after_first: tuple[int, float] | None = None  # step and clock

    def on_train_begin(self, *args, **kwargs):
        self._after_first = None

    def on_step_end(self, args, state, control, **kwargs):
        if self.estimated_seconds is not None:
            return
        now = self.clock()
        if self._after_first is None:
            self._after_first = state.global_step, now
            return
        first_step, began = self._after_first
        steps = state.global_step - first_step
        if steps + 1 < STEPS and now - began < SECONDS:
            return
        step_seconds = (now - began) / steps
        evaluations = evaluations_left = 0
        if args.eval_strategy == "steps":
            evaluations = math.ceil(state.max_steps / args.eval_steps)
            evaluations_left = evaluations - state.global_step // args.eval_steps
        self.estimated_seconds = step_seconds * (state.max_steps + evaluations * self.evaluation)
        seconds_left = step_seconds * (state.max_steps - state.global_step + evaluations_left * self.evaluation)
        end = datetime.now() + timedelta(seconds=seconds_left)
        if seconds_left > SECONDS:
            self.say(
                f"this run takes about {tables.seconds(self.estimated_seconds)}, until {end:%H:%M}; with ten times the examples about "
                f"{tables.seconds(10 * self.estimated_seconds)} (without compilation)"
            )
