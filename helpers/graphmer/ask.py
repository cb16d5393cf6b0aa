"""Who uses a definition of a repository and how, what it calls, and what a change of it reaches; without a model.

asked = Asked(read_index("my/repository"))
asked.answers("package.Class.method", "called_by")
"""

import difflib
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from helpers.data.words import code_words

from .graph.index import ANNOTATIONS, CALLS, Definition, Index, Use, spread
from .graph.knowledge_graph import last_name
from .graph.sources import Source

STATUSES = RESOLVED, OVERRIDDEN, ONE_OF, INFERRED, OPEN = ("resolved", "overridden", "one of", "inferred", "open")
RELATIONS = ("called_by", "calls", "impact")
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

    def __init__(self, index: Index):
        self.index = index
        self.uses_of: dict[str, list[Use]] = defaultdict(list)
        self.calls_of: dict[str, list[Use]] = defaultdict(list)
        self.open: dict[str, list[Use]] = defaultdict(list)
        for use in index.uses:
            if use.target:
                self.uses_of[use.target].append(use)
            else:
                self.open[use.word].append(use)
            if use.kind in CALLS:
                self.calls_of[use.owner].append(use)
        self.named: dict[str, list[Definition]] = defaultdict(list)  # by their last names
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
        if relation not in RELATIONS:
            raise ValueError(f"relation={relation!r}: must be called_by, calls or impact")
        group = self.find(name)
        sites: list[Site] = []
        for definition in group:
            if relation == "calls":
                sites += self._called(definition)
            elif relation == "impact":
                sites += self._reaching(definition)
            else:
                sites += self.uses(definition)
        if not sites and relation == "called_by":
            sites += self._texts(last_name(group[0].id))
        return self._group(sites)

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
        if matches:
            names = some([definition.id for definition in matches])
            raise ValueError(f"name={name!r}: {len(matches)} definitions have this name: {names}; give a longer one")
        ends = {end_of(known, name.count(".") + 1): known for known in definitions}
        near = difflib.get_close_matches(name, ends, n=SHOWN, cutoff=0.7)
        hint = f"did you mean {some([ends[end] for end in near])}?" if near else "give the name of a function or class"
        raise ValueError(f"name={name!r}: none of {len(definitions):,} definitions has this name; {hint}")

    # ---- who uses it

    def uses(self, definition: Definition) -> Iterator[Site]:
        """Every mention of a definition. An open one stands on a line that no other answer explains."""
        explained = set()
        others = some([definition.source.line(line) for line in definition.also])
        for status, use in self._resolved(definition):
            explained.add((use.source.path, use.line))
            yield Site(use.owner, ONE_OF if others and status == RESOLVED else status, use, others)
        word = last_name(definition.id)
        candidates = self.named[word]
        is_only_one = len(candidates) == 1 and definition.kind != "function" and len(code_words(word)) > 1
        could_be = some([candidate.id for candidate in candidates])
        for use in self.open[word]:
            is_explained = (use.source.path, use.line) in explained
            if not is_explained and (definition.kind not in MEMBERS or _is_member(use)):
                yield Site(use.owner, INFERRED, use) if is_only_one else Site(use.owner, OPEN, use, could_be)

    def _resolved(self, definition: Definition) -> Iterator[tuple[str, Use]]:
        name, index = definition.id, self.index
        status = RESOLVED
        for other in spread([name], index.above) if definition.kind == "method" else [name]:
            for use in self.uses_of[other]:
                yield status, use
            status = OVERRIDDEN
        if (
            last_name(name) == "__init__"
        ):  # is what a call of the class calls, or of one below without a constructor of its own
            owner = name.rpartition(".")[0]
            for made in spread([owner], index.below):
                is_own = made == owner or f"{made}.__init__" not in index.definitions
                for use in self.uses_of[made] if is_own else ():
                    if use.kind in CALLS:
                        yield RESOLVED, use

    def _texts(self, word: str) -> Iterator[Site]:
        """Lines with a word in a string or a comment."""
        pattern = re.compile(rf"\b{re.escape(word)}\b")
        for source in self.index.modules.values():
            for number in _lines_of_texts(source, pattern) if pattern.search(source.text) else ():
                yield Site(source.module, OPEN, Use(source.module, "text", "", word, source, number, 0))

    # ---- what it calls, what a change reaches

    def _called(self, definition: Definition) -> Iterator[Site]:
        for use in self.calls_of[definition.id]:
            if use.target:
                yield Site(use.target, RESOLVED, use)
            else:
                yield Site(f"?.{use.word}", OPEN, use, some([candidate.id for candidate in self.named[use.word]]))

    def _reaching(self, definition: Definition) -> list[Site]:
        """All that reach it, each by the fewest uses; then the uses that are not followed, with 0 steps.

        A default argument leads to its function, a base to the class below it. What only names it and what is not resolved is not
        followed, nor is a module.
        """
        followed, stopped = [], []
        todo = [Site(definition.id, RESOLVED, NOTHING, steps=0)]
        reached = {definition.id: todo[0]}
        for place in todo:
            current = self.index.definitions.get(place.name)
            for site in self.uses(current) if current else ():
                if site.use.kind in STATIC or site.status not in (RESOLVED, OVERRIDDEN):
                    stopped.append(site._replace(steps=0))
                    continue
                status = OVERRIDDEN if OVERRIDDEN in (place.status, site.status) else RESOLVED
                site = site._replace(status=status, steps=place.steps + 1)
                first = reached.setdefault(site.name, site)
                if first is site and self.index.kinds.get(site.name) != "module":
                    todo.append(site)
                if first.steps == site.steps:
                    followed.append(site)
        return followed + stopped

    # ---- answers

    def _group(self, sites: Iterable[Site]) -> list[Answer]:
        """One answer for each name, status, kind and number of steps."""
        groups: dict[tuple[str, str, str, int], list[Site]] = defaultdict(list)
        for site in sites:
            groups[site.name, site.status, site.use.kind, site.steps].append(site)
        answers = []
        for (name, status, kind, steps), group in groups.items():
            group.sort(key=lambda site: (site.use.source.path, site.use.line))
            use, definition = group[0].use, self.index.definitions.get(name)
            defined = definition.source.line(definition.line) if definition else ""
            line = use.source.text.split("\n")[use.line - 1].strip()
            lines = {site.use.line: site.use.source.line(site.use.line) for site in group}
            mentioned = ", ".join(lines.values())
            answers.append(Answer(name, status, kind, steps, defined, mentioned, line, group[0].could_be))
        return sorted(answers, key=_rank)


NOTHING = Use("", "", "", "", Source("", "", ""), 0, 0)


def _rank(answer: Answer) -> tuple[bool, int, int, bool]:
    return answer.steps == 0, STATUSES.index(answer.status), answer.steps, answer.kind not in CALLS


def _is_member(use: Use) -> bool:
    line = use.source.text.split("\n")[use.line - 1]
    return line[: use.column - len(use.word)].rstrip().endswith(".")


def _lines_of_texts(source: Source, pattern: re.Pattern) -> list[int]:
    numbers = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
            is_code = token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER)
            for place, line in enumerate(token.string.split("\n")):
                if not is_code and pattern.search(line):
                    numbers.append(token.start[0] + place)
    except (tokenize.TokenError, SyntaxError):  # of the rest of the file nothing is said
        pass
    return numbers


def some(names: list[str]) -> str:
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def end_of(name: str, parts: int) -> str:
    return ".".join(name.split(".")[-parts:])
