"""Triples to train on and to be asked for, so that no answer can be read off the training triples.

Held out are whole units of source: a triple belongs to the unit of its head. Tails may be known from training: a call of
`json.dumps` in a new module.
"""

import re
from typing import NamedTuple

import numpy as np
from sklearn.model_selection import GroupShuffleSplit

from .knowledge_graph import KnowledgeGraph, Triple

UNITS = ("package", "module", "definition")  # from large to small; a definition is one of a module's outermost level
DRAWS = 100  # of which the one that is nearest to a share is taken


class Splits(NamedTuple):
    """Sorted like the graph; no two parts share a pair of entities, in whichever order and relation."""

    train: tuple[Triple, ...]
    validation: tuple[Triple, ...]
    test: tuple[Triple, ...]
    reason: str  # by which unit, and why


def split_by_unit(graph: KnowledgeGraph, *, seed: int, held_out: float = 0.1) -> Splits:
    """Each triple to the part that the unit of its head was drawn for; all triples of one pair of entities stay together.

    Where the units of such a group were drawn for different parts (a calls b, b calls a), training gets it, then validation.

    Units are packages (the outermost that contains the module); where these are too few or too large for three parts they are
    modules, else definitions, and the splits say which. A module belongs to the unit of the first one with the same text.

    held_out: share of the triples, in (0, 0.5), for validation and for test each; they have a half more or less, as units stay whole.

    Raises ValueError: no unit that is small enough.
    """
    triples = graph.triples
    for unit in UNITS:
        unit_of = _find_units(graph, unit)
        names, units = np.unique([unit_of[triple.head] for triple in triples], return_inverse=True)
        kept, others = _draw(np.arange(len(triples)), units, 2 * held_out, seed)
        part_of_pair: dict[frozenset[str], int] = {}
        for part, places in enumerate((kept, *_draw(others, units, 0.5, seed))):
            for place in places:
                part_of_pair.setdefault(frozenset(triples[place][::2]), part)
        parts: tuple[list[Triple], ...] = [], [], []
        for triple in triples:
            parts[part_of_pair[frozenset(triple[::2])]].append(triple)
        smallest, largest = sorted(len(part) / len(triples) for part in parts[1:])
        if 0.5 * held_out <= smallest and largest <= 1.5 * held_out:
            why = "" if unit == UNITS[0] else f": by {UNITS[0]} they would be too few or too large"
            train, validation, test = map(tuple, parts)
            return Splits(train, validation, test, f"held out by {unit} ({len(names):,} of them){why}")
    raise ValueError(
        f"held_out={held_out}: {len(triples):,} triples, too few to hold some out by {' or '.join(UNITS)}; give more sources, or "
        "raise held_out"
    )


def _draw(places, units, share, seed):
    """Two parts of some places, of which no unit has places in both; the second has nearly a share."""
    if len(np.unique(units[places])) < 2:
        return places, places[:0]
    draws = GroupShuffleSplit(DRAWS, test_size=share, random_state=seed).split(places, groups=units[places])
    kept, held = min(draws, key=lambda draw: abs(len(draw[1]) - share * len(places)))
    return places[kept], places[held]


def _find_units(graph, unit):
    """Unit of each entity that the sources define."""
    defined = [entity for entity in graph.entities.values() if entity.module]
    unit_of = {entity.module: entity.module for entity in defined}
    if unit == "package":
        containers = {triple.tail: triple.head for triple in graph.triples if triple.relation == "contains"}
        for module in unit_of:
            while unit_of[module] in containers:
                unit_of[module] = containers[unit_of[module]]
    first_of = {}
    for module in sorted(unit_of):
        text = graph.texts.get(module)
        if text:
            unit_of[module] = unit_of[first_of.setdefault(text, module)]
    units = {}
    for entity in defined:
        units[entity.id] = unit_of[entity.module]
        if unit == UNITS[-1]:
            units[entity.id] += re.split("(?<=.)[.(]", entity.id.removeprefix(entity.module))[0]
    return units
