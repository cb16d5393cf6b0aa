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
# B batch · S roots · G leaves · L leaf tokens · M masked roots · U negatives · C tokens of an entity's text · X = B G
FIELDS = (
    ("BS", "root_ids root_segments root_positions"),
    ("BGL", "leaf_ids mnm_labels"),
    ("BG", "leaf_segments relation_ids head_start head_length triple_labels"),
    ("BM", "mlm_positions mlm_labels"),
)
OF_NAMES = (
    ("BGC", "head_text_ids tail_text_ids"),
    ("BG", "head_entities tail_entities"),
    ("BGUC", "negative_text_ids"),
    ("BGX", "known_BGX"),
)


def workload(configuration: Configuration, model) -> Workload:
    """The step on sequences of `training_data.max_seq_len` tokens, with every field that the collator gives."""
    import torch

    from .chains import mask_slots

    encoding, objectives = configuration.encoding, configuration.objectives

    def batch(examples: int, length: int) -> dict[str, Any]:
        roots, leaves = configuration.roots(length), encoding.max_leaves_per_sequence
        sizes = dict(
            B=examples, S=roots, G=leaves, L=encoding.leaf_tokens, C=encoding.entity_tokens, X=examples * leaves
        )
        sizes["M"] = mask_slots(roots, objectives.mlm.mask_prob)
        sizes["U"] = objectives.mnm.type_consistent_negatives + objectives.mnm.hard_negatives
        fields = {
            name: torch.ones([sizes[axis] for axis in axes], dtype=torch.long)
            for axes, names in (*FIELDS, *(OF_NAMES if configuration.reads_names else ()))
            for name in names.split()
        }
        fields["root_positions"] = torch.arange(roots).expand(examples, roots).contiguous()
        fields["triple_labels"] = fields["triple_labels"].float()
        if configuration.reads_names:
            fields["known_BGX"] = fields["known_BGX"] > 1
        return {name: field for name, field in fields.items() if field.numel()}

    def loss(model, inputs):
        return model(**inputs).loss

    return Workload(
        notebook=NOTEBOOK,
        name=f"{model.config.num_hidden_layers} layers of {model.config.hidden_size}",
        model=model,
        batch=batch,
        loss=loss,
        length=configuration.training_data.max_seq_len,
        optimizer=configuration.optimizer.name,
    )


def run_recipe(configuration: Configuration, sequences: int, devices: int) -> Recipe:
    """What the configuration asks for, on so many sequences and devices."""
    run, optimizer = configuration.run, configuration.optimizer
    batch = configuration.batch_size(devices)
    steps = run.max_steps or max(1, run.epochs * sequences // batch)
    return Recipe(
        batch_size=batch,
        learning_rate=optimizer.lr,
        max_steps=steps,
        sequence_length=configuration.training_data.max_seq_len,
        warmup_fraction=min(optimizer.scheduler.warmup_steps, steps) / steps,
        weight_decay=optimizer.weight_decay,
        tpu_batch_factor=1,  # the profile for a TPU says its own
        tpu_learning_rate_factor=1.0,
        micro_batch_size=configuration.training_data.micro_batch_size,
        gradient_checkpointing=configuration.checkpointing.activation_checkpointing,
    )


def planned(asked: Asked, machine: Runtime) -> tuple[Recipe, Workload]:
    """Recipe and training step of a run, for the planner; its model is on the device "meta" and takes no memory.

    asked: `model` is a configuration ("": the machine's profile), `examples` are sequences (0: the sample's).
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
