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


def new_model(configuration, corpus) -> GraphMERForPreTraining:
    """An untrained model; its weights follow from `run.seed`."""
    set_seed(configuration.run.seed)
    properties = corpus.train.encoded.relations.properties
    config = configuration.graphmer_config(len(corpus.tokenizer), max_head_tokens=HEAD_TOKENS, **properties)
    return GraphMERForPreTraining(config)


def make_plan(configuration, model, corpus, machine) -> Plan:
    """The configuration as a plan: what the configuration says is not chosen again."""
    recipe = run_recipe(configuration, len(corpus.train), machine)
    longest = corpus.train.with_roots(configuration.roots(recipe.sequence_length))[0]

    def batch(examples):
        return corpus.train.collate([longest] * examples)

    plan = planner.plan(recipe, model, lambda model, fields: model(**fields).loss, batch, machine)
    return dataclasses.replace(plan, dataloader_workers=configuration.hardware.num_workers)


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
    """transformers' Trainer with this suite's reliability; the log has each term of the loss, of the last micro-batch."""

    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)  # the order is drawn already, and lengths must not mix

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        if model.training:
            self.terms = {name: term.detach() for name, term in outputs.terms.items()}
        return (outputs.loss, outputs) if return_outputs else outputs.loss

    def log(self, logs, start_time=None):
        if "loss" in logs:
            logs |= {name: round(float(term), 6) for name, term in self.terms.items()}
        super().log(logs, start_time)


def new_trainer(
    model: GraphMERForPreTraining,
    corpus: Corpus,
    configuration: Configuration,
    plan: Plan,
    runtime: Runtime,
    output_dir: Path | str,
    *,
    max_hours: float = 0.0,
    **overrides,
) -> GraphTrainer:
    """The trainer of a run of exactly `plan.max_steps` optimizer steps. overrides: fields of `TrainingArguments`."""
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
        remove_unused_columns=False,
        label_names=["mlm_labels", "mnm_labels"],
        per_device_eval_batch_size=batch * runtime.engine.fed,
        adam_beta1=optimizer.betas[0],
        adam_beta2=optimizer.betas[1],
        adam_epsilon=optimizer.eps,
        **overrides,
    )
    stages = [(begin, configuration.roots(length)) for begin, length in configuration.stages()]
    together = batch * plan.device_count
    whole_batches = range(len(corpus.validation) // together * together)  # a short one has fewer wrong tails
    torch.use_deterministic_algorithms(run.deterministic and runtime.kind == "cuda", warn_only=True)
    return GraphTrainer(
        model=model,
        args=arguments,
        train_dataset=curriculum(corpus.train, stages, steps=plan.max_steps, examples_per_step=plan.batch_size),
        eval_dataset=Subset(corpus.validation, whole_batches),
        data_collator=corpus.train.collate,
        plan=plan,
        runtime=runtime,
        max_hours=max_hours,
    )
