"""Who uses a definition of a repository and how, what it calls, and what a change of it reaches; without a model.

asked = Asked(read_index("my/repository"))
asked.answers("package.Class.method", "called_by")
"""

import difflib
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from helpers.data.words import code_words

from .graph.index import ANNOTATIONS, CALLS, Definition, Use, spread
from .graph.knowledge_graph import last_name

STATUSES = RESOLVED, OVERRIDDEN, ONE_OF, INFERRED, OPEN = ("resolved", "overridden", "one of", "inferred", "open")
STATIC = ("imported", "exported", *ANNOTATIONS)  # uses that run nothing
MEMBERS = ("method", "field")
SHOWN = 5  # names in a text


class Answer(NamedTuple):
    """Another end of the relation.

    status: "resolved", pyrefly says so · "overridden", it says so of a method that this one overrides · "one of", the name has several
        definitions · "inferred", no other definition has this name, which is of several words · "open", the name stands there.
    kind: how it is used, such as "called", "raised" or "passed"; "text" for a word in a string or comment.
    steps: uses in between, and one more; 0 for a use that `impact` does not follow. defined: file:line. mentioned: every file:line.
    source: the line of the first mention. could_be: what else may be meant.
    """

    name: str
    status: str
    kind: str
    steps: int
    defined: str
    mentioned: str
    source: str
    could_be: str


class Site(NamedTuple):
    """One mention and the name of the other end."""

    name: str
    status: str
    use: Use
    could_be: str = ""
    steps: int = 1


class Asked:
    """An index that is asked."""

    def __init__(self, index):
        self.index = index
        self.uses_of, self.calls_of = (
            defaultdict(list),
            defaultdict(list),
        )  # uses by their targets, calls by their owners
        self.open = defaultdict(list)  # uses by their words
        for use in index.uses:
            mentions = self.uses_of[use.target] if use.target else self.open[use.word]
            mentions.append(use)
            if use.kind in CALLS:
                self.calls_of[use.owner].append(use)
        self.named = defaultdict(list)  # definitions by their last names
        for definition in index.definitions.values():
            if definition.kind not in ("module", "parameter"):
                self.named[last_name(definition.id)].append(definition)

    def answers(self, name: str, relation: str = "called_by") -> list[Answer]:
        """Every resolved answer, nearest first, then the others.

        name: qualified name of a definition or a module, or the end of one that no other has. Where two applications have packages of
            one name, what is called so in both.
        relation: "called_by" (every use, with its kind), "calls" or "impact" (all that reach it over uses that run it).

        Raises ValueError: an unknown name (with near ones) or relation.
        """
        readers = {"called_by": self.uses, "calls": self._called, "impact": self._reaching}
        if relation not in readers:
            raise ValueError(f"relation={relation!r}: must be {', '.join(readers)}")
        # One answer for each name, status, kind and number of steps.
        groups: dict[tuple[str, str, str, int], list[Site]] = defaultdict(list)
        for definition in self.find(name):
            for site in readers[relation](definition):
                groups[site.name, site.status, site.use.kind, site.steps].append(site)
        answers = []
        for (other, status, kind, steps), sites in groups.items():
            sites.sort(key=lambda site: (site.use.source.path, site.use.line))
            end = self.index.definitions.get(other)
            defined = end.source.line(end.line) if end else ""
            mentioned = ", ".join(dict.fromkeys(site.use.source.line(site.use.line) for site in sites))
            line = sites[0].use.text.strip()
            answers.append(Answer(other, status, kind, steps, defined, mentioned, line, sites[0].could_be))
        return sorted(answers, key=_rank)

    def report(self, name: str, relation: str = "called_by") -> dict[str, Any]:
        """`answers` as JSON, how many have each status, and the files that could not be read."""
        answers = self.answers(name, relation)
        return {
            "name": ", ".join(definition.id for definition in self.find(name)),
            "relation": relation,
            "count": Counter(answer.status if answer.steps else "not followed" for answer in answers),
            "answers": [answer._asdict() for answer in answers],
            "unread": self.index.failed,
        }

    def find(self, name: str) -> list[Definition]:
        """The definitions that a name means: one, or one of each application that has it. Raises ValueError."""
        definitions = self.index.definitions
        if name in definitions:
            return [definitions[name]]
        matches = [definition for definition in definitions.values() if definition.id.endswith(f".{name}")]
        if len({definition.name for definition in matches}) == 1:
            return matches
        [word] = difflib.get_close_matches(last_name(name), self.named, n=1) or [""]
        near = some(matches or self.named[word])
        raise ValueError(
            f"name={name!r}: {len(matches)} definitions have this name; give one of: {near or 'none is near'}"
        )

    # ---- who uses it

    def uses(self, definition: Definition) -> Iterator[Site]:
        """Every mention of a definition. An open one stands on a line that no other answer explains."""
        explained = set()
        others = ", ".join(map(definition.source.line, definition.also))
        for status, use in self._resolved(definition):
            explained.add((use.source.path, use.line))
            yield Site(use.owner, ONE_OF if others and status == RESOLVED else status, use, others)
        word = last_name(definition.id)
        candidates = self.named[word]
        is_only_one = len(candidates) == 1 and definition.kind != "function" and len(code_words(word)) > 1
        for use in self.open[word]:
            is_explained = (use.source.path, use.line) in explained
            if not is_explained and (definition.kind not in MEMBERS or use.is_member):
                yield Site(use.owner, *((INFERRED, use) if is_only_one else (OPEN, use, some(candidates))))

    def _resolved(self, definition):
        name, index = definition.id, self.index
        status = RESOLVED
        for other in spread([name], index.above) if definition.kind == "method" else [name]:
            for use in self.uses_of[other]:
                yield status, use
            status = OVERRIDDEN
        owner, _, word = name.rpartition(".")
        if word == "__init__":  # is called where the class is, or one below that has no constructor of its own
            for made in spread([owner], index.below):
                for use in self.uses_of[made]:
                    if use.kind in CALLS and (made == owner or f"{made}.__init__" not in index.definitions):
                        yield RESOLVED, use

    # ---- what it calls, what a change reaches

    def _called(self, definition):
        for use in self.calls_of[definition.id]:
            if use.target:
                yield Site(use.target, RESOLVED, use)
            else:
                yield Site(f"?.{use.word}", OPEN, use, some(self.named[use.word]))

    def _reaching(self, definition):
        """All that reach it, each by the fewest uses, and the uses that are not followed, with 0 steps.

        A default argument leads to its function, a base to the class below it. What only names it and what is not resolved is not
        followed, nor is a module.
        """
        status_of, steps_of, todo = {definition.id: RESOLVED}, {definition.id: 0}, [definition]
        for current in todo:
            steps = steps_of[current.id] + 1
            for site in self.uses(current):
                if site.use.kind in STATIC or site.status not in (RESOLVED, OVERRIDDEN):
                    yield site._replace(steps=0)
                    continue
                status = max(site.status, status_of[current.id], key=STATUSES.index)
                if site.name not in steps_of:
                    steps_of[site.name], status_of[site.name] = steps, status
                    owner = self.index.definitions.get(site.name)
                    if owner and owner.kind != "module":
                        todo.append(owner)
                if steps_of[site.name] == steps:
                    yield site._replace(status=status, steps=steps)


def _rank(answer):
    return answer.steps == 0, STATUSES.index(answer.status), answer.steps, answer.kind not in CALLS


def some(definitions: list[Definition]) -> str:
    names = [definition.id for definition in definitions[:SHOWN]]
    rest = len(definitions) - SHOWN
    return ", ".join(names) + (f" and {rest} more" if rest > 0 else "")
