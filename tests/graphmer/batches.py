"""Small GraphMER configurations, random batches of leafy chains, and a small library of sources."""

import http
import json
import shutil
from pathlib import Path

import torch

from helpers.graphmer.encoder import GraphMERConfig, GraphMERForPreTraining
from helpers.graphmer.graph.knowledge_graph import UNKNOWN, Triple, read_ontology

# B batch · S roots · G leaves · L leaf tokens · M masked roots · U negatives · C tokens of an entity's text

PAD, MASK, END = 0, 1, 2
V, R, L, H = 40, 4, 3, 3
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
    tokens = {"leaf_ids": (L,), "tail_text_ids": (C,), "head_text_ids": (C,), "negative_text_ids": (U, C)}
    shapes = tokens | dict.fromkeys(LEAVES, ())
    batch = dict(zip(ROOTS, (integers(3, V, B, S) * (segments > 0), segments, positions), strict=True))
    batch |= {name: torch.zeros(B, G, *shape, dtype=torch.long) for name, shape in shapes.items()}
    batch |= {"mnm_labels": torch.full((B, G, L), -100), "triple_labels": torch.full((B, G), -100.0)}
    batch |= {name: torch.full((B, G), -1) for name in ("tail_entities", "head_entities")}
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


def violations(graph) -> list[Triple]:
    """Triples that the ontology of software forbids: by an end of a known type, or because another says the opposite."""
    relations, triples, wrong = read_ontology(), set(graph.triples), []
    for triple in graph.triples:
        relation = relations[triple.relation]
        kinds = (graph.entities[triple.head].type, relation.domain), (graph.entities[triple.tail].type, relation.range)
        opposite = Triple(triple.tail, triple.relation, triple.head)
        if any(kind not in (*known, UNKNOWN) for kind, known in kinds) or (
            relation.antisymmetric and triple.head != triple.tail and opposite in triples
        ):
            wrong.append(triple)
    return wrong
