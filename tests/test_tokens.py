"""Tokeniser, tokens and blocks, held against decoding, plain byte counts and slow loops."""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.reservoir.blocks import TokenBlocks, bits_per_byte
from helpers.reservoir.sample import sample_stories
from helpers.reservoir.tokens import (
    END_OF_TEXT,
    load_tokenizer,
    token_bytes,
    tokens_of,
    trim_vocabulary,
)

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[1]
GPT2_FILES = Path("/work/shared/data/gpt2_bpe")
STORIES = sample_stories(100, seed=0)
ODD_TEXTS = [
    "“Café” – 你好 🦊\n\ttabs  and   spaces\r\n",
    f"a {END_OF_TEXT} that is only text",
    "ﬁ é e\u0301 \x00 \u2028",
]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("train", STORIES, 500)[0]


def encode(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]


# ---- tokeniser


def test_trained_tokenizer_has_the_asked_size_and_one_special_token(tokenizer):
    assert len(tokenizer) == 500
    assert tokenizer.all_special_tokens == [END_OF_TEXT]
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == tokenizer.bos_token_id


@pytest.mark.parametrize("text", [*STORIES[:5], *ODD_TEXTS])
def test_trained_tokenizer_gives_back_any_text(tokenizer, text):
    assert tokenizer.decode(encode(tokenizer, text)) == text


@pytest.mark.parametrize("text", [*STORIES[:5], *ODD_TEXTS])
def test_bytes_of_the_tokens_are_the_bytes_of_the_text(tokenizer, text):
    assert token_bytes(tokenizer)[encode(tokenizer, text)].sum() == len(text.encode())


def test_end_of_text_stands_for_no_bytes_and_every_other_token_for_some(tokenizer):
    lengths = token_bytes(tokenizer)
    assert lengths.dtype == np.int64
    assert lengths.shape == (500,)
    assert np.flatnonzero(lengths == 0).tolist() == [tokenizer.eos_token_id]


def test_bytes_of_a_tokenizer_that_is_not_byte_level_are_refused():
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(ValueError, match="byte-level"):
        token_bytes(PreTrainedTokenizerFast(tokenizer_object=backend))


def test_training_is_the_same_in_another_process(tokenizer):
    code = "from helpers.reservoir.sample import sample_stories as s;from helpers.reservoir.tokens import load_tokenizer as l;"
    code += "print(l('train', s(100, 0), 500)[0].backend_tokenizer.to_str(), end='')"
    other = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "3"},
        check=True,
        capture_output=True,
        encoding="utf-8",
    )
    fresh = load_tokenizer("train", STORIES, 500)[0]
    assert other.stdout == fresh.backend_tokenizer.to_str()


def test_gpt2_out_of_reach_falls_back_to_training_and_says_so(tmp_path):
    code = "from helpers.reservoir.sample import sample_stories as s;"
    code += "from helpers.reservoir.tokens import load_tokenizer as l;"
    code += "t, reason = l('gpt2', s(100, 0), 500); print(len(t)); print(reason)"
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    start = time.monotonic()
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    )
    assert time.monotonic() - start < 45
    size, reason = run.stdout.splitlines()
    assert size == "500"
    assert "openai-community/gpt2 cannot be loaded" in reason
    assert "trained on the stories instead" in reason


def test_gpt2_behind_a_dead_endpoint_falls_back_without_the_hub_retries(tmp_path):
    code = (
        "import time, transformers;from helpers.reservoir.tokens import load_tokenizer as l;start = time.monotonic();"
    )
    code += "reason = l('gpt2', ['a b'], 300)[1]; print(time.monotonic() - start, reason)"
    environment = {key: value for key, value in os.environ.items() if "HUB_OFFLINE" not in key}
    environment |= {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "NO_PROXY": "127.0.0.1"}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    )
    seconds, reason = run.stdout.split(maxsplit=1)
    assert float(seconds) < 15
    assert "cannot be loaded" in reason


def test_local_tokenizer_is_loaded_from_its_path(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded, reason = load_tokenizer(str(tmp_path), [], 0)
    assert str(tmp_path) in reason
    assert encode(loaded, STORIES[0]) == encode(tokenizer, STORIES[0])
    assert (token_bytes(loaded) == token_bytes(tokenizer)).all()


@pytest.mark.skipif(not GPT2_FILES.exists(), reason="optional: a copy of GPT-2's vocabulary")
def test_bytes_of_gpt2_tokens_are_the_bytes_of_the_text():
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    backend = ByteLevelBPETokenizer(str(GPT2_FILES / "gpt2_vocab.json"), str(GPT2_FILES / "gpt2_merges.txt"))
    gpt2 = PreTrainedTokenizerFast(tokenizer_object=backend._tokenizer, eos_token=END_OF_TEXT)
    assert gpt2.eos_token_id == 50256
    lengths = token_bytes(gpt2)
    for text in [*STORIES, *ODD_TEXTS]:
        assert lengths[encode(gpt2, text)].sum() == len(text.encode())


# ---- trimmed tokeniser


def pieces(tokenizer, text: str) -> list[str]:
    return tokenizer.convert_ids_to_tokens(encode(tokenizer, text))


def merges(tokenizer) -> list[tuple[str, str]]:
    return [tuple(pair) for pair in json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]]


@pytest.fixture(scope="module")
def trimmed(tokenizer):
    """Restricted to what the first of a hundred stories uses."""
    return trim_vocabulary(tokenizer, STORIES[:1])[0]


def test_trimmed_tokenizer_gives_its_story_the_same_tokens(tokenizer, trimmed):
    assert len(trimmed) < len(tokenizer) - 50
    story = STORIES[0]
    assert pieces(trimmed, story) == pieces(tokenizer, story)


def test_trimmed_tokenizer_keeps_what_is_used_what_makes_it_and_nothing_else(tokenizer, trimmed):
    used = set(pieces(tokenizer, STORIES[0]))
    bytes_and_end = {token for token, length in zip(*vocabulary_and_bytes(tokenizer), strict=True) if length < 2}
    assert len(bytes_and_end) == 257
    kept = trimmed.get_vocab()
    assert kept.keys() >= used | bytes_and_end
    makes = [(left, right) for left, right in merges(tokenizer) if left + right in kept]
    assert merges(trimmed) == makes
    assert kept.keys() == used | bytes_and_end | {part for pair in makes for part in pair}


def vocabulary_and_bytes(tokenizer) -> tuple[list[str], np.ndarray]:
    return tokenizer.convert_ids_to_tokens(range(len(tokenizer))), token_bytes(tokenizer)


def test_trimmed_ids_have_no_gap_and_the_old_order(tokenizer, trimmed):
    old_ids = tokenizer.convert_tokens_to_ids(trimmed.convert_ids_to_tokens(range(len(trimmed))))
    assert old_ids == sorted(set(old_ids))
    assert (token_bytes(trimmed) == token_bytes(tokenizer)[old_ids]).all()


@pytest.mark.parametrize("text", [*STORIES[50:55], *ODD_TEXTS])
def test_trimmed_tokenizer_gives_back_any_text_without_an_unknown_token(tokenizer, trimmed, text):
    ids = encode(trimmed, text)
    assert trimmed.decode(ids) == text
    assert trimmed.unk_token_id not in ids
    assert len(ids) >= len(encode(tokenizer, text))


def test_trimmed_tokenizer_reads_end_of_text_as_the_same_special_token(tokenizer, trimmed):
    assert trimmed.special_tokens_map == tokenizer.special_tokens_map
    assert trimmed.all_special_tokens == [END_OF_TEXT]
    assert trimmed(f"a{END_OF_TEXT}")["input_ids"] == [*encode(trimmed, "a"), trimmed.eos_token_id]


def test_trimming_reads_all_of_many_stories(tokenizer):
    stories = [*sample_stories(20, seed=3), *[STORIES[0]] * 1500, STORIES[1]]
    assert merges(trim_vocabulary(tokenizer, stories)[0]) == merges(trim_vocabulary(tokenizer, [*set(stories)])[0])


def test_trimming_a_tokenizer_to_the_stories_it_was_trained_on_changes_nothing(tokenizer):
    assert trim_vocabulary(tokenizer, STORIES)[0].backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


def test_trimming_keeps_every_way_to_merge_a_token():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*alphabet, END_OF_TEXT, "ab", "abc", "bc", "xy"])}
    backend = Tokenizer(models.BPE(vocabulary, [("a", "b"), ("ab", "c"), ("b", "c"), ("a", "bc"), ("x", "y")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    two_ways = trim_vocabulary(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END_OF_TEXT), ["abc"])[0]
    assert [pieces(two_ways, text) for text in ("abc", "ab", "bc", "xy")] == [["abc"], ["ab"], ["bc"], ["x", "y"]]


def test_added_tokens_stay_where_they_are_special_or_used(tokenizer):
    from transformers import PreTrainedTokenizerFast

    more = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, **tokenizer.special_tokens_map)
    more.add_tokens(["wordone", "wordtwo"])
    more.add_special_tokens({"extra_special_tokens": ["<|user|>"]})
    less = trim_vocabulary(more, ["say wordtwo"])[0]
    assert less.all_special_tokens == more.all_special_tokens == [END_OF_TEXT, "<|user|>"]
    assert less.convert_ids_to_tokens([len(less) - 2, len(less) - 1]) == ["wordtwo", "<|user|>"]
    assert pieces(less, "say wordtwo") == pieces(more, "say wordtwo")
    assert "wordone" not in less.get_vocab()
    assert less.decode(encode(less, "say wordone")) == "say wordone"


@pytest.mark.parametrize("kind", ["template", "roberta"])
def test_trimmed_tokenizer_adds_no_special_tokens_which_are_not_trained_on(tokenizer, kind):
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    named = {"eos_token": END_OF_TEXT, "cls_token": "<|start|>"}
    adding = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, **named)
    start, end = ("<|start|>", adding.cls_token_id), (END_OF_TEXT, adding.eos_token_id)
    adding.backend_tokenizer.post_processor = (
        processors.TemplateProcessing(single=f"<|start|> $A {END_OF_TEXT}", special_tokens=[start, end])
        if kind == "template"
        else processors.Sequence([processors.RobertaProcessing(end, start)])
    )
    less = trim_vocabulary(adding, STORIES[:1])[0]
    assert less.cls_token_id < adding.cls_token_id
    assert adding(STORIES[0])["input_ids"][0] == adding.cls_token_id
    assert less(STORIES[0])["input_ids"] == encode(less, STORIES[0])


def test_trimmed_tokenizer_is_loaded_from_its_path_and_gives_the_same_tokens(trimmed, tmp_path):
    from transformers import AutoTokenizer

    trimmed.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == trimmed.get_vocab()
    assert np.array_equal(tokens_of(STORIES, loaded), tokens_of(STORIES, trimmed))


def test_padding_before_trimming_leaves_nothing_behind(tokenizer, trimmed):
    tokenizer(STORIES[:3], padding="max_length", truncation=True, max_length=32)
    assert tokenizer.backend_tokenizer.padding
    assert trim_vocabulary(tokenizer, STORIES[:1])[0].backend_tokenizer.to_str() == trimmed.backend_tokenizer.to_str()


def test_tokenizer_of_a_path_is_trimmed_when_asked(tokenizer, trimmed, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded, reason = load_tokenizer(str(tmp_path), STORIES[:1], 0, trim=True)
    assert loaded.get_vocab() == trimmed.get_vocab()
    assert f"500 entries; trimmed to {len(trimmed)}" in reason
    assert len(load_tokenizer("train", STORIES, 500, trim=True)[0]) == 500


def test_trimming_what_is_not_byte_level_is_refused():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = {token: index for index, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    few = {token: index for index, token in enumerate("abc")}
    for model, decoder in (
        (models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"), decoders.WordPiece()),
        (models.WordLevel(alphabet, unk_token="a"), decoders.ByteLevel()),
        (models.BPE(alphabet, [], end_of_word_suffix="</w>"), decoders.ByteLevel()),
        (models.BPE(few, []), decoders.ByteLevel()),
    ):
        backend = Tokenizer(model)
        backend.decoder = decoder
        with pytest.raises(ValueError, match="byte-level BPE"):
            trim_vocabulary(PreTrainedTokenizerFast(tokenizer_object=backend), STORIES)


# ---- tokens


def test_tokens_are_each_story_and_then_end_of_text(tokenizer):
    expected = [token for story in STORIES for token in [*encode(tokenizer, story), tokenizer.eos_token_id]]
    tokens = tokens_of(STORIES, tokenizer)
    assert (tokens.tolist(), tokens.dtype) == (expected, np.uint16)


def test_tokens_are_of_all_of_many_stories(tokenizer):
    stories = [*sample_stories(20, seed=3), *[STORIES[0]] * 1500, STORIES[1]]
    expected = np.concatenate([tokens_of([story], tokenizer) for story in stories])
    assert np.array_equal(tokens_of(stories, tokenizer), expected)


def test_large_vocabulary_takes_uint32(tokenizer):
    from transformers import PreTrainedTokenizerFast

    large = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, eos_token=END_OF_TEXT)
    large.add_tokens([f"wordnumber{number}" for number in range(65536)])
    tokens = tokens_of(["wordnumber65535"], large)
    assert tokens.tolist() == [66035, large.eos_token_id]
    assert tokens.dtype == np.uint32


def test_end_of_text_inside_a_story_does_not_end_it(tokenizer):
    tokens = tokens_of([ODD_TEXTS[1]], tokenizer)
    assert np.flatnonzero(tokens == tokenizer.eos_token_id).tolist() == [len(tokens) - 1]
    assert token_bytes(tokenizer)[tokens].sum() == len(ODD_TEXTS[1].encode())
    assert tokenizer(END_OF_TEXT)["input_ids"] == [tokenizer.eos_token_id]


def test_padding_of_an_earlier_call_is_no_token(tokenizer):
    first = tokens_of(STORIES, tokenizer)
    tokenizer(STORIES[:3], padding="max_length", truncation=True, max_length=32)
    assert np.array_equal(tokens_of(STORIES, tokenizer), first)


# ---- blocks


@pytest.fixture(scope="module")
def tokens(tokenizer):
    return tokens_of(STORIES, tokenizer)


def test_blocks_are_the_tokens_in_order_without_the_tail(tokens):
    blocks = TokenBlocks(tokens, 32)
    expected = tokens[: len(tokens) // 32 * 32].tolist()
    assert [token for block in blocks for token in block["input_ids"].tolist()] == expected


def test_block_has_long_inputs_and_equal_labels_of_its_own(tokens):
    block = TokenBlocks(tokens, 32)[-1]
    assert block["input_ids"].dtype == block["labels"].dtype == torch.int64
    assert block["input_ids"].shape == (32,)
    assert torch.equal(block["input_ids"], block["labels"])
    block["labels"][0] = -100
    assert block["input_ids"][0] != -100


def test_count_is_trimmed_to_whole_batches(tokens):
    assert len(TokenBlocks(tokens, 32, max_blocks=30)) == 30
    assert len(TokenBlocks(tokens, 32, max_blocks=30, multiple_of=8)) == 24


def test_no_block_left_names_the_sizes_and_the_remedy(tokens):
    with pytest.raises(ValueError, match=rf"sequence_length=32, batch_size=64.*{len(tokens)} tokens.*use more"):
        TokenBlocks(tokens, 32, max_blocks=30, multiple_of=64)


def test_block_beyond_the_end_is_an_index_error(tokens):
    blocks = TokenBlocks(tokens, 32)
    with pytest.raises(IndexError):
        blocks[len(blocks)]


def test_two_workers_read_what_the_process_itself_reads(tokens):
    blocks = TokenBlocks(tokens, 32, max_blocks=16)
    _ = blocks[0]
    here, there = (
        torch.cat(
            [batch["input_ids"] for batch in torch.utils.data.DataLoader(blocks, batch_size=4, num_workers=count)]
        )
        for count in (0, 2)
    )
    assert torch.equal(here, there)


def test_bits_per_byte_are_per_byte_of_all_tokens_but_the_first_of_each_block(tokenizer, tokens):
    blocks = TokenBlocks(tokens, 32)
    pieces = tokenizer.backend_tokenizer
    slow = sum(
        len(pieces.decode([token], skip_special_tokens=True).encode())
        for block in blocks
        for token in block["input_ids"].tolist()[1:]
    )
    assert all(story.isascii() for story in STORIES)  # so that every token decodes by itself
    expected = 2.0 / math.log(2) * 31 * len(blocks) / slow
    assert bits_per_byte(2.0, blocks, token_bytes(tokenizer)) == pytest.approx(expected, rel=1e-12)


def test_uniform_guess_over_256_bytes_costs_8_bits_per_byte():
    """One token a byte and a loss of ln 256: 8 bits a byte, and the end-of-text tokens on top."""
    tokenizer = load_tokenizer("train", [], 257)[0]
    blocks = TokenBlocks(tokens_of(STORIES, tokenizer), 50)
    predicted = blocks.ids_BT[:, 1:]
    texts = int((predicted != tokenizer.eos_token_id).sum())
    expected = 8 * predicted.size / texts
    assert bits_per_byte(math.log(256), blocks, token_bytes(tokenizer)) == pytest.approx(expected, rel=1e-12)
