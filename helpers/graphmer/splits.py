"""Triples to train on and to be asked for, so that no answer can be read off the training triples.

Two splits of the resolved triples, both by whole units of source (a module, a package, a repository):

- `split_by_module`: a triple belongs to the unit of its head. Tails may be known from training: a call of `json.dumps`
  in a new module.
- `split_by_entity`: held-out triples are between entities that no training triple mentions. Only a model that reads the
  text can do better than chance.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import networkx

from helpers.graphmer.knowledge_graph import DEFINED, KnowledgeGraph, Triple

UNITS = ("module", "package", "repository")
_EMPTY = hashlib.sha256(b"").hexdigest()  # of every empty __init__.py


@dataclass(frozen=True)
class Splits:
    """Sorted like the graph; no two parts share a pair of entities, in whichever order and relation."""

    train: tuple[Triple, ...] = field(repr=False)
    validation: tuple[Triple, ...] = field(repr=False)
    test: tuple[Triple, ...] = field(repr=False)
    dropped: dict[str, int]  # reason -> triples in no part


def split_by_module(graph: KnowledgeGraph, *, seed: int, unit: str = "package", held_out: float = 0.1) -> Splits:
    """Each triple to the part that the unit of its head was drawn for; all triples of one pair of entities stay together.

    Where the units of such a group were drawn for different parts (a calls b, b calls a), training gets it, then
    validation.

    unit: "module", "package" (the outermost that contains the module) or "repository" (with several folders of sources).
        Modules of the same content are one unit, whatever their names.
    held_out: share of the triples, in (0, 0.5), for validation and for test each; a little less, as units stay whole.

    Raises ValueError: an unknown unit, an impossible share, no unit that is small enough.
    """
    triples, dropped = _resolved(graph)
    unit_of = _units(graph, unit)
    part_of = _draw(Counter(unit_of(triple.head) for triple in triples), held_out, seed, unit)
    groups: dict[frozenset[str], list[Triple]] = defaultdict(list)
    for triple in triples:
        groups[frozenset((triple.head, triple.tail))].append(triple)
    parts: tuple[list[Triple], ...] = ([], [], [])
    for group in groups.values():
        parts[min(part_of[unit_of(triple.head)] for triple in group)].extend(group)
    return Splits(*(tuple(sorted(part)) for part in parts), dropped)


def split_by_entity(graph: KnowledgeGraph, *, seed: int, unit: str = "package", held_out: float = 0.1) -> Splits:
    """Entities to parts by their unit, and to each part the triples with both ends in it; those between parts are dropped.

    What the sources do not define (builtins, other libraries) belongs to training: everything uses it. Parameters and
    errors like `split_by_module`; `held_out` is a share of the triples before some are dropped.
    """
    triples, dropped = _resolved(graph)
    unit_of = _units(graph, unit)
    part_of = _draw(Counter(unit_of(triple.head) for triple in triples), held_out, seed, unit)
    part_of[""] = 0
    parts: tuple[list[Triple], ...] = ([], [], [])
    for triple in triples:
        # A unit of no triple's head is held out with nothing to ask: training may have it.
        head, tail = (part_of.get(unit_of(end), 0) for end in (triple.head, triple.tail))
        if head == tail:
            parts[head].append(triple)
    dropped["between parts"] = len(triples) - sum(map(len, parts))
    for name, part in zip(("validation", "test"), parts[1:], strict=True):
        if not part:
            raise ValueError(
                f"unit={unit!r}, held_out={held_out}: no triple for {name} is within its part; raise held_out"
            )
    return Splits(*map(tuple, parts), dropped)


def _resolved(graph: KnowledgeGraph) -> tuple[list[Triple], dict[str, int]]:
    triples = list(graph.resolved())
    return triples, {"unresolved": len(graph.triples) - len(triples)}


def _units(graph: KnowledgeGraph, unit: str) -> Callable[[str], str]:
    """Unit of an entity by its id; "" for one that the sources do not define."""
    if unit not in UNITS:
        raise ValueError(f"unit={unit!r}: must be one of {', '.join(UNITS)}")
    entities = graph.entities.values()
    modules = sorted({entity.module for entity in entities if entity.status == DEFINED})
    if "" in modules:
        raise ValueError(
            f"unit={unit!r}: entities without a module, say in field `module` of entities.jsonl what it is"
        )
    if unit == "repository" and not all("/" in module for module in modules):
        raise ValueError("unit='repository': the graph has one; give several folders of sources, or use unit='package'")
    inside = (
        {triple.tail: triple.head for triple in graph.triples if triple.relation == "contains"}
        if unit == "package"
        else {}
    )

    def named(module: str) -> str:
        if unit == "repository":
            return module.partition("/")[0]
        seen = {module}
        while (outer := inside.get(module)) and outer not in seen:
            module = outer
            seen.add(module)
        return module

    names = {module: named(module) for module in modules}
    merged = _same_content(graph, names)
    units = {entity.id: merged[names[entity.module]] if entity.status == DEFINED else "" for entity in entities}
    return units.__getitem__


def _same_content(graph: KnowledgeGraph, names: dict[str, str]) -> dict[str, str]:
    """Unit -> the first of all units that share a file with it, directly or through others."""
    shared = networkx.Graph()
    shared.add_nodes_from(names.values())
    seen: dict[str, str] = {}
    for file in graph.manifest.get("files", ()):
        name = names.get(file["module"])
        if name is not None and file["sha256"] != _EMPTY:
            shared.add_edge(name, seen.setdefault(file["sha256"], name))
    return {name: min(units) for units in networkx.connected_components(shared) for name in units}


def _draw(sizes: Counter, held_out: float, seed: int, unit: str) -> dict[str, int]:
    """Unit -> 0 train, 1 validation, 2 test. Shuffled units fill test, then validation; too large a one goes on."""
    if not 0 < held_out < 0.5:
        raise ValueError(f"held_out={held_out}: must be in (0, 0.5), the share of validation and of test each")
    names = sorted(sizes)
    random.Random(seed).shuffle(names)
    missing = {part: held_out * sizes.total() for part in (2, 1)}
    part_of = {}
    for name in names:
        part = next((part for part, size in missing.items() if sizes[name] <= size), 0)
        part_of[name] = part
        if part:
            missing[part] -= sizes[name]
    if len(set(part_of.values())) < 3:
        raise ValueError(
            f"unit={unit!r}, held_out={held_out}: {len(names)} units, too few or too large for three parts; use a smaller "
            "unit or raise held_out"
        )
    return part_of
