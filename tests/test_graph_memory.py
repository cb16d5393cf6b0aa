"""helpers.graphmer.memory: the estimate against the bytes of every tensor that a real training step makes."""

import weakref

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from helpers import attention
from helpers.graphmer.architecture import TERMS, GraphMERConfig
from helpers.graphmer.configuration import Configuration
from helpers.graphmer.memory import estimate, estimate_run, largest_batch
from helpers.graphmer.model import GraphMERForPreTraining

pytestmark = pytest.mark.once

# B batch · S roots · G leaves · L leaf tokens · U negatives · C tokens of an entity's text · M masked roots

EVERY_TERM = {f"{term}_weight": 0.5 for term in TERMS}
SMALL = {
    "vocab_size": 2048,
    "num_relations": 12,
    "hidden_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "embedding_size": 64,
}


class Bytes(TorchDispatchMode):
    """Counts the storages that are alive, and their most: each by its own bytes, however many tensors look at it."""

    def __init__(self):
        super().__init__()
        self.alive: set[int] = set()
        self.now = self.peak = 0

    def see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if id(storage) not in self.alive:
            self.alive.add(id(storage))
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.forget, id(storage), storage.nbytes())

    def forget(self, storage: int, size: int) -> None:
        self.alive.remove(storage)
        self.now -= size

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.see(tensor)
        return result


def batch_of(config: GraphMERConfig, B: int, S: int, G: int, U: int, C: int) -> dict[str, torch.Tensor]:
    """A batch of one segment a sequence; what its numbers are costs nothing."""
    L, M, ones = config.leaf_tokens, -(-S * 15 // 100), torch.ones
    leaf, texts = (
        ones(B, G, dtype=torch.int64),
        {"tail_text_ids": (C,), "head_text_ids": (C,), "negative_text_ids": (U, C)},
    )
    batch = {name: ones(B, S, dtype=torch.int64) for name in ("root_ids", "root_segments", "root_positions")}
    batch |= {name: leaf.clone() for name in ("leaf_segments", "relation_ids", "head_start", "head_length")}
    batch |= {name: leaf.clone() for name in ("tail_entities", "head_entities", "tail_types")}
    batch |= {name: ones(B, M, dtype=torch.int64) for name in ("mlm_positions", "mlm_labels")}
    batch |= {name: ones(B, G, L, dtype=torch.int64) for name in ("leaf_ids", "mnm_labels")}
    batch |= {name: ones(B, G, *axes, dtype=torch.int64) for name, axes in texts.items()}
    batch["mnm_negative_ids"] = ones(B, G, U, L, dtype=torch.int64)
    batch["triple_labels"] = ones(B, G)
    batch["known_BGX"] = torch.zeros(B, G, B * G, dtype=torch.bool)
    return batch


def counted(
    config: GraphMERConfig,
    B,
    S,
    G,
    *,
    negatives=4,
    entity_tokens=32,
    precision="fp32",
    checkpointing=False,
    accumulation=1,
) -> int:
    """Most bytes alive in one forward, backward and AdamW step of the real model, moments already there."""
    model = GraphMERForPreTraining(config).train()
    if checkpointing:
        attention.checkpoint_activations(model, "cpu")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    batch, count = batch_of(config, B, S, G, negatives, entity_tokens), Bytes()
    for weight in model.parameters():
        moments = {
            "step": torch.tensor(0.0),
            "exp_avg": torch.zeros_like(weight),
            "exp_avg_sq": torch.zeros_like(weight),
        }
        optimizer.state[weight] = moments
        weight.grad = torch.zeros_like(weight) if accumulation > 1 else None
        for tensor in (weight, weight.grad, *moments.values()):
            if tensor is not None:
                count.see(tensor)
    for tensor in (*model.buffers(), *batch.values()):
        count.see(tensor)
    with count:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
    return count.peak


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("shape", "switches", "options"),
    [
        ((4, 96, 6), EVERY_TERM, {}),
        ((4, 96, 6), EVERY_TERM, {"checkpointing": True}),
        ((2, 300, 6), EVERY_TERM, {"negatives": 1, "entity_tokens": 12}),
        ((2, 300, 6), EVERY_TERM, {"negatives": 1, "entity_tokens": 12, "checkpointing": True}),
        ((8, 64, 6), {}, {}),
        ((8, 64, 6), {}, {"accumulation": 2}),
        ((4, 160, 6), EVERY_TERM | {"decay": "none"}, {}),
        ((4, 160, 6), EVERY_TERM | {"decay": "additive"}, {}),
        ((4, 160, 6), EVERY_TERM | {"dropout": 0.0, "relation_dropout": 0.0}, {}),
        ((4, 160, 6), EVERY_TERM | {"norm": "layernorm", "activation": "gelu", "positional_encoding": "rotary"}, {}),
        ((4, 160, 6), EVERY_TERM | {"hgat": False, "relation_attention_bias": False}, {}),
        ((1, 16, 1), EVERY_TERM, {}),
    ],
)
def test_the_estimate_is_within_15_percent_of_the_bytes_of_a_step(shape, switches, options, precision):
    config = GraphMERConfig(**SMALL | switches)
    with FakeTensorMode():  # tensors with sizes and without numbers: the same storages, no arithmetic
        real = counted(config, *shape, precision=precision, **options)
    assert estimate(config, *shape, precision=precision, **options).total == pytest.approx(real, rel=0.15)


def test_fake_tensors_take_the_bytes_that_real_ones_do():
    config = GraphMERConfig(**SMALL | EVERY_TERM)
    with FakeTensorMode():
        fake = counted(config, 2, 64, 3)
    assert fake == pytest.approx(counted(config, 2, 64, 3), rel=0.01)


def test_the_estimate_holds_at_full_size():
    config, options = Configuration().model_config(8192, 22), {"checkpointing": True, "precision": "bf16"}
    with FakeTensorMode():
        real = counted(config, 2, 698, 10, **options)
    assert estimate(config, 2, 698, 10, **options).total == pytest.approx(real, rel=0.15)


def test_the_published_batch_of_32_is_far_from_fitting_8_gb():
    config = GraphMERConfig(intermediate_size=3072, **EVERY_TERM)
    assert estimate(config, 32, 698, 10, precision="fp16", kind="cuda").total > 5 * 8e9


@pytest.mark.parametrize("memory", [10**8, 10**9, 8 * 10**9])
def test_the_largest_batch_fits_and_the_next_does_not(memory):
    config = GraphMERConfig(**SMALL | EVERY_TERM)
    most = largest_batch(config, memory, 160, 6, share=0.9)
    assert most > 0
    assert estimate(config, most, 160, 6).total <= 0.9 * memory < estimate(config, most + 1, 160, 6).total


def test_no_batch_fits_where_the_weights_do_not():
    assert largest_batch(GraphMERConfig(), 10**9, 698, 10) == 0


def test_parts_add_up_and_switched_off_terms_cost_nothing():
    every, few = GraphMERConfig(**SMALL | EVERY_TERM), GraphMERConfig(**SMALL)
    whole = estimate(every, 4, 96, 6)
    assert sum(whole.parts.values()) == whole.total and f"{whole.total / 2**30:.2f} GiB" in str(whole)
    assert estimate(few, 4, 96, 6, negatives=9).parts["activations"] < whole.parts["activations"] / 3


def test_a_configuration_is_estimated_at_its_longest_sequences():
    configuration = Configuration()
    config = configuration.model_config(8192, 22)
    expected = estimate(config, 8, 698, 10, precision="bf16", kind="cuda", masked_roots=105)
    assert estimate_run(configuration, 8192, 22, kind="cuda", precision="bf16") == expected


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [
        ((0, 96, 6), {}, "batch=0"),
        ((1, 96, 0), {}, "leaves=0"),
        ((1, 96, 6), {"precision": "half"}, "precision='half'"),
        ((1, 96, 6), {"kind": "gpu"}, "kind='gpu'"),
    ],
)
def test_impossible_shapes_are_refused(arguments, options, says):
    with pytest.raises(ValueError, match=says):
        estimate(GraphMERConfig(**SMALL), *arguments, **options)
