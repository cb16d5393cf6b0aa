"""From files to texts, tokens and blocks: nothing of the user's is lost, and what is done with it is said."""

import json

import numpy as np
import pytest

from helpers.data import hub
from helpers.reservoir.data import (
    END_OF_TEXT,
    REVISIONS,
    SAMPLE,
    cooccurrence_codes,
    load_texts,
    separate,
    token_bytes,
    tokens_of,
    train_tokenizer,
)

STORIES = json.loads(SAMPLE.read_text())
TEXTS = [f"Text number {n} is about a {'frog' if n % 2 else 'boat'}.\nIt has two lines." for n in range(60)]


def written(tmp_path, text: str, name: str = "own.txt") -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def all_of(texts) -> list[str]:
    return [*texts.train, *texts.dev, *texts.test]


@pytest.mark.parametrize("between", [f"\n{END_OF_TEXT}\n", "\n\n", "\n \n\n"])
def test_every_text_of_a_file_is_in_one_of_three_parts(tmp_path, between):
    texts = load_texts(written(tmp_path, between.join([*TEXTS, TEXTS[0]])), num_texts=0, seed=0)
    assert sorted(all_of(texts)) == sorted(TEXTS)
    assert len(texts.dev) == len(texts.test) == 6 and texts.repeated == 1


def lines(count: int, what: str = "line") -> str:
    return "\n".join(f"{what} {n}" for n in range(count))


POEMS = [lines(12, f"verse of poem {n},") for n in range(25)]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (lines(80), 80),
        ("\n\n".join(POEMS), 25),
        ("\n \n\n".join(POEMS), 25),
        (END_OF_TEXT.join(f"{text}\n\nEnd of it." for text in TEXTS), 60),
        ("all in one line", 1),
    ],
)
def test_markers_separate_texts_else_blank_lines_else_line_ends(text, count):
    assert len(separate(text)) == count
    assert "".join("".join(separate(text)).split()) == "".join(text.replace(END_OF_TEXT, "").split())


def test_in_a_folder_each_file_is_a_text_and_others_are_named(tmp_path, capsys):
    for number, poem in enumerate(POEMS):
        written(tmp_path, poem, f"{number}.txt")
    written(tmp_path, "junk", ".hidden.txt")
    written(tmp_path, " \n", "nothing.txt")
    texts = load_texts(str(tmp_path), num_texts=0, seed=0)
    assert sorted(all_of(texts)) == sorted(POEMS)
    assert ".hidden.txt" in capsys.readouterr().out


def test_a_long_text_is_split_and_no_word_is_lost(tmp_path):
    long = " ".join(f"word{n}." for n in range(20_000))
    texts = load_texts(written(tmp_path, "\n\n".join([*TEXTS * 20, long])), num_texts=0, seed=0)
    pieces = [text for text in all_of(texts) if text.startswith("word")]
    assert len(pieces) > 1 and max(map(len, pieces)) <= 20_000
    assert sorted(" ".join(pieces).split()) == sorted(long.split())


def test_too_few_texts_are_refused_with_the_number_that_is_missing(tmp_path):
    with pytest.raises(ValueError, match=r"12 different texts; at least 20 are needed, so add 8"):
        load_texts(written(tmp_path, "\n\n".join(TEXTS[:12])), num_texts=0, seed=0)


def test_a_draw_is_the_same_for_the_same_seed_and_its_digest_says_so(tmp_path):
    path = written(tmp_path, "\n".join(json.dumps({"text": text}) for text in TEXTS), "own.jsonl")
    first, again, other = (load_texts(path, num_texts=40, seed=seed) for seed in (1, 1, 2))
    assert first == again and len(all_of(first)) == 40
    assert first.sha256 != other.sha256 and first.provenance["source"] == "own.jsonl"


def test_a_file_without_a_column_of_texts_names_those_that_it_has(tmp_path):
    path = written(tmp_path, json.dumps({"body": "x", "label": 1}), "own.jsonl")
    with pytest.raises(ValueError, match=r"no column `text` or `story` among \['body', 'label'\]"):
        load_texts(path, num_texts=0, seed=0)


def test_a_data_set_of_the_hub_is_known_by_its_id_and_revision(monkeypatch):
    import datasets

    calls = []

    def load_dataset(name, **options):
        calls.append((name, options))
        return datasets.Dataset.from_dict({"text": TEXTS})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(hub, "answers", lambda: True)
    ((name, revision),) = REVISIONS.items()
    texts = load_texts(name, num_texts=50, seed=0)
    assert calls == [(name, {"split": "train", "revision": revision})]
    assert (texts.name, texts.revision, texts.draw) == (name, revision, "50 texts, seed 0")


def test_tokens_stand_for_all_bytes_of_any_text():
    texts = ["Zürich & Co. §5 = 100%", "木が一本あります。", f"it says {END_OF_TEXT} here"]
    tokenizer, reason = train_tokenizer(STORIES[:50] + texts)
    tokens = tokens_of(texts, tokenizer)
    assert tokenizer.decode(tokens).split(END_OF_TEXT)[:2] == texts[:2] and "entries" in reason
    assert np.sum(tokens == tokenizer.eos_token_id) == 3  # one that a text spells out is no end
    assert token_bytes(tokenizer)[tokens].sum() == sum(len(text.encode()) for text in texts)


def test_the_vocabulary_grows_with_the_text():
    words = [f"{story} word{n}" for n in range(20) for story in STORIES]
    sizes = [len(train_tokenizer(texts)[0]) for texts in (words[:20], words)]
    assert sizes[0] == 512 < sizes[1]


def test_codes_are_those_of_a_slow_count_with_weights_by_distance():
    tokens, size = np.random.default_rng(0).integers(6, size=400) // 2 * 2 % 5, 3
    counts_VW = np.zeros((5, 10))
    for place, token in enumerate(tokens):
        for distance, other in enumerate(tokens[place + 1 : place + 4], start=1):
            counts_VW[token, other] += 1 / distance
            counts_VW[other, 5 + token] += 1 / distance
    seen = counts_VW.sum(1) > 0
    token_V1, context_W = counts_VW.sum(1, keepdims=True), counts_VW.sum(0) ** 0.75
    with np.errstate(divide="ignore", invalid="ignore"):
        information_VW = np.log(counts_VW * context_W.sum() / (token_V1 * context_W))
    left_VV, singular_V, _ = np.linalg.svd(np.maximum(np.nan_to_num(information_VW), 0))
    expected_VC = (left_VV[:, :size] * singular_V[:size] ** 0.5)[seen]
    expected_VC -= expected_VC.mean(0)
    expected_VC *= size**0.5 / np.linalg.norm(expected_VC, axis=1, keepdims=True)
    codes_VC = cooccurrence_codes(tokens, 5, size, seed=0).numpy()
    assert not seen.all() and not codes_VC[~seen].any()
    assert codes_VC[seen] @ codes_VC[seen].T == pytest.approx(expected_VC @ expected_VC.T, abs=1e-3)
