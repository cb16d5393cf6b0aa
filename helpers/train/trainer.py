"""One mixin over the Hugging Face trainers: exact resume, whole checkpoints, preemption, NaN stop, memory, metering.

    class ReservoirTrainer(TrainerMixin, transformers.Trainer): ...

It adds what the stock trainers lack; arguments, callbacks, evaluation and logging stay those of transformers. What a device
needs beside that is done by its engine (helpers/machine/engine.py).
"""

import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from accelerate.utils import set_seed
from torch.nn.utils import get_total_norm
from transformers import TrainerCallback
from transformers.integrations import WandbCallback
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from transformers.trainer_callback import PrinterCallback, TrainerState

import helpers
from helpers.machine import attention, ranks
from helpers.machine.runtime import Runtime
from helpers.plan.settings import Plan
from helpers.run import checkpoint, folder_lock
from helpers.show import tracking
from helpers.show.progress import Progress, Wandb

from .interruption import NonFiniteLoss, Stopped, Stops, is_out_of_memory
from .meter import Meter


class TrainerMixin(TrainerCallback):
    """Stands before a Hugging Face trainer class among the bases of a trainer.

    Args:
        plan: what `plan.plan` returned; if memory runs out, the trainer replaces it by one with smaller micro-batches.
        runtime: what `runtime.detect` returned.
        flops_per_token: FLOPs of a training step per token, for MFU (default 6 x trained parameters).
        max_hours: hours after which `train` saves and stops; 0 is no limit.
        *args, **kwargs: the trainer's own.
    """

    def __init__(
        self, *args, plan: Plan, runtime: Runtime, flops_per_token: float = 0.0, max_hours: float = 0.0, **kwargs
    ):
        super().__init__(*args, **kwargs)
        # Absolute once, whatever `%cd` does later; one folder for all processes, as the first calls it.
        folder = Path(self.args.output_dir).absolute()
        self.args.output_dir = ranks.broadcast(str(folder))
        self.plan, self.runtime = plan, replace(runtime)  # with an engine that counts for this trainer alone
        self.engine = self.runtime.engine
        tied = [*getattr(self.model, "all_tied_weights_keys", ())]
        if tied:  # a checkpoint holds them once; transformers would warn that the others are missing
            self.model._keys_to_ignore_on_save = tied
        self.meter = Meter(self.runtime, flops_per_token or 6 * sum(map(torch.numel, self._trained_weights())))
        self.stops = Stops(max_hours)
        self.resumed_from: int | None = None
        self.messages: list[str] = []
        self.remove_callback(PrinterCallback)
        if self.pop_callback(WandbCallback):
            self.add_callback(Wandb())
        for callback in (self.stops, self.engine, self, self.meter, Progress()):
            self.add_callback(callback)
        self.engine.prepare(self.trained_module(), self.transformer())
        if plan.gradient_checkpointing:
            attention.checkpoint_activations(self.transformer(), runtime.kind)

    def trained_module(self) -> torch.nn.Module:
        """The module with all trained weights: the model, or a loss around it with weights of its own."""
        return self.model

    def transformer(self) -> torch.nn.Module:
        """The transformers model whose attention and checkpointing are set: the model or a part of it."""
        return self.model

    def _trained_weights(self) -> list[torch.nn.Parameter]:
        return [weight for weight in self.trained_module().parameters() if weight.requires_grad]

    # -- the run --

    def train(self, resume_from_checkpoint: bool = True, **kwargs):
        """Trains to `max_steps`, from the newest whole checkpoint in `output_dir` if there is one.

        Args:
            resume_from_checkpoint: whether to look for that checkpoint; otherwise the run begins at step 0.

        Returns:
            transformers' `TrainOutput`, or None if the run was finished before. The weights of the best evaluation
            are loaded.

        Raises:
            Stopped: a signal came or the time is over; a checkpoint of the last finished step is written.
            NonFiniteLoss: the loss, a gradient or a weight became NaN or infinite.
            FolderTaken: another process trains in `output_dir`.
            CheckpointNotWritten: a checkpoint could not be written (the first is written before the first step).
            RuntimeError: memory ran out with the smallest micro-batch.
        """
        folder_lock.own(self.args.output_dir)
        if ranks.count() > 1 and self.model_wrapped is self.model:
            # accelerate marks a model at its first evaluation. A marked one is never wrapped, and each process would train its own.
            self.model.__dict__.pop("_is_accelerate_prepared", None)
        with self.stops.listening():
            while True:
                try:
                    output = self._train(resume_from_checkpoint, **kwargs)
                    break
                except Exception as error:
                    if not is_out_of_memory(error):
                        raise
                    self._shrink_micro_batch(error)
                # Outside `except`: the traceback would keep the failed step's tensors alive.
                self._forget_failed_step()
                resume_from_checkpoint = True
            best = Path(self.args.output_dir, f"checkpoint-{self.state.best_global_step}")
            if ranks.broadcast(checkpoint.is_whole(best)):
                self._load_from_checkpoint(str(best))
                self._say(f"loaded {best.name}, the best evaluation (loss {self.state.best_metric:.4f})")
            if self.stops.agreed():
                step = self.state.global_step
                raise Stopped(
                    f"{self.stops.reason} at step {step}: checkpoint-{step} is written and whole. "
                    "Run the notebook again with the same output_dir and resume=True to continue from there."
                )
        return output

    def _train(self, resume: bool, **kwargs):
        source, self.resumed_from = None, None
        if resume:
            source, passed_over = ranks.broadcast(checkpoint.newest(self.args.output_dir))
            if passed_over:
                self._say(f"not whole, and passed over: {', '.join(passed_over)}")
        if source is None:
            return super().train(**kwargs)
        self.resumed_from = checkpoint.step_of(source)
        self._say(f"resuming from {source.name}")
        if self.resumed_from < self.args.max_steps:
            return super().train(resume_from_checkpoint=str(source), **kwargs)
        # Stock Trainer would train one step too many.
        self._load_from_checkpoint(str(source))
        self.state = TrainerState.load_from_json(str(source / TRAINER_STATE_NAME))
        self.meter.on_train_begin(self.args, self.state, self.control)
        self._say(f"the run is finished: {source.name} is its last step")
        return None

    # -- what happens exactly before and after an optimizer step: the trainer is a callback of its own --

    def on_train_begin(self, args, state, control, **kwargs):
        if state.global_step == 0 and self.resumed_from is None:
            # Proves at once that a checkpoint can be written; an early failure goes back to it.
            self._save_checkpoint(self.model, None)
        self.engine.begin(self.optimizer, self._tr_loss)

    def on_step_begin(self, args, state, control, **kwargs):
        """Seeds every generator from seed, step and process: no checkpoint has XLA's."""
        numbers = args.seed, state.global_step, 1, args.process_index
        set_seed(int(np.random.SeedSequence(numbers).generate_state(1)[0]))

    def on_step_end(self, args, state, control, **kwargs):
        if getattr(helpers, "first_step_seconds", 0) is None:  # in a notebook, whose first trainer may not be its last
            helpers.first_step_seconds = round(time.monotonic() - helpers.began, 1)
        if state.global_step >= state.max_steps:
            control.should_log = control.should_save = True
            control.should_evaluate |= args.eval_strategy != "no"

    # -- one step --

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.meter.count(inputs)
        return loss

    def compute_loss_context_manager(self):
        stack = super().compute_loss_context_manager()
        stack.enter_context(self.engine.autocast(self.plan.precision))
        return stack

    def get_eval_dataloader(self, eval_dataset=None):
        """The loader of all examples, the last ones too."""
        self.args.dataloader_drop_last = False
        loader = super().get_eval_dataloader(eval_dataset)
        self.args.dataloader_drop_last = True
        return loader

    # -- logging, evaluation, saving --

    def log(self, logs: dict, start_time: float | None = None) -> None:
        scaler = self.accelerator.scaler
        if not np.isfinite(logs.get("loss", 0.0)):
            self._stop_on_nonfinite(f"the loss is {logs['loss']}")
        if scaler and scaler.get_scale() < 1:
            self._stop_on_nonfinite("fp16 skips steps, and its loss scale is below 1: gradients overflow,")
        super().log(logs, start_time)

    def evaluation_loop(self, *args, **kwargs):
        output = super().evaluation_loop(*args, **kwargs)
        return output._replace(metrics=ranks.broadcast(output.metrics))  # so that all processes decide alike

    def _determine_best_metric(self, metrics, trial) -> bool:
        improved = super()._determine_best_metric(metrics, trial)
        self.control.should_save |= improved  # the best weights are kept, whatever save_steps is
        return improved

    def _save_checkpoint(self, model, trial) -> None:
        self._require_finite()
        folder = Path(self.args.output_dir, f"checkpoint-{self.state.global_step}")
        try:
            if ranks.is_main():
                shutil.rmtree(folder, ignore_errors=True)  # what a killed process left
            ranks.gather(None)
            super()._save_checkpoint(model, trial)
            ranks.gather(None)
            if ranks.is_main():
                checkpoint.seal(folder)
                checkpoint.rotate(folder.parent, self.state.best_global_step)
        except Exception as error:
            newest, _ = checkpoint.newest(folder.parent)
            raise checkpoint.CheckpointNotWritten(
                f"{folder.name} was not written to output_dir={self.args.output_dir!r}: {error}. The newest whole checkpoint is "
                f"{newest and newest.name}: free space, or choose another disk; then run again, and the run continues from it"
            ) from error

    def _require_finite(self) -> None:
        """Raises NonFiniteLoss, in all processes, unless the loss since the last log and all trained weights are finite."""
        weights = [weight.detach().cpu() for weight in self._trained_weights()]  # on XLA the norm would compile
        largest = get_total_norm(weights, np.inf) + self._tr_loss.cpu()
        if not all(ranks.gather(bool(largest.isfinite()))):
            self._stop_on_nonfinite("the loss or a weight is not finite")

    def _stop_on_nonfinite(self, problem: str) -> None:
        newest, _ = checkpoint.newest(self.args.output_dir)
        raise NonFiniteLoss(
            f"{problem} at step {self.state.global_step}; nothing was saved since {newest and newest.name} in {self.args.output_dir}. "
            f"Lower learning_rate (now {self.args.learning_rate:g}) or set precision='fp32' (now {self.plan.precision!r}), "
            "and start in a new output_dir."
        )

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        folder = output_dir or self.args.output_dir
        weights = self.engine.weights(self.model)
        if self.args.should_save:
            self._save(folder, state_dict=weights)
            Path(folder, TRAINING_ARGS_NAME).unlink(missing_ok=True)  # nothing reads this pickle

    # -- out of memory --

    def _shrink_micro_batch(self, error: Exception) -> None:
        args, devices = self.args, self.engine.fed
        micro = args.per_device_train_batch_size
        examples = micro * args.gradient_accumulation_steps
        sizes = [size for size in range(devices, micro // 2 + 1, devices) if examples % size == 0]
        if args.world_size > 1 or not sizes:
            raise RuntimeError(
                f"out of memory with {micro} examples of {self.plan.sequence_length} tokens at a time on {self.runtime.device_name}: "
                "set a smaller batch_size, gradient_checkpointing=True (if there), shorter sequences, or a smaller model"
            ) from error
        args.per_device_train_batch_size = self._train_batch_size = sizes[-1]
        args.gradient_accumulation_steps = examples // sizes[-1]
        self._say(
            f"out of memory with micro-batch {micro}: going on with {sizes[-1]} x {args.gradient_accumulation_steps} accumulation, "
            f"still {examples} examples a step"
        )
        self.plan = replace(
            self.plan,
            per_device_batch_size=sizes[-1] // devices,
            gradient_accumulation_steps=args.gradient_accumulation_steps,
        )

    def _forget_failed_step(self) -> None:
        self.optimizer = self.lr_scheduler = None
        self.model_wrapped = self.model
        self.model.zero_grad(set_to_none=True)
        self.accelerator.free_memory()

    # -- results --

    def unfinished(self) -> list[str]:
        """A line that says how far a training came that was stopped; none of one that is finished."""
        step, steps = self.state.global_step, self.args.max_steps
        if step >= steps:
            return []
        return [f"step {step} of {steps}: the training is not finished. What follows is about the model as it is now."]

    def results(self) -> dict:
        """The `finished`, `plan`, `train` and, on XLA, `xla` parts of results.json."""
        losses = [entry["loss"] for entry in self.state.log_history if "loss" in entry] or [None]
        return {
            "finished": not self.unfinished(),
            "plan": self.plan.results(),
            "train": {
                "steps": self.state.global_step,
                "loss_first": losses[0],
                "loss_last": losses[-1],
                "first_step_seconds": getattr(helpers, "first_step_seconds", None),
                **self.meter.results(self.state.global_step, self.plan.batch_size),
                "resumed_from_step": self.resumed_from,
                "messages": self.messages,
            },
            **self.engine.results(),
        }

    def _say(self, message: str) -> None:
        self.messages.append(message)
        if self.is_world_process_zero():
            tracking.say(message)
