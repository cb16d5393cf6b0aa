"""The encoder's training step, for the planner."""

import functools
from typing import Any

from helpers.machine.runtime import Runtime
from helpers.plan.settings import Recipe
from helpers.plan.workloads import Asked, Workload

from .configuration import Configuration
from .parameters import AUTO, GraphParameters

NOTEBOOK = "graphmer_se"
SEQUENCES = 15_000  # of the sample, Python's standard library, at 512 tokens
RELATIONS = 30  # of the ontology, inverse ones counted
# Fields of an `encoder.LeafyBatch` by their axes.
FIELDS = {
    "BS": ("root_ids", "root_segments", "root_positions"),
    "BGL": ("leaf_ids", "mnm_labels"),
    "BG": (
        "leaf_segments",
        "relation_ids",
        "head_start",
        "head_length",
        "triple_labels",
        "head_entities",
        "tail_entities",
    ),
    "BM": ("mlm_positions", "mlm_labels"),
    "BGC": ("head_text_ids", "tail_text_ids"),
    "BGUC": ("negative_text_ids",),
    "BGX": ("known_BGX",),
}


def workload(configuration: Configuration, model) -> Workload:
    """The step on sequences of `training_data.max_seq_len` tokens, with every field that the collator gives."""
    import torch

    from .chains import mask_slots

    encoding, objectives = configuration.encoding, configuration.objectives

    def batch(examples: int, length: int) -> dict[str, Any]:
        roots, leaves = configuration.roots(length), encoding.max_leaves_per_sequence
        sizes = {"B": examples, "S": roots, "G": leaves, "X": examples * leaves}
        sizes |= {"L": encoding.leaf_tokens, "C": encoding.entity_tokens}
        sizes["M"] = mask_slots(roots, objectives.mlm.mask_prob)
        sizes["U"] = objectives.mnm.type_consistent_negatives + objectives.mnm.hard_negatives
        fields = {}
        for axes, names in FIELDS.items():
            shape = [sizes[axis] for axis in axes]
            fields |= {name: torch.ones(shape, dtype=torch.long) for name in names if 0 not in shape}
        fields["root_positions"] = torch.arange(roots).expand(examples, roots).contiguous()
        fields["triple_labels"] = fields["triple_labels"].float()
        fields["known_BGX"] = fields["known_BGX"] > 1
        return fields

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


def run_recipe(configuration: Configuration, sequences: int, devices: int) -> Recipe:
    """What the configuration asks for, on so many sequences and devices."""
    run, optimizer = configuration.run, configuration.optimizer
    checkpointing, compiled = (
        configuration.checkpointing.activation_checkpointing,
        configuration.hardware.compile_layers,
    )
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

    from .encoder import GraphMERForPreTraining

    with torch.device("meta"):
        model = GraphMERForPreTraining(configuration.graphmer_config(configuration.encoding.vocab_size, RELATIONS))
    return workload(configuration, model)
