"""What is answered of a repository without a model: and kept between two questions."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from helpers.graphmer.__main__ import main
from helpers.graphmer.ask import CALLS, Answer, Asked
from helpers.graphmer.graph.repository import Repository, load_graph
from tests.harness import printed, write

pytestmark = pytest.mark.once
ROOT = Path(__file__).parents[2]

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


def repository(folder: Path, files: dict[str, str]) -> Asked:
    return Asked(write(folder / "code", files))


@pytest.fixture
def asked(shop, cache):
    return Asked(shop).answers


def brief(answers: list[Answer]) -> list[tuple]:
    """Name, status and steps of each answer that is a call."""
    calls = [answer for answer in answers if answer.kind in CALLS]
    return [(answer.name.removeprefix("shop."), answer.status, answer.steps) for answer in calls]


def test_callers_are_known_with_file_line_and_what_stands_there(asked):
    [caller, imported] = asked("goods.find", "called_by")
    assert caller == Answer(
        "shop.main.total", "known", "called", 1, "shop/main.py:4", "shop/main.py:5",
        "return sum(find(name).price() for name in names)",
    )  # fmt: skip
    assert (imported.name, imported.kind, imported.mentioned) == ("shop.main", "imported", "shop/main.py:2")
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
    answers = asked("Till.close", "called_by", infer=False)
    assert brief(answers) == [("main.close", "open", 1), ("main.shut", "open", 1)]
    assert answers[0].could_be == "shop.main.close, shop.tills.Till.close, shop.tills.Drawer.close"
    [one] = asked("main.close", "calls")
    assert (one.name, one.status, one.mentioned, one.source) == ("?.close", "open", "shop/main.py:12", "till.close()")
    assert one.could_be == answers[0].could_be


USES = """
    import asyncio, functools
    from typing import TypeAlias, cast

    class Fault(Exception):
        limit = 3

        @property
        def text(self):
            return str(self.limit)

    def work(x=None):
        return x

    @work
    def decorated(): pass

    @functools.lru_cache(work)
    def cached(): pass

    def fails(error: Fault | None, other: "Fault") -> list[Fault]:
        try:
            raise Fault
        except (Fault, OSError):
            raise Fault("x") from error
        return isinstance(error, Fault), issubclass(error, (int, Fault)), cast("Fault", other)

    class Child(Fault): pass

    def passes(name=work):
        asyncio.to_thread(work, 1)
        sorted([], key=work)
        table = {"a": work}
        other = work
        return work

    async def waits(fault: Fault):
        await work()
        with work(): pass
        fault.limit = fault.text
        match fault:
            case Fault(): pass
        yield work
        del fault.limit

    Alias: TypeAlias = Fault
    __all__ = [b"other", "work", "Fault"]
"""


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        (
            "work",
            "aliased awaited default exported passed passed passed returned table with yielded decorates",
        ),
        (
            "Fault",
            "aliased annotated annotated annotated base caught exported matched raised raised tested",
        ),
        ("Fault.text", "read"),
        ("Fault.limit", "deleted read written written"),
    ],
)
def test_every_use_has_its_kind_and_line(tmp_path, name, kinds):
    answers = repository(tmp_path, {"m.py": USES}).answers(f"m.{name}", "called_by")
    lines = [(answer.kind, line) for answer in answers for line in answer.mentioned.partition(":")[2].split(", ")]
    assert {answer.status for answer in answers} == {"known"}
    assert sorted(kind for kind, _ in lines) == sorted(kinds.split())


def test_a_notebook_is_read_and_what_cannot_be_read_is_named(tmp_path):
    cells = [("markdown", "find"), ("code", "%time 1\nfrom m import find\n!ls"), ("code", "find(1)\nfind?")]
    rows = [{"cell_type": kind, "source": source.splitlines(keepends=True)} for kind, source in cells]
    write(tmp_path / "code", {"m.py": "def find(x): pass\n", "bad.ipynb": "{}", "worse.py": "def (:"})
    (tmp_path / "code/n.ipynb").write_text(json.dumps({"cells": rows}))
    asked = Asked(tmp_path / "code")
    places = {answer.kind: answer.mentioned for answer in asked.answers("find", "called_by")}
    assert places == {"called": "n.ipynb cell 3:1", "imported": "n.ipynb cell 2:2"}
    assert [failure["path"] for failure in asked.repository.failed] == ["bad.ipynb", "worse.py"]


def test_nothing_is_said_only_where_the_word_does_not_occur(tmp_path):
    asked = repository(
        tmp_path, {"m.py": "def find(): pass\ndef alone(): pass\n", "other.py": "# find\nHELP = 'find'\n"}
    )
    answers = asked.answers("find", "called_by")
    assert [(answer.status, answer.kind, answer.mentioned) for answer in answers] == [
        ("open", "text", "other.py:1"),
        ("open", "text", "other.py:2"),
    ]
    assert asked.answers("alone", "called_by") == []


def test_a_file_that_changes_is_read_again_at_the_next_question(tmp_path):
    folder = write(tmp_path / "code", {"m.py": "def find(): pass\n", "other.py": ""})
    asked = Asked(folder)
    assert asked.answers("find", "called_by") == []
    (folder / "other.py").write_text("from m import find as look\n")
    (folder / "third.py").write_text("from other import look\n\nlook()\n")
    answers = asked.answers("find", "called_by")
    assert [(answer.name, answer.kind) for answer in answers] == [
        ("third", "called"),
        ("other", "imported"),
        ("third", "imported"),
    ]


def test_jedi_infers_what_the_sources_leave_open(tmp_path):
    pytest.importorskip("jedi")
    text = "class A:\n    def go(self): pass\n\ndef use(a):\n    a.go()\n\nuse(A())\n"
    answers = repository(tmp_path, {"m.py": text}).answers
    assert [answer.status for answer in answers("A.go", "called_by", infer=False)] == ["open"]
    assert [answer.status for answer in answers("A.go", "called_by")] == ["inferred"]


@pytest.mark.parametrize(
    ("name", "relation", "message"),
    [
        ("goods.fnid", "called_by", "name='goods.fnid': none of .* did you mean shop.goods.find"),
        ("Thing.pirce", "called_by", "did you mean shop.goods.Thing.price\\?"),
        ("zzz", "called_by", "give the qualified name"),
        (
            "price",
            "called_by",
            "2 definitions have this name: shop.goods.Gift.price, shop.goods.Thing.price",
        ),
        ("goods.find", "cals", "relation='cals': must be called_by, calls or impact"),
    ],
)
def test_what_cannot_be_asked_is_an_error_that_says_what_can(asked, name, relation, message):
    with pytest.raises(ValueError, match=message):
        asked(name, relation)


def test_java_types_of_one_name_in_two_projects_are_told_apart(parser, tmp_path):
    text = "package x;\nclass A {\n void f() { }\n void g() { f(); }\n}\n"
    [caller] = repository(tmp_path, {f"{project}/src/main/java/x/A.java": text for project in "ab"}).answers(
        "b:x.A.f", "called_by"
    )
    assert (caller.name, caller.mentioned) == ("b:x.A.g()", "b/src/main/java/x/A.java:4")
    assert caller.source == "void g() { f(); }"


JAVA = """
    package x;
    class Tools {
        static boolean isEmpty(CharSequence a) { return true; }
        static boolean isEmpty(Object[] a) { return true; }
        static boolean isEmpty(CharSequence a, int b) { return true; }
        static boolean unlike(CharSequence a) { return !isEmpty(a, 1); }
    }
    class Others { static boolean isEmpty(CharSequence a) { return Tools.isEmpty(a); } }
    class User {
        void f(java.util.List<String> list, Unknown u) {
            Others.isEmpty("x"); list.isEmpty(); Elsewhere.isEmpty("x"); u.isEmpty("x"); Tools.isEmpty("x", 2);
        }
    }
"""


def test_in_java_arguments_and_receivers_decide_who_can_be_a_caller(parser, tmp_path):
    answers = repository(tmp_path, {"Tools.java": JAVA}).answers
    two = [("x.Tools.unlike(CharSequence)", "known"), ("x.User.f(List,Unknown)", "known")]
    one_of = [("x.Others.isEmpty(CharSequence)", "one of")]
    assert [answer[:2] for answer in answers("Tools.isEmpty(CharSequence,int)", "called_by")] == two
    assert [answer[:2] for answer in answers("Tools.isEmpty(Object[])", "called_by")] == one_of
    assert [answer[:2] for answer in answers("Tools.isEmpty", "called_by")] == two + one_of  # all overloads
    assert [answer[:2] for answer in answers("Others.isEmpty", "called_by")] == [("x.User.f(List,Unknown)", "known")]


# ---- kept between two questions


def test_what_was_read_is_kept_until_a_file_changes(tmp_path):
    folder = write(tmp_path / "code", SHOP)
    first = Repository(folder).graph()
    assert Repository(folder).graph() == first
    assert first.entities.items() <= load_graph(folder).entities.items()
    kept = Asked(folder)
    before = {*kept.repository._kept}
    (folder / "shop/new.py").write_text("from shop.goods import find\n\nfind('x')\n")
    [one] = [
        answer
        for answer in kept.answers("goods.find", "called_by")
        if answer.name == "shop.new" and answer.kind == "called"
    ]
    assert one.status == "known"
    assert len({*kept.repository._kept} - before) == 1  # the others were not read again


@pytest.mark.parametrize("damage", ["", "{", "[]", "\0"])
def test_a_damaged_cache_is_made_again(shop, cache, damage):
    definitions = Repository(shop).graph()
    [file] = cache.iterdir()
    written = file.read_text()
    for content in (damage, written[:-300], written.replace("shop", "shap", 1)):
        file.write_text(content)
        assert Repository(shop).graph() == definitions
        assert file.read_text() == written


def test_where_nothing_can_be_written_the_answer_is_the_same(shop, tmp_path):
    (tmp_path / "cache").touch()
    assert Asked(shop).answers("goods.find", "called_by")


COMMANDS = [("ask", "goods.find"), ("impact", "goods.find"), ("search", "price of a thing")]


@pytest.mark.parametrize(("command", "question"), COMMANDS)
def test_the_shell_answers_as_json_without_torch_or_a_notebook(shop, command, question):
    code = (
        "import sys; from helpers.graphmer.__main__ import main; main(sys.argv[1:]);"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'nbformat', 'IPython')))"
    )
    report = json.loads(printed("-c", code, command, shop, question, "--json"))
    assert report["unread"] == []
    if command == "search":
        assert report["hits"][0]["name"] == "shop.goods.Thing.price"
    else:
        assert report["answers"][0]["name"] == "shop.main.total" and report["count"]["known"] == 2


def test_the_shell_says_what_could_not_be_read(tmp_path, capsys):
    write(tmp_path / "code", {"a.py": "def f(): pass\n", "b.py": "def (:\n"})
    assert main(["ask", str(tmp_path / "code"), "a.f"]) == 0
    printed = capsys.readouterr().out
    assert "a.f called_by: nothing: no file that was read has the word 'f' elsewhere" in printed
    assert "1 files could not be read" in printed


def test_a_coding_agent_asks_over_the_model_context_protocol(tmp_path):
    mcp = pytest.importorskip("mcp", reason="needs pip install mcp")
    stdio = pytest.importorskip("mcp.client.stdio")
    folder = write(tmp_path / "code", SHOP)

    async def talk() -> list:
        arguments = ["-m", "helpers.graphmer", "mcp", str(folder)]
        parameters = mcp.StdioServerParameters(command=sys.executable, args=arguments, cwd=ROOT)
        async with stdio.stdio_client(parameters) as streams, mcp.ClientSession(*streams) as session:
            await session.initialize()
            results = [[tool.name for tool in (await session.list_tools()).tools]]
            for name in ("goods.find", "goods.fnid"):
                results.append(await session.call_tool("ask", {"name": name}))
            (folder / "shop/new.py").write_text("from shop.goods import find\n\nfind('x')\n")
            results.append(await session.call_tool("ask", {"name": "goods.find"}))
            results.append(await session.call_tool("search", {"question": "price of a thing"}))
            return results

    tools, first, error, again, hits = asyncio.run(talk())
    assert tools == ["ask", "impact", "search"]
    assert json.loads(first.content[0].text)["count"] == {"known": 2}
    assert "did you mean" in json.loads(error.content[0].text)["error"]
    assert json.loads(again.content[0].text)["count"] == {"known": 4}
    assert json.loads(hits.content[0].text)["hits"][0]["name"] == "shop.goods.Thing.price"
