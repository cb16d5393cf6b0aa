"""Which types of entities there are, which relations hold between them, and what each relation forbids.

The ontology is TOML. A graph of one's own may come with one of its own: `ontology.toml` beside its triples.jsonl.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

UNKNOWN = "unknown"  # type of an entity that the sources mention and do not define

ONTOLOGY = "ontology.toml"
SOFTWARE = Path(__file__).with_name(ONTOLOGY)  # it says what the properties of relations mean
PROPERTIES = ("antisymmetric", "acyclic", "functional", "inverse_functional")


@dataclass(frozen=True, kw_only=True)
class Relation:
    """One relation; `domain` and `range` hold the subtypes of what the ontology names, too."""

    name: str
    domain: frozenset[str]
    range: frozenset[str]
    antisymmetric: bool = False
    acyclic: bool = False
    functional: bool = False
    inverse_functional: bool = False
    inverse: str | None = None
    canonical: bool = True  # False for an inverse: extraction says `contains`, never `part_of` beside it

    def inverted(self) -> Relation:
        assert self.inverse
        return replace(
            self,
            name=self.inverse,
            domain=self.range,
            range=self.domain,
            functional=self.inverse_functional,
            inverse_functional=self.functional,
            inverse=self.name,
            canonical=False,
        )


@dataclass(frozen=True)
class Ontology:
    types: dict[str, str]  # type -> the type that it is a kind of, "" for none
    relations: dict[str, Relation]  # inverses included
    text: str = field(default="", repr=False)  # the TOML that it was read from


def read_ontology(path: str | Path | None = None) -> Ontology:
    """The ontology of software (default), or the one in a TOML file written like `ontology.toml` beside this module.

    Raises FileNotFoundError, and ValueError that names the table, the key, what is wrong and what is possible.
    """
    name = "ontology" if path is None else f"ontology={str(path)!r}"
    try:
        text = Path(path or SOFTWARE).expanduser().read_text(encoding="utf-8")
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{name}: not TOML ({error})") from error
    if set(tables) != {"types", "relations"}:
        raise ValueError(f"{name}: needs the tables `types` and `relations`, found: {', '.join(tables) or 'none'}")
    below = _below(tables["types"], name)
    relations: dict[str, Relation] = {}
    for relation_name, table in tables["relations"].items():
        relation = _relation(relation_name, table, below, f"{name}, relations.{relation_name}")
        for new in (relation, relation.inverted()) if relation.inverse else (relation,):
            if new.name in relations or (new is not relation and new.name in tables["relations"]):
                raise ValueError(f"{name}: relation {new.name!r} is there twice; an inverse needs no table of its own")
            relations[new.name] = new
    return Ontology(dict(tables["types"]), relations, text)


def _below(types: dict, name: str) -> dict[str, set[str]]:
    """Of each type itself and all kinds of it."""
    for kind, parent in types.items():
        if kind == UNKNOWN or not isinstance(parent, str) or (parent and parent not in types):
            raise ValueError(
                f'{name}, types.{kind}={parent!r}: must be another of its types, or "" ({UNKNOWN!r} is kept)'
            )
    found = defaultdict(set)
    for kind in types:
        above = kind
        for _ in types:
            found[above].add(kind)
            above = types[above] or above
        if types[above]:
            raise ValueError(f'{name}, types.{kind}: is a kind of itself; give one of the types above it the type ""')
    return found


def _relation(name: str, table: dict, below: dict[str, set[str]], where: str) -> Relation:
    values = dict(table)
    known = ("domain", "range", "inverse", *PROPERTIES)
    if unknown := values.keys() - set(known):
        raise ValueError(f"{where}: unknown key {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    for end in ("domain", "range"):
        types = values.get(end)
        if not isinstance(types, list) or not types or not all(isinstance(one, str) and one in below for one in types):
            raise ValueError(f"{where}.{end}={types!r}: must be a list of types: {', '.join(below)}")
        values[end] = frozenset().union(*(below[one] for one in types))
    for key in PROPERTIES:
        if not isinstance(values.get(key, False), bool):
            raise ValueError(f"{where}.{key}={values[key]!r}: must be true or false")
    inverse = values.get("inverse")
    if inverse is not None and (not isinstance(inverse, str) or inverse in ("", name)):
        raise ValueError(f"{where}.inverse={inverse!r}: must be the name of another relation")
    return Relation(name=name, **values)
