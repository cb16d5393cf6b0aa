"""From a plan to the `TrainingArguments` of the Hugging Face trainers."""

from transformers import TrainingArguments

from helpers.machine.runtime import Runtime
from helpers.plan.settings import Plan


def training_arguments(plan: Plan, runtime: Runtime, output_dir, *, seed: int, cls=TrainingArguments, **overrides):
    """`TrainingArguments` (or its subclass `cls`, such as `SFTConfig`) with every setting of a plan.

    seed: of weights, data order and dropout. overrides: any fields of `cls`.
    """
    on_cuda, batch = runtime.kind == "cuda", plan.per_device_batch_size * runtime.engine.fed
    fields = {
        "output_dir": str(output_dir),
        "seed": seed,
        "data_seed": seed,
        "per_device_train_batch_size": batch,
        "per_device_eval_batch_size": batch,
        "gradient_accumulation_steps": plan.gradient_accumulation_steps,
        "learning_rate": plan.learning_rate,
        "max_steps": plan.max_steps,
        "warmup_steps": plan.warmup_steps,
        "lr_scheduler_type": "cosine",
        "weight_decay": plan.weight_decay,
        "max_grad_norm": plan.max_grad_norm,
        "optim": plan.optimizer,
        "fp16": on_cuda and plan.precision == "fp16",
        "bf16": plan.precision == "bf16" and runtime.kind != "xla",  # on XLA it would store the weights in bf16
        "use_cpu": runtime.kind == "cpu",
        "dataloader_num_workers": plan.dataloader_workers,
        "dataloader_pin_memory": on_cuda,
        "dataloader_drop_last": True,
        "ddp_broadcast_buffers": False,  # frozen weights are buffers, and equal in all processes
        "logging_first_step": True,
        "logging_nan_inf_filter": False,  # hides NaN in the logs and costs a sync a micro-batch
        "eval_strategy": "steps",
        "metric_for_best_model": "eval_loss",
        "greater_is_better": False,
        "disable_tqdm": True,
        "prediction_loss_only": True,
        **overrides,
    }
    # The trainer sets TF32 while it computes (`CudaEngine`); transformers would set it for good.
    tf32 = fields.pop("tf32", runtime.has_tf32 or None)
    arguments = cls(**fields)
    arguments.tf32 = tf32
    if on_cuda and isinstance(arguments, TrainingArguments) and arguments.world_size == 1:
        arguments._n_gpu = 1  # never DataParallel, which silently multiplies the batch
    return arguments
