"""What the sources of a repository prove about a function, without a model: who calls it, what it calls, what a change reaches.

ask("my/repository", "package.Class.method", "called_by")

What only running would tell is never called known. No model guesses here: in no study did one add to what names and sources say.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from helpers.graphmer.graph.extraction import cached_graph, folder_of
from helpers.graphmer.graph.knowledge_graph import DEFINED, UNRESOLVED, Entity, KnowledgeGraph, Triple, unresolved

KNOWN = "known"
OVERRIDDEN = "overridden"
OPEN = "open"
CALLS = ("calls", "instantiates")


class Answer(NamedTuple):
    """Another end of the relation.

    status: "known", the sources prove it · "overridden", they prove a call of the method that this one overrides, or is
        overridden by · "open", they name it there, and do not prove what is meant.
    steps: calls in between, and one more. defined: file:line of its definition. mentioned: file:line of each mention.
    source: the line of the first mention. could_be: what an open name is the name of.
    """

    name: str
    status: str
    steps: int = 1
    defined: str = ""
    mentioned: str = ""
    source: str = ""
    could_be: str = ""


def ask(repository: str | Path, name: str, relation: str, *, cache: str | Path | None = None) -> list[Answer]:
    """Every known answer, nearest first, then the open ones.

    name: qualified name of an entity, or the end of one that no other has.
    relation: "called_by", "calls" or "impact" (all that reach it over calls).
    cache: folder for what is read of repositories; default: the user's.

    Raises ValueError: an unknown name (with near ones) or relation; and what `load_graph` does.
    """
    return Asked.read(repository, cache).answers(name, relation)


class Asked:
    """A graph that is asked, with the folder of its sources."""

    def __init__(self, graph: KnowledgeGraph, folder: Path):
        self.graph, self.folder = graph, folder
        self._texts: dict[str, list[str]] = {}
        self.tails: dict[tuple[str, str], list[Triple]] = defaultdict(list)  # by head and relation
        self.heads: dict[tuple[str, str], list[Triple]] = defaultdict(list)  # by tail and relation
        for triple in graph.triples:
            self.tails[triple.head, triple.relation].append(triple)
            self.heads[triple.tail, triple.relation].append(triple)

    @classmethod
    def read(cls, repository: str | Path, cache: str | Path | None = None) -> Asked:
        return cls(cached_graph(repository, cache), folder_of(repository))

    def answers(self, name: str, relation: str) -> list[Answer]:
        """As `ask`."""
        entity = self.entity(name)
        if relation == "impact":
            found = self._impact(entity)
        elif relation == "called_by":
            found = [*self._callers(entity.id), *self._open_callers(entity)]
        elif relation == "calls":
            found = [self._forward(triple) for each in CALLS for triple in self.tails[entity.id, each]]
        else:
            raise ValueError(f"relation={relation!r}: must be called_by, calls or impact")
        first = {}
        for each in sorted(found, key=lambda each: (each.status == OPEN, each.steps, each.status)):
            first.setdefault((each.name, each.status, each.source if each.status == OPEN else ""), each)
        return [*first.values()]

    def entity(self, name: str) -> Entity:
        """The entity of a name, or of the end of one; of a Java method also without its parameters."""
        if (exact := self.graph.entities.get(name)) and exact.status != UNRESOLVED:
            return exact
        names = {one.id: one.id.partition("(")[0] for one in self._defined()}
        for found in ([one for one, each in names.items() if each == name], [*_ending(names, name)]):
            if len(found) == 1:
                return self.graph.entities[found[0]]
            if found:
                raise ValueError(
                    f"name={name!r}: {len(found)} have this name: {_some(sorted(found))}; give a longer one"
                )
        parts = name.count(".") + 1
        ends = defaultdict(list)
        for one, each in names.items():
            ends[".".join(each.split(".")[-parts:]).lower()].append(one)
        near = [
            one for end in difflib.get_close_matches(name.lower(), ends, n=5, cutoff=0.7) for one in sorted(ends[end])
        ]
        remedy = f"did you mean {_some(near)}?" if near else "give the qualified name of a function or class"
        raise ValueError(f"name={name!r}: none of {len(names):,} definitions has this name; {remedy}")

    def _defined(self) -> Iterator[Entity]:
        return (one for one in self.graph.entities.values() if one.status == DEFINED and one.type != "parameter")

    # ---- who calls it

    def _callers(self, entity: str) -> Iterator[Answer]:
        for one, relations in self._ways(entity):
            for relation in relations:
                for triple in self.heads[one, relation]:
                    yield self._backward(triple, KNOWN if one == entity or relation == "instantiates" else OVERRIDDEN)

    def _ways(self, entity: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        """What a call may name to reach a function: itself, the class that it makes, the methods that it overrides."""
        yield entity, CALLS
        yield from ((one, ("calls",)) for one in self._closure([entity], "overrides", self.tails))
        if self.graph.entities[entity].type == "constructor":
            owners = [triple.head for triple in self.heads[entity, "contains"]]
            yield from ((one, ("instantiates",)) for one in self._made_by(owners))

    def _made_by(self, owners: list[str]) -> list[str]:
        """Classes whose instances a constructor makes: its own, and those below that have none."""
        made = [*owners]
        for one in made:
            below = (triple.head for triple in self.heads[one, "inherits_from"])
            made += [each for each in below if each not in made and not self._has_constructor(each)]
        return made

    def _has_constructor(self, owner: str) -> bool:
        inside = (self.graph.entities[triple.tail] for triple in self.tails[owner, "contains"])
        return any(one.type == "constructor" for one in inside)

    def _closure(self, names: list[str], relation: str, triples: dict[tuple[str, str], list[Triple]]) -> list[str]:
        """All that a relation leads to from some names, in as many steps as it takes."""
        found = [*names]
        for one in found:
            ends = (triple.tail if triples is self.tails else triple.head for triple in triples[one, relation])
            found += [end for end in ends if end not in found]
        return found[len(names) :]

    def _open_callers(self, entity: Entity) -> list[Answer]:
        """Calls of this name that are not proved, those of its module and of modules that import it first."""
        if entity.type in ("module", "package"):
            return []
        owner = entity.id.partition("(")[0].rpartition(".")[0]
        near = {
            triple.head
            for end in (entity.module, entity.id, owner)
            for each in ("imports", "imports_name")
            for triple in self.heads[end, each]
        }

        def distance(triple: Triple) -> int:
            module = self.graph.entities[triple.head].module
            return 0 if module == entity.module else 1 if module in near else 2

        triples = sorted(self.heads[unresolved(entity.name), "calls"], key=distance)
        return [self._backward(triple, OPEN) for triple in triples]

    def _impact(self, entity: Entity) -> list[Answer]:
        """All that reach it, each by the fewest calls; what is not proved is not followed."""
        found: dict[str, Answer] = {}
        reached = [(entity.id, KNOWN, 0)]
        for one, status, steps in reached:
            for caller in self._callers(one):
                if caller.name not in found and caller.name != entity.id:
                    worst = OVERRIDDEN if OVERRIDDEN in (status, caller.status) else KNOWN
                    found[caller.name] = caller._replace(status=worst, steps=steps + 1)
                    reached.append((caller.name, worst, steps + 1))
        return [*found.values(), *self._open_callers(entity)]

    # ---- answers

    def _backward(self, triple: Triple, status: str) -> Answer:
        head = self.graph.entities[triple.head]
        return Answer(head.id, status, 1, self.graph.place(head), *self._mention(triple))

    def _forward(self, triple: Triple) -> Answer:
        tail = self.graph.entities[triple.tail]
        if tail.status != UNRESOLVED:
            return Answer(tail.id, KNOWN, 1, self.graph.place(tail), *self._mention(triple))
        return Answer(tail.id, OPEN, 1, "", *self._mention(triple), _some(self._by_name[tail.name]))

    @cached_property
    def _by_name(self) -> dict[str, list[str]]:
        found = defaultdict(list)
        for one in self._defined():
            if one.type not in ("module", "package", "variable", "field"):
                found[one.name].append(one.id)
        return found

    def _mention(self, triple: Triple) -> tuple[str, str]:
        lines, head = self.graph.sites.get(triple, ()), self.graph.entities[triple.head]
        if not lines:
            return "", ""
        more = "".join(f", {line}" for line in lines[1:4]) + (", ..." if len(lines) > 4 else "")
        return self.graph.place(head, lines[0]) + more, self._line(self.graph.place(head, lines[0]))

    def _line(self, place: str) -> str:
        """The text of `file:line`; "" where it cannot be read any more."""
        file, _, line = place.rpartition(":")
        if file not in self._texts:
            try:
                text = (self.folder / file).read_text(encoding="utf-8", errors="replace")
            except OSError:
                text = ""
            self._texts[file] = text.splitlines()
        lines = self._texts[file]
        return lines[int(line) - 1].strip() if int(line) <= len(lines) else ""


def _ending(names: dict[str, str], name: str) -> Iterable[str]:
    ends = (f".{name}", f"/{name}", f":{name}")
    return (one for one, each in names.items() if each.endswith(ends) or one.endswith(ends))


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
