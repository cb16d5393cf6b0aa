"""One mixin over the Hugging Face trainers: exact resume, whole checkpoints, preemption, NaN stop, memory, metering.

    class ReservoirTrainer(TrainerMixin, transformers.Trainer): ...

It adds what the stock trainers lack; arguments, callbacks, evaluation and logging stay those of transformers. What a device
needs beside that is done by its engine (helpers/machine/engine.py).
"""

from __future__ import annotations

import contextlib
import math
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import transformers.trainer
from accelerate.utils import set_seed
from transformers import TrainerCallback
from transformers.integrations import WandbCallback
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_callback import PrinterCallback, TrainerState
from transformers.trainer_pt_utils import safe_globals

import helpers
from helpers.machine import attention, ranks
from helpers.machine.compilation import compiled_layers, is_compiler_failure
from helpers.machine.runtime import Runtime
from helpers.plan.settings import Plan
from helpers.run import checkpoint, disk, folder_lock, run_folder
from helpers.show import tables, tracking
from helpers.show.progress import Wandb, progress

from .interruption import (
    EvaluationOutOfMemory,
    EvaluationStopped,
    FiniteGuard,
    LossScale,
    NonFiniteLoss,
    Stopped,
    Stops,
    all_finite,
    is_not_repeatable,
    is_out_of_memory,
    smaller_micro_batch,
)
from .meter import Meter

METER_FILE = "meter.json"


def _refusal(source: Path) -> str | None:
    """Why torch does not load a file of a checkpoint, or None; reads only its structure, and runs no code of it."""
    for file in (*source.glob("*.pt"), *source.glob("*.pth")):
        try:
            with safe_globals():
                torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except (OSError, MemoryError):
            raise
        except Exception as error:  # damaged files raise errors of many classes
            return f"torch does not load {file.name}: {str(error).strip().splitlines()[0]}"
    return None


class TrainerMixin(TrainerCallback):
    """Stands before a Hugging Face trainer class among the bases of a trainer.

    Args:
        plan: what `plan.plan` returned; if memory runs out, the trainer replaces it by one with smaller micro-batches.
        runtime: what `runtime.detect` returned.
        flops_per_token: FLOPs of a training step per token, for MFU (default 6 x trained parameters).
        max_hours: hours after which this session saves and stops; 0 is no limit.
        *args, **kwargs: the trainer's own.
    """

    def __init__(
        self,
        *args,
        plan: Plan,
        runtime: Runtime,
        flops_per_token: float | None = None,
        max_hours: float = 0.0,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        # Absolute once, whatever `%cd` does later; one folder for all processes, as the first calls it.
        self.args.output_dir = ranks.broadcast(str(Path(self.args.output_dir).absolute()))
        self.plan, self.runtime = plan, replace(runtime)  # with an engine that counts for this trainer alone
        self.engine = self.runtime.engine
        module = self.trained_module()
        tied = [*getattr(self.model, "all_tied_weights_keys", ())]
        if tied:
            # A checkpoint holds them once; transformers would warn that the others are missing.
            self.model._keys_to_ignore_on_save = tied
        trained = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
        self.meter = Meter(self.runtime, flops_per_token or 6.0 * trained)
        self.stops = Stops(max_hours)
        self.resumed_from: int | None = None
        self.messages: list[str] = []
        self._finite, self._loss_scale = FiniteGuard(self.args.device), LossScale()
        self._staging: Path | None = None
        self._counts: dict = {}  # of the checkpoint: the meter's; sum of the losses since a log, step of that log; skipped steps
        self._rescheduled = False
        self.remove_callback(PrinterCallback)
        if self.pop_callback(WandbCallback):
            self.add_callback(Wandb())
        for callback in (self.stops, self.engine, self, progress()):
            self.add_callback(callback)
        self.engine.prepare(module, self.transformer())
        if plan.gradient_checkpointing:
            attention.checkpoint_activations(self.transformer(), runtime.kind)

    def trained_module(self) -> torch.nn.Module:
        """The module with all trained weights: the model, or a loss around it with weights of its own."""
        return self.model

    def transformer(self) -> torch.nn.Module:
        """The transformers model whose attention and checkpointing are set: the model or a part of it."""
        return self.model

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
            NonFiniteLoss: the loss, a gradient, a weight or an optimizer state became NaN or infinite.
            FolderTaken: another process trains in `output_dir`.
            CheckpointNotWritten: a checkpoint could not be written (the first is written before the first step).
            RuntimeError: memory ran out with the smallest micro-batch.
            EvaluationOutOfMemory: memory ran out in an evaluation; the steps before it are saved.
            CheckpointUnreadable: a checkpoint could not be read; it is kept as it is.
        """
        output_dir = self.args.output_dir
        ownership = folder_lock.owned(output_dir) if ranks.is_main() else contextlib.nullcontext()
        with (
            ownership as since,
            self.stops.listening(since),
            self.engine.computing(self.args.tf32),
            contextlib.closing(self.meter),
        ):
            source = None
            if ranks.is_main():
                source = self._checkpoint_to_resume(resume_from_checkpoint)
            source = ranks.broadcast(source)
            if ranks.count() > 1 and self.model_wrapped is self.model:
                # accelerate marks a model at its first evaluation. A marked one is never wrapped, and each process would train its own.
                self.model.__dict__.pop("_is_accelerate_prepared", None)
            self.resumed_from = source and checkpoint.step_of(source)
            while True:
                self._counts = self._counts_of(source)
                self.meter.start(self._counts)
                compiling = compiled_layers(self.transformer()) if self.plan.compiled else contextlib.nullcontext()
                try:
                    with compiling:
                        output = self._train_from(source, **kwargs)
                    break
                except Exception as error:
                    if is_not_repeatable(error):
                        self._say(f"this run cannot be repeated bit for bit: {str(error).partition(',')[0]}")
                        self.engine.repeats = False
                        torch.use_deterministic_algorithms(False)
                    elif is_out_of_memory(error):
                        self._shrink_micro_batch(error)
                    elif is_compiler_failure(error):
                        self._say(f"layers are not compiled: {' '.join(str(error).splitlines()[:2])}")
                        self.plan = replace(self.plan, compiled=False)
                    else:
                        raise
                # Outside `except`: the traceback would keep the failed step's tensors alive.
                self._forget_failed_step()
                source, _ = checkpoint.newest_whole(output_dir)
            if self.stops.reason and (self._owes_evaluation() or self.state.global_step < self.args.max_steps):
                self._raise_stopped()
            self._load_best()
            signalled = bool(self.stops.reason) and not self.stops.out_of_time  # since the last step
            if any(ranks.gather(signalled)):
                self._raise_stopped()
        return output

    def _raise_stopped(self):
        step = self.state.global_step
        if self.stops.out_of_time:  # who runs the cell again gets all of max_hours
            folder_lock.session_began(self.args.output_dir, anew=True)
        raise Stopped(
            f"{self.stops.reason} at step {step}: checkpoint-{step} is written and whole. "
            "Run the notebook again with the same output_dir and resume=True to continue from there."
        )

    def _train_from(self, source: Path | None, **kwargs):
        if source is not None:
            state = TrainerState.load_from_json(str(source / transformers.trainer.TRAINER_STATE_NAME))
            if state.global_step >= self.args.max_steps:
                # Stock Trainer would train one step too many.
                self._load_from_checkpoint(str(source))
                self.state = state
                if self._owes_evaluation():
                    self._determine_best_metric(self.evaluate(), None)
                self._say(f"the run is finished: {source.name} is its last step")
                return None
            self._rescheduled = state.max_steps != self.args.max_steps
            if self._rescheduled:
                self._say(
                    f"max_steps was {state.max_steps} and is {self.args.max_steps}: from step {state.global_step} on the "
                    f"learning rate follows the {self.args.lr_scheduler_type.value} schedule of {self.args.max_steps} steps"
                )
        if self.is_world_process_zero():
            first_step = checkpoint.step_of(source) if source else 0
            plan, output_dir = self.plan, self.args.output_dir
            changes = run_folder.begin_session(output_dir, self.runtime, plan.precision, first_step, plan.batch_size)
            if changes:
                self._say(changes)
        return super().train(resume_from_checkpoint=source and str(source), **kwargs)

    def _counts_of(self, source: Path | None) -> dict:
        if source is None:
            return {}
        counts = checkpoint.counter(source, METER_FILE)
        if counts is None:
            self._say(f"{METER_FILE} of {source.name} is damaged: time and examples are counted from here on")
        return counts or {}

    def _owes_evaluation(self) -> bool:
        """Whether the evaluation of the present step was stopped."""
        args, step = self.args, self.state.global_step
        for entry in self.state.log_history:
            if entry["step"] == step and any(name.startswith("eval_") for name in entry):
                return False
        return args.eval_strategy == "steps" and (step % args.eval_steps == 0 or step >= args.max_steps)

    def _checkpoint_to_resume(self, resume: bool) -> Path | None:
        assert isinstance(resume, bool), (
            "a run continues from its newest whole checkpoint, not from one of a given path"
        )
        output_dir = self.args.output_dir
        checkpoint.sweep(output_dir)
        if not resume:
            return None
        problems, source = {}, None
        for candidate in checkpoint.listed(output_dir):
            problem = checkpoint.damage(candidate) or _refusal(candidate)
            if problem is None:
                source = candidate
                break
            problems[candidate] = problem
        first_step = checkpoint.step_of(source) if source else -1
        for folder, step in checkpoint.renamed(output_dir).items():
            if step > first_step:
                raise ValueError(
                    f"output_dir={output_dir!r}: {folder.name!r} is a checkpoint of step {step} under another name; nothing was touched: "
                    f"rename it to checkpoint-{step} to continue from it, or move it elsewhere"
                )
        if problems and source is None and not any(map(checkpoint.damage, problems)):
            raise ValueError(
                f"output_dir={output_dir!r}: its checkpoints are whole, but {next(iter(problems.values()))}; nothing was touched: run with the "
                "versions that wrote them (sessions.json has them), or set output_dir to a new folder"
            )
        for damaged, problem in problems.items():
            self._say(f"skipped {damaged.name}: {problem} (kept as {checkpoint.set_aside(damaged).name})")
        if source is not None:
            self._say(f"resuming from {source.name}")
        elif problems:
            self._say("no whole checkpoint: starting from step 0")
        return source

    def _load_best(self) -> None:
        if self.state.best_global_step is None:
            return
        best = checkpoint.folder(self.args.output_dir, self.state.best_global_step)
        problem = ranks.broadcast(checkpoint.damage(best))
        if problem:
            self._say(f"keeping the last weights: the best checkpoint {best.name} cannot be used: {problem}")
            return
        self._load_from_checkpoint(str(best))
        metric = self.args.metric_for_best_model.removeprefix("eval_")
        self._say(f"loaded {best.name}, the best evaluation ({metric} {self.state.best_metric:.4f})")

    # -- what happens exactly before and after an optimizer step: the trainer is a callback of its own --

    def on_train_begin(self, args, state, control, **kwargs):
        if self._rescheduled:  # the checkpoint has the rate of the former schedule
            schedule = getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)
            schedule.last_epoch -= 1
            schedule.step()
        self._finite = FiniteGuard(args.device, state.global_step)
        if state.global_step == 0 and checkpoint.newest_whole(args.output_dir)[0] is None:
            # Proves at once that a checkpoint can be written; an early failure goes back to it.
            self._save_checkpoint(self.model, None)
        if self.is_world_process_zero():
            self._require_room()
        unlogged = self._counts.get("unlogged")
        if unlogged:
            loss, self._globalstep_last_logged = unlogged
            self._tr_loss = torch.tensor(loss, device=args.device)
        self._loss_scale = LossScale(self.accelerator.scaler, self._counts.get("skipped", 0))
        self.engine.begin(self.optimizer, self._tr_loss)
        if state.global_step and self._owes_evaluation():
            self._evaluate(None, None, skip_scheduler=True)

    def on_step_begin(self, args, state, control, **kwargs):
        self.seed_step()

    def on_optimizer_step(self, args, state, control, **kwargs):
        why = self._loss_scale.after_update(self.optimizer)
        if why:
            self._diverged(f"{why} at step {state.global_step + 1}: gradients overflow, and such a run learns nothing")

    def on_step_end(self, args, state, control, **kwargs):
        began = getattr(helpers, "began", None)  # of a notebook; its first trainer may not be its last
        if began:
            helpers.began = None
            helpers.first_step_seconds = round(time.monotonic() - began, 1)
        if state.global_step >= state.max_steps:
            control.should_log = control.should_save = True
            control.should_evaluate |= args.eval_strategy != "no"

    # -- one step --

    def training_step(self, model, inputs, num_items_in_batch=None):
        self.engine.check_batch(inputs)
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._finite.update(loss, ends_step=self.accelerator.gradient_state.sync_gradients)
        self.meter.count(inputs, self.args.world_size)
        return loss

    def compute_loss_context_manager(self):
        stack = super().compute_loss_context_manager()
        stack.enter_context(self.engine.autocast(self.plan.precision))
        return stack

    def get_train_dataloader(self):
        return self.engine.loader(super().get_train_dataloader())

    def get_eval_dataloader(self, eval_dataset=None):
        """The loader of all examples. Raises ValueError if a shorter last batch would compile anew."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        batch = self.args.eval_batch_size
        if self.engine.whole_batches and hasattr(dataset, "__len__") and len(dataset) % batch:
            raise ValueError(
                f"eval_dataset has {len(dataset)} examples, which is no multiple of the evaluation batch of {batch}: "
                "a shorter last batch would compile anew. Trim or pad it to a multiple."
            )
        drop_last, self.args.dataloader_drop_last = self.args.dataloader_drop_last, False
        try:
            return self.engine.loader(super().get_eval_dataloader(eval_dataset))
        finally:
            self.args.dataloader_drop_last = drop_last

    def seed_step(self) -> None:
        """Seeds every generator from seed, step and process: no checkpoint has XLA's, and an evaluation that is repeated draws again."""
        numbers = self.args.seed, self.state.global_step, 1, self.args.process_index
        value = np.random.SeedSequence(numbers).generate_state(1)[0]
        set_seed(int(value))

    # -- logging, evaluation, saving --

    def log(self, logs: dict, start_time: float | None = None) -> None:
        checked = ["loss"]
        if not self._loss_scale.scaler:  # fp16 counts infinite gradient norms, which only lower its loss scale
            checked.append("grad_norm")
        for name in checked:
            if name in logs and not torch.isfinite(torch.tensor(logs[name])):
                self._stop_on_nonfinite(name, logs[name])
        if "loss" in logs or "eval_loss" in logs:
            logs["training_seconds"] = round(self.meter.training_seconds(), 3)
        if "loss" in logs and self._loss_scale.skipped:
            logs["skipped_steps"] = self._loss_scale.skipped
        if not np.isfinite(logs.get("eval_loss", 0.0)):
            self._check_finite()
        super().log(logs, start_time)
        if "loss" in logs:
            self.engine.book("log")

    def evaluate(self, *args, **kwargs):
        with self.aside("evaluate"), self.engine.computing(self.args.tf32):
            return super().evaluate(*args, **kwargs)

    def evaluation_loop(self, *args, **kwargs):
        output = super().evaluation_loop(*args, **kwargs)
        return output._replace(metrics=ranks.broadcast(output.metrics))  # so that all processes decide alike

    def _evaluate(self, trial, ignore_keys_for_eval, skip_scheduler=False):
        try:
            metrics = super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)
        except EvaluationStopped:
            if skip_scheduler:  # nothing was trained since the checkpoint
                self._raise_stopped()
            self.control.should_evaluate = False
            self.control.should_save = self.control.should_training_stop = True
            return {}
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if not skip_scheduler:
                self._save_checkpoint(self.model, trial)
            raise EvaluationOutOfMemory(
                f"the evaluation at step {self.state.global_step} does not fit into the memory of "
                f"{self.runtime.device_name}; the steps before it are saved. Lower "
                f"per_device_eval_batch_size={self.args.per_device_eval_batch_size} in the cell that makes the trainer "
                "and run the notebook again: the run continues with this evaluation."
            ) from error
        self.control.should_save |= self.control.should_training_stop  # it stops early
        if skip_scheduler and self._determine_best_metric(metrics, trial):
            self._save_checkpoint(self.model, trial)
        return metrics

    def _determine_best_metric(self, metrics, trial) -> bool:
        if not metrics:  # a stop came during the evaluation
            return False
        improved = super()._determine_best_metric(metrics, trial)
        self.control.should_save |= improved  # the best weights are kept, whatever save_steps is
        return improved

    def _get_output_dir(self, trial) -> str:
        if self._staging:
            return str(self._staging)
        return super()._get_output_dir(trial)

    def _save_checkpoint(self, model, trial) -> None:
        with self.aside("save"):
            self._check_finite()
            folder_lock.check(self.args.output_dir)
            try:
                self._save_staged(model, trial)
            finally:
                self._staging = None

    def _require_room(self) -> None:
        """Raises CheckpointNotWritten unless the disk has room for all checkpoints that will be there at a time."""
        args, step = self.args, self.state.global_step
        sizes = [checkpoint.size(folder) for folder in checkpoint.listed(args.output_dir)]
        moments = 0 if step else self.plan.memory.count.optimizer  # bytes, which come with the first step
        size = max(sizes, default=0) + moments
        limit = (args.save_total_limit or 2) + 2  # the best, and the one that is written
        coming = math.ceil((args.max_steps - step) / args.save_steps)
        number = min(limit, len(sizes) + coming)
        needed = number * size - sum(sizes)
        missing = needed - shutil.disk_usage(args.output_dir).free
        if missing > 0:
            raise checkpoint.CheckpointNotWritten(
                f"keeping {number} checkpoints needs {tables.size(needed)} more in {args.output_dir!r}, and "
                f"{tables.size(missing)} are missing: free space, or choose another disk with output_dir"
            )

    def _check_finite(self) -> None:
        """Raises NonFiniteLoss, in all processes, unless everything that a checkpoint would hold is finite."""
        trained = (parameter for parameter in self.trained_module().parameters() if parameter.requires_grad)
        states: list[torch.Tensor] = []
        if self.optimizer is not None:
            for state in self.optimizer.state.values():
                states += filter(torch.is_tensor, state.values())
        bad = ""
        if self._finite.first_bad_step():
            bad = "loss"
        elif not all_finite(trained):
            bad = "a weight"
        elif not all_finite(states):
            bad = "an optimizer state"
        bad = next(filter(None, ranks.gather(bad)), "")
        if bad:
            self._stop_on_nonfinite(bad, float("nan"))

    def _save_staged(self, model, trial) -> None:
        output_dir, state = Path(self.args.output_dir), self.state
        step, best, main = state.global_step, state.best_global_step, self.is_world_process_zero()
        loss = sum(ranks.gather(float(self._tr_loss))) / ranks.count()
        # The other processes write the states of their generators into the staging folder of the first.
        shared = contextlib.nullcontext(checkpoint.staging_folder(output_dir, step))
        staging = checkpoint.staged(output_dir, step) if main else shared
        with staging as self._staging:
            self.accelerator.wait_for_everyone()
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if not main:
                return
            written = checkpoint.folder(self._staging, step)
            # transformers has noted the staging path.
            state.best_model_checkpoint = None
            if best is not None:
                state.best_model_checkpoint = str(checkpoint.folder(output_dir, best))
            state.save_to_json(str(written / transformers.trainer.TRAINER_STATE_NAME))
            counts = self.meter.state()
            counts["unlogged"] = loss, self._globalstep_last_logged
            counts["skipped"] = self._loss_scale.skipped
            disk.write_json(written / METER_FILE, counts)
            run_folder.copy_identity(output_dir, written)
        keep = self.args.save_total_limit or 2
        checkpoint.prune(output_dir, keep, newest=step, protect=state.best_model_checkpoint)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        folder = str(Path(output_dir or self.args.output_dir).absolute())
        weights = self.engine.weights(self.model)
        if weights is None:
            super().save_model(folder, _internal_call)
        else:
            self._save(folder, state_dict=weights)
        if self._staging is None:
            written = ranks.broadcast(folder)
            if written != folder:  # of another process, whose cells read it there
                shutil.copytree(written, folder, dirs_exist_ok=True)
            ranks.gather(None)
            Path(folder, TRAINING_ARGS_NAME).unlink(missing_ok=True)  # nothing reads this pickle

    def _stop_on_nonfinite(self, name: str, value: float) -> None:
        bad, step = self._finite.first_bad_step(), self.state.global_step
        self._diverged(
            f"{name} is {value} (first at step {bad or step}, noticed at step {step}); nothing was saved since"
        )

    def _diverged(self, what: str) -> None:
        newest, _ = checkpoint.newest_whole(self.args.output_dir)
        raise NonFiniteLoss(
            f"{what}. The last good checkpoint is {newest.name if newest else 'none'} in {self.args.output_dir}. "
            f"Lower learning_rate (now {self.args.learning_rate:g}) or set precision='fp32' (now {self.plan.precision!r}), "
            "and start in a new output_dir."
        )

    # -- out of memory --

    def _shrink_micro_batch(self, error: Exception) -> None:
        args, devices = self.args, self.engine.fed
        smaller = smaller_micro_batch(args.per_device_train_batch_size, args.gradient_accumulation_steps, devices)
        if args.world_size > 1 or smaller is None:
            raise RuntimeError(
                f"out of memory with {args.per_device_train_batch_size} examples of {self.plan.sequence_length} tokens on "
                f"{self.runtime.device_name}, and no smaller micro-batch keeps {self.plan.batch_size} examples a step. "
                "Set a smaller batch_size, gradient_checkpointing=True (if there), shorter sequences, or a smaller model."
            ) from error
        micro, accumulation = smaller
        self._say(
            f"out of memory with micro-batch {args.per_device_train_batch_size}: going on with {micro} x "
            f"{accumulation} accumulation, still {micro * accumulation} examples a step and the same learning rate"
        )
        args.per_device_train_batch_size = self._train_batch_size = micro
        args.gradient_accumulation_steps = accumulation
        self.plan = replace(
            self.plan,
            per_device_batch_size=micro // devices,
            gradient_accumulation_steps=accumulation,
            reasons={**self.plan.reasons, "per_device_batch_size": "halved after running out of memory"},
        )

    def _forget_failed_step(self) -> None:
        self.optimizer = self.lr_scheduler = None
        self.model_wrapped = self.model
        self.model.zero_grad(set_to_none=True)
        self.accelerator.free_memory()

    # -- measuring --

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
                **self.meter.results(),
                "skipped_steps": self._loss_scale.skipped,
                "resumed_from_step": self.resumed_from,
                "messages": self.messages,
            },
            **self.engine.results(),
        }

    @contextlib.contextmanager
    def aside(self, name: str):
        """Times and counts the block as evaluating or saving, not as training."""
        self.engine.book("between")
        with self.meter.aside():
            yield
        self.engine.book(name)

    def _say(self, message: str) -> None:
        self.messages.append(message)
        if self.is_world_process_zero():
            tracking.say(message)
