"""transformers' trainer for leafy chains: sequences in their drawn order, every term of the loss in the logs.

trainer = new_trainer(model, train, validation, configuration, plan, runtime, "run")
trainer.train()
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import SequentialSampler
from transformers import Trainer

from helpers.graphmer.configuration import Configuration
from helpers.graphmer.modeling_graphmer.modeling_graphmer import GraphMERForPreTraining
from helpers.graphmer.text.chains import LeafyChains
from helpers.graphmer.text.windows import stacked
from helpers.machine import ranks, xla
from helpers.machine.runtime import Runtime
from helpers.plan.settings import Plan
from helpers.show import tracking
from helpers.train.arguments import training_arguments
from helpers.train.trainer import TrainerMixin

OPTIMIZERS = {"adamw": None, "adafactor": "adafactor"}  # None: the plan's, fused where that runs


# B batch · G leaves · X = B G in-batch tails


class LeafyChainCollator:
    """Stacks examples of `chains` into a batch of int64 tensors (float `triple_labels`, bool `known_BGX`).

    known_BGX [B, G, B·G]: in-batch tail x is also true for the head and relation of this leaf, so it is no wrong answer to
    it; False for the leaf itself, for what is no true leaf, and in its rows.
    """

    def __init__(self, chains: LeafyChains):
        self._known = chains.known

    def __call__(self, examples: Sequence[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
        batch = stacked(examples)
        batch["known_BGX"] = self._known_tails(batch["head_entities"], batch["relation_ids"], batch["tail_entities"])
        return batch

    def _known_tails(self, heads_BG: torch.Tensor, relations_BG: torch.Tensor, tails_BG: torch.Tensor) -> torch.Tensor:
        heads, relations, tails = (values.flatten().tolist() for values in (heads_BG, relations_BG, tails_BG))
        places: dict[int, list[int]] = defaultdict(list)
        for x, tail in enumerate(tails):
            if tail >= 0:
                places[tail].append(x)
        known_XX = np.zeros((len(tails), len(tails)), dtype=bool)
        for x, tail in enumerate(tails):
            if tail >= 0:
                for other in places.keys() & self._known.of(heads[x], relations[x]):
                    known_XX[x, places[other]] = True
                known_XX[x, x] = False
        return torch.from_numpy(known_XX).view(*heads_BG.shape, len(tails))


def phase_steps(begins: Sequence[float], steps: int) -> tuple[int, ...]:
    """Optimizer steps in each phase of a run of `steps`, from the step that each begins with; 0 in one that is not reached.

    A begin below 1 is a share of the run.
    """
    begins = [round(begin * steps if begin < 1 else begin) for begin in begins]
    ends = (*begins[1:], max(steps, begins[-1]))
    return tuple(max(0, min(end, steps) - min(begin, steps)) for begin, end in zip(begins, ends, strict=True))


class CurriculumChains:
    """All sequences of a run of `steps`, in order: those of the first length, then those of the next.

    Give it to a trainer without shuffling (the order is drawn already) and for one epoch: sequence i is the same after a
    resume, and no batch has two lengths.

    chains: its documents are encoded for the longest roots at least; what it has is in every phase.
    begins, roots: optimizer step, or share of the run, that each phase begins with, and S in it.
    examples_per_step: sequences of an optimizer step, accumulation and all devices counted.
    """

    def __init__(
        self, chains: LeafyChains, begins: Sequence[float], roots: Sequence[int], *, steps: int, examples_per_step: int
    ):
        self.counts = [count * examples_per_step for count in phase_steps(begins, steps)]
        by_roots = {each: chains.with_roots(each) for each in set(roots)}
        self.phases = [by_roots[each] for each in roots]

    def __len__(self) -> int:
        return sum(self.counts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        for chains, count in zip(self.phases, self.counts, strict=True):
            if index < count:
                return chains[index]
            index -= count
        raise AssertionError


class GraphTrainer(TrainerMixin, Trainer):
    """transformers' Trainer with this suite's reliability; the terms of the loss are summed on the device between two logs."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        wanted = [name for name, weight in self.model.config.weights().items() if weight]
        self._sums = {name: torch.zeros((), device=self.model.device) for name in wanted}
        self._batches = 0
        self._flush()

    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)  # the order is drawn already, and lengths must not mix

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        if model.training:
            for name, term in outputs.terms.items():
                self._sums[name] = self._sums[name] + term.detach()
            self._batches += 1
        return (outputs.loss, outputs) if return_outputs else outputs.loss

    def log(self, logs: dict, start_time: float | None = None) -> None:
        if "loss" in logs:
            logs = logs | self._terms()
        super().log(logs, start_time)

    def _terms(self) -> dict[str, float]:
        """Mean of each term over the batches of all processes since the last log."""
        everywhere = ranks.gather({name: float(total) / max(1, self._batches) for name, total in self._sums.items()})
        terms = {name: round(sum(each[name] for each in everywhere) / len(everywhere), 6) for name in self._sums}
        self._sums = {name: torch.zeros_like(total) for name, total in self._sums.items()}
        self._batches = 0
        self._flush()
        return terms

    def _flush(self) -> None:
        """On XLA zeros become data, as the sums are between logs, and not constants of a new graph."""
        if self.runtime.kind == "xla":
            xla.sync()


def new_trainer(
    model: GraphMERForPreTraining,
    train: LeafyChains,
    validation: LeafyChains,
    configuration: Configuration,
    plan: Plan,
    runtime: Runtime,
    output_dir: Path | str,
    *,
    report_to: str = "none",
    patience: int = 0,
    max_hours: float = 0.0,
) -> GraphTrainer:
    """The trainer of a run of exactly `plan.max_steps` optimizer steps.

    Every key of `run`, `optimizer`, `training_data` and `checkpointing` arrives here or came with the plan.
    """
    run, optimizer = configuration.run, configuration.optimizer
    if run.deterministic and runtime.kind != "xla":  # which repeats itself as it is
        use_deterministic_kernels()
    adam = {"adam_beta1": optimizer.betas[0], "adam_beta2": optimizer.betas[1], "adam_epsilon": optimizer.eps}
    batch = _evaluation_batch(configuration, len(validation), plan.device_count)
    arguments = training_arguments(
        plan,
        runtime,
        output_dir,
        seed=run.seed,
        logging_steps=run.log_interval,
        eval_steps=run.eval_interval_steps,
        save_steps=run.save_interval_steps,
        save_total_limit=configuration.checkpointing.save_total_limit,
        lr_scheduler_type=optimizer.scheduler.name
        if optimizer.scheduler.name != "constant"
        else "constant_with_warmup",
        report_to=report_to,
        remove_unused_columns=False,
        per_device_eval_batch_size=batch * (plan.device_count if runtime.kind == "xla" else 1),
        **(adam if optimizer.name == "adamw" else {}),
        **({"optim": OPTIMIZERS[optimizer.name]} if OPTIMIZERS[optimizer.name] else {}),
    )
    begins, lengths = zip(*configuration.stages(), strict=True)
    roots = [configuration.shape(length)[0] for length in lengths]
    sizes = {"steps": plan.max_steps, "examples_per_step": plan.batch_size}
    return GraphTrainer(
        model=model,
        args=arguments,
        train_dataset=CurriculumChains(train, begins, roots, **sizes),
        eval_dataset=_whole_batches(validation, batch * plan.device_count),
        data_collator=LeafyChainCollator(train),
        plan=plan,
        runtime=runtime,
        patience=patience,
        max_hours=max_hours,
    )


def use_deterministic_kernels() -> None:
    """Kernels that give the same bits again, for this process.

    Not transformers' `full_determinism`: that sets CUDA_LAUNCH_BLOCKING, so that every launch may wait for the GPU, and gives
    cuBLAS its smallest workspace.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the first product is computed
    torch.use_deterministic_algorithms(True)


def _evaluation_batch(configuration: Configuration, sequences: int, devices: int) -> int:
    """Sequences of one device: as configured, or what a small validation part has.

    Raises ValueError: not one sequence a device.
    """
    wanted, there = configuration.evaluation.micro_batch_size, sequences // devices
    if not there:
        raise ValueError(
            f"evaluation.held_out={configuration.evaluation.held_out}: validation has {sequences} sequences for {devices} "
            "devices; raise it, or give more sources"
        )
    if there < wanted:
        tracking.say(f"evaluation in batches of {there * devices} sequences: validation has {sequences}")
    return min(wanted, there)


def _whole_batches(chains: LeafyChains, batch: int) -> torch.utils.data.Subset:
    """The first sequences in whole batches: in-batch tails are candidates, and a short batch would be easier."""
    whole = len(chains) // batch * batch
    return torch.utils.data.Subset(chains, range(whole))
