"""Triples to train on and to be asked for, so that no answer can be read off the training triples.

Held out are whole units of source: a triple belongs to the unit of its head. Tails may be known from training: a call of
`json.dumps` in a new module.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from helpers.graphmer.graph.knowledge_graph import DEFINED, Entity, KnowledgeGraph, Triple

UNITS = ("package", "module", "definition")  # from large to small; a definition is one of a module's outermost level
_EMPTY = hashlib.sha256(b"").hexdigest()  # of every empty __init__.py


@dataclass(frozen=True)
class Splits:
    """Sorted like the graph; no two parts share a pair of entities, in whichever order and relation."""

    train: tuple[Triple, ...] = field(repr=False)
    validation: tuple[Triple, ...] = field(repr=False)
    test: tuple[Triple, ...] = field(repr=False)
    said: str = ""  # by which unit, and why


def split_by_module(graph: KnowledgeGraph, *, seed: int, unit: str = "package", held_out: float = 0.1) -> Splits:
    """Each triple to the part that the unit of its head was drawn for; all triples of one pair of entities stay together.

    Where the units of such a group were drawn for different parts (a calls b, b calls a), training gets it, then
    validation. Modules of the same content are one unit.

    unit: "package" (the outermost that contains the module), "module", or "definition". Where units are too few or too large for
        three parts the next smaller ones are taken; the splits say which.
    held_out: share of the triples, in (0, 0.5), for validation and for test each; a little less, as units stay whole.

    Raises ValueError: no unit that is small enough.
    """
    triples = list(graph.resolved())
    tried = UNITS[UNITS.index(unit) :]
    for smaller in tried:
        units = _units(graph, smaller)
        sizes = Counter(units.get(triple.head, "") for triple in triples)
        parts = _by_head(triples, units, _draw(sizes, held_out, seed))
        if all(parts):
            said = f"held out by {smaller} ({len(sizes):,} of them)"
            said += "" if smaller == unit else f": by {unit} they would be too few or too large"
            return Splits(*(tuple(sorted(part)) for part in parts), said)
    raise ValueError(
        f"held_out={held_out}: {len(triples):,} triples, too few to hold some out by {' or '.join(tried)}; give more sources, or "
        "raise held_out"
    )


def _by_head(triples: list[Triple], units: dict[str, str], part_of: dict[str, int]) -> tuple[list[Triple], ...]:
    groups: dict[frozenset[str], list[Triple]] = defaultdict(list)
    for triple in triples:
        groups[frozenset((triple.head, triple.tail))].append(triple)
    parts: tuple[list[Triple], ...] = ([], [], [])
    for group in groups.values():
        parts[min(part_of[units.get(triple.head, "")] for triple in group)].extend(group)
    return parts


def _units(graph: KnowledgeGraph, unit: str) -> dict[str, str]:
    """Unit of each entity that the sources define."""
    defined = [entity for entity in graph.entities.values() if entity.status == DEFINED]
    inside = {triple.tail: triple.head for triple in graph.triples if triple.relation == "contains"}
    names = {entity.module: entity.module for entity in defined}
    if unit == "package":
        names = {module: _outermost(module, inside) for module in names}
    merged = _same_content(graph, names)
    return {entity.id: merged[names[entity.module]] + _definition(entity, unit) for entity in defined}


def _outermost(module: str, inside: dict[str, str]) -> str:
    while module in inside:
        module = inside[module]
    return module


def _definition(entity: Entity, unit: str) -> str:
    inside = entity.id.removeprefix(f"{entity.module}.")
    return f".{re.split('[.(]', inside, maxsplit=1)[0]}" if unit == "definition" and inside != entity.id else ""


def _same_content(graph: KnowledgeGraph, names: dict[str, str]) -> dict[str, str]:
    """Unit -> the first of all units that share a file with it, directly or through others."""
    import networkx

    shared = networkx.Graph()
    shared.add_nodes_from(names.values())
    seen: dict[str, str] = {}
    for file in graph.manifest["files"]:
        if file["module"] in names and file["sha256"] != _EMPTY:
            name = names[file["module"]]
            shared.add_edge(name, seen.setdefault(file["sha256"], name))
    return {name: min(units) for units in networkx.connected_components(shared) for name in units}


def _draw(sizes: Counter, held_out: float, seed: int) -> dict[str, int]:
    """Unit -> 0 train, 1 validation, 2 test. Shuffled units fill test, then validation; too large a one goes on."""
    names = sorted(sizes)
    random.Random(seed).shuffle(names)
    missing = {part: held_out * sizes.total() for part in (2, 1)}
    part_of = {}
    for name in names:
        part = next((part for part, size in missing.items() if sizes[name] <= size), 0)
        part_of[name] = part
        if part:
            missing[part] -= sizes[name]
    return part_of
