"""Small GraphMER configurations and random batches of leafy chains that fulfil `check_batch`."""

from __future__ import annotations

import torch

from helpers.graphmer.modeling_graphmer.configuration_graphmer import GraphMERConfig
from helpers.graphmer.modeling_graphmer.encoder import INPUTS
from helpers.graphmer.modeling_graphmer.modeling_graphmer import GraphMERForPreTraining
from helpers.graphmer.workload import AXES

# B batch · S roots · G leaves · L leaf tokens · M masked roots · U negatives · C tokens of an entity's text

PAD, MASK, END = 0, 1, 2
V, R, L, H = 40, 4, 3, 3
ALL_TERMS = {
    "mlm_weight": 1.0,
    "mnm_weight": 1.0,
    "triple_weight": 0.5,
    "contrastive_weight": 1.0,
    "scoring_weight": 0.5,
    "antisymmetry_weight": 0.2,
    "acyclicity_weight": 0.2,
}


def config(**changes) -> GraphMERConfig:
    sizes = {"vocab_size": V, "num_relations": R, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 24, "leaf_tokens": L, "max_head_tokens": H, "embedding_size": 8, "dropout": 0.0}
    sizes |= {"relation_dropout": 0.0, "ontology_margin": -0.5, "separator_ids": [5, 11, 17, 23, 29]}
    sizes |= {"break_ids": [PAD, MASK, END, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35, 38]}  # 5 is the dot
    sizes |= {"antisymmetric_relations": [1, 3], "acyclic_relations": [1, 2]}
    return GraphMERConfig(**{**sizes, **changes})


def leafy_batch(
    B: int = 3, S: int = 12, G: int = 4, *, leaves: int | None = None, M: int = 3, U: int = 2, C: int = 5, seed: int = 0
) -> dict[str, torch.Tensor]:
    """Two documents a row and some padding (row 0 is all padding from B = 3); `leaves` of the G slots are used, or some."""
    draw = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=draw)

    segments = torch.zeros(B, S, dtype=torch.long)
    positions = torch.zeros(B, S, dtype=torch.long)
    for b in range(B):
        if b == 0 and B > 2:
            continue
        first, end = S // 2 - b % 2, S - 1 - b % 2
        segments[b, :first], segments[b, first:end] = 1, 2
        positions[b, :first], positions[b, first:end] = torch.arange(first), torch.arange(end - first)
    batch = {
        "root_ids": integers(3, V, B, S) * (segments > 0),
        "root_segments": segments,
        "root_positions": positions,
        "leaf_ids": torch.zeros(B, G, L, dtype=torch.long),
        "mnm_labels": torch.full((B, G, L), -100),
        "triple_labels": torch.full((B, G), -100.0),
        "tail_text_ids": torch.zeros(B, G, C, dtype=torch.long),
        "head_text_ids": torch.zeros(B, G, C, dtype=torch.long),
        "negative_text_ids": torch.zeros(B, G, U, C, dtype=torch.long),
    }
    for name in ("leaf_segments", "relation_ids", "head_start", "head_length"):
        batch[name] = torch.zeros(B, G, dtype=torch.long)
    for name in ("tail_entities", "head_entities"):
        batch[name] = torch.full((B, G), -1)
    for b in range(B):
        rooted = segments[b].nonzero().flatten().tolist()
        for g in range(G if leaves is None else leaves):
            if not rooted or (leaves is None and g == b % G):
                continue
            start = rooted[int(integers(0, len(rooted), 1))]
            segment = int(segments[b, start])
            last = max(root for root in rooted if int(segments[b, root]) == segment)
            batch["leaf_segments"][b, g], batch["head_start"][b, g] = segment, start
            batch["head_length"][b, g] = int(integers(1, min(H, last - start + 1) + 1, 1))
            batch["relation_ids"][b, g] = int(integers(1, R + 1, 1))
            tail = integers(3, V, int(integers(1, L + 1, 1)))
            if len(tail) < L:
                tail = torch.cat((tail, torch.tensor([END])))
            if g % 2:
                batch["leaf_ids"][b, g] = MASK
                batch["mnm_labels"][b, g, : len(tail)] = tail
            else:
                batch["leaf_ids"][b, g, : len(tail)] = tail
                batch["triple_labels"][b, g] = float(g % 4 == 0)
            for side in ("tail", "head"):
                batch[f"{side}_text_ids"][b, g, : C - g % 2] = integers(3, V, C - g % 2)
                batch[f"{side}_entities"][b, g] = int(integers(0, 9, 1))
            batch["negative_text_ids"][b, g, 0] = integers(3, V, C)
    batch["mlm_positions"] = integers(0, S // 2 - 1, B, M)
    batch["mlm_labels"] = integers(3, V, B, M)
    batch["mlm_labels"][0] = -100
    batch["known_BGX"] = torch.rand(B, G, B * G, generator=draw) < 0.1
    check_batch(batch, config())
    return batch


def inputs(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: batch[name] for name in INPUTS}


def perturbed(model: torch.nn.Module, seed: int = 0, scale: float = 0.3) -> torch.nn.Module:
    """The model with no weight at a value that hides something, in evaluation mode."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=draw) * scale)
    return model.eval()


def weight_count(config: GraphMERConfig) -> int:
    """Trained weights of the whole model; none is made."""
    with torch.device("meta"):
        return GraphMERForPreTraining(config).num_parameters()


def check_batch(batch: dict[str, torch.Tensor], config: GraphMERConfig) -> None:
    """Raises ValueError that names the field: missing, of a wrong shape, out of range, or a leaf that hangs nowhere.

    For host tensors.
    """
    if missing := [name for name in INPUTS if name not in batch]:
        raise ValueError(f"batch: {', '.join(missing)} missing; the model needs {', '.join(INPUTS)}")
    _check_shapes(batch, config)
    V, R = config.vocab_size, config.num_relations
    for name in ("root_ids", "leaf_ids", "tail_text_ids", "negative_text_ids", "head_text_ids"):
        _within(batch, name, 0, V - 1)
    for name in ("mlm_labels", "mnm_labels"):
        _within(batch, name, 0, V - 1, also=-100)
    _within(batch, "triple_labels", 0, 1, also=-100)
    _within(batch, "relation_ids", 0, R)
    S = batch["root_ids"].shape[1]
    for name in ("head_start", "mlm_positions"):
        _within(batch, name, 0, S - 1)
    _within(batch, "head_length", 0, config.max_head_tokens)
    for name in ("root_segments", "root_positions", "leaf_segments"):
        _within(batch, name, 0, torch.iinfo(torch.int64).max)
    for name in ("tail_entities", "head_entities"):
        _within(batch, name, -1, torch.iinfo(torch.int64).max)
    _check_leaves(batch)


def _check_shapes(batch: dict[str, torch.Tensor], config: GraphMERConfig) -> None:
    if unknown := set(batch) - set(AXES):
        raise ValueError(f"batch: unknown field {', '.join(sorted(unknown))}; known: {', '.join(AXES)}")
    sizes = {"L": (config.leaf_tokens, "leaf_tokens of the configuration")}
    if "leaf_ids" in batch and batch["leaf_ids"].dim() == 3:
        B, G, _ = batch["leaf_ids"].shape
        sizes["X"] = (B * G, "all leaves of the batch")
    for name, axes in AXES.items():
        if name not in batch:
            continue
        shape = tuple(batch[name].shape)
        if len(shape) != len(axes):
            raise ValueError(f"{name}: has shape {shape}, must be [{', '.join(axes)}]")
        for axis, size in zip(axes, shape, strict=True):
            known, source = sizes.setdefault(axis, (size, name))
            if size != known:
                raise ValueError(f"{name}: has shape {shape}, but {axis} of [{', '.join(axes)}] is {known} ({source})")


def _within(batch: dict[str, torch.Tensor], name: str, low: int, high: int, also: int | None = None) -> None:
    if name not in batch:
        return
    values = batch[name]
    wrong = (values < low) | (values > high)
    if also is not None:
        wrong &= values != also
    if wrong.any():
        raise ValueError(
            f"{name}={values[wrong][0].item()} at {wrong.nonzero()[0].tolist()}: must be in [{low}, {high}]"
            + ("" if also is None else f" or {also}")
        )


def _check_leaves(batch: dict[str, torch.Tensor]) -> None:
    """Every leaf hangs at a root of its own segment, and so do all the roots of its head."""
    segments_BS, start_BG, length_BG = batch["root_segments"], batch["head_start"], batch["head_length"]
    leaf_BG = batch["leaf_segments"]
    S = segments_BS.shape[1]
    for name in ("head_length", "relation_ids"):
        if (wrong := (leaf_BG > 0) != (batch[name] > 0)).any():
            raise ValueError(
                f"{name}=0 where leaf_segments is not, or the reverse, at {wrong.nonzero()[0].tolist()}: "
                "a leaf has a head and a relation, an empty slot neither"
            )
    if (wrong := (leaf_BG > 0) & (segments_BS.gather(1, start_BG) != leaf_BG)).any():
        raise ValueError(
            f"head_start at {wrong.nonzero()[0].tolist()}: the leaf of segment {leaf_BG[wrong][0].item()} hangs at root "
            f"{start_BG[wrong][0].item()} of another segment"
        )
    last_BG = start_BG + length_BG - 1
    past = (leaf_BG > 0) & ((last_BG >= S) | (segments_BS.gather(1, last_BG.clamp(0, S - 1)) != leaf_BG))
    if past.any():
        raise ValueError(
            f"head_length={length_BG[past][0].item()} at {past.nonzero()[0].tolist()}: the head that begins at root "
            f"{start_BG[past][0].item()} reaches past its segment"
        )
