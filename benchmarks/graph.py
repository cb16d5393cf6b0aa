"""Calls that GraphMER's index answers in packages of the Python index, beside other tools and the resolver that this project once had.

    python benchmarks/graph.py --work FOLDER

The packages are installed into FOLDER at one version each, and their own tests run there under Python's profiler, for at most
60 seconds of processor time. Those of CHOICE served while the former resolver was written; those of REPORT served for no choice.

The truth is what a call in the package then reached: a function of the package that has the name that the call names, or a
constructor. A call that reached nothing of the package but a function of this name elsewhere counts for precision alone; one of
which the trace does not tell the class that was made, as of classes that attrs makes anew, is left out. Each call site counts once. An
answer is right if it is one function, class or method, which the call reached, or the same method of a base class (an override of it is
what ran). Recall is the share of calls that are answered rightly, precision the share of answers that are right.

The rows of basedpyright, ty, jedi (on a sample) and the former resolver were measured once, at commit c056ccf5, and are kept: they are
in the results file. The calls are those that the former resolver was asked about (docs/results/graphmer_former_resolver.json).

What was traced is kept in FOLDER. Writes docs/results/graphmer_graph.json.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "docs/results/graphmer_graph.json"
FORMER = ROOT / "docs/results/graphmer_former_resolver.json"
SECONDS = 60
# name: version, folder of the tests in the source archive
CHOICE = {"jinja2": "jinja2==3.1.6 tests", "prompt_toolkit": "prompt_toolkit==3.0.53 tests"}
REPORT = {
    "flask": "flask==3.1.3 tests",
    "pluggy": "pluggy==1.7.0 testing",
    "attr": "attrs==26.1.0 tests",
    "sqlparse": "sqlparse==0.6.1 tests",
    "mistune": "mistune==3.4.0 tests",
    "starlette": "starlette==1.10.0 tests",
    "tomlkit": "tomlkit==0.15.2 tests",
    "mako": "mako==1.4.3 test",
}
PACKAGES = REPORT | CHOICE
NEEDED = "pytest==9.2.0 hypothesis pyparsing pytest-timeout httpx2 trio simplejson ephemeral-port-reserve pytest-xprocess"  # by tests
CONSTRUCTORS = ("__init__", "__new__")
Call = tuple[str, int, int, str]  # file below the package, line of the name, column of its last character, name


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


def trace(package: str, output: str, tests: str) -> None:
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
            pytest.main([*plain, tests])
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
            pin, tests = PACKAGES[name].split()
            if not (self.site / name).exists():
                run(self.python, "-m", "pip", "install", "-q", pin, *NEEDED.split())
            where = self.archive(name, pin)
            command = [self.python, __file__, "--trace", f"{self.site / name}/", path, where / tests]
            with path.with_suffix(".log").open("w") as log:
                subprocess.run(command, cwd=where, stdout=log, stderr=log, stdin=subprocess.DEVNULL, check=False)
            if not path.exists():
                raise SystemExit(f"{name}: its tests ended without a trace; see {path.with_suffix('.log')}")
        return json.loads(path.read_text())

    def right(self, name: str) -> dict[Call, set[str]]:
        """All right answers of each call that ran."""
        return truth(self.traced(name), {file: calls_of(file) for file in self.files(name)}, self.site / name)

    def plain(self, name: str) -> Path:
        """A copy of a package in a folder of its own, where no tool takes it for installed code."""
        folder = self.folder / "plain" / name / name
        if not folder.is_dir():
            shutil.copytree(self.site / name, folder, ignore=shutil.ignore_patterns("__pycache__"))
        return folder

    def files(self, name: str) -> list[str]:
        """Sources of a package, without tests."""
        folder = self.site / name
        paths = sorted(folder.rglob("*.py"))
        return [str(path) for path in paths if {"test", "tests"}.isdisjoint(path.relative_to(folder).parts)]

    def archive(self, name: str, pin: str) -> Path:
        """The unpacked source archive, without the package, so that its tests run against what is installed."""
        from benchmarks import report

        unpacked = report.source_archive(pin, self.folder / "archives" / name)
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


def truth(rows: list[list], calls: dict[str, dict], package: Path) -> dict[Call, set[str]]:
    """All answers that are right, of each call of which the trace tells some."""
    found = defaultdict(set)
    for file, place, (callee, above) in rows:
        if file not in calls or tuple(place) not in calls[file] or callee.startswith("None."):  # made by a mock
            continue
        name, line, column = calls[file][tuple(place)]
        call = (Path(file).relative_to(package).as_posix(), line, column, name)
        last = callee.rpartition(".")[2]
        if last == name:
            found[call] |= {callee, *(f"{one}.{name}" for one in above)}
        elif last in CONSTRUCTORS and name not in CONSTRUCTORS:
            found[call] |= {one for one in above if one != "builtins.object"}
    return {call: answers for call, answers in found.items() if answers}


# ---- answers


def by_index(package: Path) -> tuple[Callable[[Call], set[str]], Callable[[Call], set[str]]]:
    """What the index of the notebook says a call means, and that with what `ask` infers."""
    from helpers.graphmer.ask import INFERRED, Asked
    from helpers.graphmer.graph.index import read_index

    index = read_index(package)
    asked = Asked(index)
    uses = {(use.source.path, use.line, use.column - 1): use for use in index.uses}
    inferred: dict[str, set] = {}

    def resolved(call: Call) -> set[str]:
        use = uses.get(call[:3])
        definition = index.definitions.get(use.target) if use else None
        return {definition.id} if definition and definition.kind in ("function", "method", "class") else set()

    def with_inferred(call: Call) -> set[str]:
        found = resolved(call)
        for candidate in () if found else asked.named[call[3]]:
            if candidate.id not in inferred:
                uses_of = [site.use for site in asked.uses(candidate) if site.status == INFERRED]
                inferred[candidate.id] = {(use.source.path, use.line, use.column - 1) for use in uses_of}
            if call[:3] in inferred[candidate.id]:
                found = {candidate.id}
        return found

    return resolved, with_inferred


def seconds_of_children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def scored(package: str, right: dict[Call, set[str]], answers: Callable, asked: Iterable[Call]) -> dict[str, float]:
    """reached: calls that reached a function of the package. answered, right: of all calls that ran."""
    start, counts = time.process_time(), Counter()
    for call in asked:
        given = answers(call)
        counts["reached"] += any(one.startswith(f"{package}.") for one in right[call])
        counts["answered"] += bool(given)
        counts["right"] += len(given) == 1 and bool(given & right[call])
    return dict(counts) | {"seconds": round(time.process_time() - start, 2)}


def known_calls(name: str) -> set[tuple]:
    """File, line and column of each call that the former resolver was asked about."""
    calls = set()
    for file, row in json.loads(FORMER.read_text(encoding="utf-8"))["packages"][name]["calls"].items():
        for entry in row.split():
            line, _, rest = entry.partition(":")
            calls.add((file, int(line), int(rest[:-2])))
    return calls


def measured(packages: Packages, name: str) -> dict:
    right, package, known = packages.right(name), packages.plain(name), known_calls(name)  # it is installed first
    calls = [call for call in right if call[:3] in known]
    start = time.process_time() + seconds_of_children()
    resolved, inferred = by_index(package)
    reading = round(time.process_time() + seconds_of_children() - start, 2)
    rows = {"index": scored(name, right, resolved, calls) | {"seconds": reading}}
    return rows | {"index and inferred": scored(name, right, inferred, calls)}


def reading(packages: Packages) -> dict[str, dict[str, float]]:
    """Processor seconds of `python -m helpers.graphmer ask` from nothing and with a kept index, and of the sample's graph."""
    found: dict[str, dict[str, float]] = {"ask": {}, "sample": {}}
    folder = packages.plain("prompt_toolkit")
    build = "import sys; from helpers.graphmer.graph.build import load_graph; from pathlib import Path; load_graph('sample', Path(sys.argv[1]))"
    with tempfile.TemporaryDirectory() as work:
        ask = ["-m", "helpers.graphmer", "ask", "Buffer.insert_text", "--folder", str(folder), "--json"]
        for what, arguments in (("ask", ask), ("sample", ["-c", build, work])):
            for state in ("from nothing", "kept"):
                start = seconds_of_children()
                environment = os.environ | {"XDG_CACHE_HOME": work}
                command = [sys.executable, *arguments]
                subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
                found[what][state] = round(seconds_of_children() - start, 2)
    found["ask"]["lines"] = sum(Path(file).read_bytes().count(b"\n") for file in packages.files("prompt_toolkit"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for the packages and what was traced")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from benchmarks import report

    packages, found = Packages(arguments.work), json.loads(OUTPUT.read_text(encoding="utf-8"))["packages"]
    for name in PACKAGES:
        found[name] |= measured(packages, name)
        print(json.dumps({name: found[name]}), flush=True)
    report.write(OUTPUT, report.machine("cpu", ["pyrefly"]), packages=found, reading=reading(packages))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--trace"]:
        trace(*sys.argv[2:])
    else:
        main()
