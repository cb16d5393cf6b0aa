"""The tokeniser of code: what a token may hold, and that a name is the same tokens wherever it stands."""

import ast
import json
import re
import sysconfig
from pathlib import Path

import pytest

from helpers.graphmer.text.tokenizer import (
    MASK,
    PAD,
    SEP,
    break_tokens,
    encode,
    encodings,
    identifier_tokens,
    separator_tokens,
    train_tokenizer,
)

pytestmark = pytest.mark.once

SOURCES = [path.read_text() for path in sorted(Path(json.__file__).parent.glob("*.py"))]
SOURCES.append(Path(sysconfig.get_paths()["stdlib"], "argparse.py").read_text())


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(SOURCES, 1500)


def pieces(tokenizer, text: str) -> list[str]:
    (ids,) = encode(tokenizer, [text])
    return [tokenizer.decode([one]) for one in ids]


def test_special_tokens_are_the_first_three(tokenizer):
    assert tokenizer.convert_ids_to_tokens([PAD, MASK, SEP]) == ["[PAD]", "[MASK]", "[SEP]"]
    assert (tokenizer.pad_token_id, tokenizer.mask_token_id, tokenizer.sep_token_id) == (PAD, MASK, SEP)
    assert len(tokenizer) == 1500


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("parseHTTPResponse2", ["parse", "HTTP", "Response", "2"]),
        ("read_only_name", ["read", "_only", "_name"]),
        ("__init__", ["__init", "__"]),
        ("json.JSONEncoder.iter_encode", ["json", ".", "JSON", "Encoder", ".", "iter", "_encode"]),
        ("utf8_sig16", ["utf", "8", "_sig", "16"]),
        ("größteZahl", ["größte", "Zahl"]),
        ("    x = [1]\n", ["    ", "x", " = [", "1", "]", "\n"]),
    ],
)
def test_no_token_crosses_a_boundary_of_words(tokenizer, text, words):
    (tokens,) = encodings(tokenizer, [text])
    ends = {end for _, end in tokens.offsets}
    at = 0
    for word in words:
        at += len(word)
        assert at in ends, pieces(tokenizer, text)


def test_entries_of_the_vocabulary_are_of_letters_and_digits_or_have_none(tokenizer):
    for index in range(3, len(tokenizer)):
        text = tokenizer.decode([index])
        if text.isascii():
            assert re.fullmatch(r"\w+|[^\w]+", text), text
            assert text == "\n" or "\n" not in text
            assert not re.search(r"[a-z][A-Z]|[A-Za-z]\d|\d[A-Za-z]", text), text


@pytest.mark.parametrize("name", ["iterencode", "JSONDecodeError", "_add_action", "object_pairs_hook", "x"])
def test_a_name_has_the_same_tokens_wherever_it_stands(tokenizer, name):
    (alone,) = encode(tokenizer, [name])
    for context in ("{}", "a.{}(b)", "def {}(self):", "    return {}\n", "[{}, {}]", '"""{}."""', "x={}"):
        (ids,) = encode(tokenizer, [context.format(name, name)])
        assert any(ids[n : n + len(alone)] == alone for n in range(len(ids))), context


@pytest.mark.parametrize("text", [*SOURCES, "\tif x:\r\n  é = '—' # 漢字\n\n\n", "", " a  b\n \n c", "\x00\x7f\xa0"])
def test_decoding_gives_the_text_back(tokenizer, text):
    assert tokenizer.decode(encode(tokenizer, [text])[0]) == text


def test_the_same_texts_give_the_same_ids(tokenizer):
    assert train_tokenizer(SOURCES, 1500).get_vocab() == tokenizer.get_vocab()


def test_a_source_that_spells_out_a_special_token_is_text(tokenizer):
    assert not {PAD, MASK, SEP} & set(encode(tokenizer, ["x = '[MASK]' + '[PAD][SEP]'"])[0])


def test_lines_end_in_one_token_that_nothing_else_holds(tokenizer):
    ((newline,),) = encode(tokenizer, ["\n"])
    for text in SOURCES:
        assert encode(tokenizer, [text])[0].count(newline) == text.count("\n")


def test_runs_of_identifier_tokens_are_the_identifiers(tokenizer):
    words = identifier_tokens(tokenizer)
    for text in SOURCES:
        (ids,) = encode(tokenizer, [text])
        found, before = [], False
        for one in ids:
            if words[one]:
                found.append((found.pop() if before else "") + tokenizer.decode([one]))
            before = words[one]
        assert found == re.findall(r"\w+", text)


def test_names_of_code_are_few_tokens(tokenizer):
    names = {node.id for text in SOURCES for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    lengths = [len(ids) for ids in encode(tokenizer, sorted(names))]
    assert sum(length <= 7 for length in lengths) >= 0.97 * len(lengths)


def parts(tokenizer, text: str, ends: list[int]) -> list[str]:
    """The text cut at these tokens."""
    found = [""]
    for one in encode(tokenizer, [text])[0]:
        if one in ends:
            found.append("")
        else:
            found[-1] += tokenizer.decode([one])
    return found


def test_separators_stand_before_each_part_of_a_name(tokenizer):
    found = parts(tokenizer, "method a.Bc.<locals>.de(fg)", separator_tokens(tokenizer))
    assert [part.strip("<>") for part in found] == ["method", "a", "Bc", "locals", "de", "fg)"]


def test_breaks_are_what_no_path_has(tokenizer):
    found = parts(tokenizer, "method a.Bc.de(fg)\n", break_tokens(tokenizer))
    assert [part for part in found if part] == ["method", "a.Bc.de", "fg"]


def test_it_loads_as_it_was_saved(tokenizer, tmp_path):
    from transformers import AutoTokenizer

    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert encode(loaded, SOURCES) == encode(tokenizer, SOURCES)
    assert loaded("x = '[MASK]'", add_special_tokens=False)["input_ids"] == encode(tokenizer, ["x = '[MASK]'"])[0]


def test_too_small_a_vocabulary_and_no_text_are_refused():
    with pytest.raises(ValueError, match="vocab_size=258: must be at least 259"):
        train_tokenizer(SOURCES, 258)
    with pytest.raises(ValueError, match="texts: none"):
        train_tokenizer([], 300)
