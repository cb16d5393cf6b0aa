"""What is answered of a repository without a model: and kept between two questions."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.graphmer.__main__ import main
from helpers.graphmer.ask import Answer, Asked
from helpers.graphmer.graph.extraction import cached_graph, load_graph

from .test_imports import write

pytestmark = pytest.mark.once

SHOP = {
    "shop/__init__.py": "",
    "shop/goods.py": """
        class Thing:
            def __init__(self, name):
                self.name = name

            def price(self):
                return 1.0

        class Gift(Thing):
            def price(self):
                return 0.0

        def find(name: str) -> Thing:
            return Gift(name)
    """,
    "shop/main.py": """
        from shop.goods import Thing, find

        def total(names):
            return sum(find(name).price() for name in names)

        def report(names):
            print(total(names))
            return total(names)

        def close(till):
            till.close()

        def shut(door):
            door.close()
    """,
    "shop/tills.py": """
        class Till:
            def close(self): pass

        class Drawer:
            def close(self): pass
    """,
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("shop"), SHOP)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/graphmer"


@pytest.fixture
def asked(shop, cache):
    return Asked(shop).answers


def brief(answers: list[Answer]) -> list[tuple]:
    return [(each.name.removeprefix("shop."), each.status, each.steps) for each in answers]


def test_callers_are_known_with_file_line_and_what_stands_there(asked):
    [one] = asked("goods.find", "called_by")
    assert one == Answer(
        "shop.main.total", "known", 1, "shop/main.py:4", "shop/main.py:5",
        "return sum(find(name).price() for name in names)",
    )  # fmt: skip
    [twice] = asked("main.total", "called_by")
    assert twice.mentioned == "shop/main.py:8, 9"


def test_callers_of_an_overridden_method_may_reach_the_one_that_overrides_it(asked):
    assert brief(asked("Thing.price", "called_by")) == [("main.total", "known", 1)]
    assert brief(asked("Gift.price", "called_by")) == [("main.total", "overridden", 1)]


def test_who_makes_an_instance_calls_its_constructor_also_an_inherited_one(asked):
    assert brief(asked("Gift", "called_by")) == [("goods.find", "known", 1)]
    assert brief(asked("Thing.__init__", "called_by")) == [("goods.find", "known", 1)]


def test_impact_is_all_that_reaches_it_by_the_fewest_calls(asked):
    assert brief(asked("goods.find", "impact")) == [("main.total", "known", 1), ("main.report", "known", 2)]
    assert brief(asked("Gift.price", "impact")) == [("main.total", "overridden", 1), ("main.report", "overridden", 2)]


def test_open_calls_say_where_they_stand_and_what_could_be_meant(asked):
    assert [each[:3] for each in asked("Till.close", "called_by")] == [
        ("shop.main.close", "open", 1),
        ("shop.main.shut", "open", 1),
    ]
    [one] = asked("main.close", "calls")
    assert (one.name, one.status, one.mentioned, one.source) == ("?.close", "open", "shop/main.py:12", "till.close()")
    assert one.could_be == "shop.main.close, shop.tills.Drawer.close, shop.tills.Till.close"


@pytest.mark.parametrize(
    ("name", "relation", "message"),
    [
        ("goods.fnid", "called_by", "name='goods.fnid': none of .* did you mean shop.goods.find"),
        ("Thing.pirce", "called_by", "did you mean shop.goods.Thing.price\\?"),
        ("zzz", "called_by", "give the qualified name"),
        ("price", "called_by", "2 have this name: shop.goods.Gift.price, shop.goods.Thing.price; give a longer one"),
        ("goods.find", "cals", "relation='cals': must be called_by, calls or impact"),
    ],
)
def test_what_cannot_be_asked_is_an_error_that_says_what_can(asked, name, relation, message):
    with pytest.raises(ValueError, match=message):
        asked(name, relation)


def test_java_methods_are_asked_for_without_their_parameters(tmp_path):
    pytest.importorskip("tree_sitter_java", reason="needs pip install tree-sitter tree-sitter-java")
    text = "class A { void f(int a) { } void g() { f(1); new B(); } }\nclass B { }\n"
    write(tmp_path / "code", {"A.java": text})
    answers = Asked(tmp_path / "code").answers
    [caller] = answers("A.f", "called_by")
    assert (caller.name, caller.status, caller.mentioned) == ("A.g()", "known", "A.java:1")
    [maker] = answers("B", "called_by")
    assert maker.name == "A.g()" and maker.mentioned == "A.java:1"


def test_java_types_of_one_name_in_two_projects_are_told_apart(tmp_path):
    pytest.importorskip("tree_sitter_java", reason="needs pip install tree-sitter tree-sitter-java")
    text = "package x;\nclass A {\n void f() { }\n void g() { f(); }\n}\n"
    write(tmp_path / "code", {f"{project}/src/main/java/x/A.java": text for project in "ab"})
    [caller] = Asked(tmp_path / "code").answers("b:x.A.f", "called_by")
    assert (caller.name, caller.mentioned) == ("b:x.A.g()", "b/src/main/java/x/A.java:4")
    assert caller.source == "void g() { f(); }"


# ---- kept between two questions


def test_a_graph_that_was_kept_is_the_graph_until_a_file_changes(cache, tmp_path):
    folder = write(tmp_path / "code", SHOP)
    first = cached_graph(folder)
    kept = cached_graph(folder)
    assert kept == first == load_graph(folder)
    assert kept.sites == first.sites
    assert kept.digest() == first.digest()
    (folder / "shop/new.py").write_text("from shop.goods import find\n\nfind('x')\n")
    assert ("shop.new", "calls", "shop.goods.find") in cached_graph(folder).triples
    assert len(list(cache.iterdir())) == 1  # the former one is gone


@pytest.mark.parametrize("damage", ["", "{", "[]", '["0", [], [], []]', "\0"])
def test_a_damaged_cache_is_made_again(shop, cache, damage):
    whole = cached_graph(shop)
    [file] = cache.iterdir()
    for content in (damage, file.read_text()[:-300], file.read_text().replace("shop", "shap", 1)[:-1]):
        file.write_text(content)
        assert cached_graph(shop) == whole
    kept = json.loads(file.read_text())
    kept[2] = kept[1]
    file.write_text(json.dumps(kept))
    assert cached_graph(shop) == whole


def test_where_nothing_can_be_written_the_answer_is_the_same(shop, tmp_path):
    (tmp_path / "cache").touch()
    assert Asked(shop).answers("goods.find", "called_by")


def test_the_shell_answers_without_loading_a_model(shop):
    code = (
        "import sys; from helpers.graphmer.__main__ import main; main(sys.argv[1:]);"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'numpy')))"
    )
    command = [sys.executable, "-c", code, "ask", shop, "goods.find", "called_by"]
    ran = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "shop.goods.find called_by: 1 known" in ran.stdout
    assert "shop.main.total" in ran.stdout and "shop/main.py:5" in ran.stdout


def test_the_shell_says_what_could_not_be_read(tmp_path, capsys):
    write(tmp_path / "code", {"a.py": "def f(): pass\n", "b.py": "def (:\n"})
    assert main(["ask", str(tmp_path / "code"), "a.f", "called_by"]) == 0
    printed = capsys.readouterr().out
    assert "a.f called_by: nothing that the sources say" in printed and "1 files could not be read" in printed
