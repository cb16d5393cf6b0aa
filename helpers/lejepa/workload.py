"""The embedding model's training step, for the planner: of a notebook's model, or of one that is only described."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from helpers.data.hub import EMBEDDING_GEMMA, MINILM, MPNET
from helpers.lejepa import parameters
from helpers.lejepa.parameters import LEAST_BATCH, NOTEBOOK
from helpers.machine.runtime import Runtime
from helpers.plan.settings import Recipe
from helpers.plan.workloads import Asked, Workload

ROWS = 1_600  # training pairs of the default data set
QUESTION = 32  # tokens of a question, where nobody has counted them
# config.json of the models that "auto" may stand for, and of the gated one, so that a plan downloads nothing
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    MINILM: ("BertConfig", {"hidden_size": 384, "intermediate_size": 1_536, "num_hidden_layers": 6}),
    MPNET: ("MPNetConfig", {"vocab_size": 30_527}),
    EMBEDDING_GEMMA: (
        "Gemma3TextConfig",
        {
            "vocab_size": 262_144,
            "hidden_size": 768,
            "intermediate_size": 1_152,
            "num_hidden_layers": 24,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "max_position_embeddings": 2_048,
            "use_bidirectional_attention": True,
        },
    ),
}
GEMMA_DENSE = ((768, 3_072), (3_072, 768))  # its two linear layers after pooling


def workload(loss_module, name: str, lengths: Sequence[int]) -> Workload:
    """The step of `LeJEPALoss` over two views of each text, which have these lengths. The planner's micro-batch is a part of a cached gradient."""
    import torch

    config = loss_module.model[0].auto_model.config

    def batch(examples: int, length: int) -> list[dict[str, Any]]:
        columns = []
        for own in lengths:
            shape = examples, min(own, length)
            mask = torch.ones(shape, dtype=torch.long)
            mask[0, -1] = 0  # as where texts are padded: attention gets a mask
            columns.append({"input_ids": torch.randint(0, config.vocab_size, shape), "attention_mask": mask})
        return columns

    def loss(loss_module, columns):
        return loss_module([dict(column) for column in columns])

    return Workload(
        notebook=NOTEBOOK,
        name=name,
        model=loss_module,
        batch=batch,
        loss=loss,
        length=max(lengths),
        least=LEAST_BATCH,
        overflows_fp16=config.model_type.startswith("gemma3"),
    )


def planned(asked: Asked, machine: Runtime) -> tuple[Recipe, Workload]:
    """Recipe and training step of a run, for the planner on the command line; its model is on the device "meta".

    asked: `model` is a hub id or a path; "auto" and "" are what "auto" takes on this machine. `examples` are pairs.
    """
    name = parameters.choose_base_model(asked.model or parameters.AUTO, machine.kind)
    length = asked.length or parameters.EmbeddingParameters.defaults().train_length
    examples = asked.examples or ROWS
    # One length a column is compiled on XLA, and questions are short.
    question = length
    if machine.kind == "xla":
        question = min(length, QUESTION)
    recipe = parameters.recipe(examples, examples, length, length, machine.kind)
    return replace(recipe, evaluated=2 * examples), _step(name, (question, length))


@functools.lru_cache(maxsize=4)
def _step(name: str, lengths: tuple[int, int]) -> Workload:
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Pooling

    from helpers.lejepa.loss import LeJEPALoss

    default = parameters.EmbeddingParameters.defaults()
    kind, sizes = CONFIGS.get(name, ("", {}))
    config = getattr(transformers, kind)(**sizes) if kind else transformers.AutoConfig.from_pretrained(name)
    config.use_cache = False
    D = config.hidden_size
    with torch.device("meta"):
        layers = [(D, min(default.output_dim, D))]
        if name == EMBEDDING_GEMMA:
            layers = [*GEMMA_DENSE, *layers]
        backbone = _backbone(transformers.AutoModel.from_config(config))
        modules = [backbone, Pooling(D)]
        for inputs, outputs in layers:
            modules.append(Dense(inputs, outputs, activation_function=torch.nn.Identity()))
        model = SentenceTransformer(modules=modules, device="meta")
    loss = LeJEPALoss(model, **default.model_dump(include={"sigreg_weight", "contrastive_weight"}))
    loss = loss.to("meta")  # only now: it reads its own numbers while it is made, and "meta" has none
    return replace(workload(loss, name, lengths), program=_last_part)


def _last_part(loss_module, columns):
    """With gradient caching each part of each view is a program, and the last one ends in the update.

    Here each embedding is its own gradient, in the place of the loss's.
    """
    return loss_module.model(dict(columns[-1]))["sentence_embedding"].float().square().sum() / 2


def _backbone(transformer):
    """A transformers encoder as the first module of an embedding model; sentence-transformers' own needs weights on disk."""
    from torch import nn

    class Backbone(nn.Module):
        def __init__(self):
            super().__init__()
            self.auto_model = transformer

        def forward(self, features):
            # Into the batch, as sentence-transformers writes it, where it stays until the step is done.
            features["token_embeddings"] = self.auto_model(**features).last_hidden_state
            return features

    return Backbone()
