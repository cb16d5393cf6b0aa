"""What is answered of a repository without a model: how it is grouped, what a change reaches, and the command."""

import json

import pytest

from helpers.graphmer.__main__ import main
from helpers.graphmer.ask import Answer, Asked
from helpers.graphmer.graph.index import read_index
from tests.harness import printed, write

pytestmark = pytest.mark.once

SHOP = {
    "shop/__init__.py": "",
    "shop/goods.py": """
        class Thing:
            def price(self):
                return 1.0

        class Gift(Thing):
            def price(self):
                return 0.0

        def find(name: str) -> Thing:
            return Gift()
    """,
    "shop/main.py": """
        from shop.goods import Thing, find

        def total(names, look_up=find):
            return sum(look_up(name).price() for name in names) + find("x").price()

        def report(names):
            print(total(names), total(names))
            return total(names)

        def close(till):
            till.close()
    """,
    "shop/tills.py": """
        from shop import goods

        class Till(goods.Thing):
            def close(self): pass

        class Drawer:
            def close(self): pass

        def open_till(kind: Till):
            return Till()
    """,
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    return write(tmp_path_factory.mktemp("shop"), SHOP)


@pytest.fixture(scope="module")
def asked(shop):
    return Asked(read_index(shop))


def brief(answers: list[Answer]) -> list[tuple]:
    return [(answer.name.removeprefix("shop."), answer.status, answer.kind, answer.steps) for answer in answers]


def test_an_answer_has_every_line_and_the_first_one_as_it_stands_there(asked):
    [caller] = asked.answers("main.total")
    lines = "shop/main.py:8, shop/main.py:9"
    assert caller == Answer(
        "shop.main.report", "resolved", "called", 1, "shop/main.py:7", lines, "print(total(names), total(names))", ""
    )


def test_open_answers_say_what_could_be_meant_and_name_no_definition(asked):
    [answer] = asked.answers("Till.close")
    assert brief([answer]) == [("main.close", "open", "called", 1)]
    assert answer.could_be == "shop.main.close, shop.tills.Till.close, shop.tills.Drawer.close"
    [called] = asked.answers("main.close", "calls")
    assert (called.name, called.status, called.could_be) == ("?.close", "open", answer.could_be)


def test_what_is_called_is_answered_with_where_it_is_defined(asked):
    answers = asked.answers("main.total", "calls")
    assert ("goods.find", "resolved", "called", 1) in brief(answers)
    assert {answer.name: answer.defined for answer in answers}["shop.goods.find"] == "shop/goods.py:10"


def test_impact_follows_calls_defaults_and_bases_and_says_what_it_leaves(asked):
    assert brief(asked.answers("goods.find", "impact")) == [
        ("main.total", "resolved", "called", 1),
        ("main.total", "resolved", "default", 1),
        ("main.report", "resolved", "called", 2),
        ("main", "resolved", "imported", 0),
    ]
    answers = brief(asked.answers("goods.Thing", "impact"))
    assert {("tills.Till", "resolved", "base", 1), ("tills.open_till", "resolved", "called", 2)} <= {*answers}
    assert ("tills.open_till(kind)", "resolved", "has_type", 0) in answers
    assert asked.report("goods.Thing", "impact")["count"]["not followed"] == sum(row[3] == 0 for row in answers)


def test_a_call_of_what_is_overridden_may_reach_what_overrides(asked):
    assert brief(asked.answers("Gift.price", "impact"))[:2] == [
        ("main.total", "overridden", "called", 1),
        ("main.report", "overridden", "called", 2),
    ]


def test_a_module_is_answered_by_those_who_import_it(asked):
    importers = {answer.name for answer in asked.answers("shop.goods") if answer.kind == "imported"}
    assert importers == {"shop.main", "shop.tills"}


@pytest.mark.parametrize(
    ("name", "relation", "message"),
    [
        ("goods.fnid", "called_by", "name='goods.fnid': 0 definitions have this name; give one of: shop.goods.find"),
        ("zzz", "called_by", "none is near"),
        ("price", "called_by", "2 definitions .*: shop.goods.Thing.price, shop.goods.Gift.price"),
        ("goods.find", "cals", "relation='cals': must be called_by, calls, impact"),
    ],
)
def test_what_cannot_be_asked_is_an_error_that_says_what_can(asked, name, relation, message):
    with pytest.raises(ValueError, match=message):
        asked.answers(name, relation)


@pytest.mark.parametrize("arguments", [("ask", "goods.find"), ("search", "price of a thing")])
def test_the_shell_answers_as_json_without_torch(shop, tmp_path, monkeypatch, arguments):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code = (
        "import sys; from helpers.graphmer.__main__ import main; main(sys.argv[1:]);"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'nbformat', 'IPython')))"
    )
    report = json.loads(printed("-c", code, *arguments, "--folder", shop, "--json"))
    assert report["unread"] == []
    names = [answer["name"] for answer in report["answers"]]
    assert names[0] == ("shop.main.total" if arguments[0] == "ask" else "shop.goods.Thing.price")
    assert len([*tmp_path.rglob("index.scip")]) == 1


def test_the_shell_says_what_could_not_be_read(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write(tmp_path / "code", {"a.py": "def f(): pass\n", "b.ipynb": "{}"})
    assert main(["ask", "a.f", "--folder", str(tmp_path / "code")]) == 0
    shown = capsys.readouterr().out
    assert "a.f called_by: nothing" in shown and "b.ipynb  ValueError: no notebook" in shown
    with pytest.raises(SystemExit):
        main(["ask", "a.g", "--folder", str(tmp_path / "code")])
