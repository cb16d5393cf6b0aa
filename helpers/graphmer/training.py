"""The encoder's run: graph to sequences, model, plan, and transformers' trainer with every term of the loss in the logs.

corpus = load_corpus(graph, configuration)
model = new_model(configuration, corpus)
trainer = new_trainer(model, corpus, configuration, make_plan(configuration, model, corpus, machine), machine, folder)
trainer.train()
"""

import dataclasses
from pathlib import Path

import torch
from torch.utils.data import SequentialSampler, Subset
from transformers import PreTrainedTokenizerFast, Trainer, set_seed

from helpers.machine import ranks, xla
from helpers.machine.runtime import Runtime
from helpers.plan import settings as planner
from helpers.plan.settings import Plan, Recipe
from helpers.train.arguments import training_arguments
from helpers.train.trainer import TrainerMixin

from .chains import HEAD_TOKENS, EncodedGraph, LeafyChains, curriculum
from .configuration import Configuration
from .encoder import GraphMERForPreTraining
from .graph.knowledge_graph import KnowledgeGraph
from .graph.splits import Splits, split_by_unit
from .parameters import AUTO
from .text import Documents, train_tokenizer

RECOMPUTED_UP_TO = 16 * 2**30  # bytes of a GPU


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A graph, what of it is held out, and the sequences of both."""

    graph: KnowledgeGraph
    splits: Splits
    documents: Documents
    tokenizer: PreTrainedTokenizerFast
    train: LeafyChains
    validation: LeafyChains


def load_corpus(graph: KnowledgeGraph, configuration: Configuration) -> Corpus:
    """Splits, a tokenizer trained on the training modules' code, and sequences. Raises what the splits do."""
    splits = split_by_unit(graph, seed=configuration.run.seed, held_out=configuration.evaluation.held_out)
    documents = Documents(graph)
    heads = sorted({triple.head for triple in splits.train})
    modules = {graph.entities[head].module for head in heads}
    texts = [text for module, text in graph.texts.items() if module in modules]
    tokenizer = train_tokenizer(texts + heads, configuration.encoding.vocab_size)
    encoded = EncodedGraph(documents, tokenizer, configuration)
    train = LeafyChains(splits.train, encoded, configuration)
    validation = LeafyChains(splits.validation, encoded, configuration)
    return Corpus(graph, splits, documents, tokenizer, train, validation)


def new_model(configuration: Configuration, corpus: Corpus) -> GraphMERForPreTraining:
    """An untrained model; its weights follow from `run.seed`."""
    set_seed(configuration.run.seed)
    properties = corpus.train.encoded.relations.properties
    config = configuration.graphmer_config(len(corpus.tokenizer), max_head_tokens=HEAD_TOKENS, **properties)
    return GraphMERForPreTraining(config)


def make_plan(configuration: Configuration, model: GraphMERForPreTraining, corpus: Corpus, machine: Runtime) -> Plan:
    """The configuration as a plan: what the configuration says is not chosen again."""
    run, workers = configuration.run, configuration.hardware.num_workers
    recipe = run_recipe(configuration, len(corpus.train), machine)
    longest = corpus.train.with_roots(configuration.roots(recipe.sequence_length))

    def batch(examples: int) -> dict[str, torch.Tensor]:
        return corpus.train.collate([longest[0]] * examples)

    plan = planner.plan(recipe, model, lambda model, fields: model(**fields).loss, batch, machine)
    steps = "run.max_steps"
    if not run.max_steps:
        steps = f"{run.epochs} epochs of {len(corpus.train):,} sequences"
    reasons = {"max_steps": steps, "dataloader_workers": "hardware.num_workers"}
    return dataclasses.replace(plan, dataloader_workers=workers, reasons=plan.reasons | reasons)


def run_recipe(configuration: Configuration, sequences: int, machine: Runtime) -> Recipe:
    """What the configuration asks for, on so many sequences and this machine."""
    run, optimizer = configuration.run, configuration.optimizer
    checkpointing = configuration.checkpointing.activation_checkpointing
    if checkpointing == AUTO:
        checkpointing = machine.kind == "cuda" and (machine.memory or 0) <= RECOMPUTED_UP_TO
    batch = configuration.batch_size(machine.device_count)
    steps = run.max_steps or max(1, run.epochs * sequences // batch)
    return Recipe(
        batch_size=batch,
        learning_rate=optimizer.lr,
        max_steps=steps,
        sequence_length=configuration.training_data.max_seq_len,
        warmup_fraction=min(optimizer.scheduler.warmup_steps, steps) / steps,
        weight_decay=optimizer.weight_decay,
        tpu_batch_factor=1,  # what "auto" takes for a TPU has its own
        tpu_learning_rate_factor=1.0,
        micro_batch_size=configuration.training_data.micro_batch_size if run.gradient_accumulation_steps else 0,
        gradient_checkpointing=checkpointing,
    )


class GraphTrainer(TrainerMixin, Trainer):
    """transformers' Trainer with this suite's reliability; the terms of the loss are summed on the device between two logs."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._reset_sums()

    def _reset_sums(self) -> None:
        self._sums = {name: torch.zeros((), device=self.model.device) for name in self.model.config.weights()}
        self._batches = 0
        if self.runtime.kind == "xla":
            # XLA would take zeros that are not yet written for constants, and compile another step.
            xla.sync()

    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)  # the order is drawn already, and lengths must not mix

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        if model.training:
            for name, term in outputs.terms.items():
                self._sums[name] = self._sums[name] + term.detach()
            self._batches += 1
        if return_outputs:
            return outputs.loss, outputs
        return outputs.loss

    def log(self, logs: dict, start_time: float | None = None) -> None:
        if "loss" in logs:  # with the mean of each term over the batches of all processes since the last log
            count = max(1, self._batches)
            means = {name: float(total) / count for name, total in self._sums.items()}
            processes = ranks.gather(means)
            for name in means:
                total = sum(process[name] for process in processes)
                logs[name] = round(total / len(processes), 6)
            self._reset_sums()
        super().log(logs, start_time)


def new_trainer(
    model: GraphMERForPreTraining,
    corpus: Corpus,
    configuration: Configuration,
    plan: Plan,
    runtime: Runtime,
    output_dir: Path | str,
    *,
    report_to: str = "none",
    max_hours: float = 0.0,
) -> GraphTrainer:
    """The trainer of a run of exactly `plan.max_steps` optimizer steps."""
    run, optimizer = configuration.run, configuration.optimizer
    batch = min(plan.per_device_batch_size, len(corpus.validation) // plan.device_count)
    if not batch:
        raise ValueError(
            f"evaluation.held_out={configuration.evaluation.held_out}: validation has {len(corpus.validation)} sequences for "
            f"{plan.device_count} devices; raise it, or give more sources"
        )
    arguments = training_arguments(
        plan,
        runtime,
        output_dir,
        seed=run.seed,
        logging_steps=run.log_interval,
        eval_steps=run.eval_interval_steps,
        save_steps=run.save_interval_steps,
        lr_scheduler_type=optimizer.scheduler.name.replace("constant", "constant_with_warmup"),
        report_to=report_to,
        remove_unused_columns=False,
        label_names=["mlm_labels", "mnm_labels"],
        per_device_eval_batch_size=batch * runtime.engine.fed,
        adam_beta1=optimizer.betas[0],
        adam_beta2=optimizer.betas[1],
        adam_epsilon=optimizer.eps,
    )
    stages = [(begin, configuration.roots(length)) for begin, length in configuration.stages()]
    together = batch * plan.device_count
    whole_batches = range(len(corpus.validation) // together * together)  # a short one has fewer wrong tails
    trainer = GraphTrainer(
        model=model,
        args=arguments,
        train_dataset=curriculum(corpus.train, stages, steps=plan.max_steps, examples_per_step=plan.batch_size),
        eval_dataset=Subset(corpus.validation, whole_batches),
        data_collator=corpus.train.collate,
        plan=plan,
        runtime=runtime,
        max_hours=max_hours,
    )
    trainer.engine.repeats = run.deterministic
    return trainer
