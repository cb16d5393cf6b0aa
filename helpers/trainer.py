"""One mixin over the Hugging Face trainers: exact resume, whole checkpoints, preemption, NaN stop, memory, metering.

    class ReservoirTrainer(TrainerMixin, transformers.Trainer): ...

It adds what the stock trainers lack and changes nothing a user knows: arguments, callbacks, evaluation and logging are
transformers'. On XLA it also shards the batches over all chips and keeps every value on the device between two logs.
"""

from __future__ import annotations

import contextlib
import gc
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import transformers.trainer
from transformers import EarlyStoppingCallback, TrainerCallback, set_seed
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_callback import PrinterCallback, ProgressCallback, TrainerState

from . import attention, checkpoint, run_folder, tracking, xla
from .compilation import CompilationCounter
from .interruption import FiniteGuard, NonFiniteLoss, Preempted, Preemption, is_out_of_memory, smaller_micro_batch
from .meter import Meter
from .plan import Plan
from .progress import Progress
from .runtime import Runtime

METER_FILE = "meter.json"
FOR_DATA, FOR_STEP = 0, 1  # what a step's random numbers are for
SCHEDULED = ("lr", "weight_decay")  # of an optimizer group, what changes for one step on XLA


class TrainerMixin:
    """Put before a Hugging Face trainer class.

    Args:
        plan: what `plan.plan` returned; the out-of-memory ladder replaces it with smaller micro-batches.
        runtime: what `runtime.detect` returned.
        flops_per_token: of one training step, for MFU (default 6 x trained parameters).
        patience: evaluations without improvement before the run stops; 0 never stops early.
        *args, **kwargs: the trainer's own.
    """

    def __init__(
        self, *args, plan: Plan, runtime: Runtime, flops_per_token: float | None = None, patience: int = 0, **kwargs
    ):
        super().__init__(*args, **kwargs)
        self.plan, self.runtime = plan, runtime
        module = self.trained_module()
        if tied := [*getattr(self.model, "all_tied_weights_keys", ())]:
            # They are in a checkpoint once; transformers would warn of the others as missing when it loads one.
            self.model._keys_to_ignore_on_save = tied
        trained = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
        self.meter = Meter(runtime, flops_per_token or 6.0 * trained)
        self.preemption = Preemption()
        self.resumed_from: int | None = None
        self.messages: list[str] = []
        self._finite: FiniteGuard | None = None
        self._staging: Path | None = None
        self._batches_checked = False
        self._first_step = 0
        self.compilation = CompilationCounter(enabled=runtime.kind == "xla")
        for callback in (PrinterCallback, ProgressCallback):
            self.remove_callback(callback)
        self.add_callback(self.preemption)
        self.add_callback(_StepBoundary(self))
        self.add_callback(Progress())
        self.patience = patience
        if patience:
            self.args.restore_callback_states_from_checkpoint = True
            self.add_callback(EarlyStoppingCallback(patience))
        if runtime.kind == "xla":
            xla.replicate(module)
            attention.use_one_dtype(self.transformer())
        if plan.gradient_checkpointing:
            attention.checkpoint_activations(self.transformer(), runtime.kind)

    def trained_module(self) -> torch.nn.Module:
        """What holds every weight that is trained: the model, or a loss around it that has weights of its own."""
        return self.model

    def transformer(self) -> torch.nn.Module:
        """The transformers model, whose attention and checkpointing are set; the model, or a part of it."""
        return self.model

    # -- the run --

    def train(self, resume_from_checkpoint: bool | str | Path | None = True, **kwargs):
        """Trains to `max_steps`, from the newest whole checkpoint where there is one.

        Args:
            resume_from_checkpoint: True takes the newest checkpoint in `output_dir` that verifies, or starts fresh;
                a path must verify; False or None starts fresh.

        Returns:
            transformers' `TrainOutput`, or None where the run was finished before. The weights of the best evaluation
            are loaded at the end.

        Raises:
            Preempted: SIGTERM came; a checkpoint of the last finished step was written.
            NonFiniteLoss: the loss became NaN or infinite.
            CheckpointNotWritten: the disk did not take a checkpoint (the first is written before the first step).
            RuntimeError: out of memory at one example a device.
        """
        if self.is_world_process_zero():
            checkpoint.sweep(self.args.output_dir)
        self.accelerator.wait_for_everyone()
        source = self._checkpoint_to_resume(resume_from_checkpoint)
        self.resumed_from = source and checkpoint.step_of(source)
        with self.preemption, _sharding_survives_skipping(), contextlib.closing(self.meter):
            while True:
                self.meter.start(json.loads((source / METER_FILE).read_text(encoding="utf-8")) if source else None)
                try:
                    output = self._train_from(source, **kwargs)
                    break
                except Exception as error:
                    if not is_out_of_memory(error):
                        raise
                    self._shrink_micro_batch(error)
                # Outside `except`: the traceback would keep the failed step's tensors alive.
                self._forget_failed_step()
                source, _ = checkpoint.newest_whole(self.args.output_dir)
        run_folder.note_step(self.args.output_dir, self.state.global_step)
        if self.preemption.requested and not self._is_finished(self.state):
            raise Preempted(
                f"SIGTERM at step {self.state.global_step}: checkpoint-{self.state.global_step} is written and whole. "
                "Run the notebook again with the same output_dir and resume=True to go on from there."
            )
        self._load_best()
        return output

    def _train_from(self, source: Path | None, **kwargs):
        if source is not None:
            state = TrainerState.load_from_json(str(source / transformers.trainer.TRAINER_STATE_NAME))
            if self._is_finished(state):
                # Stock Trainer would train one step too many.
                self._load_from_checkpoint(str(source))
                self.state = state
                self._say(f"the run is finished: {source.name} is its last step")
                return None
        self._finite, self._batches_checked = None, False
        if self.is_world_process_zero():
            first_step = checkpoint.step_of(source) if source else 0
            changed = run_folder.begin_session(self.args.output_dir, self.runtime, self.plan.precision, first_step)
            if changed:
                self._say(changed)
        return super().train(resume_from_checkpoint=str(source) if source else None, **kwargs)

    def _is_finished(self, state: TrainerState) -> bool:
        """Whether the run of this state is at its end: all steps are done, or patience was lost."""
        stopping = state.stateful_callbacks.get(EarlyStoppingCallback.__name__) if self.patience else None
        lost = bool(stopping) and stopping["attributes"]["early_stopping_patience_counter"] >= self.patience
        return lost or state.global_step >= self.args.max_steps

    def _checkpoint_to_resume(self, wanted: bool | str | Path | None) -> Path | None:
        if wanted is None or wanted is False:
            return None
        if wanted is not True:
            problem = checkpoint.damage(wanted)
            if problem:
                raise ValueError(
                    f"resume_from_checkpoint={str(wanted)!r}: {problem}; pass True for the newest whole one"
                )
            return Path(wanted)
        source, skipped = checkpoint.newest_whole(self.args.output_dir)
        self.accelerator.wait_for_everyone()  # every process has looked before anything moves
        for line, damaged in zip(skipped, checkpoint.listed(self.args.output_dir), strict=False):
            if self.is_world_process_zero():
                line += f" (kept as {checkpoint.set_aside(damaged).name})"
            self._say(line)
        if source is not None:
            self._say(f"resuming from {source.name}")
        elif skipped:
            self._say("no whole checkpoint: starting from step 0")
        return source

    def _load_best(self) -> None:
        if self.state.best_global_step is None:
            return
        best = checkpoint.folder(self.args.output_dir, self.state.best_global_step)
        problem = checkpoint.damage(best) if best.is_dir() else "it is gone"
        if problem:
            self._say(f"keeping the last weights: the best checkpoint {best.name} cannot be used: {problem}")
            return
        self._load_from_checkpoint(str(best))
        metric = self.args.metric_for_best_model.removeprefix("eval_")
        self._say(f"loaded {best.name}, the best evaluation ({metric} {self.state.best_metric:.4f})")

    # -- one step --

    def training_step(self, model, inputs, num_items_in_batch=None):
        if self.runtime.kind == "xla" and not self._batches_checked:
            self._assert_sharded(inputs)
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._finite.update(loss, ends_step=self.accelerator.gradient_state.sync_gradients)
        self.meter.count(inputs, self.args.world_size)
        if self.runtime.kind == "xla" and not self.accelerator.gradient_state.sync_gradients:
            xla.sync()  # one graph a micro-batch, not one that grows with accumulation
        return loss

    def compute_loss_context_manager(self):
        stack = super().compute_loss_context_manager()
        if self.runtime.kind == "xla" and self.plan.precision == "bf16":
            stack.enter_context(torch.autocast("xla", dtype=torch.bfloat16))
        return stack

    def _get_dataloader(self, *args, **kwargs):
        loader = super()._get_dataloader(*args, **kwargs)
        return xla.shard_loader(loader) if self.runtime.kind == "xla" else loader

    def get_eval_dataloader(self, eval_dataset=None):
        """Evaluation sees every example: on XLA the last batch must be as large as the others, elsewhere it may be short."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        batch = self.args.eval_batch_size
        if self.runtime.kind == "xla" and hasattr(dataset, "__len__") and len(dataset) % batch:
            raise ValueError(
                f"eval_dataset has {len(dataset)} examples, which is no multiple of the evaluation batch of {batch}: "
                "a shorter last batch would compile anew. Trim or pad it to a multiple."
            )
        drop_last, self.args.dataloader_drop_last = self.args.dataloader_drop_last, False
        try:
            return super().get_eval_dataloader(eval_dataset)
        finally:
            self.args.dataloader_drop_last = drop_last

    def _assert_sharded(self, inputs) -> None:
        self._batches_checked = True
        tensors = {name: tensor for name, tensor in inputs.items() if torch.is_tensor(tensor) and tensor.dim()}
        whole = [name for name, tensor in tensors.items() if not xla.is_batch_sharded(tensor)]
        assert not whole, (
            f"{whole} are not split over the {self.runtime.device_count} devices: each computes everything"
        )

    def seed(self, use: int) -> None:
        """Seeds every generator from (seed, step, use), so that a resumed step draws what it would have drawn."""
        entropy = (self.args.seed, self.state.global_step, use, self.args.process_index)
        value = int(np.random.SeedSequence(entropy).generate_state(1)[0])
        set_seed(value)
        if self.runtime.kind == "xla":
            xla.seed(value)

    def get_batch_samples(self, *args, **kwargs):
        self.seed(FOR_DATA)  # a collator that masks at random draws here, before the step begins
        return super().get_batch_samples(*args, **kwargs)

    # -- logging, evaluation, saving --

    def log(self, logs: dict, start_time: float | None = None) -> None:
        fp16 = self.plan.precision == "fp16"  # there an infinite gradient norm only means that the scaler backs off
        for name in ("loss",) if fp16 else ("loss", "grad_norm"):
            if name in logs and not torch.isfinite(torch.tensor(logs[name])):
                self._stop_on_nonfinite(name, logs[name])
        if "loss" in logs or "eval_loss" in logs:
            logs["training_seconds"] = round(self.meter.training_seconds(), 3)
        super().log(logs, start_time)
        if "loss" in logs:
            self.compilation.book("log")

    def evaluate(self, *args, **kwargs):
        with self.aside("evaluate"):
            return super().evaluate(*args, **kwargs)

    def _evaluate(self, trial, ignore_keys_for_eval, skip_scheduler=False):
        if skip_scheduler and self.state.global_step:  # `eval_on_start` of a run that goes on: it has been evaluated
            return {}
        metrics = super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)
        self.control.should_save |= self.control.should_training_stop  # patience was lost
        if skip_scheduler:  # the start is the one to beat: its weights are those of checkpoint-0
            self._determine_best_metric(metrics, trial)
        return metrics

    def _determine_best_metric(self, metrics, trial) -> bool:
        improved = super()._determine_best_metric(metrics, trial)
        self.control.should_save |= improved  # the best weights are kept whatever save_steps is
        return improved

    def _get_output_dir(self, trial) -> str:
        return str(self._staging) if self._staging else super()._get_output_dir(trial)

    def _save_checkpoint(self, model, trial) -> None:
        with self.aside("save"):
            if self._finite is not None and self._finite.first_bad_step() is not None:
                self._stop_on_nonfinite("loss", float("nan"))
            self._save_staged(model, trial)

    def _save_staged(self, model, trial) -> None:
        output_dir, step = Path(self.args.output_dir), self.state.global_step
        best = self.state.best_global_step
        self.state.best_model_checkpoint = None if best is None else str(checkpoint.folder(output_dir, best))
        if not self.is_world_process_zero():  # writes its own generator state into what process 0 stages
            self.accelerator.wait_for_everyone()
            self._write_checkpoint(checkpoint.staging_folder(output_dir, step), model, trial)
            self.accelerator.wait_for_everyone()
            return
        with checkpoint.staged(output_dir, step) as staging:
            self.accelerator.wait_for_everyone()
            self._write_checkpoint(staging, model, trial)
            self.accelerator.wait_for_everyone()
            written = checkpoint.folder(staging, step)
            # Stock code may have noted the staging path of a best checkpoint that is this one.
            self.state.best_model_checkpoint = None if best is None else str(checkpoint.folder(output_dir, best))
            self.state.save_to_json(str(written / transformers.trainer.TRAINER_STATE_NAME))
            (written / METER_FILE).write_text(json.dumps(self.meter.state()), encoding="utf-8")
        keep, best = self.args.save_total_limit or 2, self.state.best_model_checkpoint
        checkpoint.prune(output_dir, keep, newest=step, protect=best)
        run_folder.note_step(output_dir, step)

    def _write_checkpoint(self, staging: Path, model, trial) -> None:
        self._staging = staging
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self._staging = None

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        self._save_weights(output_dir, _internal_call)
        if self._staging is None and self.is_world_process_zero():  # an export: nothing reads that pickle
            Path(output_dir or self.args.output_dir, TRAINING_ARGS_NAME).unlink(missing_ok=True)

    def _save_weights(self, output_dir: str | None, internal_call: bool) -> None:
        if self.runtime.kind != "xla":
            super().save_model(output_dir, internal_call)
            return
        xla.sync()
        copies: dict[int, torch.Tensor] = {}  # one CPU copy a tensor, so that tied weights stay tied
        state = {
            name: copies.setdefault(id(tensor), tensor.detach().cpu())
            for name, tensor in self.model.state_dict(keep_vars=True).items()
        }
        self._save(output_dir or self.args.output_dir, state_dict=state)

    def _stop_on_nonfinite(self, name: str, value: float) -> None:
        bad = None if self._finite is None else self._finite.first_bad_step()
        step = first_step = self.state.global_step
        if bad is not None:
            first_step = self._first_step + bad + 1
        last, _ = checkpoint.newest_whole(self.args.output_dir)
        raise NonFiniteLoss(
            f"{name} is {value} (first at step {first_step}, noticed at step {step}); nothing was saved since. "
            f"The last good checkpoint is {last.name if last else 'none'} in {self.args.output_dir}. "
            f"Lower learning_rate (now {self.args.learning_rate:g}) or set precision='fp32' (now {self.plan.precision!r}), "
            "and start in a new output_dir."
        )

    # -- out of memory --

    def _shrink_micro_batch(self, error: Exception) -> None:
        args, devices = self.args, self.runtime.device_count if self.runtime.kind == "xla" else 1
        smaller = smaller_micro_batch(args.per_device_train_batch_size, args.gradient_accumulation_steps, devices)
        if args.world_size > 1 or smaller is None:
            raise RuntimeError(
                f"out of memory with {args.per_device_train_batch_size} examples of {self.plan.sequence_length} tokens on "
                f"{self.runtime.device_name}, and no smaller micro-batch keeps {self.plan.batch_size} examples a step. "
                "Set gradient_checkpointing=True, a shorter sequence_length, or a smaller model or batch_size."
            ) from error
        micro, accumulation = smaller
        self._say(
            f"out of memory with micro-batch {args.per_device_train_batch_size}: going on with {micro} x "
            f"{accumulation} accumulation, still {micro * accumulation} examples a step and the same learning rate"
        )
        args.per_device_train_batch_size = self._train_batch_size = micro
        while args.per_device_eval_batch_size > micro and (
            less := smaller_micro_batch(args.per_device_eval_batch_size, 1, devices)
        ):
            args.per_device_eval_batch_size = less[0]
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
        self._finite = None
        self.accelerator.free_memory()
        gc.collect()
        if self.runtime.kind == "cuda":
            torch.cuda.empty_cache()

    # -- measuring --

    def results(self) -> dict:
        """The `plan`, `train` and, on XLA, `xla` parts of results.json."""
        losses = [entry["loss"] for entry in self.state.log_history if "loss" in entry]
        results = {
            "plan": self.plan.results(),
            "train": {
                "steps": self.state.global_step,
                "loss_first": losses[0] if losses else None,
                "loss_last": losses[-1] if losses else None,
                **self.meter.results(),
                "resumed_from_step": self.resumed_from,
                "messages": self.messages,
            },
        }
        if self.runtime.kind == "xla":
            results["xla"] = self.compilation.results()
        return results

    @contextlib.contextmanager
    def aside(self, name: str):
        """Work that is not training (evaluating, saving): timed and counted apart."""
        self.compilation.book("between")
        with self.meter.aside():
            yield
        self.compilation.book(name)

    def _say(self, message: str) -> None:
        self.messages.append(message)
        if self.is_world_process_zero():
            tracking.say(message)


class _StepBoundary(TrainerCallback):
    """What must happen exactly at the edge of an optimizer step."""

    def __init__(self, trainer: TrainerMixin):
        self.trainer = trainer
        self._scheduled: list[dict] = []  # of each optimizer group, while a step is taken with values next to them

    def on_train_begin(self, args, state, control, optimizer=None, **kwargs):
        self.trainer._first_step = state.global_step
        for callback in self.trainer.callback_handler.callbacks:
            if isinstance(callback, EarlyStoppingCallback):  # a checkpoint brings the patience that it was written with
                callback.early_stopping_patience = self.trainer.patience
        self.trainer.compilation.start()
        if state.global_step == 0 and checkpoint.newest_whole(args.output_dir)[0] is None:
            # Proves before the hours start that the disk takes a checkpoint, and is where an early failure goes back to.
            self.trainer._save_checkpoint(self.trainer.model, None)
        self.trainer._finite = FiniteGuard(args.device)
        if self.trainer.runtime.kind == "xla":
            xla.settle(optimizer, self.trainer._tr_loss)

    def on_train_end(self, args, state, control, **kwargs):
        self.trainer.compilation.stop()

    def on_step_begin(self, args, state, control, **kwargs):
        self.trainer.compilation.book("between")
        self.trainer.seed(FOR_STEP)

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        if self.trainer.runtime.kind == "xla":
            groups = optimizer.param_groups
            self._scheduled = [{name: group[name] for name in SCHEDULED if name in group} for group in groups]
            for group, rate in zip(groups, xla.rates_above_zero(groups), strict=True):
                group["lr"] = rate
            for group, decay in zip(groups, xla.distinct_decays(groups), strict=True):
                if decay:
                    group["weight_decay"] = decay

    def on_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        if self.trainer.runtime.kind == "xla":
            for group, values in zip(optimizer.param_groups, self._scheduled, strict=True):
                group.update(values)

    def on_step_end(self, args, state, control, **kwargs):
        if self.trainer.runtime.kind == "xla":
            xla.sync()
            self.trainer.compilation.book("step")
        if state.global_step >= state.max_steps:
            control.should_log = control.should_evaluate = control.should_save = True


@contextlib.contextmanager
def _sharding_survives_skipping():
    """accelerate's `skip_first_batches` rebuilds the device loader and drops how it shards; carry that over."""
    original = transformers.trainer.skip_first_batches

    def skip(dataloader, num_batches=0):
        skipped = original(dataloader, num_batches)
        if hasattr(dataloader, "_parallel_loader_kwargs"):
            skipped._parallel_loader_kwargs.update(dataloader._parallel_loader_kwargs)
        return skipped

    transformers.trainer.skip_first_batches = skip
    try:
        yield
    finally:
        transformers.trainer.skip_first_batches = original
