"""Triples to train on and to be asked for, so that no answer can be read off the training triples.

Held out are whole units of source: a triple belongs to the unit of its head. Tails may be known from training: a call of
`json.dumps` in a new module.
"""

import hashlib
import random
import re
from collections import Counter
from typing import NamedTuple

from scipy.cluster.hierarchy import DisjointSet

from .knowledge_graph import DEFINED, KnowledgeGraph, Triple

UNITS = ("package", "module", "definition")  # from large to small; a definition is one of a module's outermost level
EMPTY = hashlib.sha256(b"").hexdigest()  # of every empty __init__.py


class Splits(NamedTuple):
    """Sorted like the graph; no two parts share a pair of entities, in whichever order and relation."""

    train: tuple[Triple, ...]
    validation: tuple[Triple, ...]
    test: tuple[Triple, ...]
    reason: str  # by which unit, and why


def split_by_module(graph: KnowledgeGraph, *, seed: int, held_out: float = 0.1) -> Splits:
    """Each triple to the part that the unit of its head was drawn for; all triples of one pair of entities stay together.

    Where the units of such a group were drawn for different parts (a calls b, b calls a), training gets it, then
    validation. Modules of the same content are one unit.

    Units are packages (the outermost that contains the module); where these are too few or too large for three parts they are
    modules, else definitions, and the splits say which.

    held_out: share of the triples, in (0, 0.5), for validation and for test each; a little less, as units stay whole.

    Raises ValueError: no unit that is small enough.
    """
    triples = list(graph.resolved())
    pairs = [frozenset((triple.head, triple.tail)) for triple in triples]
    for unit in UNITS:
        unit_of = _find_units(graph, unit)
        units = [unit_of.get(triple.head, "") for triple in triples]
        sizes = Counter(units)
        part_of_unit = _draw(sizes, held_out, seed)
        part_of_pair: dict[frozenset[str], int] = {}
        for pair, name in zip(pairs, units, strict=True):
            part_of_pair[pair] = min(part_of_pair.get(pair, 2), part_of_unit[name])
        parts: tuple[list[Triple], ...] = [], [], []
        for triple, pair in zip(triples, pairs, strict=True):
            parts[part_of_pair[pair]].append(triple)
        if all(parts):
            why = "" if unit == UNITS[0] else f": by {UNITS[0]} they would be too few or too large"
            reason = f"held out by {unit} ({len(sizes):,} of them){why}"
            train, validation, test = map(tuple, parts)
            return Splits(train, validation, test, reason)
    raise ValueError(
        f"held_out={held_out}: {len(triples):,} triples, too few to hold some out by {' or '.join(UNITS)}; give more sources, or "
        "raise held_out"
    )


def _find_units(graph: KnowledgeGraph, unit: str) -> dict[str, str]:
    """Unit of each entity that the sources define."""
    defined = [entity for entity in graph.entities.values() if entity.status == DEFINED]
    unit_of = {entity.module: entity.module for entity in defined}
    if unit == "package":
        containers = {triple.tail: triple.head for triple in graph.triples if triple.relation == "contains"}
        for module in unit_of:
            while unit_of[module] in containers:
                unit_of[module] = containers[unit_of[module]]
    _join_equal_files(graph, unit_of)
    units = {}
    for entity in defined:
        units[entity.id] = unit_of[entity.module]
        inside = entity.id.removeprefix(f"{entity.module}.")
        if unit == "definition" and inside != entity.id:
            units[entity.id] += "." + re.split("[.(]", inside)[0]
    return units


def _join_equal_files(graph: KnowledgeGraph, unit_of: dict[str, str]) -> None:
    """Makes one unit, the first of them, of those that share a file, directly or through others. unit_of: of each module."""
    joined = DisjointSet(unit_of.values())
    unit_of_content: dict[str, str] = {}
    for file in graph.manifest["files"]:
        if file["module"] in unit_of and file["sha256"] != EMPTY:
            unit = unit_of[file["module"]]
            joined.merge(unit, unit_of_content.setdefault(file["sha256"], unit))
    for module, unit in unit_of.items():
        unit_of[module] = min(joined.subset(unit))


def _draw(sizes: Counter, held_out: float, seed: int) -> dict[str, int]:
    """Unit -> 0 train, 1 validation, 2 test. Shuffled units fill test, then validation; too large a one goes on."""
    units = sorted(sizes)
    random.Random(seed).shuffle(units)
    room = held_out * sizes.total()
    rooms = {2: room, 1: room, 0: float("inf")}
    part_of = {}
    for unit in units:
        part = next(part for part, room in rooms.items() if sizes[unit] <= room)
        rooms[part] -= sizes[unit]
        part_of[unit] = part
    return part_of
