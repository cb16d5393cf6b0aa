"""Text of entities against what `ast` says of the same files, and the tokenizer."""

import ast

import pytest

from helpers.graphmer.graph.build import load_graph
from helpers.graphmer.text import Documents, encodings, identifier_tokens, train_tokenizer

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def documents(library):
    return Documents(load_graph(library))


@pytest.fixture(scope="module")
def tokenizer(documents):
    return train_tokenizer(documents.graph.texts.values(), 2000)


def test_the_text_of_a_definition_is_its_name_and_what_ast_says_of_its_lines(documents, library):
    checked = 0
    for path in sorted(library.rglob("*.py")):
        module = ".".join(path.relative_to(library).with_suffix("").parts).removesuffix(".__init__")
        source = path.read_text()
        for node in ast.parse(source).body:
            name = f"{module}.{getattr(node, 'name', '')}"
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and name in documents.graph.entities:
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                lines = source.split("\n")[documents.graph.entities[name].line - 1 : node.end_lineno]
                assert documents.text(name) == "\n".join([name, *lines])
                assert first <= documents.graph.entities[name].line <= node.lineno
                checked += 1
    assert checked > 40


def test_decoding_gives_the_text_back_and_special_tokens_in_it_are_text(tokenizer):
    text = "def f(x):\n\treturn '[MASK] ünïcode' + readHTTPLine_2  # …\n"
    [found] = encodings(tokenizer, [text])
    assert tokenizer.decode(found.ids) == text and min(found.ids) > 2


def test_identifier_tokens_are_those_of_letters_digits_and_underscores(tokenizer):
    words = identifier_tokens(tokenizer)
    for text, is_word in (("encode", True), ("_default", True), ("3", True), (" ", False), ("(", False), ("\n", False)):
        assert all(words[one] == is_word for one in next(encodings(tokenizer, [text])).ids), text
    assert not words[:3].any()
