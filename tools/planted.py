"""Small bugs at places that nobody chose, and which of them the quick tests notice. `make planted` writes docs/results/planted_bugs.json.

    python tools/planted.py          the sixty that seed 0 draws; those with a result are passed over
    python tools/planted.py 12       the first twelve

A place is drawn over all of `helpers`: a comparison is turned around, a line dropped, one added to a number, two arguments swapped, a
truth value or a sum turned; and the notebooks are built with it. The tests that import its module run until one fails, then those of its
folder. What no test notices is looked at by a person: it behaves as before, or there is a hole in the tests.
"""

from __future__ import annotations

import ast
import copy
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree, ignore_patterns

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from helpers.run import disk, provenance  # noqa: E402

RESULTS = ROOT / "docs/results/planted_bugs.json"
COUNT, LIMIT = 60, 1500  # bugs, and seconds that the tests of one may take
TURNED = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
}
DROPPED = (ast.Assign, ast.AugAssign, ast.Expr, ast.Raise)


def places(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes inside functions that `turn` can turn."""
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for statement in function.body[bool(ast.get_docstring(function)) :]:
                yield from (node for node in ast.walk(statement) if turn(copy.deepcopy(node)))


def turn(node: ast.AST) -> str:
    """Puts a bug into a node, and says which; "" where none fits."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in TURNED:
        node.ops[0] = TURNED[type(node.ops[0])]()
        return "another comparison"
    if isinstance(node, (ast.BoolOp, ast.BinOp)) and type(node.op) in TURNED:
        node.op = TURNED[type(node.op)]()
        return "another operator"
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1
        return "another constant"
    if isinstance(node, ast.Call) and len(node.args) > 1 and not isinstance(node.args[1], ast.Starred):
        node.args[:2] = node.args[1::-1]
        return "swapped arguments"
    if isinstance(node, DROPPED):
        line = node.lineno
        vars(node).clear()
        node.__class__ = ast.Pass
        node.lineno = line
        return "a dropped line"
    return ""


def draw(count: int) -> Iterator[tuple[str, str, str]]:
    """(what and where, file, its text with the bug), the same ones for the same code."""
    generator = random.Random(0)
    sources = {path: ast.parse(path.read_bytes()) for path in sorted((ROOT / "helpers").rglob("*.py"))}
    nodes = [(path, number) for path, tree in sources.items() for number, _ in enumerate(places(tree))]
    for path, number in generator.sample(nodes, count):
        tree = copy.deepcopy(sources[path])
        node = [*places(tree)][number]
        line, what = getattr(node, "lineno", 0), turn(node)
        file = path.relative_to(ROOT).as_posix()
        yield f"{file}:{line} {what}", file, ast.unparse(ast.fix_missing_locations(tree))


def tests_of(file: str) -> list[list[str]]:
    """The tests that import a module, and the others of its folder."""
    module = file.removesuffix(".py").replace("/", ".")
    package, _, name = module.rpartition(".")
    imports = (module, f"from {package} import {name}")
    importing = [
        path for path in sorted((ROOT / "tests").rglob("test_*.py")) if any(map(path.read_text().__contains__, imports))
    ]
    folder = ROOT / "tests" / Path(file).parts[1]
    others = sorted({*folder.glob("test_*.py")} - {*importing}) if folder.is_dir() else []
    return [[str(path.relative_to(ROOT)) for path in paths] for paths in (importing, others) if paths]


def noticed(folder: Path, file: str) -> bool:
    """Whether a test of a copy, whose notebooks are built anew, notices the bug in a file."""
    subprocess.run([sys.executable, "tools/notebooks.py"], cwd=folder, capture_output=True, check=False)
    return any(fails(folder, tests) for tests in tests_of(file))


def fails(folder: Path, tests: list[str]) -> bool:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests]
    try:
        return subprocess.run(command, cwd=folder, capture_output=True, timeout=LIMIT, check=False).returncode != 0
    except subprocess.TimeoutExpired:
        return True


def main() -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))["bugs"] if RESULTS.exists() else {}
    count = int(sys.argv[1]) if sys.argv[1:] else COUNT
    with tempfile.TemporaryDirectory() as place:
        folder = copytree(ROOT, Path(place, "copy"), ignore=ignore_patterns(".*", "outputs"))
        for name, file, text in draw(count):
            if name in results:
                continue
            (folder / file).write_text(text, encoding="utf-8")
            results[name] = noticed(folder, file)
            (folder / file).write_text((ROOT / file).read_text(encoding="utf-8"), encoding="utf-8")
            about = {"schema": 2, "code": provenance.code(), "versions": provenance.versions()}
            disk.write_json(RESULTS, about | {"bugs": results})
            print(f"{name}: {'noticed' if results[name] else 'NOT NOTICED'}", flush=True)
    print(f"{sum(results.values())} of {len(results)} are noticed")


if __name__ == "__main__":
    main()
