"""Docstrings cut out of real syntax, for the search for their functions."""

import ast
import textwrap

import pytest

from benchmarks.code_search import Function, documented_functions, split_docstring
from helpers.graphmer.graph.knowledge_graph import Entity, build_graph

pytestmark = pytest.mark.once

SOURCES = [
    ('def f(a: dict = {1: 2}, *b):\n    """Sums all\n    values. Then more."""\n    return 1\n', "Sums all values."),
    ("@cache\nasync def f():\n    # why\n    'One line without a stop'\n    return 1\n", "One line without a stop"),
    (
        '    def f(self) -> "x":\n        r"""Finds \\d digits.\n\n        More text.\n        """\n        return 1\n',
        "Finds \\d digits.",
    ),
    (
        'def f(x=lambda: 1):\n    """First paragraph\n\n    second. And so on."""; y = 2\n    return y\n',
        "First paragraph",
    ),
    ('def f(): "Inline docstring here."; return 2\n', "Inline docstring here."),
]


@pytest.mark.parametrize(("source", "sentence"), SOURCES)
def test_the_docstring_and_nothing_else_is_cut_out(source, sentence):
    found, code = split_docstring(source)
    assert found == sentence
    function = ast.parse(textwrap.dedent(source)).body[0]
    function.body = function.body[1:]
    assert ast.dump(ast.parse(code)) == ast.dump(ast.Module([function], []))


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    return 'no docstring'\n",
        'class A:\n    """A class, and no function."""\n    def f(self):\n        """Inner."""\n',
        "def f():\n    b'bytes are no docstring'\n",
        "def f():\n    f'nor is {this}'\n",
        "int f() { return 1; }",
        'def f():\n    """In a module."""\n\ndef g():\n    pass\n',
        "def f(x,",
        "",
        'def f():\n    """ """\n',
        "x = 1",
    ],
)
def test_what_has_no_docstring_is_no_function_to_be_found(source):
    assert split_docstring(source) is None


def test_functions_to_be_found_have_a_sentence_of_their_own():
    docs = {
        "m.a": "Adds two numbers.",
        "m.b": "Same text here.",
        "m.c": "Same text here.",
        "m.d": "Too short.",
        "m.e": "Drops old rows.",
    }
    entities = [Entity(name, "function", name[2:], module="m", line=1, end_line=3) for name in docs]
    entities.append(Entity("m.a(x)", "parameter", "x", module="m"))
    graph = build_graph(entities, [], {})
    sources = {name: f'{name}\ndef {name[2:]}(x):\n    """{doc}"""\n    return x\n' for name, doc in docs.items()}
    functions = documented_functions(graph, lambda name: sources[name], graph.entities)
    assert functions == [
        Function("m.a", "Adds two numbers.", "m.a\ndef a(x):\n    return x\n"),
        Function("m.e", "Drops old rows.", "m.e\ndef e(x):\n    return x\n"),
    ]
    assert len(documented_functions(graph, lambda name: sources[name], ["m.a", "m.d"])) == 1
