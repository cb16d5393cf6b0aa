"""A SCIP index, written here as an indexer of TypeScript would, read as a graph."""

from __future__ import annotations

import pytest

from helpers.graphmer.graph.extraction import load_graph
from helpers.graphmer.graph.knowledge_graph import EXTERNAL
from helpers.graphmer.graph.ontology import read_ontology, validate
from helpers.graphmer.graph.scip import DEFINITION, INDEX, index_message
from helpers.graphmer.text.documents import Documents

pytestmark = pytest.mark.once

SOURCE = """interface Animal { sound(): string }
class Dog implements Animal {
  sound() { return bark(2) }
}
function bark(times) {
  return "woof".repeat(times)
}
bark(1)
"""
PREFIX = "scip-typescript npm farm 1.0 src/`animals.ts`/"


@pytest.fixture
def farm(tmp_path):
    """Folder with a source and its index."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "animals.ts").write_text(SOURCE)
    index = index_message()
    document = index.documents.add(language="TypeScript", relative_path="src/animals.ts")

    def said(symbol: str, *span: int, body: tuple[int, ...] = (), defines: bool = False) -> None:
        document.occurrences.add(symbol=symbol, range=span, enclosing_range=body, symbol_roles=DEFINITION * defines)

    said(PREFIX, 0, 0, 0, defines=True)
    said(f"{PREFIX}Animal#", 0, 10, 16, body=(0, 0, 36), defines=True)
    said(f"{PREFIX}Animal#sound().", 0, 19, 24, body=(0, 19, 34), defines=True)
    said(f"{PREFIX}Dog#", 1, 6, 9, body=(1, 0, 3, 1), defines=True)
    said(f"{PREFIX}Animal#", 1, 21, 27)
    said(f"{PREFIX}Dog#sound().", 2, 2, 7, body=(2, 2, 28), defines=True)
    said(f"{PREFIX}bark().", 2, 19, 23)
    said(f"{PREFIX}bark().", 4, 9, 13, body=(4, 0, 6, 1), defines=True)
    said(f"{PREFIX}bark().(times)", 4, 14, 19, body=(4, 14, 19), defines=True)
    said("scip-typescript npm typescript 5.0 lib/`lib.d.ts`/String#repeat().", 5, 16, 22)
    said("local 3", 5, 23, 28)
    said(f"{PREFIX}bark().", 7, 0, 4)
    document.symbols.add(symbol=f"{PREFIX}Animal#", kind=21)
    dog, sound = (document.symbols.add(symbol=f"{PREFIX}{name}") for name in ("Dog#", "Dog#sound()."))
    dog.relationships.add(symbol=f"{PREFIX}Animal#", is_implementation=True)
    sound.relationships.add(symbol=f"{PREFIX}Animal#sound().", is_implementation=True)
    (tmp_path / INDEX).write_bytes(index.SerializeToString())
    return tmp_path


def test_an_index_says_what_is_defined_and_what_calls_what(farm):
    graph = load_graph(farm)
    name = "src.animals.ts."
    assert {tuple(part.removeprefix(name) for part in triple) for triple in graph.triples} == {
        ("src.animals", "contains", "Animal"),
        ("src.animals", "contains", "Dog"),
        ("src.animals", "contains", "bark"),
        ("Animal", "contains", "Animal.sound"),
        ("Dog", "contains", "Dog.sound"),
        ("bark", "has_parameter", "bark(times)"),
        ("Dog", "implements", "Animal"),
        ("Dog.sound", "overrides", "Animal.sound"),
        ("Dog.sound", "calls", "bark"),
        ("bark", "calls", "lib.lib.d.ts.String.repeat"),
        ("src.animals", "calls", "bark"),
    }
    assert graph.entities["lib.lib.d.ts.String.repeat"].status == EXTERNAL
    assert not validate(graph, read_ontology()).violations


def test_a_definition_is_a_document_of_its_lines(farm):
    documents = Documents.read(load_graph(farm), farm)
    assert documents.text("src.animals.ts.bark").splitlines()[1:] == SOURCE.splitlines()[4:7]
    assert documents.text("src.animals.ts.Dog.sound").splitlines()[1] == SOURCE.splitlines()[2].strip()


def test_what_is_no_index_is_refused(tmp_path):
    (tmp_path / INDEX).write_bytes(b"\xff\xff no index")
    with pytest.raises(ValueError, match=r"index\.scip.*not an index of SCIP"):
        load_graph(tmp_path)
