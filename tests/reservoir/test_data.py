"""From files to texts, tokens and blocks: nothing of the user's is lost, and what is done with it is said."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from helpers.data import hub
from helpers.reservoir.data import (
    END_OF_TEXT,
    REVISIONS,
    TokenBlocks,
    cooccurrence_codes,
    load_texts,
    separated,
    token_bytes,
    tokens_of,
    train_tokenizer,
)
from helpers.reservoir.sample import sample_stories

from .test_model import END, V, made

TEXTS = [f"Text number {n} is about a {'frog' if n % 2 else 'boat'}.\nIt has two lines." for n in range(60)]


def written(tmp_path, text: str, name: str = "own.txt") -> str:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def all_of(texts) -> list[str]:
    return [*texts.train, *texts.dev, *texts.test]


@pytest.mark.parametrize("between", [f"\n{END_OF_TEXT}\n", "\n\n", "\n \n\n"])
def test_every_text_of_a_file_is_in_one_of_three_parts(tmp_path, between):
    texts = load_texts(written(tmp_path, between.join([*TEXTS, TEXTS[0]])), num_texts=0, seed=0)
    assert sorted(all_of(texts)) == sorted(TEXTS)
    assert len(texts.dev) == len(texts.test) == 5 and "repeated texts left out: 1" in texts.how


def test_one_marker_in_a_large_file_does_not_separate_it():
    paragraphs = [f"{text} {'word ' * 100}" for text in TEXTS]
    paragraphs[30] += f" {END_OF_TEXT} "
    found, how = separated("\n\n".join(paragraphs))
    assert len([text for text in found if text.strip()]) == 60 and not any(END_OF_TEXT in text for text in found)
    assert "separated by blank lines, not by the 1 `<|endoftext|>`" in how


def test_a_file_with_a_text_a_line_is_separated_by_line_ends():
    found, how = separated("\n".join(f"line {n}" for n in range(80)))
    assert len(found) == 80 and how == "separated by line ends"


def test_a_long_text_is_split_and_no_word_is_lost(tmp_path):
    long = " ".join(f"word{n}." for n in range(20_000))
    texts = load_texts(written(tmp_path, "\n\n".join([*TEXTS * 20, long])), num_texts=0, seed=0)
    pieces = [text for text in all_of(texts) if text.startswith("word")]
    assert "long texts split: 1" in texts.how and max(map(len, pieces)) <= 20_000
    assert sorted(" ".join(pieces).split()) == sorted(long.split())


def test_too_few_texts_are_refused_with_the_number_that_is_missing(tmp_path):
    with pytest.raises(ValueError, match=r"12 different texts .*; at least 30 are needed, so add 18"):
        load_texts(written(tmp_path, "\n\n".join(TEXTS[:12])), num_texts=0, seed=0)


def test_a_draw_is_the_same_for_the_same_seed_and_its_digest_says_so(tmp_path):
    path = written(tmp_path, "\n".join(json.dumps({"text": text}) for text in TEXTS), "own.jsonl")
    first, again, other = (load_texts(path, num_texts=40, seed=seed) for seed in (1, 1, 2))
    assert first == again and len(all_of(first)) == 40
    assert first.sha256 != other.sha256 and "own.jsonl" in first.source


def test_a_file_without_a_column_of_texts_names_those_that_it_has(tmp_path):
    path = written(tmp_path, json.dumps({"body": "x", "label": 1}), "own.jsonl")
    with pytest.raises(ValueError, match="no column `text` or `story`; columns found: body, label"):
        load_texts(path, num_texts=0, seed=0)


def test_a_data_set_of_the_hub_is_known_by_its_id_and_revision(monkeypatch):
    import datasets

    asked = []

    def splits(name, **options):
        asked.append((name, options))
        return datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": TEXTS})})

    monkeypatch.setattr(hub, "splits", splits)
    ((name, revision),) = REVISIONS.items()
    texts = load_texts(name, num_texts=50, seed=0)
    assert asked == [(name, {"revision": revision})]
    assert texts.source.startswith(f"{name}@{revision}, 50 texts") and len(all_of(texts)) == 50


def test_the_sample_holds_hundreds_of_different_stories_of_many_words():
    stories = sample_stories()
    assert len({*stories}) == len(stories) >= 200
    assert len({word for story in stories for word in story.lower().split()}) > 1000
    assert not any("{" in story or "  " in story for story in stories)


def test_tokens_stand_for_all_bytes_of_any_text():
    texts = ["Zürich & Co. §5 = 100%", "木が一本あります。", f"it says {END_OF_TEXT} here"]
    tokenizer, reason = train_tokenizer(sample_stories()[:50] + texts)
    tokens = tokens_of(texts, tokenizer)
    assert tokenizer.decode(tokens).split(END_OF_TEXT)[:2] == texts[:2] and "entries" in reason
    assert np.sum(tokens == tokenizer.eos_token_id) == 3  # one that a text spells out is no end
    assert token_bytes(tokenizer)[tokens].sum() == sum(len(text.encode()) for text in texts)


def test_the_vocabulary_grows_with_the_text():
    words = [f"{story} word{n}" for n in range(20) for story in sample_stories()]
    sizes = [len(train_tokenizer(texts)[0]) for texts in (words[:20], words)]
    assert sizes[0] == 512 < sizes[1]


def test_tokens_with_the_same_neighbours_have_near_codes():
    random = np.random.default_rng(0)
    # 1 and 2 stand between 3 and 4; 5 and 6 between 7 and 8; 9 never occurs.
    frames = [(3, 1, 4), (3, 2, 4), (7, 5, 8), (7, 6, 8)]
    tokens = np.concatenate([frames[random.integers(4)] for _ in range(2000)])
    codes = cooccurrence_codes(tokens, 10, 4, seed=0)
    near = torch.nn.functional.cosine_similarity
    assert near(codes[1], codes[2], dim=0) > 0.95 > near(codes[1], codes[5], dim=0)
    assert torch.equal(codes[9], torch.zeros(4))
    torch.testing.assert_close(codes[:9].square().mean(1)[1:], torch.ones(8), atol=1e-4, rtol=0)


def stream(count: int = 40) -> np.ndarray:
    random = np.random.default_rng(0)
    return np.concatenate([[*random.integers(1, V, random.integers(5, 30)), END] for _ in range(count)])


@pytest.mark.parametrize("cut", [0, 600])
def test_blocks_predict_every_token_of_the_text_once(cut):
    tokens = np.concatenate((stream(), np.ones(cut, dtype=int)))  # a long last text whose end is cut off
    blocks = TokenBlocks(tokens, END, length=16, multiple_of=8)
    predicted = np.zeros(len(tokens), dtype=int)
    for start, size, row in zip(blocks.starts, blocks.sizes, blocks.ids_BT, strict=True):
        predicted[start : start + size - 1] += 1
        assert np.array_equal(row[1:size], tokens[start : start + size - 1])
    assert (predicted == 1).all() and len(blocks) % 8 == 0
    last = max(range(len(blocks.sizes)), key=lambda place: 16 - blocks.sizes[place])
    assert (blocks[last]["labels"][blocks.sizes[last] :] == -100).all()


def test_the_state_before_a_block_is_that_of_its_text_read_alone():
    model, tokens = made(), stream()
    blocks = TokenBlocks(tokens, END, length=16).read_states(model)
    for place in range(0, len(blocks), 7):
        before = tokens[: blocks.starts[place]]  # the block begins with the last of them
        begin = int(np.flatnonzero(np.concatenate(([END], before[:-1])) == END)[-1]) if len(before) else 0
        text = torch.from_numpy(before[begin:-1].astype(np.int64))[None]
        expected = model.read(text)[-1] if text.numel() else torch.zeros(1, 34)
        torch.testing.assert_close(
            torch.from_numpy(blocks.states_BS[place].copy())[None], expected, atol=1e-5, rtol=1e-4
        )


def test_a_run_that_is_shorter_than_a_pass_reads_the_beginning_of_every_row():
    few = TokenBlocks(stream(400), END, length=16, most=60)
    assert 60 <= len(few) < 120 and {*few.rows} == {*range(max(few.rows) + 1)}
