"""The encoder's training step, for the planner."""

import functools
from typing import Any

from helpers.machine.runtime import Runtime
from helpers.parameters import SAMPLE
from helpers.plan.settings import Recipe
from helpers.plan.workloads import Asked, Workload

from .configuration import Configuration
from .graph.knowledge_graph import Entity, build_graph
from .parameters import AUTO, GraphParameters
from .text import Documents, train_tokenizer

NOTEBOOK = "graphmer_se"
SEQUENCES = 15_000  # of the sample, Python's standard library, at 512 tokens


def workload(configuration: Configuration, model) -> Workload:
    """The step on sequences of `training_data.max_seq_len` tokens, as the collator makes them."""
    chains = chains_of_one_triple(configuration)

    def batch(examples: int, length: int) -> dict[str, Any]:
        sequence = chains.with_roots(configuration.roots(length))[0]
        return chains.collate([sequence] * examples)

    def loss(model, fields):
        return model(**fields).loss

    return Workload(
        notebook=NOTEBOOK,
        name=f"{model.config.num_hidden_layers} layers of {model.config.hidden_size}",
        model=model,
        batch=batch,
        loss=loss,
        length=configuration.training_data.max_seq_len,
    )


def chains_of_one_triple(configuration: Configuration):
    """The sequences of a graph with one triple and no sources, which have the fields and the sizes of any other."""
    from .chains import EncodedGraph, LeafyChains

    entities = [Entity(name, "function", name) for name in ("f", "g")]
    graph = build_graph(entities, [("f", "calls", "g")], {"files": []})
    tokenizer = train_tokenizer([], configuration.encoding.vocab_size)
    return LeafyChains(graph.triples, EncodedGraph(Documents(graph, SAMPLE), tokenizer, configuration), configuration)


def run_recipe(configuration: Configuration, sequences: int, devices: int) -> Recipe:
    """What the configuration asks for, on so many sequences and devices."""
    run, optimizer = configuration.run, configuration.optimizer
    checkpointing = configuration.checkpointing.activation_checkpointing
    compiled = configuration.hardware.compile_layers
    batch = configuration.batch_size(devices)
    steps = run.max_steps or max(1, run.epochs * sequences // batch)
    validation = configuration.evaluation.held_out * sequences
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
        gradient_checkpointing=None if checkpointing == "auto" else checkpointing,
        compiled=None if compiled == "auto" else compiled,
        evaluated=round(validation * steps / run.eval_interval_steps),
    )


def planned(asked: Asked, machine: Runtime) -> tuple[Recipe, Workload]:
    """Recipe and training step of a run, for the planner; its model is on the device "meta" and takes no memory.

    asked: `model` is a configuration ("": what "auto" takes for the machine), `examples` are sequences (0: the sample's).
    """
    params = GraphParameters.defaults().model_copy(update={"config": asked.model or AUTO})
    configuration = params.configuration(machine)
    return run_recipe(configuration, asked.examples or SEQUENCES, machine.device_count), _step(configuration)


@functools.lru_cache(maxsize=4)  # machines with one configuration share what is counted of it
def _step(configuration: Configuration) -> Workload:
    import torch

    from .chains import Relations
    from .encoder import GraphMERForPreTraining

    properties = Relations().properties
    with torch.device("meta"):
        model = GraphMERForPreTraining(configuration.graphmer_config(configuration.encoding.vocab_size, **properties))
    return workload(configuration, model)
