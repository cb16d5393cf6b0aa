"""Pictures: what the graph says about one entity, and a leafy chain."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerFast

from helpers.graphmer.graph.knowledge_graph import KnowledgeGraph
from helpers.graphmer.text.masking import IGNORED
from helpers.graphmer.text.negatives import Relations
from helpers.graphmer.text.tokenizer import MASK, PAD, SEP
from helpers.run.run_folder import saved

MOST = 24  # neighbours that a picture has room for
ROOTS, LEAVES = 14, 6  # of a chain


def plot_neighbourhood(
    graph: KnowledgeGraph, entity_id: str, path: str | Path, *, most: int = MOST, added: Sequence[tuple[str, str]] = ()
):
    """Draws an entity in the middle and its neighbours around it, coloured by relation; writes a PNG, returns the figure.

    most: neighbours drawn; of each relation in turn one, so that none crowds the others out. The title says how many there are.
    added: relations and tails that are not in the graph; dashed.

    Raises ValueError: no such entity (with near names), or nothing is said about it.
    """
    if entity_id not in graph.entities:
        near = [name for name in graph.entities if name.endswith(f".{entity_id.rpartition('.')[2]}")][:3]
        hint = f"; there are {', '.join(near)}" if near else ""
        raise ValueError(f"query={entity_id!r}: no entity of the graph{hint}; give a qualified name, or ''")
    edges = [(t.relation, t.tail, True) for t in graph.triples if t.head == entity_id and t.tail != entity_id]
    edges += [(t.relation, t.head, False) for t in graph.triples if t.tail == entity_id and t.head != entity_id]
    if not edges:
        raise ValueError(f"query={entity_id!r}: no triple mentions it; give another entity")
    import matplotlib.pyplot as plt
    from matplotlib import colormaps

    drawn = _in_turn(edges)[:most] + [(relation, tail, True) for relation, tail in added]
    relations = sorted({relation for relation, _, _ in drawn})
    colours = dict(zip(relations, colormaps["tab20"].colors, strict=False))
    figure = plt.figure(figsize=(9, 7), layout="constrained")
    axes = figure.subplots()
    for place, (relation, other, outwards) in enumerate(sorted(drawn)):
        angle = 2 * math.pi * place / len(drawn)
        x, y = math.cos(angle), math.sin(angle)
        ends = ((0, 0), (x, y)) if outwards else ((x, y), (0, 0))
        style = {"arrowstyle": "-|>", "color": colours[relation], "shrinkA": 14, "shrinkB": 14}
        style["linestyle"] = "--" if outwards and (relation, other) in added else "-"
        axes.annotate("", xy=ends[1], xytext=ends[0], arrowprops=style)
        short = ".".join(other.split(".")[-2:])
        turned = math.degrees(angle) + (180 if x < 0 else 0)
        side = "right" if x < 0 else "left"
        axes.text(1.04 * x, 1.04 * y, short, rotation=turned, rotation_mode="anchor", ha=side, va="center", fontsize=8)
    axes.text(0, 0, entity_id, ha="center", va="center", weight="bold", bbox={"boxstyle": "round", "fc": "white"})
    for relation in relations:
        axes.plot([], [], color=colours[relation], label=relation)
    axes.legend(loc="lower left", fontsize=8, title="relation")
    counts = Counter(relation for relation, _, _ in edges)
    axes.set_title(
        f"{len(drawn) - len(added)} of {len(edges)} triples: " + ", ".join(f"{k} {v}" for k, v in counts.most_common(6))
    )
    axes.set(xlim=(-1.9, 1.9), ylim=(-1.5, 1.5))
    axes.axis("off")
    return saved(figure, path)


class LeafText(NamedTuple):
    """A leaf of an example, to read; `start` is the root that it hangs at."""

    start: int
    head: str
    relation: str
    tail: str
    masked: bool
    truth: str  # "true" or "wrong" where the model is asked for that, else ""


def leaf_texts_of(
    example: dict[str, np.ndarray], tokenizer: PreTrainedTokenizerFast, relations: Relations
) -> list[LeafText]:
    """The leaves of an example without a batch axis."""
    found = []
    for leaf in np.flatnonzero(example["leaf_segments"]):
        start, length = int(example["head_start"][leaf]), int(example["head_length"][leaf])
        head = tokenizer.decode(example["root_ids"][start : start + length].tolist())
        labels_L = example["mnm_labels"][leaf]
        masked = bool((labels_L != IGNORED).any())
        ids_L = labels_L[labels_L != IGNORED] if masked else example["leaf_ids"][leaf]
        tail = tokenizer.decode([one for one in ids_L.tolist() if one not in (PAD, MASK, SEP)])
        truth = {1.0: "true", 0.0: "wrong"}.get(float(example["triple_labels"][leaf]), "")
        relation = relations.names[int(example["relation_ids"][leaf])]
        found.append(LeafText(start, head, relation, tail, masked, truth))
    return found


def plot_chain(
    example: dict[str, np.ndarray], tokenizer: PreTrainedTokenizerFast, relations: Relations, path: str | Path
):
    """Draws neighbouring roots of a sequence and the leaves that hang there; writes a PNG, returns the figure.

    The roots are those where most leaves hang, a leaf that is masked is grey.
    """
    import matplotlib.pyplot as plt

    leaves = sorted(leaf_texts_of(example, tokenizer, relations), reverse=True)
    near = {one.start: sum(0 <= other.start - one.start < ROOTS for other in leaves) for one in leaves}
    first = max(near, key=near.get, default=0)
    shown = [leaf for leaf in leaves if first <= leaf.start < first + ROOTS][:LEAVES]
    figure = plt.figure(figsize=(13, 1.6 + 0.5 * len(shown)), layout="constrained")
    axes = figure.subplots()
    box = {"boxstyle": "round", "fc": "white"}
    for place, token in enumerate(example["root_ids"][first : first + ROOTS].tolist()):
        written = tokenizer.decode([token]).replace("\n", "\u21b5") or " "
        axes.text(place, 0, written, ha="center", va="center", family="monospace", bbox=box)
    for row, leaf in enumerate(shown, 1):
        root = leaf.start - first
        way = {"arrowstyle": "-", "connectionstyle": "angle,angleA=0,angleB=90", "shrinkA": 0, "shrinkB": 12}
        axes.annotate("", xy=(root, 0), xytext=(root + 0.6, -row), arrowprops=way)
        axes.text(root + 0.65, -row, f"{leaf.relation}:", va="center", style="italic")
        tail = f"[MASK] was {leaf.tail}" if leaf.masked else f"{leaf.tail} {leaf.truth}".rstrip()
        fill = box | {"fc": "lightgrey" if leaf.masked else "lightblue"}
        axes.text(root + 2.6, -row, tail, va="center", family="monospace", bbox=fill)
    axes.set(
        xlim=(-1, ROOTS), ylim=(-len(shown) - 0.6, 0.6), title="Roots in a row, and triples as leaves at their heads"
    )
    axes.axis("off")
    return saved(figure, path)


def _in_turn(edges: list[tuple[str, str, bool]]) -> list[tuple[str, str, bool]]:
    """One of each relation and direction after the other."""
    seen: Counter[tuple[str, bool]] = Counter()
    placed = []
    for relation, other, outwards in sorted(edges):
        placed.append((seen[relation, outwards], relation, other, outwards))
        seen[relation, outwards] += 1
    return [edge[1:] for edge in sorted(placed)]
