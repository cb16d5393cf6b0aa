"""Which types of entities there are, which relations hold between them, what each relation forbids, and which triples contradict it.

The ontology is TOML. A graph of one's own may come with one of its own: `ontology.toml` beside its triples.jsonl.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from helpers.graphmer.graph.knowledge_graph import KnowledgeGraph, Triple

UNKNOWN = "unknown"  # type of an entity that the sources mention and do not define

ONTOLOGY = "ontology.toml"
SOFTWARE = Path(__file__).with_name(ONTOLOGY)  # it says what the properties of relations mean
KINDS = ("relation", "type", "domain", "range", "antisymmetric", "acyclic", "functional", "inverse_functional")


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
    types = _ancestors(tables["types"], name)
    relations: dict[str, Relation] = {}
    for relation_name, table in tables["relations"].items():
        relation = _relation(relation_name, table, types, f"{name}, relations.{relation_name}")
        for new in (relation, relation.inverted()) if relation.inverse else (relation,):
            if new.name in relations or (new is not relation and new.name in tables["relations"]):
                raise ValueError(f"{name}: relation {new.name!r} is there twice; an inverse needs no table of its own")
            relations[new.name] = new
    return Ontology(dict(tables["types"]), relations, text)


def _ancestors(types: dict, name: str) -> dict[str, set[str]]:
    """Of each type itself and all that it is a kind of."""
    if UNKNOWN in types:
        raise ValueError(f"{name}, types: {UNKNOWN!r} is kept for entities that the sources do not define; rename it")
    for entity_type, parent in types.items():
        if not isinstance(parent, str) or (parent and parent not in types):
            raise ValueError(f'{name}, types.{entity_type}={parent!r}: must be another type or "": {", ".join(types)}')
    found = {}
    for entity_type in types:
        seen = [entity_type]
        while parent := types[seen[-1]]:
            if parent in seen:
                raise ValueError(f"{name}, types.{entity_type}: is a kind of itself: {' -> '.join([*seen, parent])}")
            seen.append(parent)
        found[entity_type] = set(seen)
    return found


def _relation(relation_name: str, table: dict, types: dict[str, set[str]], where: str) -> Relation:
    keys = {field.name for field in fields(Relation)} - {"name", "canonical"}
    if unknown := set(table) - keys:
        raise ValueError(f"{where}: unknown key {', '.join(sorted(unknown))}; known: {', '.join(sorted(keys))}")
    values = dict(table)
    for key in ("domain", "range"):
        named = values.get(key)
        if not isinstance(named, list) or not named or not all(entity_type in types for entity_type in named):
            raise ValueError(f"{where}.{key}={named!r}: must be a list of types: {', '.join(types)}")
        values[key] = frozenset(entity_type for entity_type, above in types.items() if above & set(named))
    for key in keys - {"domain", "range", "inverse"}:
        if not isinstance(values.get(key, False), bool):
            raise ValueError(f"{where}.{key}={values[key]!r}: must be true or false")
    inverse = values.get("inverse")
    if inverse is not None and (not isinstance(inverse, str) or inverse in ("", relation_name)):
        raise ValueError(f"{where}.inverse={inverse!r}: must be the name of another relation")
    return Relation(name=relation_name, **values)


# ---- violations


class Violation(NamedTuple):
    kind: str  # one of KINDS: a relation or type that the ontology lacks, or what the triple contradicts
    triple: Triple


@dataclass(frozen=True)
class Validation:
    """`typed_share` is what "domain/range valid" means here: triples of undetermined type count on neither side."""

    triples: int
    undetermined: int  # an end is of unknown type, so that neither domain nor range can be checked whole
    violations: tuple[Violation, ...] = field(repr=False)

    @property
    def counts(self) -> dict[str, int]:
        """Violations of each kind, those that did not occur included."""
        found = Counter(violation.kind for violation in self.violations)
        return {kind: found[kind] for kind in KINDS}

    @property
    def typed_share(self) -> float:
        """Share of the triples with two known types that fit domain and range; 1 where there are none."""
        wrong = {violation.triple for violation in self.violations if violation.kind in KINDS[:4]}
        checked = self.triples - self.undetermined
        return 1 - len(wrong) / checked if checked else 1.0


def validate(graph: KnowledgeGraph, ontology: Ontology) -> Validation:
    """Checks every triple. A triple that contradicts in several ways is in `violations` several times."""
    found: list[Violation] = []
    undetermined = 0
    problems: dict[tuple[str, str, str], list[str]] = {}  # of a relation between two types
    stated: dict[str, list[tuple[Triple, str, str]]] = {}  # relation -> triple, head, tail; inverses turned
    for triple in graph.triples:
        types = (triple.relation, graph.entities[triple.head].type, graph.entities[triple.tail].type)
        if types not in problems:
            problems[types] = list(_wrong_types(*types, ontology))
        found += [Violation(kind, triple) for kind in problems[types]]
        undetermined += not problems[types] and UNKNOWN in types[1:]
        if relation := ontology.relations.get(triple.relation):
            ends = triple[::2] if relation.canonical else triple[::-2]
            stated.setdefault(relation.name if relation.canonical else relation.inverse, []).append((triple, *ends))
    for name, triples in stated.items():
        found += _forbidden(ontology.relations[name], triples)
    found.sort(key=lambda violation: (KINDS.index(violation.kind), violation.triple))
    return Validation(len(graph.triples), undetermined, tuple(found))


def _wrong_types(name: str, head_type: str, tail_type: str, ontology: Ontology) -> Iterator[str]:
    relation = ontology.relations.get(name)
    if relation is None:
        yield "relation"
    for end, found in (("domain", head_type), ("range", tail_type)):
        if found != UNKNOWN and found not in ontology.types:
            yield "type"
        elif found != UNKNOWN and relation and found not in getattr(relation, end):
            yield end


def _forbidden(relation: Relation, triples: Iterable[tuple[Triple, str, str]]) -> Iterator[Violation]:
    """What contradicts other triples; one lies on a cycle where both its ends are in one strongly connected component."""
    pairs = {(head, tail) for _, head, tail in triples}
    tails, heads = Counter(head for head, _ in pairs), Counter(tail for _, tail in pairs)
    component = {}
    if relation.acyclic:
        import networkx

        components = networkx.strongly_connected_components(networkx.DiGraph(pairs))
        component = {name: number for number, names in enumerate(components) for name in names}
    for triple, head, tail in triples:
        if relation.antisymmetric and head != tail and (tail, head) in pairs:
            yield Violation("antisymmetric", triple)
        if relation.acyclic and component[head] == component[tail]:
            yield Violation("acyclic", triple)
        if relation.functional and tails[head] > 1:
            yield Violation("functional", triple)
        if relation.inverse_functional and heads[tail] > 1:
            yield Violation("inverse_functional", triple)
