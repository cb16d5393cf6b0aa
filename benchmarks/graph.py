"""Calls that the resolver of GraphMER-SE proves in packages of the Python index, beside jedi and a name matcher.

    python benchmarks/graph.py --work FOLDER [--packages jinja2,werkzeug] [--jedi 300]

The packages are installed into FOLDER at one version each, and their own tests run there under Python's profiler, for at most
15 seconds of processor time. The truth is what a call in the package then reached: a function of the package that has the name
that the call names, or a constructor. A call that reached nothing of the package but a function of this name elsewhere counts for precision alone. Right is an answer that names this function, the same one of a base class (what is proved
is the call of a method, whoever overrides it), or the class that is made. Recall is the share of calls that are answered rightly,
precision the share of answers that are right. jedi is asked about `--jedi` calls of each package, drawn once; its time is that of
these, in proportion to all calls that the sources write down. The name matcher answers with the only definition of a name.
What was traced is kept in FOLDER, where a run that was interrupted goes on. Writes docs/results/graphmer_graph.json.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import random
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

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 15
# name: version, tests below the package ("") or its source archive ("/"), whether the Python index calls it otherwise
PACKAGES = {
    "jinja2": "jinja2==3.1.6 /tests",
    "werkzeug": "werkzeug==3.1.9 /tests --deselect=tests/test_serving.py",
    "prompt_toolkit": "prompt_toolkit==3.0.53 /tests",
    "marshmallow": "marshmallow==4.4.0 /tests",
    "markdown": "markdown==3.11.3 /tests",
    "lark": "lark==1.3.1 /tests",
    "parso": "parso==0.8.7 /test",
    "docx": "python-docx==1.2.0 /tests",
    "pptx": "python-pptx==1.0.2 /tests",
    "tornado": "tornado==6.6.1 test",
    "docutils": "docutils==0.23 /test/test_parsers /test/test_transforms",
    "mpmath": "mpmath==1.3.0 tests",
}
NEEDED = (
    "pytest==9.2.0 hypothesis pyparsing pytest-timeout simplejson ephemeral-port-reserve pytest-xprocess"  # by tests
)
ASKED = ("tornado", "HTTPConnection.write_headers")  # of about 50,000 lines
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
            where = self.archive(name, pin) if "/" in tests[0] else self.site / name
            tests = [each if each.startswith("--") else f"{where}/{each.lstrip('/')}" for each in tests]
            command = [self.python, __file__, "--trace", f"{self.site / name}/", path, *tests]
            with path.with_suffix(".log").open("w") as log:
                subprocess.run(command, cwd=where, stdout=log, stderr=log, stdin=subprocess.DEVNULL, check=False)
            if not path.exists():
                raise SystemExit(f"{name}: its tests ended without a trace; see {path.with_suffix('.log')}")
        return json.loads(path.read_text())

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
        if file not in calls or tuple(place) not in calls[file]:
            continue
        name, line, column = calls[file][tuple(place)]
        last = callee.rpartition(".")[2]
        if last == name:
            found[(file, line, name), column] |= {callee, *(f"{one}.{name}" for one in above)}
        elif last in CONSTRUCTORS and name not in CONSTRUCTORS:
            found[(file, line, name), column] |= {one for one in above if one != "builtins.object"}
    return found


# ---- answers


def resolver(package: Path) -> tuple[Callable[[Site, int], set[str]], Counter]:
    """What the graph of the package knows, and how many definitions have a name."""
    from helpers.graphmer.graph.extraction import load_graph

    graph = load_graph(package)
    known = defaultdict(set)
    for triple, lines in graph.sites.items():
        tail, head = graph.entities[triple.tail], graph.entities[triple.head]
        if tail.status == "defined":
            file = str(package / graph.place(head, 1).rpartition(":")[0])
            for line in lines:
                known[file, line].add(tail.id)
    defined = defaultdict(set)
    for entity in graph.entities.values():
        if entity.status == "defined" and entity.type in ("function", "method", "class", "exception"):
            defined[entity.name].add(entity.id)

    def answers(site: Site, _: int) -> set[str]:
        file, line, name = site
        return {one for one in known[file, line] if graph.entities[one].name == name}

    def only_one(site: Site, _: int) -> set[str]:
        return defined[site[2]] if len(defined[site[2]]) == 1 else set()

    return answers, only_one


def by_jedi(package: Path) -> Callable[[Site, int], set[str]]:
    import jedi

    project, scripts = jedi.Project(package.parent), {}

    def answers(site: Site, column: int) -> set[str]:
        file, line, _ = site
        if file not in scripts:
            scripts[file] = jedi.Script(path=file, project=project)
        found = scripts[file].goto(line, column, follow_imports=True)
        return {
            one.full_name
            for one in found
            if one.type in ("function", "class") and (one.full_name or "").startswith(package.name)
        }

    return answers


def scored(
    package: str, right: dict[tuple[Site, int], set[str]], answers: Callable, asked: Iterable
) -> dict[str, float]:
    """reached: calls that reached a function of the package. answered, right: of all calls that ran."""
    start, found = time.process_time(), Counter()
    for call in asked:
        given = answers(*call)
        found["reached"] += any(one.startswith(f"{package}.") for one in right[call])
        found["answered"] += bool(given)
        found["right"] += bool(given & right[call])
    return dict(found) | {"seconds": round(time.process_time() - start, 2)}


def measured(packages: Packages, name: str, most_of_jedi: int) -> dict:
    package = packages.site / name
    rows = packages.traced(name)
    files = [
        str(path)
        for path in sorted(package.rglob("*.py"))
        if not {"test", "tests"} & {*path.relative_to(package).parts}
    ]
    calls = {file: calls_of(file) for file in files}
    right = truth(rows, calls)
    start = time.process_time()
    ours, only_one = resolver(package)
    extraction = round(time.process_time() - start, 2)
    written = sum(map(len, calls.values()))
    found = {
        "lines": sum(Path(file).read_bytes().count(b"\n") for file in files),
        "calls": written,
        "resolver": scored(name, right, ours, right) | {"seconds": extraction},
        "only definition of the name": scored(name, right, only_one, right),
    }
    drawn = random.Random(0).sample(sorted(right), min(most_of_jedi, len(right)))
    if drawn:
        jedi = scored(name, right, by_jedi(package), drawn)
        found["jedi"] = jedi | {"seconds_for_all": round(jedi["seconds"] / len(drawn) * written, 1)}
        found["resolver on jedi's calls"] = scored(name, right, ours, drawn)
    return found


def asking(package: Path, name: str) -> dict:
    """Processor seconds of the shell's answer, without a cache and with one."""
    found = {"package": package.name, "lines": sum(path.read_bytes().count(b"\n") for path in package.rglob("*.py"))}
    with tempfile.TemporaryDirectory() as cache:
        for state in ("new", "cached"):
            command = [sys.executable, "-m", "helpers.graphmer", "ask", str(package), name, "called_by"]
            environment = os.environ | {"XDG_CACHE_HOME": cache}
            before = os.times()
            subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
            after = os.times()
            spent = after.children_user + after.children_system - before.children_user - before.children_system
            found[state] = round(spent, 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for the packages and what was traced")
    parser.add_argument("--packages", default=",".join(PACKAGES), help="names, with commas in between")
    parser.add_argument("--jedi", type=int, default=300, help="calls of a package that jedi is asked about")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/results/graphmer_graph.json")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from benchmarks import report

    packages = Packages(arguments.work)
    found = {}
    for name in arguments.packages.split(","):
        found[name] = {"pin": PACKAGES[name].split()[0]} | measured(packages, name, arguments.jedi)
        print(json.dumps({name: found[name]}), flush=True)
    asked = asking(packages.site / ASKED[0], ASKED[1])
    report.write(arguments.output, report.machine("cpu", ["jedi"]), packages=found, asking=asked)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--trace"]:
        trace(sys.argv[2], sys.argv[3], sys.argv[4:])
    else:
        main()
