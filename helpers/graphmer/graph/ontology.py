"""Which types of entities there are, which relations hold between them, and what each relation forbids.

The ontology is TOML. A graph of one's own may come with one of its own: `ontology.toml` beside its triples.jsonl.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path

UNKNOWN = "unknown"  # type of an entity that the sources mention and do not define

ONTOLOGY = "ontology.toml"
SOFTWARE = Path(__file__).with_name(ONTOLOGY)  # it says what the properties of relations mean


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
        return Relation(
            name=self.inverse,
            domain=self.range,
            range=self.domain,
            antisymmetric=self.antisymmetric,
            acyclic=self.acyclic,
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
    types = _checked_types(tables["types"], name)
    relations: dict[str, Relation] = {}
    for relation_name, table in tables["relations"].items():
        relation = _relation(relation_name, table, types, f"{name}, relations.{relation_name}")
        for new in (relation, relation.inverted()) if relation.inverse else (relation,):
            if new.name in relations or (new is not relation and new.name in tables["relations"]):
                raise ValueError(f"{name}: relation {new.name!r} is there twice; an inverse needs no table of its own")
            relations[new.name] = new
    return Ontology(types, relations, text)


def _checked_types(types: dict, name: str) -> dict[str, str]:
    if UNKNOWN in types:
        raise ValueError(f"{name}, types: {UNKNOWN!r} is kept for entities that the sources do not define; rename it")
    for entity_type, parent in types.items():
        if not isinstance(parent, str) or (parent and parent not in types):
            raise ValueError(f'{name}, types.{entity_type}={parent!r}: must be another type or "": {", ".join(types)}')
        seen = [entity_type]
        while parent:
            if parent in seen:
                raise ValueError(f"{name}, types.{entity_type}: is a kind of itself: {' -> '.join([*seen, parent])}")
            seen.append(parent)
            parent = types[parent]
    return dict(types)


def _relation(relation_name: str, table: dict, types: dict[str, str], where: str) -> Relation:
    keys = {field.name for field in fields(Relation)} - {"name", "canonical"}
    if unknown := set(table) - keys:
        raise ValueError(f"{where}: unknown key {', '.join(sorted(unknown))}; known: {', '.join(sorted(keys))}")
    values = dict(table)
    for key in ("domain", "range"):
        named = values.get(key)
        if not isinstance(named, list) or not named or not all(entity_type in types for entity_type in named):
            raise ValueError(f"{where}.{key}={named!r}: must be a list of types: {', '.join(types)}")
        values[key] = frozenset(entity_type for entity_type in types if _ancestors(entity_type, types) & set(named))
    for key in keys - {"domain", "range", "inverse"}:
        if not isinstance(values.get(key, False), bool):
            raise ValueError(f"{where}.{key}={values[key]!r}: must be true or false")
    inverse = values.get("inverse")
    if inverse is not None and (not isinstance(inverse, str) or inverse in ("", relation_name)):
        raise ValueError(f"{where}.inverse={inverse!r}: must be the name of another relation")
    return Relation(name=relation_name, **values)


def _ancestors(entity_type: str, types: dict[str, str]) -> set[str]:
    """The type itself and all that it is a kind of."""
    found = set()
    while entity_type:
        found.add(entity_type)
        entity_type = types[entity_type]
    return found
