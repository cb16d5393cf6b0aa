"""Docstrings and Javadoc cut out of real syntax, for the search for their functions; whose weights come from where."""

import ast
import textwrap
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.code_search import (
    CODE_MODE,
    Function,
    Package,
    Questions,
    documented_functions,
    of_code_encoder,
    read,
    split_docstring,
)
from benchmarks.javadoc import split_javadoc
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


JAVA = """
package zoo;

/** Not a method's. It belongs to the class. */
public class Keeper {
    /* No Javadoc, though it stands above a method. */
    void sweep() {
        return;
    }

    /**
     * Gives an animal what it eats, see {@link Store#take(int) the store}. It is quiet then.
     *
     * @param animal who is hungry
     */
    @Deprecated
    public Animal feed(Animal animal) {
        /* said twice */
        return animal;
    }

    int count;  // of animals

    /** Too short. */
    int one() { return 1; }

    /** Locks every door of the house. */
    abstract void lock();
}
"""


def test_a_java_method_is_asked_for_by_its_javadoc_and_found_without_it(tmp_path):
    pytest.importorskip("tree_sitter_java")
    (tmp_path / "Keeper.java").write_text(JAVA.replace("\n", "\r\n"))
    feed, lock = read("jep", SimpleNamespace(java=lambda name: tmp_path)).functions
    assert feed.sentence == "Gives an animal what it eats, see the store."
    assert feed.code == (
        "zoo.Keeper.feed(Animal)\n@Deprecated\npublic Animal feed(Animal animal) {\n    /* said twice */\n    return animal;\n}"
    )
    assert (lock.sentence, lock.code) == (
        "Locks every door of the house.",
        "zoo.Keeper.lock()\nabstract void lock();",
    )


@pytest.mark.parametrize(
    ("comment", "sentence"),
    [
        (
            "/** Reads {@code List<String>} and {@link Map#get(Object)}. More. */",
            "Reads List<String> and Map.get(Object).",
        ),
        ("/**\n * A <b>bold</b>\n * word &lt; two.\n */", "A bold word < two."),
        ("/**\n * <p>First paragraph\n * <p>\n * second. Third.\n */", "First paragraph"),
        ("/**\n * No stop\n * @return 5. Five.\n */", "No stop"),
        ("/** {@literal {x}} and {@link #size}{@inheritDoc} stay. */", "{x} and size stay."),
        ("/**\n * @param x alone\n */", None),
        ("/** */", None),
    ],
)
def test_the_first_sentence_of_javadoc_is_plain_words(comment, sentence):
    found = split_javadoc(f"{comment}\nint f() {{\n    return 1;\n}}")
    assert found == (sentence and (sentence, "int f() {\n    return 1;\n}"))


def _package(name: str, java: bool, right: float) -> tuple[Package, np.ndarray]:
    """Eight functions and a feature that is `right` for the function of the question."""
    functions = [Function(f"{name}.f{place}", "", "") for place in range(8)]
    return Package(name, functions, [f"m{place // 2}" for place in range(8)], java), right * np.eye(8)


def test_java_takes_its_weights_from_all_other_packages_and_changes_nothing_about_python():
    made = [_package("j", True, -1), _package("k", True, -1), _package("a", False, 1), _package("b", False, 1)]
    found = Questions([package for package, _ in made])
    assert [one.name for one in found.packages] == ["a", "b", "j", "k"]
    score = {package.name: score for package, score in made}
    found.add([{"x": score[one.name]} for one in found.packages])
    python = Questions([package for package, _ in made[2:]])
    python.add([{"x": score["a"]}, {"x": score["b"]}])
    logit = found.logit(["x"])
    assert logit[:16].tolist() == python.logit(["x"]).tolist() == [1.0] * 16
    assert logit[16:].tolist() == [8.0] * 16  # two of the three others say that the feature helps
    tables = found.tables({"x": [logit, np.ones(32)]}, {"base": np.ones(32)})
    mrr = {part: rows["x"]["mrr"] for part, rows in tables.items()}
    assert mrr == pytest.approx({"rows": 1.0, "rows_java": 0.5625, "rows_all": 0.78125})
    assert tables["rows_java"]["x"]["mrr_by_package"].keys() == {"j", "k"}
    assert python.tables({"x": [logit[:16]]}, {}).keys() == {"rows"}


def test_an_encoder_of_code_is_read_as_its_readme_says(tmp_path):
    """In the mode of an encoder, and as the mean of all states; one at a time as all together."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoModel, PreTrainedTokenizerFast, RobertaConfig, RobertaModel

    texts = ["opens a door", "closes it", "f opens", "g closes it"]
    names = ["<s>", "<pad>", "</s>", "<unk>", CODE_MODE, *dict.fromkeys(" ".join(texts).split())]
    words = Tokenizer(models.WordLevel({name: place for place, name in enumerate(names)}, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(tmp_path)
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    RobertaModel(RobertaConfig(vocab_size=len(names), pad_token_id=1, **size)).save_pretrained(tmp_path)
    package = Package("m", [Function("m.f", texts[0], texts[2]), Function("m.g", texts[1], texts[3])], ["m", "m"])
    [found] = of_code_encoder(tmp_path, [package])

    model = AutoModel.from_pretrained(tmp_path).eval()
    ids = [[0, 4, 2, *(names.index(word) for word in text.split()), 2] for text in texts]
    width = max(map(len, ids))
    padded = torch.tensor([[*each, *[1] * (width - len(each))] for each in ids])
    with torch.no_grad():
        states = model(padded, attention_mask=(padded != 1).long()).last_hidden_state
    means = torch.stack([state[: len(each)].mean(0) for state, each in zip(states, ids, strict=True)])
    expected = torch.nn.functional.cosine_similarity(means[:2, None], means[None, 2:], dim=-1)
    assert np.abs(found - expected.numpy()).max() < 1e-5
