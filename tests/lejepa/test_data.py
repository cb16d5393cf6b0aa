"""Collections from files, folders and hub sets: what is searchable, what trains, and what chooses and tests."""

import json

import pytest

from helpers.lejepa import data, sample

pytestmark = pytest.mark.once

WORDS = ["amber", "basil", "cedar", "delta", "ember", "fjord", "grove", "heath", "islet", "jetty", "knoll", "ledge"]


def write(folder, **files):
    for name, text in files.items():
        path = folder / name.replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if isinstance(text, str) else "\n".join(map(json.dumps, text)), encoding="utf-8")
    return str(folder)


def rows(count, **columns):
    return [{name: text.format(n=n, word=WORDS[n % 12]) for name, text in columns.items()} for n in range(count)]


def owners(questions):
    return {name for question in questions for name in question.answers}


def text_of(collection):
    return "\n".join(passage.text for passage in collection.passages)


@pytest.fixture
def pages(tmp_path):
    """Thirty Markdown files of two sections each, one of them long, and a text file with a title."""
    for n in range(30):
        long = " ".join(f"w{n}x{i}." if i % 20 == 19 else f"w{n}x{i}" for i in range(400))
        text = f"# Page {n} of {WORDS[n % 12]}\nIntroduction {n}.\n\n## Part about {WORDS[-1 - n % 12]} {n}\n{long}\n"
        (tmp_path / f"page{n}.md").write_text(text)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "note.txt").write_text("A title of a note\n\nThe body of the note is here.")
    return tmp_path


# ---- folders


def test_every_word_of_a_folder_is_searchable_whatever_num_samples_says(pages):
    few, all_ = data.load(str(pages), num_samples=2), data.load(str(pages))
    assert few.passages == all_.passages and len(few.training) == 2 < len(all_.training)
    found = text_of(few)
    for n in range(30):
        assert all(f"w{n}x{i}" in found for i in range(400)) and f"Introduction {n}." in found
    assert "The body of the note is here." in found


def test_passages_are_short_end_at_sentences_and_keep_the_headings_above_them(pages):
    collection = data.load(str(pages))
    long = [passage for passage in collection.passages if passage.document == "page3.md"]
    assert [passage.heading for passage in long] == ["Page 3 of delta"] + 3 * ["Page 3 of delta: Part about islet 3"]
    assert all(len(passage.body.split()) <= data.PASSAGE_WORDS and passage.body.endswith(".") for passage in long)
    [note] = [passage for passage in collection.passages if passage.document == "sub/note.txt"]
    assert (note.heading, note.body) == ("A title of a note", "The body of the note is here.")


def test_headings_of_documents_that_choose_or_test_do_not_train(pages):
    collection = data.load(str(pages), seed=1)
    assert collection.kind == "headings" and collection.dev and collection.test
    held = owners(collection.dev) | owners(collection.test)
    assert not owners(collection.dev) & owners(collection.test)
    bodies = {passage.body for passage in collection.passages if passage.document in held}
    assert bodies and not bodies & {body for _, body in collection.training}
    assert data.load(str(pages), seed=1) == collection != data.load(str(pages), seed=2)


def test_a_heading_that_two_documents_have_is_no_question_and_a_comment_of_code_is_no_heading(tmp_path):
    for n in range(12):
        code = "```\n# not a heading\n```"
        (tmp_path / f"{n}.md").write_text(
            f"Text {n}.\n\n# The same heading\nBody {n}.\n{code}\n# Only in {WORDS[n]}\nMore {n}."
        )
    collection = data.load(str(tmp_path))
    asked = {question.text for question in collection.dev + collection.test}
    assert asked and all(text.startswith("Only in") for text in asked)
    assert {"", "The same heading"} < {passage.heading for passage in collection.passages}
    assert not any("not a heading" in passage.heading for passage in collection.passages)


def test_a_fence_that_is_never_closed_hides_no_text(tmp_path):
    for n in range(6):
        (tmp_path / f"{n}.md").write_text(f"# Head {n}\nBegin {n}\n# Next\n```\ncode {n}\n# after\nlast {n}")
    assert all(f"last {n}" in text_of(data.load(str(tmp_path))) for n in range(6))


# ---- rows and single files


def test_pairs_are_dealt_by_answers_and_equal_answers_are_one_document(tmp_path):
    questions = rows(100, anchor="question {n} about {word}", positive="answer {word}")
    questions[1]["anchor"] = "  Question 0   ABOUT amber"  # by case and white space the first one's
    collection = data.load(write(tmp_path, faq__jsonl=questions) + "/faq.jsonl")
    assert collection.kind == "pairs" and len(collection.passages) == 12
    asked = [text for text, _ in collection.training] + [question.text for question in collection.dev + collection.test]
    assert len({*asked}) == 99
    assert owners(collection.dev) and owners(collection.test)
    assert not owners(collection.dev) & owners(collection.test)
    answers = {passage.document: passage.body for passage in collection.passages}
    held = {answers[name] for name in owners(collection.dev + collection.test)}
    assert not held & {body for _, body in collection.training}


def test_titles_become_headings_and_leave_their_bodies(tmp_path):
    texts = rows(20, title="Title {n} of {word}", text="Title {n} of {word}. Body {n} of the text")
    collection = data.load(write(tmp_path, texts__jsonl=texts) + "/texts.jsonl")
    assert collection.passages[0] == data.Passage("row 1", "Title 0 of amber", "Body 0 of the text")
    assert collection.passages[0].text == "Title 0 of amber. Body 0 of the text"
    assert ("Title 5 of fjord", "Body 5 of the text") in collection.training + [
        (question.text, "Body 5 of the text") for question in collection.dev + collection.test
    ]


@pytest.mark.parametrize("between", ["\n\n", "\n"])
def test_a_text_file_is_parted_by_blank_lines_or_by_lines(tmp_path, between):
    texts = [f"Paragraph {n} tells of {word} and more." for n, word in enumerate(WORDS)]
    collection = data.load(write(tmp_path, notes__txt=between.join(texts)) + "/notes.txt")
    assert [passage.body for passage in collection.passages] == texts
    assert (collection.kind, collection.dev, collection.test) == ("none", [], [])
    assert sorted(body for _, body in collection.training) == sorted(texts)


def test_the_sample_is_of_docstrings_and_the_same_each_time():
    found = list(zip(range(40), sample.pairs(), strict=False))
    assert all(": " in anchor and len(answer.split()) >= sample.LEAST_WORDS for _, (anchor, answer) in found)
    assert found == list(zip(range(40), sample.pairs(), strict=False))


# ---- judged collections


def beir(folder, questions=12, splits=("test",)):
    corpus = [*rows(40, _id="d{n}", title="Title {n} of {word}", text="Body {n} of the text"), {"_id": "e", "text": ""}]
    asked = [{"_id": f"q{n}", "text": f"who knows {n}?"} for n in range(questions * len(splits))]
    write(folder, corpus__jsonl=corpus, queries__jsonl=asked)
    (folder / "qrels").mkdir(exist_ok=True)
    for place, split in enumerate(splits):
        lines = [f"q{place * questions + n}\td{n}\t{1 if n else 0}" for n in range(questions)]
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(lines))
    return str(folder)


def test_a_few_judged_questions_are_the_test_and_all_titles_train(tmp_path):
    collection = data.load(beir(tmp_path))
    assert (collection.kind, len(collection.test), collection.dev) == ("questions", 11, [])  # the score of one is 0
    assert len(collection.training) == 40 and ("Title 3 of delta", "Body 3 of the text") in collection.training
    assert len(collection.passages) == 40  # the empty document has nothing to search


def test_judged_splits_stay_apart_and_the_training_questions_train(tmp_path):
    folder = beir(tmp_path, splits=("train", "dev", "test"))
    (tmp_path / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td30\t1\nq2\td2\t1\nq3\td31\t2")
    collection = data.load(folder)
    assert [len(collection.dev), len(collection.test)] == [11, 11]
    held = owners(collection.dev) | owners(collection.test)
    assert "d2" in held
    assert sorted(collection.training) == [
        ("who knows 1?", "Body 30 of the text"),
        ("who knows 3?", "Body 31 of the text"),
    ]


def test_many_questions_in_one_split_are_dealt_among_training_dev_and_test():
    passages = {f"d{n}": [data.Passage(f"d{n}", "", f"body {n}")] for n in range(1000)}
    questions = [data.Question(f"question {n}", frozenset({f"d{n}"})) for n in range(1000)]
    collection = data._split(data._Found(passages, {"test": questions}), "x", 0, 0)
    assert [len(each) for each in (collection.training, collection.dev, collection.test)] == [800, 100, 100]
    assert collection.kind == "questions"


# ---- what a user can do wrong


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a__jsonl": [{"txt": "one"}]}, "columns found: txt. Name the columns `anchor` and `positive`"),
        ({"a__jsonl": [{"anchor": "one", "positive": ""}]}, "line 1 has an empty text; fill it in or remove the row"),
        ({"a__jsonl": [{"text": 3}]}, "column `text` holds a int, not text"),
        ({"a__jsonl": rows(1, text="text {n}")}, "1 different texts to train on; at least 2 are needed. Add documents"),
        ({"a__txt": "same\n" * 20}, "1 different texts to train on"),
        ({"a__pdf": "no"}, "cannot read .pdf; use .jsonl, .csv"),
    ],
)
def test_files_that_cannot_be_used_are_named_with_the_remedy(tmp_path, files, message):
    write(tmp_path, **files)
    path = tmp_path / next(iter(files)).replace("__", ".")
    with pytest.raises(ValueError, match=r"a\.(jsonl|txt|pdf)") as caught:
        data.load(str(path))
    assert message in str(caught.value)


def test_a_folder_without_documents_and_judgements_of_unknown_questions_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"0 different texts to train on.*in a folder they are \.md and \.txt files"):
        data.load(str(tmp_path))
    folder = beir(tmp_path)
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq99\td1\t1")
    with pytest.raises(ValueError, match="line 2: the query 'q99' is not in queries"):
        data.load(folder)
    (tmp_path / "latin.txt").write_bytes(b"\xe9" * 9)
    with pytest.raises(ValueError, match=r"latin.txt': not UTF-8"):
        data.load(str(tmp_path / "latin.txt"))
