"""What the sources of a repository prove about a name, without a model: who uses it, what it calls, what a change reaches.

asked = Asked("my/repository")
asked.answers("package.Class.method", "called_by")

What only running would tell is never called known. No model guesses here: in no study did one add to what names and sources say.
"""

import contextlib
import difflib
import itertools
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from helpers.data.words import code_words

from .graph.knowledge_graph import Entity, last_name, unresolved
from .graph.repository import Repository
from .graph.resolution import Resolver, Targets
from .graph.scopes import Expression, Meaning, Module, Scope, Use, Value

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
            return self._answers(itertools.chain(*map(self._called, group)))
        sites = self.uses(name, infer)
        if relation == "impact":
            unproved = [site for site in sites if site.status not in (KNOWN, OVERRIDDEN)]
            return self._impact(group, sites) + self._answers(unproved)
        return self._answers(sites) or self._answers(self._texts(group))

    def uses(self, name: str, infer: bool = True) -> list[Site]:
        """Every mention of a definition, in the files that are near it first."""
        group = self.group(name)
        sites = self._sites(group)
        if infer:
            return list(self._inferred(group, sites))
        for place, site in enumerate(sites):
            if site.status == INFERRED:
                sites[place] = site._replace(status=OPEN)
        return sites

    def report(self, name: str, relation: str, most: int) -> dict[str, Any]:
        """`answers` as JSON: how many of each status, at most `most` of each, and the files that could not be read."""
        answers = self.answers(name, relation)
        count = Counter(answer.status for answer in answers)
        rows = []
        for status in count:
            rows += [answer._asdict() for answer in answers if answer.status == status][:most]
        word = last_name(_without_parameters(name))
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
        if len(group) == 1:
            return group[0]
        return _without_parameters(group[0])

    def group(self, name: str) -> list[str]:
        """Names of all definitions that a name means: those of one qualified name, but for parameters."""
        if name in self.repository.entities and name != _without_parameters(name):
            return [name]
        base_of = {}
        for entity in self.repository.entities.values():
            if entity.type != "parameter":
                base_of[entity.id] = _without_parameters(entity.id)
        matches = [match for match, base in base_of.items() if base == name]
        if not matches:
            ends = (f".{name}", f"/{name}", f":{name}")
            matches = [match for match, base in base_of.items() if base.endswith(ends) or match.endswith(ends)]
        bases = sorted({base_of[match] for match in matches})
        if len(bases) == 1:
            return matches
        if matches:
            raise ValueError(
                f"name={name!r}: {len(bases)} definitions have this name: {_some(bases)}; give a longer one"
            )
        raise ValueError(
            f"name={name!r}: none of {len(base_of):,} definitions has this name; {_near(name, base_of.values())}"
        )

    # ---- who uses it

    def _sites(self, group: list[str]) -> list[Site]:
        resolver = self.repository.resolver_of[group[0]]
        entities = [self.repository.entities[name] for name in group]
        name = entities[0].name
        candidates = _some(self._candidates(name))
        sites = []
        for file, words in self._words(resolver, entities).items():
            for use in self.repository.mentions(file):
                end = last_name(use.chain).rpartition(":")[2]
                word = re.split(r"[/()!~]", end, maxsplit=1)[0]
                if word not in words and word != "cls":
                    continue
                site = self._site(resolver, use, entities, file, is_named=word == name)
                if site and site.status == OPEN:
                    site = site._replace(could_be=candidates)
                if site:
                    sites.append(site)
        return sites

    def _candidates(self, name: str) -> list[str]:
        """All definitions of a name that a use of it may mean."""
        others = ("module", "package", "parameter")
        entities = self.repository.entities.values()
        return [entity.id for entity in entities if entity.name == name and entity.type not in others]

    def _site(self, resolver: Resolver, use: Use, entities: list[Entity], file: str, is_named: bool) -> Site | None:
        """What is said of a mention; None where it is one of something else."""
        ids = {entity.id for entity in entities}
        targets = self._targets(resolver, use, entities[0])
        definitions = [value for value in targets.values if not value.is_instance]
        meant = [value.entity for value in definitions]
        status, could_be = OPEN, ""
        if not ids.isdisjoint(meant):
            status = KNOWN
        elif targets.complete and targets.values:
            overriders = [resolver.overriders(value.entity) for value in definitions if not value.exact]
            if ids.isdisjoint(itertools.chain(*overriders)):
                return None
            status = OVERRIDDEN
        elif not is_named or not self._may_be(resolver, use, entities):
            return None
        if status != OPEN and not targets.one:
            could_be = _some(meant)
            status = OPEN
            if targets.complete:
                status = ONE_OF
            elif len(targets.values) == 1:
                status = INFERRED
        kind = use.kind
        if _is_read(resolver, entities[0]) and kind not in _OF_VARIABLES:
            kind = "read"
        return Site(use.scope.owner, status, kind, file, use.line, use.column, could_be)

    def _targets(self, resolver: Resolver, use: Use, entity: Entity) -> Targets:
        if use.kind in ("written", "deleted") or _is_read(resolver, entity):
            return resolver.places(use.scope, use.chain)
        targets = resolver.mentioned(use.scope, use.chain)
        if entity.name == "__init__":
            return targets.map(resolver.constructor)
        return targets

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
        name = entity.id.partition("(")[0]
        owner = resolver.classes.get(name.rpartition(".")[0])
        if owner is None or not (last.endswith("*") or Value(entity.id) in owner.names.get(last, ())):
            return False
        if before:
            is_virtual = entity.id.removeprefix(owner.prefix) in owner.names
            return is_virtual and not re.fullmatch(r"[A-Z]\w*", before)
        # Inherited or imported methods are resolved; a nameless class may inherit from anything.
        scope: Scope | None = use.scope
        while scope and not scope.hidden:
            scope = scope.parent
        return scope is not None

    def _words(self, resolver: Resolver, entities: list[Entity]) -> dict[str, set[str]]:
        """File -> the names under which definitions are used there: their own, those of classes that a constructor makes, aliases."""
        words = {entity.name for entity in entities}
        for entity in entities:
            owner = entity.id.rpartition(".")[0]
            if entity.type == "constructor" and owner in resolver.classes:
                for name in (owner, *resolver.subclasses(owner)):
                    words.add(resolver.defined[name].name)
        has_aliases = not _is_read(resolver, entities[0])
        words_of: dict[str, set[str]] = {}
        todo = [words]
        for shared in todo:
            for file in self.repository.files_with(shared):
                other, module = self.repository.modules[file]
                if other is not resolver:
                    continue
                file_words = words_of.setdefault(file, set())
                file_words |= shared
                if has_aliases:
                    exported = _add_aliases(module, file_words) - words
                    if exported:
                        words |= exported
                        todo.append(exported)
        return words_of

    def _texts(self, group: list[str]) -> Iterator[Site]:
        """Lines with the word of a name that no other answer has: in strings, in comments, or as another thing's name."""
        entity = self.repository.entities[group[0]]
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
        entity, resolver = self.repository.entities[group[0]], self.repository.resolver_of[group[0]]
        family = {*group}.union(*map(resolver.overriders, group))
        others = {*self._candidates(entity.name)} - family
        is_only_one = len(code_words(entity.name)) > 1 and not others and entity.type != "function"
        is_override = any(family.intersection(resolver.overriders(other)) for other in others)
        scripts: dict[str, Any] = {}
        end = time.monotonic() + _INFERENCE_SECONDS
        for site in sites:
            is_inferred = site.status == OPEN and is_only_one
            if site.status == INFERRED and is_override:
                site = site._replace(status=OPEN)
            can_be_inferred = site.status == OPEN and site.file.endswith(".py")
            if can_be_inferred and not is_inferred and time.monotonic() < end:
                is_inferred = not self._goes_to(site, scripts).isdisjoint(definitions)
            if is_inferred:
                site = site._replace(status=INFERRED)
            yield site

    def _goes_to(self, site: Site, scripts: dict[str, Any]) -> set[str]:
        """file:line of each definition that jedi finds for a mention; none where it is not installed."""
        folder = self.repository.folder.resolve()
        places = set()
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
        entity, resolver = self.repository.entities[name], self.repository.resolver_of[name]
        file = self.repository.files.get(entity.module)
        if file is None:
            return
        for use in self.repository.mentions(file):
            if use.scope.owner != entity.id or use.kind not in CALLS:
                continue
            place = (use.kind, file, use.line, use.column)
            targets = resolver.mentioned(use.scope, use.chain)
            values = [value.entity for value in targets.values if not value.is_instance]
            word = last_name(use.chain).partition("/")[0]
            if targets.complete:
                for value in values:
                    others = [other for other in values if other != value]
                    status = ONE_OF if others else KNOWN
                    yield Site(value, status, *place, _some(others))
            elif word.isidentifier():
                yield Site(unresolved(word), OPEN, *place, _some(self._candidates(word)))

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
                entity = self.repository.entities[site.name]
                if entity.type not in ("module", "package"):
                    todo.append((site.name, combined, steps + 1))
        return [*reached.values()]

    # ---- answers

    def _answers(self, sites: Iterable[Site]) -> list[Answer]:
        """One for each name, status and kind; of what is open one for each text of a line."""
        groups: dict[tuple[str, ...], list[Site]] = defaultdict(list)
        for site in sites:
            source = self.repository.lines(site.file)[site.line - 1].strip()
            key: tuple[str, ...] = (site.name, site.status, site.kind)
            if site.status == OPEN:
                key += (source,)
            groups[key].append(site)
        answers = []
        for (name, status, kind, *_), group in groups.items():
            first = group[0]
            source = self.repository.lines(first.file)[first.line - 1].strip()
            numbers = dict.fromkeys(site.line for site in group)
            lines = list(map(str, numbers))
            if len(lines) > 4:
                lines[4:] = ["..."]
            lines[0] = self.repository.place(first.file, first.line)
            mentioned = ", ".join(lines)
            answers.append(Answer(name, status, kind, 1, self._defined_at(name), mentioned, source, first.could_be))
        return sorted(answers, key=lambda answer: (STATUSES.index(answer.status), answer.kind not in CALLS))

    def _defined_at(self, name: str) -> str:
        entity = self.repository.entities.get(name)
        if entity is None or entity.line == 0 or entity.module not in self.repository.files:
            return ""
        return self.repository.place(self.repository.files[entity.module], entity.line)


def _is_read(resolver: Resolver, entity: Entity) -> bool:
    """Whether naming it gives its value: a variable, a field or a property."""
    return entity.type in _VARIABLES or resolver.is_property(Value(entity.id))


def _add_aliases(module: Module, names: set[str]) -> set[str]:
    """Adds the names that assignments, imports and `return` make other names of the same; returns those that other files see."""
    aliases = []
    for name, meaning, is_exported in _bindings(module):
        if name and isinstance(meaning, Expression):
            source = re.findall(r"\w*(?=\)?$)", meaning.chain)[0]  # `f` of `partial(self.f)`
            aliases.append((name, source, is_exported))
    exported, count = set(), 0
    while count < len(names):
        count = len(names)
        for name, source, is_exported in aliases:
            if source in names and source != name:
                names.add(name)
                if is_exported:
                    exported.add(name)
    return exported


def _bindings(module: Module) -> Iterator[tuple[str, Meaning, bool]]:
    """All names, what each is bound to, and whether other files see it."""
    for _, name, meaning in module.stores:
        yield name, meaning, True
    tables = [(module.returned, True)]
    for scope in module.scopes:
        tables.append((scope.names, scope.kind in ("module", "class")))
        tables.append((scope.fields, True))
    for table, is_exported in tables:
        for name, meanings in table.items():
            for meaning in meanings:
                yield last_name(name), meaning, is_exported


def _near(name: str, bases: Iterable[str]) -> str:
    length = name.count(".") + 1
    base_of_end = {}
    for base in bases:
        end = base.split(".")[-length:]
        base_of_end[".".join(end)] = base
    ends = difflib.get_close_matches(name, base_of_end, n=5, cutoff=0.7)
    if not ends:
        return "give the qualified name of a function or class"
    return f"did you mean {_some([base_of_end[end] for end in ends])}?"


def _without_parameters(name: str) -> str:
    return re.split(r"[(#]", name, maxsplit=1)[0]


def _some(names: list[str]) -> str:
    text = ", ".join(names[:5])
    if len(names) > 5:
        text += f" and {len(names) - 5} more"
    return text
