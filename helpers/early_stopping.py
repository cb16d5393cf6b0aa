"""Stopping when evaluations no longer improve, decided from the logged history alone, so that a resume decides the same."""

from __future__ import annotations

from transformers import TrainerCallback, TrainerState, TrainingArguments


class EarlyStopping(TrainerCallback):
    """Stops a run, with a checkpoint, after `patience` evaluations in a row that are no better than the best.

    Better is meant as `metric_for_best_model` and `greater_is_better` of the arguments say. transformers' own callback
    counts in memory and starts from zero after a resume.
    """

    def __init__(self, patience: int):
        if patience < 1:
            raise ValueError(f"patience={patience}: must be at least 1 evaluation")
        self.patience = patience

    def stopped(self, args: TrainingArguments, state: TrainerState) -> bool:
        """Whether the run of this state is at its end."""
        name = f"eval_{args.metric_for_best_model.removeprefix('eval_')}"
        values = [entry[name] * (1 if args.greater_is_better else -1) for entry in state.log_history if name in entry]
        return bool(values) and len(values) - 1 - values.index(max(values)) >= self.patience

    def on_evaluate(self, args, state, control, **kwargs):
        if state.global_step and self.stopped(args, state):
            control.should_training_stop = control.should_save = True
