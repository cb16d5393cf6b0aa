"""Small GraphMER configurations, random batches of leafy chains, and a small library of sources."""

import http
import json
import shutil
from pathlib import Path

import torch

from helpers.graphmer.encoder import GraphMERConfig, GraphMERForPreTraining

# B batch · S roots · G leaves · L leaf tokens · M masked roots · U negatives · C tokens of an entity's text

PAD, MASK, END = 0, 1, 2
V, R, L, H, M, U, C = 40, 4, 3, 3, 3, 2, 5
ROOTS = ("root_ids", "root_segments", "root_positions")
LEAVES = ("leaf_segments", "relation_ids", "head_start", "head_length")
INPUTS = (*ROOTS, "leaf_ids", *LEAVES)
ALL_TERMS = {"triple_weight": 0.5, "scoring_weight": 0.5}
ALL_TERMS |= {"antisymmetry_weight": 0.2, "acyclicity_weight": 0.2}


def config(**changes) -> GraphMERConfig:
    sizes = {"vocab_size": V, "num_relations": R, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 24, "leaf_tokens": L, "max_head_tokens": H, "embedding_size": 8, "dropout": 0.0}
    sizes |= {"relation_dropout": 0.0, "antisymmetric_relations": [1, 3], "acyclic_relations": [1, 2]}
    return GraphMERConfig(**{**sizes, **changes})


def leafy_batch(
    B: int = 3, S: int = 12, G: int = 4, *, leaves: int | None = None, seed: int = 0
) -> dict[str, torch.Tensor]:
    """Two documents a row and some padding (row 0 is all padding from B = 3); `leaves` of the G slots are used, or some."""
    draw = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=draw)

    b, s, g, slot = torch.arange(B)[:, None], torch.arange(S), torch.arange(G), torch.arange(L)
    first, end = S // 2 - b % 2, S - 1 - b % 2
    end = end * ((b > 0) | (B <= 2))
    segments = torch.where(s < first, 1, 2) * (s < end)
    positions = (s - first * (s >= first)) * (s < end)
    used = (end > 0) & ((g < leaves) if leaves is not None else (g != b % G))
    shown, masked = used & (g % 2 == 0), used & (g % 2 == 1)

    start = integers(0, 10_000, B, G) % end.clamp(min=1) * used
    last = torch.where(start < first, first, end)
    length = integers(1, L + 1, B, G, 1)
    tail = torch.where(slot < length, integers(3, V, B, G, L), END * (slot == length))
    texts = {f"{side}_text_ids": integers(3, V, B, G, C) * used[..., None] for side in ("tail", "head")}
    for ids in texts.values():
        ids[:, 1::2, -1] = PAD
    negatives = integers(3, V, B, G, U, C) * used[..., None, None]
    negatives[:, :, 1:] = PAD
    batch = {"root_ids": integers(3, V, B, S) * (segments > 0), "root_segments": segments, "root_positions": positions}
    batch |= {
        "leaf_ids": tail * shown[..., None] + MASK * masked[..., None],
        "leaf_segments": torch.where(start < first, 1, 2) * used,
        "relation_ids": integers(1, R + 1, B, G) * used,
        "head_start": start,
        "head_length": (1 + integers(0, 10_000, B, G) % (last - start).clamp(1, H)) * used,
        "mnm_labels": torch.where(masked[..., None] & (tail != PAD), tail, -100),
        "triple_labels": torch.where(shown, (g % 4 == 0).float(), -100.0),
        "negative_text_ids": negatives,
        "mlm_positions": integers(0, S // 2 - 1, B, M),
        "mlm_labels": integers(3, V, B, M),
        "known_BGX": torch.rand(B, G, B * G, generator=draw) < 0.1,
    }
    batch["mlm_labels"][0] = -100
    batch |= {f"{side}_entities": torch.where(used, integers(0, 9, B, G), -1) for side in ("tail", "head")}
    return batch | texts


def inputs(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: batch[name] for name in INPUTS}


def perturbed(model: torch.nn.Module) -> torch.nn.Module:
    """The model with no weight at a value that hides something, in evaluation mode."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=draw) * 0.3)
    return model.eval()


def library(folder: Path) -> Path:
    """Two packages of the standard library as a folder of one's own."""
    for package in (json, http):
        source = Path(package.__file__).parent
        shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def weight_count(config: GraphMERConfig) -> int:
    """Trained weights of the whole model; none is made."""
    with torch.device("meta"):
        return GraphMERForPreTraining(config).num_parameters()
