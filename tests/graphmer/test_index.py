"""What is read from pyrefly's index, in small programs: each way to use a name, what names are resolved, and each relation, once."""

import dataclasses
import json
import os
import re

import pytest

from helpers.graphmer.ask import Asked
from helpers.graphmer.graph import index as indices
from helpers.graphmer.graph.build import build_graph, load_graph
from helpers.graphmer.graph.index import read_index
from tests.harness import printed, write

from .batches import library

pytestmark = pytest.mark.once

CLASSES = """
class A:
    def go(self): return self
class B(A):
    def go(self): return 1
class Other:
    def go(self): return 2
"""
# A program, the name that is asked for, and all answers: status unless it is resolved, kind, owner in the module, lines.
PROGRAMS = {
    "call": ("def f(): pass\ndef g(): f(); f()", "f", "called .g 2"),
    "decorator": ("def f(x): return x\n@f\ndef g(): pass", "f", "decorates .g 2"),
    "decorator that is called": ("def f(x): return f\n@f(1)\nclass C: pass", "f", "returned .f 1, decorates .C 2"),
    "raise": ("class E(Exception): pass\ndef g(): raise E", "E", "raised .g 2"),
    "raise of a call": ("class E(Exception): pass\ndef g(): raise E('x') from None", "E", "raised .g 2"),
    "except": ("class E(Exception): pass\ndef g():\n    try: pass\n    except E: pass", "E", "caught .g 4"),
    "except of two": (
        "class E(Exception): pass\ndef g():\n    try: pass\n    except (E, OSError): pass",
        "E",
        "caught .g 4",
    ),
    "with": ("def f(): return open('x')\ndef g():\n    with f(): pass", "f", "with .g 3"),
    "await": ("async def f(): pass\nasync def g(): await f()", "f", "awaited .g 2"),
    "argument": ("def f(): pass\ndef g(): map(f, [])", "f", "passed .g 2"),
    "keyword": ("def f(): pass\ndef g(): sorted([], key=f)", "f", "passed .g 2"),
    "element": ("def f(): pass\nx = [f]", "f", "table  2"),
    "value of a table": ("def f(): pass\nx = {'a': f}", "f", "table  2"),
    "pattern": ("class C: pass\ndef g(x):\n    match x:\n        case C(): pass", "C", "matched .g 4"),
    "base": ("class C: pass\nclass D(C): pass", "C", "base .D 2"),
    "metaclass": ("class M(type): pass\nclass D(metaclass=M): pass", "M", "base .D 2"),
    "default": ("def f(): pass\ndef g(x=f): pass", "f", "default .g 2"),
    "return": ("def f(): pass\ndef g(): return f", "f", "returned .g 2"),
    "yield": ("def f(): pass\ndef g(): yield f", "f", "yielded .g 2"),
    "other name": ("def f(): pass\nx = f\nx()", "f", "aliased  2"),
    "isinstance": ("class C: pass\ndef g(x): return isinstance(x, C)", "C", "tested .g 2"),
    "isinstance of two": ("class C: pass\ndef g(x): return isinstance(x, (int, C))", "C", "tested .g 2"),
    "store": ("x = 1\ndef g():\n    global x\n    x = 2", "x", "written  1, written .g 4"),
    "deletion": ("class C:\n    x = 1\ndef g(c: C): del c.x", "C.x", "written .C 2, deleted .g 3"),
    "read": ("x = 1\ndef g(): return x + 1", "x", "written  1, read .g 2"),
    "export": ("def f(): pass\n__all__ = ['f']", "f", "exported  2"),
    "parameter's type": ("class C: pass\ndef g(x: C): pass", "C", "has_type .g(x) 2"),
    "variable's type": ("class C: pass\nx: list[C] = []", "C", "has_type .x 2"),
    "result's type": ("class C: pass\ndef g() -> C: ...", "C", "returns .g 2"),
    "type in a text": ("class C: pass\ndef g(x: 'C | None'): pass", "C", "has_type .g(x) 2"),
    "type in a text inside": ("class C: pass\ndef g() -> list['C']: ...", "C", "returns .g 2"),
    "type variable": (
        "from typing import TypeVar\nclass C: pass\nT = TypeVar('T', bound='C')",
        "C",
        "has_type  3",
    ),
    "a letter of two bytes": ("def f(): pass\nx = 'ü'; f()", "f", "called  2"),
    # what is resolved
    "parameter's class": ("def g(a: A): a.go()", "A.go", "called .g 8"),
    "class above": ("class D(A): pass\nD().go()", "A.go", "called  9"),
    "overridden method": ("def g(a: A): a.go()", "B.go", "overridden called .g 8"),
    "super": ("class D(A):\n    def go(self): super().go()", "A.go", "called .D.go 9"),
    "result's class": ("def make(): return A()\nmake().go()", "A.go", "called  9"),
    "field's class": (
        "class D:\n    def __init__(self): self.a = A()\n    def run(self): self.a.go()",
        "A.go",
        "called .D.run 10",
    ),
    "property": ("class D:\n    @property\n    def p(self): return A()\nD().p.go()", "D.p", "read  11"),
    "class method": ("class D:\n    @classmethod\n    def make(cls): return cls()\nD.make()", "D.make", "called  4"),
    "constructor": (
        "class D:\n    def __init__(self): pass\nclass F(D): pass\nF()\nD()",
        "D.__init__",
        "called  4 5",
    ),
    "inner function": ("def g():\n    def f(): pass\n    f()", "g.<locals>.f", "called .g 3"),
    "field of a data class": (
        "from dataclasses import dataclass\n@dataclass\nclass D:\n    a: A\nD(A()).a.go()",
        "A.go",
        "called  12",
    ),
    "two definitions": (
        "if A:\n    def f(): pass\nelse:\n    def f(): pass\nf()",
        "f",
        "one of called  12",
    ),
    "overloads": (
        "from typing import overload\n@overload\ndef f(x: int) -> int: ...\n@overload\ndef f(x: str) -> str: ...\n"
        "def f(x): return x\nf(1)",
        "f",
        "called  7",
    ),
    "setter": (
        "class D:\n    @property\n    def p(self): return 1\n    @p.setter\n    def p(self, x): pass\nD().p = 2",
        "D.p",
        "read .D.p 4, written  6",
    ),
    "the only definition of a long name": (
        "class D:\n    def go_on(self): pass\ndef g(x): x.go_on()",
        "D.go_on",
        "inferred called .g 3",
    ),
    "one of many of this name": ("def g(x): x.go()", "Other.go", "open called .g 8"),
    "a function is no member": ("def go_far(): pass\ndef g(x): x.go_far()", "go_far", "open called .g 2"),
    "a line that is explained": ("def g(x, o: Other): o.go(), x.go()", "Other.go", "called .g 8"),
    "nothing": ("def f(): pass", "f", ""),
}


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """All programs, each a module m0, m1 and so on."""
    files = {}
    for number, (code, name, _) in enumerate(PROGRAMS.values()):
        is_about_classes = re.search(r"\b(A|B|Other)\b", f"{code} {name}")
        files[f"m{number}.py"] = f"{CLASSES if is_about_classes else ''}{code}\n"
    return Asked(read_index(write(tmp_path_factory.mktemp("programs"), files)))


@pytest.mark.parametrize("program", PROGRAMS)
def test_uses_of_a_name_are_those_of_the_program(program, asked):
    module = f"m{[*PROGRAMS].index(program)}"
    _, name, expected = PROGRAMS[program]
    found = []
    for answer in asked.answers(f"{module}.{name}"):
        if answer.name.split(".")[0].partition("(")[0] == module:
            lines = re.findall(r":(\d+)", answer.mentioned)
            status = "" if answer.status == "resolved" else f"{answer.status} "
            found.append(f"{status}{answer.kind} {answer.name.removeprefix(module)} {' '.join(lines)}")
    assert sorted(found) == sorted(filter(None, expected.split(", ")))


# ---- the graph

SHOP = {
    "shop/__init__.py": "from .goods import Item\n",
    "shop/goods.py": """
        class NotThere(LookupError):
            pass

        class Thing:
            def __init__(self, name):
                self.name = name

            def price(self):
                return 1.0

        class Item(Thing):
            def price(self):
                return super().price() * 2

        def find(name: str):
            if not name:
                raise NotThere(name)
            return Item(name)
    """,
    "shop/tills.py": """
        import functools
        from shop import goods

        RATE = 0.2
        drawer: goods.Item

        @functools.wraps(print)
        def total(item, *rest):
            try:
                return goods.find("x").price()
            except goods.NotThere:
                return type(item)(super(item))
    """,
    "tests/test_goods.py": """
        from shop.goods import find

        def test_found():
            find("x")
    """,
}


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return load_graph(write(tmp_path_factory.mktemp("shop"), SHOP))


@pytest.mark.parametrize(
    ("head", "relation", "tails"),
    [
        ("shop", "contains", "shop.goods shop.tills"),
        ("shop.goods.Thing", "contains", "shop.goods.Thing.__init__ shop.goods.Thing.name shop.goods.Thing.price"),
        ("shop.goods.Thing.__init__", "has_parameter", "shop.goods.Thing.__init__(name)"),
        ("shop.tills.total", "has_parameter", "shop.tills.total(item) shop.tills.total(rest)"),
        ("shop", "imports", "shop.goods"),
        ("shop", "imports_name", "shop.goods.Item"),
        ("shop.tills", "imports", "functools shop shop.goods"),
        ("shop.goods.Item", "inherits_from", "shop.goods.Thing"),
        ("shop.goods.NotThere", "inherits_from", "builtins.LookupError"),
        ("shop.goods.Item.price", "overrides", "shop.goods.Thing.price"),
        ("shop.goods.Item.price", "calls", "shop.goods.Thing.price"),
        ("shop.goods.Item.price", "instantiates", ""),
        ("shop.goods.find", "raises", "shop.goods.NotThere"),
        ("shop.goods.find", "instantiates", "shop.goods.Item"),
        ("shop.goods.find", "returns", "shop.goods.Item"),
        ("shop.goods.find(name)", "has_type", "builtins.str"),
        ("shop.tills.drawer", "has_type", "shop.goods.Item"),
        ("shop.tills.RATE", "has_type", "builtins.float"),
        ("shop.tills.total", "annotated_with", "functools.wraps"),
        ("shop.tills.total", "calls", "functools.wraps shop.goods.Item.price shop.goods.find"),
        ("shop.tills.total", "catches", "shop.goods.NotThere"),
        ("shop.tills.total", "instantiates", ""),
        ("tests.test_goods.test_found", "tests", "shop.goods.find"),
    ],
)
def test_the_graph_has_each_relation(graph, head, relation, tails):
    found = {triple.tail for triple in graph.triples if (triple.head, triple.relation) == (head, relation)}
    assert found == {*tails.split()}


def test_the_sample_has_tens_of_thousands_of_triples_and_all_files(tmp_path):
    index = read_index("sample", tmp_path)
    sample = build_graph(index)
    assert len(sample.triples) > 80_000 and len(sample.texts) > 500
    assert not index.failed


def test_another_process_in_another_folder_reads_the_same_graph(tmp_path):
    code = "import sys; from helpers.graphmer.graph.build import load_graph; print(load_graph(sys.argv[1]).digest())"
    digests = set()
    for hash_seed, folder in (("1", tmp_path / "here/code"), ("2", tmp_path / "elsewhere/deep/code")):
        library(write(folder, SHOP))
        digests.add(printed("-c", code, folder, env=os.environ | {"PYTHONHASHSEED": hash_seed}))
    assert len(digests) == 1


# ---- folders as people have them


def uses_in(folder, name: str) -> set[str]:
    """Kind and place of each answer."""
    answers = Asked(read_index(folder)).answers(name)
    return {f"{answer.kind} {place}" for answer in answers for place in answer.mentioned.split(", ")}


def test_a_broken_file_is_listed_and_what_it_names_is_found(tmp_path):
    write(tmp_path, {"m.py": "def find(): pass\n", "bad.py": "from m import find\ndef broken(:\n    pass\nfind()\n"})
    assert uses_in(tmp_path, "m.find") == {"read bad.py:1", "read bad.py:4"}
    assert [failure["path"] for failure in read_index(tmp_path).failed] == ["bad.py"]


def test_files_are_read_in_the_encoding_that_they_declare(tmp_path):
    latin = "# -*- coding: latin-1 -*-\nfrom m import find\nx = 'é'; find()\n".encode("latin-1")
    write(tmp_path, {"m.py": "def find(): pass\n", "latin.py": latin, "wrong.py": latin.partition(b"\n")[2]})
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere.py")
    (tmp_path / "long.py").write_bytes(b"#" * 1_000_001)
    assert uses_in(tmp_path, "m.find") == {"imported latin.py:2", "called latin.py:3"}
    failed = {failure["path"]: failure["error"] for failure in read_index(tmp_path).failed}
    assert failed.keys() == {"wrong.py", "gone.py", "long.py"}
    assert str(tmp_path) not in str(failed)


def test_the_cells_of_a_notebook_are_read(tmp_path):
    cells = [("markdown", "find"), ("code", "%time 1\nfrom m import find\n!ls"), ("code", "find(1)\nfind?")]
    rows = [{"cell_type": kind, "source": source.splitlines(keepends=True)} for kind, source in cells]
    write(tmp_path, {"m.py": "def find(x): pass\n", "n.ipynb": json.dumps({"cells": rows}), "bad.ipynb": "{}"})
    assert uses_in(tmp_path, "m.find") == {"imported n.ipynb cell 2:2", "called n.ipynb cell 3:1"}
    assert [failure["path"] for failure in read_index(tmp_path).failed] == ["bad.ipynb"]


def application(folder: str) -> dict[str, str]:
    return {
        f"{folder}/app/__init__.py": "",
        f"{folder}/app/models.py": f"def build(): pass\ndef only_{folder[-1]}(): pass\n",
        f"{folder}/app/views.py": f"from app.models import build, only_{folder[-1]}\nbuild()\nonly_{folder[-1]}()\n",
        f"{folder}/run.py": "from app import models\nmodels.build()\n",
        f"{folder}/tests/test_models.py": "from app.models import build\nbuild()\n",
    }


def test_two_applications_with_packages_of_one_name_are_both_answered(tmp_path):
    shared = {"common/__init__.py": "def share(): pass\n", "services/b/other.py": "from common import share\nshare()\n"}
    write(tmp_path, application("services/a") | application("services/b") | shared)
    files = ("app/views.py:2", "run.py:2", "tests/test_models.py:2")
    calls = {app: {f"called services/{app}/{file}" for file in files} for app in "ab"}
    for app in "ab":
        found = uses_in(tmp_path, f"{app}.app.models.build")
        assert {use for use in found if use.startswith("called")} == calls[app]
        assert f"called services/{app}/app/views.py:3" in uses_in(tmp_path, f"only_{app}")
    assert calls["a"] | calls["b"] < uses_in(tmp_path, "app.models.build")
    assert "called services/b/other.py:2" in uses_in(tmp_path, "common.share")


@pytest.mark.parametrize(
    "files",
    [
        {"x/main.py": "import utils\nutils.mend()\n", "x/utils.py": "def mend(): pass\n", "y/utils.py": "", "y/main.py": "import utils\n"},
        {"x/utils.py": "def mend(): pass\n", "x/other.py": "import utils\n", "x/main.py": "from x import utils\nutils.mend()\n"},
        {"src/utils.py": "def mend(): pass\n", "x/main.py": "from utils import mend\nmend()\n"},
        {"utils/__init__.py": "from ._all import *\n", "utils/_all.py": "def mend(): pass\n", "x/main.py": "import utils\nutils.mend()\n"},
        {"random.py": "", "x/random.py": "", "utils.py": "import random\nrandom.choice([])\ndef mend(): pass\n",
         "x/main.py": "import random\nimport utils\nutils.mend()\n"},
    ],
)  # fmt: skip
def test_a_script_imports_what_it_would_in_python(tmp_path, files):
    write(tmp_path, files)
    call = (
        files["x/main.py"].split("\n").index(next(line for line in files["x/main.py"].split("\n") if "mend()" in line))
    )
    assert f"called x/main.py:{call + 1}" in uses_in(tmp_path, "mend")


def test_the_longest_file_is_left_out_by_name_where_time_is_short(tmp_path, monkeypatch):
    slow = "".join(f"x{number} = {number}\n" for number in range(40_000))
    write(tmp_path, {"m.py": "def find(): pass\nfind()\n", "long.py": slow})
    monkeypatch.setattr(indices, "LEAST_SECONDS", 6)
    monkeypatch.setattr(indices, "LINES_A_SECOND", 1e9)
    index = read_index(tmp_path)
    assert [failure["path"] for failure in index.failed] == ["long.py"]
    assert "m.find" in index.definitions


def test_an_index_is_kept_until_a_file_changes(tmp_path, monkeypatch):
    folder, keep_in = write(tmp_path / "code", {"m.py": "def find(): pass\n"}), tmp_path / "kept"
    runs = []
    run_engine = indices.run_engine
    monkeypatch.setattr(indices, "run_engine", lambda sources: runs.append(1) or run_engine(sources))
    for _ in range(2):
        assert not read_index(folder, keep_in).uses
    assert len(runs) == 1
    (folder / "other.py").write_text("from m import find\nfind()\n")
    assert len(read_index(folder, keep_in).uses) == 3
    (keep_in / "index.scip").write_bytes(b"damaged")
    assert len(read_index(folder, keep_in).uses) == 3
    assert len(runs) == 3


def test_another_version_of_pyrefly_is_named_with_what_its_index_lacks(tmp_path, monkeypatch):
    write(tmp_path, {"m.py": "def find(): pass\n"})
    without = indices.PROBE_TEXT.replace("make().go()", "make()")
    monkeypatch.setattr(indices, "PROBE", dataclasses.replace(indices.PROBE, text=without))
    message = r"""pyrefly 1\.5\S* is installed, and its index lacks line 6 uses probe.Below.go: pip install "pyrefly>=1.5,<1.6\""""
    with pytest.raises(ImportError, match=message):
        read_index(tmp_path)
