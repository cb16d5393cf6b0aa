"""Which types of entities there are, which relations hold between them, and what each relation forbids: `ontology.toml`."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

UNKNOWN = "unknown"  # type of an entity that the sources mention and do not define


@dataclass(frozen=True, kw_only=True)
class Relation:
    """One relation; `domain` and `range` hold the subtypes of what the file names, too."""

    name: str
    domain: frozenset[str]
    range: frozenset[str]
    antisymmetric: bool = False
    acyclic: bool = False
    inverse: str = ""  # its name in the other direction; extraction never says it


def read_ontology() -> dict[str, Relation]:
    """The relations of software, by name."""
    tables = tomllib.loads(Path(__file__).with_name("ontology.toml").read_text(encoding="utf-8"))
    below = defaultdict(set)  # of each type itself and all kinds of it
    for kind, above in tables["types"].items():
        below[kind].add(kind)
        while above:
            below[above].add(kind)
            above = tables["types"][above]

    def of(types: list[str]) -> frozenset[str]:
        return frozenset().union(*(below[one] for one in types))

    return {
        name: Relation(**table | {"name": name, "domain": of(table["domain"]), "range": of(table["range"])})
        for name, table in tables["relations"].items()
    }
