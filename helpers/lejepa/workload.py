"""The embedding model's training step for the planner on the command line, which has no notebook's model."""

from __future__ import annotations

import functools
from dataclasses import replace

from helpers.machine.runtime import Runtime
from helpers.plan.settings import Recipe
from helpers.plan.workloads import Asked, Workload

from .parameters import EMBEDDING_GEMMA, NOTEBOOK, EmbeddingParameters, recipe

__all__ = ["NOTEBOOK", "planned"]

GEMMA = {  # google/embeddinggemma-300m config.json, which is gated
    "vocab_size": 262_144,
    "hidden_size": 768,
    "intermediate_size": 1_152,
    "num_hidden_layers": 24,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "max_position_embeddings": 2_048,
    "use_bidirectional_attention": True,
}
KINDS = ("documents", "pairs", "triplets")
DEFAULT_KIND = "triplets"  # MS MARCO's, of the default data_source
GEMMA_DENSE = ((768, 3_072), (3_072, 768))  # its two linear layers after pooling


def planned(asked: Asked, machine: Runtime, *, weights: bool = False) -> tuple[Recipe, Workload]:
    """Recipe and training step of a run, for the planner: `planned(Asked(method="pairs"), machine)`.

    asked: `model` is a hub id or a path ("auto" is the largest that it may choose), `method` one of KINDS of data, `examples` are
        rows, `length` is in tokens of a view.
    weights: the step has random weights and can be run; without them its model is on the device "meta" and takes no memory.
    """
    default = EmbeddingParameters.defaults()
    name, length = asked.model or EMBEDDING_GEMMA, asked.length or default.view_length
    kind = asked.method if asked.method in KINDS else DEFAULT_KIND  # other notebooks have other methods
    views = default.columns(kind)
    make_step = _step if weights else _step_without_weights
    return recipe(asked.examples or default.num_samples, views, length), make_step(name, length, views, kind)


def _step(name: str, length: int, views: int, kind: str, weights: bool = True) -> Workload:
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Pooling
    from torch import nn
    from transformers import AutoConfig, AutoModel, Gemma3TextConfig

    from .loss import new_loss, workload
    from .model import freeze

    default = EmbeddingParameters.defaults()
    is_default = name == EMBEDDING_GEMMA
    config = Gemma3TextConfig(**GEMMA) if is_default else AutoConfig.from_pretrained(name, trust_remote_code=False)
    config.use_cache = False
    device = "cpu" if weights else "meta"
    with torch.device(device):
        plain = {"bias": False, "activation_function": nn.Identity()}
        modules = (
            _backbone(AutoModel.from_config(config)),
            Pooling(config.hidden_size),
            *(Dense(*sizes, **plain) for sizes in (GEMMA_DENSE if is_default else ())),
            Dense(config.hidden_size, min(default.output_dim, config.hidden_size), activation_function=nn.Identity()),
        )
        model = SentenceTransformer(modules=modules, device=device)
        freeze(model, default.freeze_layers)
        loss = new_loss(model, default, kind)
    return replace(workload(loss, name, length, views), program=_last_chunk)


def _last_chunk(loss_module, columns):
    """With gradient caching each chunk of each view is a program: embedded again, and derived. The last one ends in the update.

    Here each embedding is its own gradient, in the place of the loss's.
    """
    return loss_module.model(dict(columns[0]))["sentence_embedding"].float().square().sum() / 2


@functools.lru_cache(maxsize=4)
def _step_without_weights(name: str, length: int, views: int, kind: str) -> Workload:
    return _step(name, length, views, kind, weights=False)


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
