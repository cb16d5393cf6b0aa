"""The graph of Python sources, against what Python itself says of the same code, and what it cannot say left open."""

import importlib
import inspect
import os
import textwrap
from pathlib import Path

import pytest

from helpers.graphmer.graph.knowledge_graph import DEFINED
from helpers.graphmer.graph.repository import load_graph
from helpers.graphmer.graph.sources import find_sources
from tests.harness import printed, write

from .batches import library, violations

pytestmark = pytest.mark.once

SHOP = {
    "shop/__init__.py": "from .goods import Item\nfrom shop import tills as counters\n",
    "shop/goods.py": """
        class NotThere(LookupError):
            pass

        class Thing:
            def __init__(self, name):
                self.name = name

            def price(self):
                return 1.0

            def label(self):
                return self.price()

        class Item(Thing):
            def price(self):
                return super().price() * 2

        def find(name: str) -> Item:
            if not name:
                raise NotThere(name)
            return Item(name)
    """,
    "shop/tills.py": """
        import functools
        from shop.goods import *
        from . import goods as wares
        from ._fast import add_up
        import numpy as np

        RATE = 0.2

        class Till(object):
            drawer = None

            def __init__(self):
                self.last = wares.Item("first")

            @functools.lru_cache(maxsize=None)
            def total(self, item: Item, *rest, rate=RATE, **options):
                try:
                    self.last.label()
                    return np.sum(item.label())
                except (NotThere, wares.Missing) as error:
                    raise error

            @classmethod
            def opened(cls):
                return cls()

            @property
            def newest(self) -> Item:
                return self.last

            def report(self):
                self.newest.label()
                return find("x").label()
    """,
    "shop/main.py": """
        import shop
        import shop.tills

        def main(till, find):
            find("a parameter")
            till.total(1)
            shop.tills.Till.opened().report()
            item = shop.Item("b")
            return item.price()

        def helper():
            pass

        if main:
            helper = main

        helper()
        counted = [main for main in range(3)]
    """,
    "tests/test_goods.py": """
        from unittest import TestCase
        from shop.goods import find, Item

        class Finding(TestCase):
            def test_found(self):
                self.assertTrue(find("x"))
                self.helped()

            def helped(self):
                return Item("y")

        def test_alone():
            Item("z")
    """,
}


def graph_of(folder: Path, **files: str):
    return load_graph(write(folder, {f"{name}.py": text for name, text in files.items()}))


def tails(graph, head: str, relation: str) -> set[str]:
    return {triple.tail for triple in graph.triples if triple.head == head and triple.relation == relation}


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    return load_graph(write(tmp_path_factory.mktemp("code"), SHOP))


@pytest.fixture(scope="module")
def sample():
    return load_graph("sample")


# ---- entities


@pytest.mark.parametrize(
    ("name", "kind", "line"),
    [
        ("shop", "package", 1),
        ("shop.goods", "module", 1),
        ("shop.goods.NotThere", "exception", 2),
        ("shop.goods.Thing.__init__", "constructor", 6),
        ("shop.goods.Thing.__init__(name)", "parameter", 6),
        ("shop.goods.Thing.name", "field", 7),
        ("shop.goods.Item.price", "method", 16),
        ("shop.goods.find", "function", 19),
        ("shop.tills.RATE", "variable", 8),
        ("shop.tills.Till.drawer", "field", 11),
        ("shop.tills.Till.total(rest)", "parameter", 17),
        ("tests.test_goods.Finding.test_found", "test", 6),
        ("tests.test_goods.test_alone", "test", 13),
    ],
)
def test_an_entity_has_its_qualified_name_type_and_line(shop, name, kind, line):
    entity = shop.entities[name]
    assert (entity.type, entity.line, entity.status) == (kind, line, DEFINED)


def test_a_class_with_a_base_outside_of_the_sources_is_an_exception_where_it_is_raised(tmp_path):
    text = (
        "import other\nclass Tool(other.Tool): pass\nclass Broken(other.Broken): pass\ndef use():\n    raise Broken()\n"
    )
    entities = graph_of(tmp_path, tools=text).entities
    assert [entities[f"tools.{name}"].type for name in ("Tool", "Broken")] == ["class", "exception"]


# ---- names across files


@pytest.mark.parametrize(
    ("head", "relation", "expected"),
    [
        ("shop", "imports", {"shop.goods", "shop.tills"}),
        ("shop", "imports_name", {"shop.goods.Item"}),
        ("shop.tills", "imports", {"functools", "shop.goods", "shop._fast", "numpy"}),
        ("shop.goods.Item", "inherits_from", {"shop.goods.Thing"}),
        ("shop.goods.NotThere", "inherits_from", {"builtins.LookupError"}),
        ("shop.goods.Item.price", "overrides", {"shop.goods.Thing.price"}),
        ("shop.goods.Item.price", "calls", {"shop.goods.Thing.price"}),  # super()
        ("shop.goods.Thing.price", "returns", {"builtins.float"}),
        ("shop.goods.find", "returns", {"shop.goods.Item"}),
        ("shop.goods.find", "raises", {"shop.goods.NotThere"}),
        ("shop.goods.find", "instantiates", {"shop.goods.Item"}),  # raises says that it makes a NotThere
        ("shop.goods.find(name)", "has_type", {"builtins.str"}),
        ("shop.tills.Till.__init__", "instantiates", {"shop.goods.Item"}),
        ("shop.tills.Till.total", "annotated_with", {"functools.lru_cache"}),
        ("shop.tills.Till.total", "calls", {"shop.goods.Thing.label", "numpy.sum"}),  # a field's and a parameter's class
        ("shop.tills.Till.total", "catches", {"shop.goods.NotThere", "?.Missing"}),
        ("shop.tills.Till.total", "raises", {"?.error"}),  # one of two
        ("shop.tills.Till.opened", "instantiates", {"shop.tills.Till"}),
        ("shop.tills.Till.opened", "returns", {"shop.tills.Till"}),
        ("shop.tills.Till.report", "calls", {"shop.goods.Thing.label", "shop.goods.find"}),  # property, annotated result
        ("shop.main.main", "calls", {"?.find", "?.total", "shop.tills.Till.report", "shop.tills.Till.opened", "shop.goods.Item.price"}),
        ("shop.main.main", "instantiates", {"shop.goods.Item"}),  # through the package
        ("shop.main", "calls", {"?.helper"}),
        ("tests.test_goods.Finding.test_found", "tests", {"shop.goods.find"}),
        ("tests.test_goods.test_alone", "tests", {"shop.goods.Item"}),
        ("tests.test_goods.Finding.test_found", "calls",
         {"shop.goods.find", "tests.test_goods.Finding.helped", "?.assertTrue"}),
    ],
)  # fmt: skip
def test_what_a_definition_says_is_resolved_in_all_files_or_marked(shop, head, relation, expected):
    assert tails(shop, head, relation) == expected


@pytest.mark.parametrize(
    ("code", "called"),
    [
        ("def f(): pass\nf()", "m.f"),
        ("def f(): pass\ng = f\ng()", "m.f"),
        ("f = None\ndef f(): pass\nf()", "m.f"),
        ("from _c import f\nf()", "_c.f"),
        ("from _c import *\nf()", "?.f"),
        ("f()", "?.f"),
        ("a = b\nb = a\na()", "?.a"),
        ("def f(): pass\n[f for f in ()]\nf()", "m.f"),
        ("def f(): pass\nlambda f: f()", "?.f"),
        ("class C:\n    def f(self): pass\nC().f()", "m.C.f"),
        ("class C:\n    def f(self): pass\nx = C()\nx.f()", "m.C.f"),
        ("class C:\n    def __call__(self): pass\nx = C()\nx()", "m.C.__call__"),
        ("class C:\n    def f(self): pass\n    g = f\nC().g()", "m.C.f"),
        ("from _c import B\nclass C(B):\n    pass\nC().f()", "?.f"),
        ("class C(list):\n    pass\nC().append(1)", "builtins.list.append"),
        ("', '.join('ab')", "builtins.str.join"),
        ("x = []\nx.sort()", "builtins.list.sort"),
        ("x = y[0].f()", "?.f"),
        ("if (f := len):\n    f()", "builtins.len"),
    ],
)
def test_a_call_resolves_only_where_one_meaning_is_left(tmp_path, code, called):
    graph = graph_of(tmp_path, m=code)
    found = tails(graph, "m", "calls")
    assert called in found
    assert len(found) == 1


def test_super_and_the_type_of_a_value_make_nothing_and_call_nothing_of_builtins(tmp_path):
    code = """
        class A:
            def copy(self): return type(self)(1)
            def kind(self): return type(self).__name__
        class B(A):
            def copy(self): return super().copy() or super(B, self).copy() or super()
    """
    graph = graph_of(tmp_path, m=textwrap.dedent(code))
    assert tails(graph, "m.B.copy", "calls") == {"m.A.copy"}
    assert not [triple for triple in graph.triples if triple.relation in ("calls", "instantiates")][1:]


# ---- against Python itself


INTROSPECTED = (  # modules of the standard library that import on every platform and stay as written
    "argparse", "email.message", "logging.handlers", "unittest.case", "urllib.request", "zipfile",
)  # fmt: skip


@pytest.mark.parametrize("module", INTROSPECTED)
def test_bases_of_real_classes_are_those_python_has(sample, module):
    loaded = importlib.import_module(module)
    contained = {sample.entities[tail].name for tail in tails(sample, module, "contains")}
    classes = [cls for name, cls in inspect.getmembers(loaded, inspect.isclass) if cls.__name__ == name in contained]
    classes = [cls for cls in classes if cls.__module__ == module]
    assert classes
    for cls in classes:
        real = {f"{base.__module__}.{base.__qualname__}" for base in cls.__bases__} - {"builtins.object"}
        real = {name.replace("collections.abc.", "_collections_abc.") for name in real}  # it renames itself
        assert tails(sample, f"{module}.{cls.__name__}", "inherits_from") - {"builtins.object"} == real


@pytest.mark.parametrize("module", INTROSPECTED)
def test_parameters_of_real_functions_are_those_of_their_signature(sample, module):
    loaded = importlib.import_module(module)
    checked = 0
    for owner in (loaded, *(cls for cls in vars(loaded).values() if inspect.isclass(cls) and cls.__module__ == module)):
        for attribute in vars(owner).values():
            function = inspect.unwrap(getattr(attribute, "__func__", attribute))
            head = f"{module}.{getattr(function, '__qualname__', '')}"
            if not inspect.isfunction(function) or "<locals>" in head or head not in sample.entities:
                continue
            if sample.entities[head].line in (function.__code__.co_firstlineno, 1 + function.__code__.co_firstlineno):
                names = list(inspect.signature(function).parameters)
                if inspect.isclass(owner) and not isinstance(attribute, staticmethod):
                    del names[0]
                assert {sample.entities[tail].name for tail in tails(sample, head, "has_parameter")} == set(names)
                checked += 1
    assert checked


# ---- the standard library


def test_the_sample_has_tens_of_thousands_of_triples_and_all_files(sample):
    assert len(sample.triples) > 50_000
    assert len(sample.manifest["files"]) > 500
    assert not sample.manifest["failed"]


def test_the_sample_fits_the_ontology(sample):
    assert len(violations(sample)) < 0.005 * len(sample.triples)


def test_another_process_in_another_folder_reads_the_same_graph(tmp_path):
    code = (
        "import sys; from helpers.graphmer.graph.repository import load_graph; print(load_graph(sys.argv[1]).digest())"
    )
    digests = set()
    for hash_seed, folder in (("1", tmp_path / "here/code"), ("2", tmp_path / "elsewhere/deep/code")):
        library(write(folder, SHOP))
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        digests.add(printed("-c", code, folder, env=environment))
    assert len(digests) == 1


def test_files_that_do_not_parse_are_listed_and_the_others_read(tmp_path):
    write(tmp_path, {"good.py": "import bad\n", "bad.py": "x = 1\ndef broken(:\n    pass\n"})
    write(tmp_path, {"nul.py": b"x = '\0'\n", "latin.py": b"x = '\xe9'\n", "deep.py": "x = " + "(" * 500 + ")" * 500})
    write(tmp_path, {"declared.py": b"# -*- coding: latin-1 -*-\nx = '\xe9'\n"})
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere.py")
    graph = load_graph(tmp_path)
    errors = {failure["path"]: failure["error"] for failure in graph.manifest["failed"]}
    assert set(errors) == {"bad.py", "nul.py", "latin.py", "deep.py", "gone.py"}
    assert errors["bad.py"].startswith("line 2:")
    assert str(tmp_path) not in str(errors)
    assert {file["module"] for file in graph.manifest["files"]} == {"good", "declared"}
    assert tails(graph, "good", "imports") == {"bad"}


def test_test_folders_installed_packages_and_environments_can_be_left_out(tmp_path):
    files = ["m.py", "tests/t.py", "site-packages/p.py", ".hidden/h.py", "env/lib/e.py", "__pycache__/c.py"]
    write(tmp_path, dict.fromkeys(files, "x = 1\n") | {"env/pyvenv.cfg": ""})
    for include_tests, expected in ((True, {"m.py", "tests/t.py"}), (False, {"m.py"})):
        assert {*find_sources(tmp_path, include_tests).files} == expected


def test_a_folder_that_is_not_there_or_has_no_sources_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_graph(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"the folder has no file that can be read here \(\.py, \.java\)"):
        load_graph(tmp_path)
