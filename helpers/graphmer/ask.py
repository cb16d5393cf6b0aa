"""What the sources of a repository prove about a name, without a model: who uses it, what it calls, what a change reaches.

asked = Asked("my/repository")
asked.answers("package.Class.method", "called_by")

What only running would tell is never called known. No model guesses here: in no study did one add to what names and sources say.
"""

import contextlib
import difflib
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from helpers.data.words import code_words

from .graph.knowledge_graph import Entity, unresolved
from .graph.repository import Repository
from .graph.resolution import Resolver, Targets, join, only
from .graph.scopes import Expression, Known, Module, Scope, Use, Value

KNOWN = "known"
OVERRIDDEN = "overridden"
ONE_OF = "one of"
INFERRED = "inferred"
OPEN = "open"
STATUSES = (KNOWN, OVERRIDDEN, ONE_OF, INFERRED, OPEN)
RELATIONS = ("called_by", "calls", "impact")
CALLS = ("called", "decorates", "raised", "with", "awaited")
_STATIC = ("imported", "exported", "annotated")  # uses that run nothing
_VARIABLES = ("variable", "field")
_OF_VARIABLES = ("written", "deleted", "imported", "exported")  # other uses of a variable or a property read it
_INFERENCE_SECONDS = 3.0


class Answer(NamedTuple):
    """Another end of the relation.

    status: "known", the sources prove it · "overridden", they prove a call of the method that this one overrides, or is
        overridden by · "one of", it is this or one of those in `could_be` · "inferred", it is the only target that they show,
        though there may be others, or nothing but it and what overrides it has this name, which is of several words, or jedi says so ·
        "open", they name it there, and do not prove what is meant.
    kind: how it is used: "called", "decorates", "raised", "passed" and so on; "text" for a word that is no name of the language.
    steps: uses in between, and one more. defined: file:line of its definition. mentioned: file:line of each mention.
    source: the line of the first mention. could_be: what else may be meant.
    """

    name: str
    status: str
    kind: str = "called"
    steps: int = 1
    defined: str = ""
    mentioned: str = ""
    source: str = ""
    could_be: str = ""


class Site(NamedTuple):
    """One mention: the other end's name, in which file, and what is said of it."""

    name: str
    status: str
    kind: str
    file: str
    line: int
    column: int
    could_be: str = ""


class Asked:
    """A repository that is asked; what has changed is read again at each question. Raises what `load_graph` does.

    repository.failed: path and error of each file that could not be read; what it uses is in no answer.
    """

    def __init__(self, repository: str | Path):
        self.repository = Repository(repository)

    def answers(self, name: str, relation: str, infer: bool = True) -> list[Answer]:
        """Every known answer, nearest first, then the others.

        name: qualified name of a definition, or the end of one that no other has; of a Java method all overloads, where it is
            written without parameters.
        relation: "called_by" (every use, with its kind), "calls" or "impact" (all that reach it over uses that run it).
        infer: whether open lines may be inferred; where jedi is installed, it is asked about them for three seconds.

        Raises ValueError: an unknown name (with near ones) or relation.
        """
        if relation not in RELATIONS:
            raise ValueError(f"relation={relation!r}: must be called_by, calls or impact")
        self.repository.refresh()
        group = self.group(name)
        if relation == "calls":
            return self._answers([site for entity in group for site in self._called(entity)])
        sites = self.uses(name, infer)
        if relation == "impact":
            unproved = [site for site in sites if site.status not in (KNOWN, OVERRIDDEN)]
            return [*self._impact(group, sites), *self._answers(unproved)]
        return self._answers(sites) or self._answers(self._texts(group))

    def uses(self, name: str, infer: bool = True) -> list[Site]:
        """Every mention of a definition, in the files that are near it first."""
        group = self.group(name)
        sites = self._sites(group)
        if infer:
            return [*self._inferred(group, sites)]
        return [site._replace(status=OPEN) if site.status == INFERRED else site for site in sites]

    def report(self, name: str, relation: str, most: int) -> dict[str, Any]:
        """`answers` as JSON: how many of each status, at most `most` of each, and the files that could not be read."""
        answers = self.answers(name, relation)
        count = Counter(answer.status for answer in answers)
        rows = []
        for status in count:
            rows += [answer._asdict() for answer in answers if answer.status == status][:most]
        word = _without_parameters(name).rpartition(".")[2]
        nothing = f"nothing: no file that was read has the word {word!r} elsewhere"
        return {
            "name": self.whole_name(name),
            "relation": relation,
            "count": dict(count),
            "answers": rows,
            "nothing": nothing if relation == "called_by" else "nothing that the sources prove",
            "unread": self.repository.failed,
        }

    # ---- names

    def whole_name(self, name: str) -> str:
        """Of a name, or of the end of one; of several overloads the name of all."""
        group = self.group(name)
        return group[0] if len(group) == 1 else _without_parameters(group[0])

    def group(self, name: str) -> list[str]:
        """Names of all definitions that a name means: those of one qualified name, but for parameters."""
        if name in self.repository.entities and name != _without_parameters(name):
            return [name]
        entities = self.repository.entities.items()
        names = {one: _without_parameters(one) for one, (_, entity) in entities if entity.type != "parameter"}
        matches = [one for one, base in names.items() if base == name]
        ends = (f".{name}", f"/{name}", f":{name}")
        matches = matches or [one for one, base in names.items() if base.endswith(ends) or one.endswith(ends)]
        bases = {names[one] for one in matches}
        if len(bases) == 1:
            return matches
        if matches:
            raise ValueError(f"name={name!r}: {len(bases)} have this name: {_some(sorted(bases))}; give a longer one")
        raise ValueError(f"name={name!r}: none of {len(names):,} definitions has this name; {_near(name, names)}")

    # ---- who uses it

    def _sites(self, group: list[str]) -> list[Site]:
        resolver = self.repository.entities[group[0]][0]
        entities = [self.repository.entities[name][1] for name in group]
        words_of = self._words(resolver, entities)
        name = entities[0].name
        sites = []
        for file, words in words_of.items():
            for use in self.repository.mentions(file):
                last = re.split(r"[/()!~]", use.chain.rpartition(".")[2].rpartition(":")[2], maxsplit=1)[0]
                if last in words or last == "cls":
                    site = self._site(resolver, use, entities, file, is_named=last == name)
                    if site:
                        sites.append(site)
        could_be = _some(self._candidates(name))
        return [site._replace(could_be=could_be) if site.status == OPEN else site for site in sites]

    def _candidates(self, name: str) -> list[str]:
        """All definitions of a name that a use of it may mean."""
        others = ("module", "package", "parameter")
        entities = self.repository.entities.items()
        return [shown for shown, (_, entity) in entities if entity.name == name and entity.type not in others]

    def _site(self, resolver: Resolver, use: Use, entities: list[Entity], file: str, is_named: bool) -> Site | None:
        """What is said of a mention; None where it is one of something else."""
        ids = {entity.id for entity in entities}
        targets = self._targets(resolver, use, entities[0])
        meant = [value.entity for value in targets.values if not value.is_instance]
        methods = [value.entity for value in targets.values if not value.exact and not value.is_instance]
        status, could_be = OPEN, ""
        if ids.intersection(meant):
            status = KNOWN
        elif targets.complete and targets.values:
            if not any(ids.intersection(resolver.overriders(method)) for method in methods):
                return None
            status = OVERRIDDEN
        elif not is_named or not self._may_be(resolver, use, entities):
            return None
        if status != OPEN and not targets.one:
            unproved = INFERRED if len(targets.values) == 1 else OPEN
            status, could_be = ONE_OF if targets.complete else unproved, _some(meant)
        kind = use.kind
        if _is_read(resolver, entities[0]) and kind not in _OF_VARIABLES:
            kind = "read"
        return Site(use.scope.owner, status, kind, file, use.line, use.column, could_be)

    def _targets(self, resolver: Resolver, use: Use, entity: Entity) -> Targets:
        if use.kind in ("written", "deleted") or _is_read(resolver, entity):
            return resolver.places(use.scope, use.chain)
        targets = resolver.mentioned(use.scope, use.chain)
        if entity.name == "__init__":
            return targets.map(lambda value: self._constructor(resolver, value))
        return targets

    def _constructor(self, resolver: Resolver, value: Value) -> Targets:
        if value.is_instance or value.entity not in resolver.classes:
            return only(value)
        classes = [value.entity] if value.exact else [value.entity, *resolver.subclasses(value.entity)]
        return join([resolver.constructor(entity) for entity in classes])

    def _may_be(self, resolver: Resolver, use: Use, entities: list[Entity]) -> bool:
        """Whether a mention that is not resolved can be one of these: a local variable of the name is not, unless it is called;
        in Java the number of arguments and what stands before the name must fit."""
        before, dot, last = use.chain.rpartition(".")
        if "/" in last:
            return any(self._fits_java(resolver, use, entity, before, last) for entity in entities)
        if dot or use.kind in CALLS:
            return True
        binder = resolver.binder(use.scope, use.chain)
        is_local = binder is not None and binder.kind in ("function", "block")
        return not is_local and entities[0].type not in ("method", "field")

    def _fits_java(self, resolver: Resolver, use: Use, entity: Entity, before: str, last: str) -> bool:
        owner = resolver.classes.get(entity.id.partition("(")[0].rpartition(".")[0])
        if owner is None or not (last.endswith("*") or Known(Value(entity.id)) in owner.names.get(last, ())):
            return False
        if before:
            is_virtual = entity.id.removeprefix(owner.prefix) in owner.names
            return is_virtual and not re.fullmatch(r"[A-Z]\w*", before)
        scope: Scope | None = (
            use.scope
        )  # inherited or imported methods are resolved; a nameless class may inherit from anything
        while scope and not scope.hidden:
            scope = scope.parent
        return scope is not None

    def _words(self, resolver: Resolver, entities: list[Entity]) -> dict[str, set[str]]:
        """File -> the names under which definitions are used there: their own, those of classes that a constructor makes, aliases."""
        words = {entity.name for entity in entities}
        for entity in entities:
            owner = entity.id.rpartition(".")[0]
            if entity.type == "constructor" and owner in resolver.classes:
                words |= {resolver.defined[one].name for one in (owner, *resolver.subclasses(owner))}
        has_aliases = not _is_read(resolver, entities[0])
        words_of: dict[str, set[str]] = {}
        todo = [words]
        for shared in todo:
            for file in self.repository.files_with(shared):
                other, module = self.repository.modules[file]
                if other is not resolver:
                    continue
                names = words_of.setdefault(file, set()) | shared
                exported = _add_aliases(module, names) - words if has_aliases else set()
                words_of[file] = names
                if exported:
                    words |= exported
                    todo.append(exported)
        return words_of

    def _texts(self, group: list[str]) -> Iterator[Site]:
        """Lines with the word of a name that no other answer has: in strings, in comments, or as another thing's name."""
        _, entity = self.repository.entities[group[0]]
        word = re.compile(rf"\b{re.escape(entity.name)}\b")
        definitions = [self._defined_at(name) for name in group]
        for file in self.repository.files_with({entity.name}):
            _, module = self.repository.modules[file]
            for number, line in enumerate(self.repository.lines(file), 1):
                if word.search(line) and self.repository.place(file, number) not in definitions:
                    yield Site(module.id, OPEN, "text", file, number, 0)

    # ---- what is inferred

    def _inferred(self, group: list[str], sites: list[Site]) -> Iterator[Site]:
        """The sites; open ones that are likely of the asked name are inferred. jedi is asked for three seconds at most.

        A method that overrides another is not inferred as the only target: the object may be of the class above.
        """
        definitions = [self._defined_at(name) for name in group]
        resolver, entity = self.repository.entities[group[0]]
        family = {below for name in group for below in (name, *resolver.overriders(name))}
        others = {*self._candidates(entity.name)} - family
        is_only_one = len(code_words(entity.name)) > 1 and not others and entity.type != "function"
        is_override = any(family.intersection(resolver.overriders(other)) for other in others)
        scripts: dict[str, Any] = {}
        end = time.monotonic() + _INFERENCE_SECONDS
        for site in sites:
            is_inferred = site.status == OPEN and is_only_one
            if site.status == INFERRED and is_override:
                site = site._replace(status=OPEN)
            if site.status == OPEN and not is_inferred and site.file.endswith(".py") and time.monotonic() < end:
                is_inferred = not self._goes_to(site, scripts).isdisjoint(definitions)
            yield site._replace(status=INFERRED) if is_inferred else site

    def _goes_to(self, site: Site, scripts: dict[str, Any]) -> set[str]:
        """file:line of each definition that jedi finds for a mention; none where it is not installed."""
        folder, places = self.repository.folder.resolve(), set()
        with contextlib.suppress(Exception):  # it fails on some code in many ways
            import jedi

            if site.file not in scripts:
                project = jedi.Project(self.repository.sources.outermost)
                scripts[site.file] = jedi.Script(path=folder / site.file, project=project)
            for name in scripts[site.file].goto(site.line, site.column, follow_imports=True):
                places.add(f"{name.module_path.relative_to(folder).as_posix()}:{name.line}")
        return places

    # ---- what it calls, what a change reaches

    def _called(self, name: str) -> Iterator[Site]:
        resolver, entity = self.repository.entities[name]
        file = self.repository.files.get(entity.module)
        if file is None:
            return
        for use in self.repository.mentions(file):
            if use.scope.owner != entity.id or use.kind not in CALLS:
                continue
            place = (use.kind, file, use.line, use.column)
            targets = resolver.mentioned(use.scope, use.chain)
            values = [value.entity for value in targets.values if not value.is_instance]
            last = use.chain.rpartition(".")[2].partition("/")[0]
            if not targets.complete and last.isidentifier():
                yield Site(unresolved(last), OPEN, *place, _some(self._candidates(last)))
            for value in values if targets.complete else ():
                others = [other for other in values if other != value]
                yield Site(value, ONE_OF if others else KNOWN, *place, _some(others))

    def _impact(self, group: list[str], sites: list[Site]) -> list[Answer]:
        """All that reach it, each by the fewest uses; what is not proved is not followed."""
        reached: dict[str, Answer] = {}
        todo = [(name, KNOWN, 0) for name in group]
        for name, status, steps in todo:
            for site in sites if name in group else self._sites([name]):
                is_proved = site.status in (KNOWN, OVERRIDDEN) and site.kind not in _STATIC
                if not is_proved or site.name in reached or site.name in group:
                    continue
                combined = OVERRIDDEN if OVERRIDDEN in (status, site.status) else KNOWN
                [answer] = self._answers([site])
                reached[site.name] = answer._replace(status=combined, steps=steps + 1)
                _, entity = self.repository.entities[site.name]
                if entity.type not in ("module", "package"):
                    todo.append((site.name, combined, steps + 1))
        return [*reached.values()]

    # ---- answers

    def _answers(self, sites: Iterable[Site]) -> list[Answer]:
        """One for each name, status and kind; of what is open one for each text of a line."""
        answers: dict[tuple, Answer] = {}
        for site in sites:
            source = self.repository.line(site.file, site.line)
            key = (site.name, site.status, site.kind, source if site.status == OPEN else "")
            if key in answers:
                answers[key] = answers[key]._replace(mentioned=_more(answers[key].mentioned, site.line))
                continue
            place, defined = self.repository.place(site.file, site.line), self._defined_at(site.name)
            answers[key] = Answer(site.name, site.status, site.kind, 1, defined, place, source, site.could_be)
        return sorted(answers.values(), key=lambda answer: (STATUSES.index(answer.status), answer.kind not in CALLS))

    def _defined_at(self, name: str) -> str:
        _, entity = self.repository.entities.get(name, (None, None))
        file = self.repository.files.get(entity.module) if entity else None
        return self.repository.place(file, entity.line) if entity and file and entity.line else ""


def _is_read(resolver: Resolver, entity: Entity) -> bool:
    """Whether naming it gives its value: a variable, a field or a property."""
    return entity.type in _VARIABLES or resolver.is_property(Value(entity.id))


def _add_aliases(module: Module, names: set[str]) -> set[str]:
    """Adds the names that assignments, imports and `return` make other names of the same; returns those that other files see."""
    aliases = [(name, meaning, True) for _, name, meaning in module.stores]
    tables = [(module.returned, True)]
    for scope in module.scopes:
        tables += [(scope.names, scope.kind in ("module", "class")), (scope.fields, True)]
    for table, is_seen in tables:
        for name, meanings in table.items():
            aliases += [(name.rpartition(".")[2], meaning, is_seen) for meaning in meanings]
    exported, before = set(), 0
    while before < len(names):
        before = len(names)
        for name, meaning, is_seen in aliases:
            if isinstance(meaning, Expression):
                [source] = re.findall(r"\w*(?=\)?$)", meaning.chain)[:1]  # `f` of `partial(self.f)`
                if name and source in names and source != name:
                    names.add(name)
                    exported |= {name} if is_seen else set()
    return exported


def _more(mentioned: str, line: int) -> str:
    """`file:line, line` with another line."""
    lines = re.findall(r"\d+", mentioned.rpartition(":")[2])
    if str(line) in lines or mentioned.endswith("..."):
        return mentioned
    return f"{mentioned}, ..." if len(lines) > 3 else f"{mentioned}, {line}"


def _near(name: str, names: dict[str, str]) -> str:
    parts = name.count(".") + 1
    bases = {".".join(base.split(".")[-parts:]): base for base in names.values()}
    near = [bases[end] for end in difflib.get_close_matches(name, bases, n=5, cutoff=0.7)]
    return f"did you mean {_some(near)}?" if near else "give the qualified name of a function or class"


def _without_parameters(name: str) -> str:
    return re.split(r"[(#]", name, maxsplit=1)[0]


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
