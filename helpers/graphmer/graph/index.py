"""The names of a folder's sources: where each is defined, what each mention of it means, and how it is used there.

What a mention means is the answer of pyrefly, a type checker, in its SCIP index (https://github.com/sourcegraph/scip). How a name is
used there is read from the syntax tree.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.metadata
import json
import operator
import re
import subprocess
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from helpers.run import disk

from .knowledge_graph import last_name
from .sources import TOP, UNREADABLE, Source, read_sources

ENGINE = "pyrefly>=1.5,<1.6"
LEAST_SECONDS, LINES_A_SECOND = 30, 2_000  # until the engine is stopped; on one core it reads 30,000 lines a second
# That of the repository is not read: it may name commands to run. Installed packages are not looked at, so that machines agree.
CONFIGURATION = """
project-includes = ["{group}/**/*.py"]
project-excludes = []
disable-project-excludes-heuristics = true
search-path = {search_path}
disable-search-path-heuristics = true
preset = "default"
check-unannotated-defs = true
python-version = "{version}"
python-platform = "linux"
skip-interpreter-query = true
use-ignore-files = false
"""
OPTIONS = "check --config pyrefly.toml --output-format omit-errors --summary=none --report-scip index.scip"
# Is read with every index, which has to say of it what stands in `FACTS`.
PROBE_TEXT = """class Above:
    def go(self, speed=1): return self
class Below(Above):
    def go(self, speed=2): return self
def make(): return Below()
make().go()
"""
PROBE = Source("probe.py", PurePosixPath("graphmer_probe.py"), PROBE_TEXT, module="probe")
FACTS = """probe.Above 1-2  []
probe.Above.go(speed) 2-2  []
probe.Below 3-4  ['probe.Above']
probe.Below.go 4-4  ['probe.Above.go']
probe.make 5-5 Below []
line 6 uses probe.Below.go"""
# The fields of SCIP that are read, as protobuf describes messages.
SCHEMA = """
name: "scip.proto" package: "scip"
message_type { name: "Index"
  field { name: "documents" number: 2 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".scip.Document" } }
message_type { name: "Document"
  field { name: "relative_path" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "occurrences" number: 2 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".scip.Occurrence" }
  field { name: "symbols" number: 3 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".scip.Symbol" } }
message_type { name: "Occurrence"
  field { name: "range" number: 1 label: LABEL_REPEATED type: TYPE_INT32 }
  field { name: "symbol" number: 2 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "symbol_roles" number: 3 label: LABEL_OPTIONAL type: TYPE_INT32 }
  field { name: "enclosing_range" number: 7 label: LABEL_REPEATED type: TYPE_INT32 } }
message_type { name: "Symbol"
  field { name: "symbol" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "documentation" number: 3 label: LABEL_REPEATED type: TYPE_STRING }
  field { name: "relationships" number: 4 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".scip.Relationship" } }
message_type { name: "Relationship"
  field { name: "symbol" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING } }
"""
IS_DEFINITION = 1  # a bit of symbol_roles
LOCALS = ".<locals>"  # in the id of what a function defines, behind that of the function
LOCAL = "local"  # what a mention means that is of one function alone
PART = re.compile(r"\(([^)]+)\)|(`[^`]+`|[\w<>$+-]+)(\(\)\.|[/#:.])")  # of a symbol
KINDS = {"#": "class", "().": "function", ".": "variable"}
MEMBERS = {"#": "class", "().": "method", ".": "field"}
# The class in what an editor would show, where it is one: of a function that of its result, of anything else its own.
TYPE = re.compile(r"-> ([\w.]+): \.\.\.\Z|\A```python\n\((?:variable|constant|attribute|parameter)\) \w+: ([\w.]+)\Z")

CALLS = ("called", "decorates", "raised", "with", "awaited")
OF_CALLS = CALLS[1:]  # what is called in such a place is used so
ANNOTATIONS = ("has_type", "returns")
LASTING = (*ANNOTATIONS, "tested", "caught", "exported")  # also of what is inside, such as the elements of a tuple
# What the field of a node makes of the names in it; anything else reads them.
FIELDS = """
Raise exc raised
ExceptHandler type caught
withitem context_expr with
Await value awaited
List elts table
Tuple elts table
Set elts table
Dict keys table
Dict values table
MatchClass cls matched
Return value returned
Yield value yielded
YieldFrom value yielded
Assign value aliased
AnnAssign value aliased
NamedExpr value aliased
AnnAssign annotation has_type
arg annotation has_type
arguments defaults default
arguments kw_defaults default
FunctionDef returns returns
AsyncFunctionDef returns returns
FunctionDef decorator_list decorates
AsyncFunctionDef decorator_list decorates
ClassDef decorator_list decorates
ClassDef bases base
keyword value base
"""
ROWS = [row.split() for row in FIELDS.strip().split("\n")]
USES = {(getattr(ast, node), field): use for node, field, use in ROWS}
PARTIAL = frozenset({"overload", "setter", "getter", "deleter"})  # decorators of what is no definition of its own


class Definition(NamedTuple):
    """id: qualified name, such as "shop.goods.Thing.price(tax)". name: the same as imports say it, which two files may share.

    kind: module, class, function, method, parameter, variable or field. type: the class that pyrefly shows, of a function that of its
    result. also: lines of further definitions of this name, in other branches.
    """

    id: str
    name: str
    kind: str
    source: Source
    line: int
    end_line: int
    type: str = ""
    also: Sequence[int] = ()


class Use(NamedTuple):
    """A mention of a name. owner: definition or module in which it stands. target: id of what it means, "" where that is open."""

    owner: str
    kind: str
    target: str
    word: str
    source: Source
    line: int
    column: int  # of its end

    @property
    def is_member(self) -> bool:
        """Whether it is a name behind a dot."""
        return self.text[: self.column - len(self.word)].rstrip().endswith(".")

    @property
    def text(self) -> str:
        """Its line."""
        return self.source.lines[self.line - 1]


class Index:
    """definitions, and modules with their sources: by id. uses: by file and line. kinds: of all ids, also of those outside.

    above: of a class or method the ids of those that it inherits from or overrides; below: the other way round. failed: path and error
    of each file that could not be read, or not as a whole.
    """

    def __init__(self, sources: Sequence[Source], failed: list[dict[str, str]], documents: Sequence[Any]):
        self.definitions: dict[str, Definition] = {}
        self.modules = {source.module: source for source in sources}
        self.uses: list[Use] = []
        self.kinds: dict[str, str] = {}
        self.above: dict[str, set[str]] = defaultdict(set)
        self.below: dict[str, set[str]] = defaultdict(set)
        self.failed = failed
        self._modules: dict[tuple[int, str], str] = {}  # by group, and the names by which they are imported there
        for group, root in roots_of(sources):
            for source in sources:
                if source.group == group and source.place.is_relative_to(root):
                    self._modules.setdefault((group, source.name_from(root)), source.module)
        document_of = {document.relative_path: document for document in documents}
        with warnings.catch_warnings(action="ignore"):  # of invalid escapes, in code that is not ours
            for source in sources:
                if mirrored(source) in document_of:
                    self._read(source, document_of[mirrored(source)])
                else:
                    error = f"left out by {ENGINE}: it takes too long, or cannot be read"
                    failed.append({"path": source.path, "error": error})

    def _id(self, source, symbol):
        """The id of what a symbol means in a file."""
        if symbol.startswith("local "):
            return LOCAL
        module, inside, kind = parse_symbol(symbol)
        name = (self._modules.get((source.group, module)) or self._modules.get((0, module), module)) + inside
        self.kinds[name] = kind
        return name

    def _read(self, source, document):
        types = {}
        for symbol in document.symbols:
            documentation = "".join(symbol.documentation[:1])
            match = TYPE.search(documentation.partition("\n```")[0])
            types[symbol.symbol] = (match and (match[1] or match[2])) or ""
        targets = {}
        uses = []
        for occurrence in document.occurrences:
            line, column = occurrence.range[0] + 1, occurrence.range[-1]
            name = targets[line, column] = self._id(source, occurrence.symbol)
            if not occurrence.symbol_roles & IS_DEFINITION:
                uses.append(Use(source.module, "read", name, last_name(name), source, line, column))
            elif name not in self.definitions and name != LOCAL and not name.endswith(("(self)", "(cls)")):
                kind, end_line = self.kinds[name], line
                if len(occurrence.enclosing_range) == 4:  # a place of several lines
                    end_line = occurrence.enclosing_range[2] + 1
                if kind == "module":
                    end_line = len(source.lines)
                imported_as = "".join(parse_symbol(occurrence.symbol)[:2])
                shown = types.get(occurrence.symbol, "")
                self.definitions[name] = Definition(name, imported_as, kind, source, line, end_line, shown)
        for symbol in document.symbols:
            for relation in symbol.relationships:
                below, above = self._id(source, symbol.symbol), self._id(source, relation.symbol)
                self.above[below].add(above)
                self.below[above].add(below)
        try:
            uses = Reader(self, source, targets).uses
        except UNREADABLE as error:
            self.failed.append({"path": source.path, "error": f"how names are used there is not known: {error}"})
        uses.sort(key=operator.attrgetter("line", "column"))
        self.uses += uses


def spread(names: Iterable[str], table: Mapping[str, set[str]]) -> list[str]:
    """Some names, and all that a table leads to from there, the nearest first."""
    found = [*names]
    for name in found:
        found += sorted(table.get(name, set()).difference(found))
    return found


@functools.cache
def parse_symbol(symbol: str) -> tuple[str, str, str]:
    """Module, qualified name in it and kind of what a symbol means, such as ("shop.goods", ".Thing.price(tax)", "parameter")."""
    module, inside, kind = "", "", "module"
    for parameter, word, end in PART.findall(symbol.split(" ", 4)[-1]):
        if parameter:
            return module, f"{inside}({parameter})", "parameter"
        if end == "/":
            module = word.strip("`")
        elif end != ":":
            inside += f"{LOCALS}." if kind in ("function", "method") else "."
            inside += word.strip("`")
            kind = (MEMBERS if kind == "class" else KINDS)[end]
    return module, inside, kind


# ---- how names are used


class Reader:
    """Every use of a name in a file, but of what is of one function alone. Raises what `ast.parse` does.

    targets: the id of what a mention means, by its line and the column of its end.

    A scope is the id of the definition or module that a node is in, and of a function what follows it in the ids of what it defines.
    """

    def __init__(self, index, source, targets):
        self.index, self.source, self.targets = index, source, targets
        self.uses = []
        # Lines of each id, but of overloads and parts of a property.
        self.defined = defaultdict(list)
        self.imported = {}  # name in this file -> id
        self.texts = []  # that name something
        # Nodes that are still to be read, the scope that they are in, and how names in them are used.
        self.todo = [(ast.parse(source.text), source.module, "read")]
        while self.todo:
            node, scope, kind = self.todo.pop()
            if isinstance(node, list):
                self.todo += [(part, scope, kind) for part in node]
            elif isinstance(node, ast.AST):
                read = getattr(self, f"read_{type(node).__name__}", self.read_fields)
                read(node, scope, kind)
        for text, scope, kind in self.texts:
            self.read_text(text, scope, kind)

    def note(self, line, column, scope, kind, word, target=""):
        """Notes a use, and returns the id of what it means. column: of its end, in bytes of UTF-8, as `ast` counts."""
        column = len(self.source.lines[line - 1].encode()[:column].decode(errors="replace"))
        target = target or self.targets.get((line, column), "")
        if target != LOCAL and self.index.kinds.get(target) != "parameter":
            self.uses.append(Use(scope.removesuffix(LOCALS), kind, target, word, self.source, line, column))
        return target

    def read_fields(self, node, scope, kind):
        if isinstance(node, ast.arg):
            scope = f"{scope.removesuffix(LOCALS)}({node.arg})"
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not scope.endswith(LOCALS):
            scope += f".{node.target.id}"
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            kind = "exported"
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.AST | list):
                self.todo.append((value, scope, kind if kind in LASTING else USES.get((type(node), field), "read")))

    def read_Name(self, node, scope, kind):
        if not isinstance(node.ctx, ast.Load):
            kind = "written" if isinstance(node.ctx, ast.Store) else "deleted"
        if isinstance(node, ast.Attribute):
            self.todo.append((node.value, scope, "read"))
        word = node.attr if isinstance(node, ast.Attribute) else node.id
        self.note(node.end_lineno, node.end_col_offset, scope, kind, word)

    def read_FunctionDef(self, node, scope, _):
        name = f"{scope}.{node.name}"
        decorators = {getattr(decorator, "attr", getattr(decorator, "id", "")) for decorator in node.decorator_list}
        if PARTIAL.isdisjoint(decorators) and name in self.index.definitions:
            self.defined[name].append(node.lineno)
            definition = self.index.definitions[name]
            self.index.definitions[name] = definition._replace(also=sorted(self.defined[name])[1:])
        self.read_fields(node, name if isinstance(node, ast.ClassDef) else name + LOCALS, "read")

    def read_Call(self, node, scope, kind):
        is_test = getattr(node.func, "id", "") in ("isinstance", "issubclass")
        self.todo.append((node.func, scope, kind if kind in OF_CALLS else "called"))
        self.todo.append((node.args[:1], scope, "passed"))
        self.todo.append((node.args[1:], scope, "tested" if is_test else "passed"))
        for keyword in node.keywords:
            self.todo.append((keyword.value, scope, "has_type" if keyword.arg == "bound" else "passed"))

    def read_ImportFrom(self, node, *_):
        """The owner is the module, also of an import within a function."""
        module = self.source.module
        if isinstance(node, ast.ImportFrom):
            name = "." * node.level + (node.module or "")
            end = node.col_offset + len(f"from {name}")
            if (node.lineno, end) in self.targets:
                self.note(node.lineno, end, module, "imported", name)
        for alias in node.names:
            end = alias.col_offset + len(alias.name.encode())
            self.imported[alias.asname or alias.name] = self.note(alias.lineno, end, module, "imported", alias.name)

    def read_Constant(self, node, scope, kind):
        if isinstance(node.value, str) and kind in (*ANNOTATIONS, "exported"):
            self.texts.append((node, scope, kind))

    def read_text(self, node, scope, kind):
        """The names in a text that is an annotation or names something, as imports and definitions of this file mean them."""
        with contextlib.suppress(*UNREADABLE):
            for part in ast.walk(ast.parse(node.value.strip(), mode="eval")):
                target = self.meaning(part)
                if target in self.index.kinds:
                    self.note(node.end_lineno, node.end_col_offset, scope, kind, last_name(target), target)

    def meaning(self, node):
        if isinstance(node, ast.Attribute):
            return f"{self.meaning(node.value)}.{node.attr}"
        name = getattr(node, "id", "")
        return self.imported.get(name) or f"{self.source.module}.{name}"

    read_Attribute, read_Import = read_Name, read_ImportFrom
    read_AsyncFunctionDef = read_ClassDef = read_FunctionDef


# ---- pyrefly's index, and where it is kept


def read_index(data_source: str | Path, keep_in: Path | None = None) -> Index:
    """The names of a folder of sources, or of "sample", the standard library.

    keep_in: folder in which what pyrefly wrote is kept, until a file changes.
    Raises what `read_sources` does, and ImportError where pyrefly is absent, or another one than this code was written for.
    """
    sources, failed = read_sources(data_source)
    digest = hashlib.sha256(f"{importlib.metadata.version('pyrefly')} {sys.version} {CONFIGURATION}".encode())
    for source in sources:
        digest.update(f"{source.place}\n{source.text}\n".encode(errors="surrogatepass"))
    identity, content = digest.digest(), b""
    kept = keep_in and keep_in / "index.scip"
    if kept and kept.is_file():
        content = kept.read_bytes()
    if not content.startswith(identity):
        content = identity + run_engine(sources)
        with contextlib.suppress(OSError):  # a full disk, a home that is read-only
            if kept:
                kept.parent.mkdir(parents=True, exist_ok=True)
                with disk.replacing(kept) as unfinished:
                    unfinished.write_bytes(content)
    return Index(sources, failed, parse(content.removeprefix(identity)))


def roots_of(sources):
    """Group and place of each folder that imports begin at, what is inside before what is around it."""
    roots = {(0, TOP)} | {(source.group, source.root) for source in sources}
    return sorted(roots, key=lambda root: (-len(str(root[1])), root))


def mirrored(source):
    """Where pyrefly finds a file."""
    return f"{source.group}/{source.place}"


def run_engine(sources: Sequence[Source]) -> bytes:
    """pyrefly's index of copies of the files, in UTF-8. Raises ImportError: it is no index as this code reads it.

    The files of each group have a call of their own; what they import and is not among them is looked for in the first group.
    """
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        lines: Any = defaultdict(dict)  # of each file, by its group
        for source in (*sources, PROBE):
            file = folder / mirrored(source)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source.text, encoding="utf-8", errors="replace", newline="\n")
            lines[source.group][mirrored(source)] = len(source.lines)
        content = b""
        for group in sorted(lines):
            roots = [f"{own}/{root}" for own, root in roots_of(sources) if own == group]
            if group:
                roots += [f"{own}/{root}" for own, root in roots_of(sources) if own == 0]
            version = "{}.{}".format(*sys.version_info)
            configuration = CONFIGURATION.format(group=group, search_path=json.dumps(roots), version=version)
            (folder / "pyrefly.toml").write_text(configuration, encoding="utf-8")
            content += run_group(folder, lines[group])
    missing = missing_facts(content)
    if missing:
        version = importlib.metadata.version("pyrefly")
        lacking = ", ".join(missing)
        raise ImportError(f'pyrefly {version} is installed, and its index lacks {lacking}: pip install "{ENGINE}"')
    return content


def run_group(folder: Path, lines: dict[str, int]) -> bytes:
    """One index. lines: those of each file; the longest are deleted until the others are ready in time."""
    from pyrefly.__main__ import get_pyrefly_bin  # `python -m pyrefly` would leave it running where it is stopped

    report = folder / "index.scip"
    report.unlink(missing_ok=True)
    seconds = LEAST_SECONDS + sum(lines.values()) / LINES_A_SECOND
    try:
        subprocess.run(
            [get_pyrefly_bin(), *OPTIONS.split()], cwd=folder, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        longest = max(lines, key=lines.__getitem__)
        (folder / longest).unlink()
        del lines[longest]
        return run_group(folder, lines)
    return report.read_bytes() if report.exists() else b""


def missing_facts(content: bytes) -> list[str]:
    """What an index does not say of `PROBE`."""
    index = Index([PROBE], [], parse(content))
    facts = {f"line {use.line} uses {use.target}" for use in index.uses}
    for name, definition in index.definitions.items():
        facts.add(f"{name} {definition.line}-{definition.end_line} {definition.type} {[*index.above[name]]}")
    return [fact for fact in FACTS.split("\n") if fact not in facts]


@functools.cache
def index_message():
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(SCHEMA, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("scip.Index"))


def parse(content: bytes) -> Sequence[Any]:
    """The documents of an index; indices that stand one behind the other are one."""
    return index_message().FromString(content).documents
