"""The graph of Java sources, by the rules of the language; without tree-sitter only the message that asks for it."""

import sys

import pytest

from helpers.graphmer.graph.knowledge_graph import DEFINED, EXTERNAL, UNRESOLVED
from helpers.graphmer.graph.repository import Repository, load_graph
from tests.harness import write

from .batches import violations
from .test_python import tails

pytestmark = pytest.mark.once

SHOP = {
    "shop/goods/Thing.java": """
        package shop.goods;

        public abstract class Thing implements Priced, java.io.Serializable {
            protected final String name;
            public Thing(String name) { this.name = name; }
            public double price() { return 1.0; }
            double price(int count) { return count * price(); }
            double price(String currency) { return 0; }
            String label() { return name.trim(); }
            interface Visitor<T> { T visit(Thing thing); }
            enum Size { SMALL, LARGE; Size next() { return LARGE; } }
        }
    """,
    "shop/goods/Priced.java": """
        package shop.goods;
        @FunctionalInterface public interface Priced { double price(); }
    """,
    "shop/goods/NotThere.java": """
        package shop.goods;
        public class NotThere extends Exception { }
    """,
    "shop/tills/Till.java": """
        package shop.tills;

        import java.util.List;
        import java.util.*;
        import shop.goods.*;
        import shop.goods.Thing.Size;
        import static shop.tills.Rates.rate;

        @Deprecated
        public class Till extends Thread {
            private List<Thing> sold = new ArrayList<>();
            private Thing last;

            @Override public void run() { start(); }

            <T extends Thing> T sell(T thing, int count, Thing... more) throws NotThere {
                Thing chosen = thing;
                chosen.price();
                chosen.price(1);
                last.label().length();
                sold.add(chosen);
                rate(2);
                Size size = Size.SMALL.next();
                var copy = new Till();
                copy.sell(null, 1);
                for (Thing each : more) each.label();
                Runnable later = () -> refund();
                new Object() { void refund() { label(); } };
                try { throw new NotThere(); } catch (NotThere | IllegalStateException error) { throw error; }
            }

            void refund() { this.refund(); super.interrupt(); undefined(); }
        }
    """,
    "shop/tills/Rates.java": """
        package shop.tills;
        record Rates(double base, shop.goods.Thing of) {
            static double rate(int level) { return level; }
        }
    """,
    "shop/tills/TillTest.java": """
        package shop.tills;
        import org.junit.jupiter.api.Test;
        class TillTest {
            @Test void sells() throws Exception { new Till().refund(); helper(); }
            void helper() { }
        }
    """,
}
SELL = "shop.tills.Till.sell(T,int,Thing...)"


@pytest.fixture(scope="module")
def shop(parser, tmp_path_factory):
    return load_graph(write(tmp_path_factory.mktemp("code"), SHOP))


@pytest.mark.parametrize(
    ("name", "kind", "status"),
    [
        ("shop.goods.Thing", "class", DEFINED),
        ("shop.goods.Priced", "interface", DEFINED),
        ("shop.goods.Thing.Size.SMALL", "field", DEFINED),
        ("shop.goods.Thing.Thing(String)", "constructor", DEFINED),
        (SELL, "method", DEFINED),
        ("java.io.Serializable", "interface", EXTERNAL),
        ("?.price", "unknown", UNRESOLVED),
    ],
)
def test_an_entity_has_its_name_type_and_status(shop, name, kind, status):
    assert (shop.entities[name].type, shop.entities[name].status) == (kind, status)


@pytest.mark.parametrize(
    ("head", "relation", "expected"),
    [
        ("shop.goods", "contains", {"shop.goods.Thing", "shop.goods.Priced", "shop.goods.NotThere"}),
        ("shop.goods.Thing", "implements", {"shop.goods.Priced", "java.io.Serializable"}),
        ("shop.goods.NotThere", "inherits_from", {"java.lang.Exception"}),
        ("shop.goods.Thing.price()", "overrides", {"shop.goods.Priced.price()"}),
        ("shop.goods.Thing.price(int)", "overrides", set()),
        ("shop.goods.Thing.price(int)", "calls", {"shop.goods.Thing.price()"}),
        ("shop.goods.Thing.label()", "calls", {"java.lang.String.trim"}),
        ("shop.tills.Till", "inherits_from", {"java.lang.Thread"}),
        ("shop.tills.Till", "imports",
         {"java.util.List", "java.util", "shop.goods", "shop.goods.Thing.Size", "shop.tills.Rates"}),
        ("shop.tills.Till", "instantiates", {"?.ArrayList"}),  # of java.util, or of another package
        ("shop.tills.Till.run()", "calls", {"java.lang.Thread.start"}),
        ("shop.tills.Till.refund()", "calls",
         {"shop.tills.Till.refund()", "java.lang.Thread.interrupt", "java.lang.Thread.undefined"}),
        (SELL, "calls",
         {"shop.goods.Thing.price()", "?.price", "shop.goods.Thing.label()", "java.lang.String.length", "java.util.List.add",
          "shop.tills.Rates.rate(int)", "shop.goods.Thing.Size.next()", SELL, "shop.tills.Till.refund()", "?.label"}),
        (SELL, "instantiates", {"shop.tills.Till", "java.lang.Object", "shop.goods.NotThere"}),
    ],
)  # fmt: skip
def test_what_a_declaration_says_is_resolved_or_marked(shop, head, relation, expected):
    assert tails(shop, head, relation) == expected


@pytest.mark.parametrize(
    ("body", "called"),
    [
        ("void g() { f(); }", "A.f()"),
        ("void g() { B a = null; a.f(); }", "B.f()"),
        ("void g() { { A a = null; } { B a = null; a.f(); } }", "B.f()"),
        ("void g() { Runnable r = a -> a.f(); }", "?.f"),
        ("B f; void g() { f.f(); }", "B.f()"),
        ("class B { void f() { } } void g() { new B().f(); }", "A.B.f()"),
        ("class D extends java.util.Date implements I { } void g(D d) { d.f(); }", "?.f"),  # Date's, or from I
        ("class D extends java.util.Date { } void g(D d) { d.f(); }", "java.util.Date.f"),
        (
            "interface K { void f(); } interface L extends K { } class D implements K, L { } void g(D d) { d.f(); }",
            "A.K.f()",
        ),
        ("class D extends A { } void g(D d) { d.f(); }", "A.f()"),
        ("class D extends A { void h() { super.f(); } }", "A.f()"),
        ("<B extends I> void g(B b) { b.f(); }", "?.f"),
        ("void g() { ((B) null).f(); }", "B.f()"),
        ("void g() { try (var b = new B()) { b.f(); } }", "B.f()"),
        ("void g(Object o) { for (var b : (B) o) b.f(); }", "?.f"),  # what B is a collection of
        ("void g(Object o) { if (o instanceof B b) b.f(); }", "B.f()"),
        ("void g() { unknown.f(); }", "?.f"),
        (
            "class D<T> { void h(T a) { } } class E extends D<Long> { void h(long a) { } void g(Long b) { h(b); } }",
            "?.h",
        ),
    ],
)
def test_a_call_resolves_only_where_the_type_is_certain(parser, tmp_path, body, called):
    text = f"class A {{ void f() {{ }} {body} }}\nclass B {{ void f() {{ }} }}\ninterface I {{ void f(); }}\n"
    graph = load_graph(write(tmp_path, {"A.java": text}))
    assert {triple.tail for triple in graph.triples if triple.relation == "calls"} == {called}


def test_the_graph_fits_the_ontology(shop):
    assert not violations(shop)


def test_without_a_parser_java_is_listed_and_asked_for(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tree_sitter", None)
    write(tmp_path, {"A.java": "class A { }", "b/B.java": "class B { }"})
    remedy = "pip install tree-sitter tree-sitter-java"
    with pytest.raises(ImportError, match=rf"data_source=.*\(2\).*{remedy}"):
        load_graph(tmp_path)
    write(tmp_path, {"tool.py": "def f(): pass\n"})
    with pytest.warns(UserWarning, match=rf"data_source=.*\(2\).*{remedy}"):
        graph = load_graph(tmp_path)
    assert "tool.f" in graph.entities
    failed = {failure["path"]: failure["error"] for failure in graph.manifest["failed"]}
    assert failed.keys() == {"A.java", "b/B.java"} and all(remedy in error for error in failed.values())


def test_a_graph_without_its_java_is_not_kept_for_when_there_is_a_parser(parser, tmp_path):
    folder = write(tmp_path / "code", {"A.java": "class A { }", "tool.py": ""})
    with pytest.MonkeyPatch.context() as patched, pytest.warns(UserWarning, match="cannot be read"):
        patched.setitem(sys.modules, "tree_sitter", None)
        assert "A" not in Repository(folder).graph().entities
    assert "A" in Repository(folder).graph().entities
