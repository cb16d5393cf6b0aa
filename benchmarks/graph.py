"""Calls and references that GraphMER answers in packages of the Python index, beside jedi, basedpyright and a name matcher.

    python benchmarks/graph.py --work FOLDER [--packages jinja2,werkzeug] [--calls 60] [--references 12]
    python benchmarks/graph.py --work FOLDER --packages rules

The packages are installed into FOLDER at one version each, and their own tests run there under Python's profiler, for at most
60 seconds of processor time. Those of CHOICE served while the resolver was written; those of REPORT served for no choice.

**Calls.** The truth is what a call in the package then reached: a function of the package that has the name that the call names, or
a constructor. A call that reached nothing of the package but a function of this name elsewhere counts for precision alone. Each call
site counts once. Right is one answer, which names this function, the same one of a base class (what is proved is the call of a
method, whoever overrides it), or the class that is made; "one of" is no right answer. Recall is the share of calls that are
answered rightly, precision the share of answers that are right. Rivals answer with a file and a line, which are looked up among all
definitions. They are asked about `--calls` calls of each package, drawn once, and the resolver is counted on these, too, alone and
with what the product infers where it is asked who uses the definitions of the name; times are processor times of what was asked, those
of basedpyright with its reading of the package.

**References.** For `--references` definitions of each package, drawn once, the lines that basedpyright's "find references" names,
and which of these an answer of ours has, inferred ones included. The name matcher answers with the only definition of a name.

**Rules.** With `--packages rules` each rule of the resolver is switched off in turn, on the packages of CHOICE and without jedi, and the
attempts that were not kept are switched on; this writes docs/results/graphmer_rules.json.

What was traced is kept in FOLDER. Writes docs/results/graphmer_graph.json.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import unquote, urlparse

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 60
# name: version, tests below the package ("") or its source archive ("/"), whether the Python index calls it otherwise
CHOICE = {  # what was written was tried on these
    "jinja2": "jinja2==3.1.6 /tests",
    "werkzeug": "werkzeug==3.1.9 /tests --deselect=tests/test_serving.py",
    "prompt_toolkit": "prompt_toolkit==3.0.53 /tests",
    "marshmallow": "marshmallow==4.4.0 /tests",
    "markdown": "markdown==3.11.3 /tests",
    "lark": "lark==1.3.1 /tests",
    "docx": "python-docx==1.2.0 /tests",
    "click": "click==8.5.1 /tests",
    "wtforms": "wtforms==3.3.2 /tests",
    "parso": "parso==0.8.7 /test",
}
REPORT = {  # these served for no choice
    "flask": "flask==3.1.3 /tests",
    "pluggy": "pluggy==1.7.0 /testing",
    "attr": "attrs==26.1.0 /tests",
    "sqlparse": "sqlparse==0.6.1 /tests",
    "mistune": "mistune==3.4.0 /tests",
    "starlette": "starlette==1.10.0 /tests",
    "tomlkit": "tomlkit==0.15.2 /tests",
    "mako": "mako==1.4.3 /test",
}
PACKAGES = CHOICE | REPORT
NEEDED = "pytest==9.2.0 hypothesis pyparsing pytest-timeout httpx2 trio simplejson ephemeral-port-reserve pytest-xprocess"  # by tests
CONSTRUCTORS = ("__init__", "__new__")
Site = tuple[str, int, str]  # file, line of the name, name


# ---- the truth, in the environment of the package


def watched(package: str, action: Callable[[], object]) -> list[list]:
    """File and place of each call in a package while an action runs, with the function that it reached and the classes of `self`.

    package: its folder, with a slash at the end. Raises what the action does, but for KeyboardInterrupt.
    """
    seen: dict[tuple, list] = {}

    def profile(frame, event, argument) -> None:
        caller = frame if event == "c_call" else frame.f_back
        if event not in ("call", "c_call") or caller is None or not caller.f_code.co_filename.startswith(package):
            return
        key = (caller.f_code, caller.f_lasti, argument.__name__ if event == "c_call" else frame.f_code)
        if key not in seen:
            seen[key] = [f"builtins.{argument.__name__}", []] if event == "c_call" else reached(frame)

    threading.setprofile(profile)
    sys.setprofile(profile)
    with contextlib.suppress(KeyboardInterrupt):
        try:
            action()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    places = [list(caller.co_positions())[at // 2] for caller, at, _ in seen]  # an instruction has two bytes
    return [
        [caller.co_filename, place, answer]
        for (caller, _, _), place, answer in zip(seen, places, seen.values(), strict=True)
    ]


def reached(frame) -> list:
    """Full name of the function that runs in a frame, and the classes that its first argument is of."""
    code = frame.f_code
    first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount and "." in code.co_qualname else None
    kind = first if isinstance(first, type) else type(first)
    above = [] if first is None else [f"{one.__module__}.{one.__qualname__}" for one in kind.__mro__]
    return [f"{frame.f_globals.get('__name__')}.{code.co_qualname}", above]


def trace(package: str, output: str, tests: list[str]) -> None:
    """Writes what `watched` sees of tests."""
    import pytest

    def over(*_) -> None:
        raise KeyboardInterrupt  # pytest ends

    for name in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(name, over)
    signal.setitimer(signal.ITIMER_REAL, 10 * SECONDS, 10)  # again and again, where a test catches it
    signal.setitimer(signal.ITIMER_PROF, SECONDS, 5)
    plain = ["-q", "-o", "addopts=", "-p", "no:cacheprovider", "-W", "ignore", "--continue-on-collection-errors"]

    def run_tests() -> None:
        try:
            pytest.main([*plain, *tests])
        finally:
            for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
                signal.setitimer(timer, 0)

    found = watched(package, run_tests)
    Path(output).write_text(json.dumps(found))


class Packages:
    """What is installed and unpacked in a folder."""

    def __init__(self, folder: Path):
        self.folder = folder.resolve()
        self.python = self.folder / "venv/bin/python"
        if not self.python.exists():
            run(sys.executable, "-m", "venv", self.folder / "venv")
        self.site = next((self.folder / "venv/lib").glob("python*/site-packages"))

    def traced(self, name: str) -> list[list]:
        path = self.folder / "calls" / f"{name}.json"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            pin, *tests = PACKAGES[name].split()
            if not (self.site / name).exists():
                run(self.python, "-m", "pip", "install", "-q", pin, *NEEDED.split())
            where = self.archive(name, pin) if tests[0].startswith("/") else self.site / name
            tests = [each if each.startswith("--") else f"{where}/{each.lstrip('/')}" for each in tests]
            command = [self.python, __file__, "--trace", f"{self.site / name}/", path, *tests]
            with path.with_suffix(".log").open("w") as log:
                subprocess.run(command, cwd=where, stdout=log, stderr=log, stdin=subprocess.DEVNULL, check=False)
            if not path.exists():
                raise SystemExit(f"{name}: its tests ended without a trace; see {path.with_suffix('.log')}")
        return json.loads(path.read_text())

    def right(self, name: str) -> dict[tuple[Site, int], set[str]]:
        """All right answers of each call that ran."""
        return truth(self.traced(name), {file: calls_of(file) for file in self.files(name)})

    def files(self, name: str) -> list[str]:
        """Sources of a package, without tests."""
        folder = self.site / name
        paths = sorted(folder.rglob("*.py"))
        return [str(path) for path in paths if {"test", "tests"}.isdisjoint(path.relative_to(folder).parts)]

    def archive(self, name: str, pin: str) -> Path:
        """The unpacked source archive, without the package, so that its tests run against what is installed."""
        folder = self.folder / "archives" / name
        if not list(folder.glob("*/")):
            run(
                self.python,
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                "--no-binary",
                pin.partition("==")[0],
                "-d",
                folder,
                pin,
            )
            with tarfile.open(next(folder.glob("*.tar.gz"))) as packed:
                packed.extractall(folder, filter="data")
        [unpacked] = (path for path in folder.iterdir() if path.is_dir())
        for above in ("", "src", "lib"):
            if (unpacked / above / name).is_dir():
                (unpacked / above / name).rename(unpacked / above / f"{name}.left_out")
        return unpacked


def run(*command: object) -> None:
    subprocess.run([str(each) for each in command], check=True)


def calls_of(file: str) -> dict[tuple, tuple[str, int, int]]:
    """Place of each call of a name or attribute -> the name, its line and the column of its last character."""
    found = {}
    for node in ast.walk(ast.parse(Path(file).read_bytes())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            place = (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset)
            found[place] = (name, node.func.end_lineno, node.func.end_col_offset - 1)
    return found


def truth(rows: list[list], calls: dict[str, dict]) -> dict[tuple[Site, int], set[str]]:
    """Call, with its column -> all answers that are right."""
    found = defaultdict(set)
    for file, place, (callee, above) in rows:
        if file not in calls or tuple(place) not in calls[file] or callee.startswith("None."):  # made by a mock
            continue
        name, line, column = calls[file][tuple(place)]
        last = callee.rpartition(".")[2]
        if last == name:
            found[(file, line, name), column] |= {callee, *(f"{one}.{name}" for one in above)}
        elif last in CONSTRUCTORS and name not in CONSTRUCTORS:
            found[(file, line, name), column] |= {one for one in above if one != "builtins.object"}
    return found


# ---- answers


def definitions_of(files: Iterable[str], package: Path) -> dict[tuple[str, int], str]:
    """File and line of each function and class -> its full name as the interpreter says it."""
    definitions = {}

    def read(body: ast.AST, prefix: str, file: str) -> None:
        for node in ast.iter_child_nodes(body):
            inner = prefix
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                definitions[file, node.lineno] = f"{prefix}.{node.name}"
                inner = f"{prefix}.{node.name}" + ("" if isinstance(node, ast.ClassDef) else ".<locals>")
            read(node, inner, file)

    for file in files:
        parts = Path(file).relative_to(package.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        read(ast.parse(Path(file).read_bytes()), name, file)
    return definitions


def resolver(package: Path) -> tuple[Callable[[Site, int], set[str]], ...]:
    """What the sources of a package prove; that, and what is inferred of open calls; and the only definition of a name."""
    from helpers.graphmer.ask import INFERRED, Asked

    asked = Asked(package)
    repository = asked.repository
    places = {}
    for file in repository.modules:
        names, _ = repository.modules[file]
        for use in repository.mentions(file):
            places[str(package / file), use.line, use.column] = (names, use)
    defined = defaultdict(set)
    for name, entity in repository.entities.items():
        if entity.type in ("function", "method", "class", "exception"):
            defined[entity.name].add(name)

    def answers(site: Site, column: int) -> set[str]:
        file, line, _ = site
        if (file, line, column) not in places:
            return set()
        names, use = places[file, line, column]
        value = names.mentioned(use.scope, use.chain).one
        if value and value.is_instance:
            value = names.member(value, "__call__").one
        return {value.entity.partition("#")[0]} if value and value.entity in names.defined else set()

    uses: dict[str, set] = {}

    def inferred(site: Site, column: int) -> set[str]:
        file, line, word = site
        proved = answers(site, column)
        candidates = set()
        for name in () if proved else defined[word]:
            if name not in uses:
                uses[name] = {
                    (str(package / use.file), use.line, use.column)
                    for use in asked.uses(name)
                    if use.status == INFERRED
                }
            if (file, line, column) in uses[name]:
                candidates.add(name)
        return proved or candidates

    def only_one(site: Site, _: int) -> set[str]:
        return defined[site[2]] if len(defined[site[2]]) == 1 else set()

    return answers, inferred, only_one


def by_jedi(package: Path, definitions: dict[tuple[str, int], str]) -> Callable[[Site, int], set[str]]:
    import jedi

    project, scripts = jedi.Project(package.parent), {}

    def answers(site: Site, column: int) -> set[str]:
        file, line, _ = site
        if file not in scripts:
            scripts[file] = jedi.Script(path=file, project=project)
        names = []
        with contextlib.suppress(KeyError):  # of jedi's own cache: no answer
            names = scripts[file].goto(line, column, follow_imports=True)
        return {
            definitions[str(name.module_path), name.line]
            for name in names
            if (str(name.module_path), name.line) in definitions
        }

    return answers


class Basedpyright:
    """The language server of basedpyright, which is asked over stdin and stdout."""

    def __init__(self, package: Path, python: Path):
        self.package, self.number, self.opened = package, 0, set()
        command = [Path(sys.executable).with_name("basedpyright-langserver"), "--stdio"]
        self.before = os.times()
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=package.parent)
        self.settings = {
            "python": {"pythonPath": str(python)},
            "basedpyright": {
                "analysis": {"diagnosticMode": "openFilesOnly", "include": [str(package)], "typeCheckingMode": "off"}
            },
        }
        folder = {"uri": package.as_uri(), "name": package.name}
        capabilities = {"workspace": {"configuration": True, "workspaceFolders": True}}
        start = {
            "processId": os.getpid(),
            "rootUri": folder["uri"],
            "workspaceFolders": [folder],
            "capabilities": capabilities,
        }
        self.ask("initialize", start)
        self.send({"method": "initialized", "params": {}})

    def send(self, message: dict) -> None:
        content = json.dumps({"jsonrpc": "2.0"} | message).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(content) + content)
        self.process.stdin.flush()

    def receive(self) -> dict:
        length = 0
        while line := self.process.stdout.readline().strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        return json.loads(self.process.stdout.read(length))

    def ask(self, method: str, parameters: dict) -> Any:
        self.number += 1
        self.send({"id": self.number, "method": method, "params": parameters})
        while True:
            message = self.receive()
            if message.get("id") == self.number and "method" not in message:
                return message.get("result")
            if "id" in message:  # the server asks
                result = None
                if message["method"] == "workspace/configuration":
                    items = message["params"]["items"]
                    result = [self._setting(item.get("section") or "") for item in items]
                self.send({"id": message["id"], "result": result})

    def _setting(self, section: str) -> Any:
        value: Any = self.settings
        for part in section.split("."):
            value = value.get(part, {}) if isinstance(value, dict) else {}
        return value

    def lines(self, method: str, file: str, line: int, column: int) -> list[tuple[str, int]]:
        """File and line of each place that an answer names."""
        uri = Path(file).as_uri()
        if file not in self.opened:
            self.opened.add(file)
            text = Path(file).read_text(encoding="utf-8")
            document = {"uri": uri, "languageId": "python", "version": 1, "text": text}
            self.send({"method": "textDocument/didOpen", "params": {"textDocument": document}})
        place = {"textDocument": {"uri": uri}, "position": {"line": line - 1, "character": column}}
        found = self.ask(f"textDocument/{method}", place | {"context": {"includeDeclaration": False}}) or []
        found = found if isinstance(found, list) else [found]
        return [(unquote(urlparse(one["uri"]).path), one["range"]["start"]["line"] + 1) for one in found]

    def end(self) -> float:
        """Ends the server; returns the processor seconds that it took."""
        self.ask("shutdown", {})
        self.send({"method": "exit"})
        self.process.wait()
        after = os.times()
        return after.children_user + after.children_system - self.before.children_user - self.before.children_system


def scored(
    package: str, right: dict[tuple[Site, int], set[str]], answers: Callable, asked: Iterable
) -> dict[str, float]:
    """reached: calls that reached a function of the package. answered, right: of all calls that ran."""
    start, counts = time.process_time(), Counter()
    for call in asked:
        given = answers(*call)
        counts["reached"] += any(one.startswith(f"{package}.") for one in right[call])
        counts["answered"] += bool(given)
        counts["right"] += len(given) == 1 and bool(given & right[call])
    return dict(counts) | {"seconds": round(time.process_time() - start, 2)}


def measured(packages: Packages, name: str, most_calls: int, most_references: int) -> dict:
    package = packages.site / name
    files, right = packages.files(name), packages.right(name)
    start = time.process_time()
    ours, inferred, only_one = resolver(package)
    reading = round(time.process_time() - start, 2)
    found = {
        "lines": sum(Path(file).read_bytes().count(b"\n") for file in files),
        "resolver": scored(name, right, ours, right) | {"seconds": reading},
        "only definition of the name": scored(name, right, only_one, right),
    }
    drawn = random.Random(0).sample(sorted(right), min(most_calls, len(right)))
    definitions = definitions_of([*files, *map(str, package.rglob("*.pyi"))], package)
    jedi = by_jedi(package, definitions)
    server = Basedpyright(package, packages.python)

    def by_basedpyright(site: Site, column: int) -> set[str]:
        file, line, _ = site
        return {definitions[place] for place in server.lines("definition", file, line, column) if place in definitions}

    tools = {"jedi": jedi, "basedpyright": by_basedpyright, "resolver on these": ours}
    tools["resolver and inferred on these"] = inferred
    for tool, answers in tools.items():
        found[tool] = scored(name, right, answers, drawn)
    found["basedpyright"]["seconds"] = round(server.end(), 2)
    found["references"] = references(packages, package, files, most_references)
    return found


def by_rules(packages: Packages) -> dict[str, dict[str, Counter]]:
    """Answers about calls of the packages of CHOICE without jedi, while a rule is switched off or an attempt is switched on."""
    from helpers.graphmer import ask
    from helpers.graphmer.graph import resolution

    names = resolution.Resolver
    ask.Asked._goes_to = lambda *_: set()
    changes = {
        "all rules": (ask, "KNOWN", ask.KNOWN),
        "without annotations": (names, "_declared", lambda *_: resolution.OPEN),
        "without copies, partials and static methods": (resolution, "_GIVING_ARGUMENT", {}),
        "without leaving out what another target stands for": (names, "_uncovered", lambda _, values: values),
        "without inferring the only definition of a name": (ask, "code_words", lambda _: ()),
        "not kept: names of one word are inferred, too": (ask, "code_words", lambda name: (name, name)),
        "not kept: stores to unknown objects replace nothing": (names, "_stored_anywhere", lambda *_: []),
    }
    found = defaultdict(lambda: defaultdict(Counter))
    for rule, change in changes.items():
        with mock.patch.object(*change):
            for name in CHOICE:
                right = packages.right(name)
                known, inferred, _ = resolver(packages.site / name)
                found[rule]["known"].update(scored(name, right, known, right))
                if change[0] is ask:
                    found[rule]["known or inferred"].update(scored(name, right, inferred, right))
    return found


def references(packages: Packages, package: Path, files: list[str], most: int) -> dict:
    """Lines that basedpyright names for definitions of a package, those that our answers have, and what is missing."""
    from helpers.graphmer.ask import KNOWN, OPEN, Asked

    asked, server = Asked(package), Basedpyright(package, packages.python)
    places = {}
    for name, entity in sorted(asked.repository.entities.items()):
        is_code = entity.type in ("function", "method", "class", "exception") and "#" not in name
        file = str(package / asked.repository.files.get(entity.module, ""))
        if is_code and "<" not in name and not entity.name.startswith("__") and file in files:
            places[name] = (file, entity.line, entity.name)
    counts, missing = Counter(), []
    for name in random.Random(1).sample([*places], min(most, len(places))):
        path, line, word = places[name]
        text = Path(path).read_text(encoding="utf-8").split("\n")[line - 1]
        theirs = set(server.lines("references", path, line, text.index(word)))
        theirs = {place for place in theirs if place[0] in files}
        ours = {(str(package / site.file), site.line): site for site in asked.uses(name)}
        known = {place for place, site in ours.items() if site.status != OPEN}
        proved = {place for place, site in ours.items() if site.status == KNOWN}
        counts.update(
            definitions=1,
            references=len(theirs),
            named=len(theirs & {*ours}),
            tied=len(theirs & known),
            proved=len(theirs & proved),
        )
        missing += [
            f"{name}: {place.removeprefix(str(package))}:{number}" for place, number in sorted(theirs - {*ours})
        ]
    server.end()
    return dict(counts) | {"missing": missing}


def reading() -> dict:
    """Processor seconds in which the standard library without its tests is read: new, from the cache, and where one file has changed."""
    from helpers.graphmer.graph.repository import Repository
    from helpers.graphmer.graph.sources import TEST_FOLDERS, standard_library

    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work, "sources")
        left_out = shutil.ignore_patterns("site-packages", *TEST_FOLDERS)
        shutil.copytree(standard_library(), folder, ignore=left_out)
        os.environ["XDG_CACHE_HOME"] = str(Path(work, "cache"))
        for state in ("new", "cached", "one changed file"):
            if state == "one changed file":
                with (folder / "argparse.py").open("a") as file:
                    file.write("\n\ndef added():\n    return ArgumentParser()\n")
            repository = None
            gc.collect()  # as in a process of its own
            start = time.process_time()
            repository = Repository(folder)
            found[state] = round(time.process_time() - start, 2)
        lines = sum(content.count(b"\n") for content in repository.contents.values())
    return {"lines": lines} | found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for the packages and what was traced")
    parser.add_argument("--packages", default=",".join(PACKAGES), help="names, with commas in between")
    parser.add_argument("--calls", type=int, default=60, help="calls of a package that the rivals are asked about")
    parser.add_argument(
        "--references", type=int, default=12, help="definitions of a package whose references are compared"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "docs/results/graphmer_graph.json")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from benchmarks import report

    packages = Packages(arguments.work)
    if arguments.packages == "rules":
        output = arguments.output.with_name("graphmer_rules.json")
        report.write(output, report.machine("cpu"), rules=by_rules(packages))
        return
    found = {}
    for name in arguments.packages.split(","):
        role = "choice" if name in CHOICE else "report"
        found[name] = {"pin": PACKAGES[name].split()[0], "role": role}
        found[name] |= measured(packages, name, arguments.calls, arguments.references)
        print(json.dumps({name: found[name]}), flush=True)
    report.write(
        arguments.output,
        report.machine("cpu", ["jedi", "basedpyright"]),
        packages=found,
        reading=reading(),
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--trace"]:
        trace(sys.argv[2], sys.argv[3], sys.argv[4:])
    else:
        main()
