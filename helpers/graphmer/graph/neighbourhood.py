"""A picture of what the graph says about one entity."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from helpers.graphmer.graph.knowledge_graph import KnowledgeGraph

MOST = 24  # neighbours that a picture has room for


def plot_neighbourhood(graph: KnowledgeGraph, entity_id: str, path: str | Path, *, most: int = MOST):
    """Draws an entity in the middle and its neighbours around it, coloured by relation; writes a PNG, returns the figure.

    most: neighbours drawn; of each relation in turn one, so that none crowds the others out. The title says how many there are.

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
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    drawn = _in_turn(edges)[:most]
    relations = sorted({relation for relation, _, _ in drawn})
    colours = dict(zip(relations, colormaps["tab20"].colors, strict=False))
    figure = Figure(figsize=(9, 7), layout="constrained")
    axes = figure.subplots()
    for place, (relation, other, outwards) in enumerate(sorted(drawn)):
        angle = 2 * math.pi * place / len(drawn)
        x, y = math.cos(angle), math.sin(angle)
        ends = ((0, 0), (x, y)) if outwards else ((x, y), (0, 0))
        style = {"arrowstyle": "-|>", "color": colours[relation], "shrinkA": 14, "shrinkB": 14}
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
    axes.set_title(f"{len(drawn)} of {len(edges)} triples: " + ", ".join(f"{k} {v}" for k, v in counts.most_common(6)))
    axes.set(xlim=(-1.9, 1.9), ylim=(-1.5, 1.5))
    axes.axis("off")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return figure


def _in_turn(edges: list[tuple[str, str, bool]]) -> list[tuple[str, str, bool]]:
    """One of each relation and direction after the other."""
    seen: Counter[tuple[str, bool]] = Counter()
    placed = []
    for relation, other, outwards in sorted(edges):
        placed.append((seen[relation, outwards], relation, other, outwards))
        seen[relation, outwards] += 1
    return [edge[1:] for edge in sorted(placed)]
