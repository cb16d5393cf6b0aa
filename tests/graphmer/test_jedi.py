"""Calls that the resolver proves, held against jedi, a static analyser of its own."""

import ast
import importlib
import sysconfig
from collections import Counter, defaultdict
from functools import reduce
from pathlib import Path

import pytest

from helpers.graphmer.graph.extraction import load_graph

jedi = pytest.importorskip("jedi")
pytestmark = pytest.mark.once
LIBRARY = Path(sysconfig.get_path("stdlib"))
MODULES = ("json.decoder", "textwrap", "shutil", "argparse", "tempfile", "csv")
PRECISION, RECALL = 0.99, 0.71


def calls(node: ast.AST, owner: str):
    """Each call of a name or attribute, and the module, class or function whose body it stands in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from calls(ast.Module(child.body, []), f"{owner}.{child.name}")
            continue
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute | ast.Name):
            yield owner, child.func
        yield from calls(child, owner)


def meant(name: str) -> object:
    """The object of a dotted name, as one function has several; without one the name."""
    parts = name.replace(".<locals>", "").split(".")
    for count in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:count]))
            return reduce(getattr, parts[count:], module)
        except (ImportError, AttributeError):
            continue
    return ".".join(parts)


@pytest.fixture(scope="module")
def compared() -> Counter:
    """Calls that both answer alike or otherwise, and that one of them alone answers."""
    known = defaultdict(set)
    for head, relation, tail in load_graph("sample").triples:
        if relation in ("calls", "instantiates") and not tail.startswith("?"):
            known[head].add(tail)
    found = Counter()
    for module in MODULES:
        path = LIBRARY / f"{module.replace('.', '/')}.py"
        script = jedi.Script(path=path)
        for caller, function in calls(ast.parse(path.read_bytes()), module):
            name = getattr(function, "attr", None) or function.id
            ours = {each for each in known[caller] if each.rpartition(".")[2] == name}
            answers = script.goto(function.end_lineno, function.end_col_offset - 1, follow_imports=True)
            theirs = {one.full_name for one in answers if one.type in ("function", "class") and one.full_name}
            theirs = {each for each in theirs if not each.startswith("typing.")}  # a protocol that the stubs name
            if ours and theirs:
                same = any(meant(one) == meant(other) for one in ours for other in theirs)
                found["alike" if same else "otherwise"] += 1
            elif ours or theirs:
                found["ours alone" if ours else "jedi alone"] += 1
    return found


@pytest.mark.slow
def test_what_both_answer_is_the_same(compared):
    assert compared["alike"] > 500
    assert compared["alike"] / (compared["alike"] + compared["otherwise"]) >= PRECISION


@pytest.mark.slow
def test_most_of_what_jedi_answers_is_in_the_graph(compared):
    """jedi infers the types of variables, which the resolver leaves open."""
    assert compared["alike"] / (compared["alike"] + compared["jedi alone"]) >= RECALL
