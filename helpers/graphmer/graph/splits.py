"""Triples to train on and to be asked for, so that no answer can be read off the training triples.

Held out are whole units of source: a triple belongs to the unit of its head. Tails may be known from training: a call of
`json.dumps` in a new module.
"""

import hashlib
import random
import re
from collections import Counter, defaultdict
from typing import NamedTuple

from scipy.cluster.hierarchy import DisjointSet

from .knowledge_graph import DEFINED, KnowledgeGraph, Triple

UNITS = ("package", "module", "definition")  # from large to small; a definition is one of a module's outermost level
_EMPTY = hashlib.sha256(b"").hexdigest()  # of every empty __init__.py


class Splits(NamedTuple):
    """Sorted like the graph; no two parts share a pair of entities, in whichever order and relation."""

    train: tuple[Triple, ...]
    validation: tuple[Triple, ...]
    test: tuple[Triple, ...]
    said: str  # by which unit, and why


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
    pairs: dict[frozenset[str], list[Triple]] = defaultdict(list)
    for triple in triples:
        pairs[frozenset((triple.head, triple.tail))].append(triple)
    for unit in UNITS:
        unit_of = _units(graph, unit)
        sizes = Counter(unit_of.get(triple.head, "") for triple in triples)
        part_of, parts = _draw(sizes, held_out, seed), ([], [], [])
        for group in pairs.values():
            parts[min(part_of[unit_of.get(triple.head, "")] for triple in group)].extend(group)
        if all(parts):
            why = "" if unit == UNITS[0] else f": by {UNITS[0]} they would be too few or too large"
            return Splits(*(tuple(sorted(part)) for part in parts), f"held out by {unit} ({len(sizes):,} of them){why}")
    raise ValueError(
        f"held_out={held_out}: {len(triples):,} triples, too few to hold some out by {' or '.join(UNITS)}; give more sources, or "
        "raise held_out"
    )


def _units(graph: KnowledgeGraph, unit: str) -> dict[str, str]:
    """Unit of each entity that the sources define."""
    defined = [entity for entity in graph.entities.values() if entity.status == DEFINED]
    around = {triple.tail: triple.head for triple in graph.triples if triple.relation == "contains"}
    names = {entity.module: entity.module for entity in defined}
    if unit == "package":
        for module in names:
            while names[module] in around:
                names[module] = around[names[module]]
    first = _joined_units(graph, names)
    units = {entity.id: first[names[entity.module]] for entity in defined}
    if unit == "definition":
        for entity in defined:
            inside = entity.id.removeprefix(f"{entity.module}.")
            if inside != entity.id:
                units[entity.id] += f".{re.split('[.(]', inside, maxsplit=1)[0]}"
    return units


def _joined_units(graph: KnowledgeGraph, names: dict[str, str]) -> dict[str, str]:
    """Units that share a file, directly or through others, are the first of them. names: unit of each module."""
    units = DisjointSet(names.values())
    unit_of_content: dict[str, str] = {}
    for file in graph.manifest["files"]:
        if file["module"] in names and file["sha256"] != _EMPTY:
            unit = names[file["module"]]
            units.merge(unit, unit_of_content.setdefault(file["sha256"], unit))
    return {unit: min(joined) for joined in units.subsets() for unit in joined}


def _draw(sizes: Counter, held_out: float, seed: int) -> dict[str, int]:
    """Unit -> 0 train, 1 validation, 2 test. Shuffled units fill test, then validation; too large a one goes on."""
    names = sorted(sizes)
    random.Random(seed).shuffle(names)
    missing, part_of = {2: held_out * sizes.total(), 1: held_out * sizes.total(), 0: float("inf")}, {}
    for name in names:
        part_of[name] = next(part for part, size in missing.items() if sizes[name] <= size)
        missing[part_of[name]] -= sizes[name]
    return part_of
