"""What the sources of a repository prove about a function, without a model: who calls it, what it calls, what a change reaches.

asked = Asked("my/repository")
asked.answers("package.Class.method", "called_by")

What only running would tell is never called known. No model guesses here: in no study did one add to what names and sources say.
"""

import difflib
import linecache
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .graph.extraction import cached_graph, folder_of
from .graph.knowledge_graph import DEFINED, UNRESOLVED, Entity, Triple, unresolved

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


class Asked:
    """A repository that is asked. Raises what `load_graph` does."""

    def __init__(self, repository: str | Path):
        self.graph, self.folder = cached_graph(repository), folder_of(repository)
        linecache.checkcache()
        self.tails: dict[tuple[str, str], list[Triple]] = defaultdict(list)  # by head and relation
        self.heads: dict[tuple[str, str], list[Triple]] = defaultdict(list)  # by tail and relation
        for triple in self.graph.triples:
            self.tails[triple.head, triple.relation].append(triple)
            self.heads[triple.tail, triple.relation].append(triple)

    def answers(self, name: str, relation: str) -> list[Answer]:
        """Every known answer, nearest first, then the open ones.

        name: qualified name of an entity, or the end of one that no other has.
        relation: "called_by", "calls" or "impact" (all that reach it over calls).

        Raises ValueError: an unknown name (with near ones) or relation.
        """
        entity = self.entity(name)
        if relation == "impact":
            found = [*self._impact(entity.id), *self._open_callers(entity)]
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
        ends = (f".{name}", f"/{name}", f":{name}")
        found = [one for one, each in names.items() if each == name]
        found = found or [one for one, each in names.items() if each.endswith(ends) or one.endswith(ends)]
        if len(found) == 1:
            return self.graph.entities[found[0]]
        if found:
            raise ValueError(f"name={name!r}: {len(found)} have this name: {_some(sorted(found))}; give a longer one")
        raise ValueError(f"name={name!r}: none of {len(names):,} definitions has this name; {_near(name, names)}")

    def _defined(self) -> Iterator[Entity]:
        return (one for one in self.graph.entities.values() if one.status == DEFINED and one.type != "parameter")

    # ---- who calls it

    def _callers(self, entity: str) -> Iterator[Answer]:
        """By a call that names it, the class that it makes, or a method that it overrides."""
        overridden = [entity]
        for one in overridden:
            above = (triple.tail for triple in self.tails[one, "overrides"])
            overridden += [each for each in above if each not in overridden]
            for triple in self.heads[one, "calls"]:
                yield self._backward(triple, KNOWN if one == entity else OVERRIDDEN)
        for one in (entity, *self._made_by(entity)):
            for triple in self.heads[one, "instantiates"]:
                yield self._backward(triple, KNOWN)

    def _made_by(self, constructor: str) -> list[str]:
        """Classes whose instances a constructor makes: its own, and those below that have none."""
        if self.graph.entities[constructor].type != "constructor":
            return []
        made = [triple.head for triple in self.heads[constructor, "contains"]]
        for one in made:
            below = (triple.head for triple in self.heads[one, "inherits_from"])
            made += [each for each in below if each not in made and not self._has_constructor(each)]
        return made

    def _has_constructor(self, owner: str) -> bool:
        return any(self.graph.entities[each.tail].type == "constructor" for each in self.tails[owner, "contains"])

    def _open_callers(self, entity: Entity) -> list[Answer]:
        """Calls of this name that are not proved, those of its module and of modules that import it first."""
        if entity.type in ("module", "package"):
            return []
        near = {triple.head for triple in self.heads[entity.module, "imports"]}

        def distance(triple: Triple) -> int:
            module = self.graph.entities[triple.head].module
            return 0 if module == entity.module else 1 if module in near else 2

        triples = sorted(self.heads[unresolved(entity.name), "calls"], key=distance)
        return [self._backward(triple, OPEN) for triple in triples]

    def _impact(self, entity: str) -> list[Answer]:
        """All that reach it, each by the fewest calls; what is not proved is not followed."""
        found: dict[str, Answer] = {}
        reached = [Answer(entity, KNOWN, 0)]
        for one in reached:
            for caller in self._callers(one.name):
                if caller.name not in found and caller.name != entity:
                    status = OVERRIDDEN if OVERRIDDEN in (one.status, caller.status) else KNOWN
                    found[caller.name] = caller._replace(status=status, steps=one.steps + 1)
                    reached.append(found[caller.name])
        return reached[1:]

    # ---- answers

    def _backward(self, triple: Triple, status: str) -> Answer:
        head = self.graph.entities[triple.head]
        return Answer(head.id, status, 1, self.graph.place(head), *self._mention(triple))

    def _forward(self, triple: Triple) -> Answer:
        tail = self.graph.entities[triple.tail]
        if tail.status != UNRESOLVED:
            return Answer(tail.id, KNOWN, 1, self.graph.place(tail), *self._mention(triple))
        others = ("module", "package", "variable", "field")
        could_be = [one.id for one in self._defined() if one.name == tail.name and one.type not in others]
        return Answer(tail.id, OPEN, 1, "", *self._mention(triple), _some(could_be))

    def _mention(self, triple: Triple) -> tuple[str, str]:
        """`file:line, line` of what says it, and the text of the first."""
        lines = self.graph.sites.get(triple)
        if not lines:
            return "", ""
        place = self.graph.place(self.graph.entities[triple.head], lines[0])
        more = "".join(f", {line}" for line in lines[1:4]) + (", ..." if len(lines) > 4 else "")
        file, _, line = place.rpartition(":")
        return place + more, linecache.getline(str(self.folder / file), int(line)).strip()


def _near(name: str, names: dict[str, str]) -> str:
    parts = name.count(".") + 1
    ends = defaultdict(list)
    for one, each in names.items():
        ends[".".join(each.split(".")[-parts:]).lower()].append(one)
    near = [one for end in difflib.get_close_matches(name.lower(), ends, n=5, cutoff=0.7) for one in sorted(ends[end])]
    return f"did you mean {_some(near)}?" if near else "give the qualified name of a function or class"


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
