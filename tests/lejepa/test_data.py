"""Collections from files, folders and hub sets: what is searchable, what trains, and what chooses and tests."""

import json

import pytest

from helpers.data import words
from helpers.data.data_source import Place
from helpers.lejepa import data, documents
from helpers.lejepa.documents import Passage
from tests.harness import write

pytestmark = pytest.mark.once

WORDS = ["amber", "basil", "cedar", "delta", "ember", "fjord", "grove", "heath", "islet", "jetty", "knoll", "ledge"]


def rows(count, **columns):
    return [{name: text.format(n=n, word=WORDS[n % 12]) for name, text in columns.items()} for n in range(count)]


def loaded(folder, name, texts):
    """The collection of one file."""
    return data.load(str(write(folder, {name: texts}) / name))


def owners(questions):
    return {name for question in questions for name in question.answers}


def text_of(collection):
    return "\n".join(passage.text for passage in collection.passages)


@pytest.fixture
def pages(tmp_path):
    """Thirty Markdown files of two sections each, one of them long, and a text file with a title."""
    files = {"sub/note.txt": "A title of a note\n\nThe body of the note is here."}
    for n in range(30):
        long = " ".join(f"w{n}x{i}." if i % 20 == 19 else f"w{n}x{i}" for i in range(400))
        text = f"# Page {n} of {WORDS[n % 12]}\nIntroduction {n}.\n\n## Part about {WORDS[-1 - n % 12]} {n}\n{long}\n"
        files[f"page{n}.md"] = text
    return write(tmp_path, files)


# ---- folders


def test_every_word_of_a_folder_is_searchable_whatever_num_samples_is(pages):
    few, all_ = data.load(str(pages), num_samples=2), data.load(str(pages))
    assert few.passages == all_.passages and len(few.training) == 2 < len(all_.training)
    with pytest.raises(ValueError, match="set num_samples=0"):
        data.load(str(pages), num_samples=1)
    found = text_of(few)
    for n in range(30):
        assert all(f"w{n}x{i}" in found for i in range(400)) and f"Introduction {n}." in found
    assert "The body of the note is here." in found


def test_passages_are_short_end_at_sentences_and_keep_their_headings(pages):
    collection = data.load(str(pages))
    long = [passage for passage in collection.passages if passage.document == "page3.md"]
    assert [passage.heading for passage in long] == ["Page 3 of delta"] + 3 * ["Page 3 of delta: Part about islet 3"]
    assert all(len(passage.text.split()) <= data.PASSAGE_WORDS and passage.body.endswith(".") for passage in long)
    [note] = [passage for passage in collection.passages if passage.document == "sub/note.txt"]
    assert (note.heading, note.body) == ("A title of a note", "The body of the note is here.")


def test_headings_of_documents_that_choose_or_test_do_not_train(pages):
    collection = data.load(str(pages), seed=1)
    assert collection.kind == "headings" and collection.dev and collection.test
    held_out = owners(collection.dev) | owners(collection.test)
    assert not owners(collection.dev) & owners(collection.test) and collection.split.startswith("by answer")
    bodies = {passage.body for passage in collection.passages if passage.document in held_out}
    assert bodies and not bodies & {text for example in collection.training for text in example.texts}
    assert data.load(str(pages), seed=1) == collection != data.load(str(pages), seed=2)


def test_a_heading_of_two_documents_is_no_question_a_comment_no_heading(tmp_path):
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


def test_no_text_is_lost_to_an_open_fence_or_to_headings_without_a_text(tmp_path):
    for n in range(6):
        text = f"An intro {n}\n\n# Head {n}\n# Next {n}\n```\ncode {n}\n# after\nlast {n}\n## End {n}"
        (tmp_path / f"{n}.md").write_text(text)
    found = text_of(data.load(str(tmp_path)))
    assert all(f"{word} {n}" in found for n in range(6) for word in ("intro", "Head", "Next", "code", "last", "End"))


# ---- rows and single files


def test_where_answers_repeat_questions_are_divided_and_all_answers_train(tmp_path):
    questions = rows(240, question="question {n} about {word}", answer="answer {word}", agent="x")
    questions[13]["question"] = "  Question 1   ABOUT basil"  # by case and white space another one's
    collection = loaded(tmp_path, "faq.jsonl", questions)
    assert (collection.kind, len(collection.passages)) == ("past questions", 12)
    assert len(collection.past) + len(collection.dev) + len(collection.test) == 239
    assert len(collection.dev) == len(collection.test) == 47  # a fifth each
    assert owners(collection.past) == owners(collection.dev) == owners(collection.test)
    searched = collection.searched(collection.past)
    assert len(searched) == 12 + len(collection.past)
    assert searched[-1].text == collection.past[-1].text and searched[-1].shown.endswith(searched[-1].answer)
    example = collection.training[0]
    assert example.texts[0].startswith("answer") and all(
        text.endswith(example.texts[0][7:]) for text in example.texts[1:]
    )
    assert example.question not in example.texts and len(example.texts) > 5


def test_where_each_answer_has_one_question_answers_are_divided(tmp_path):
    questions = rows(100, anchor="question {n}", positive="answer {n} {word}")
    collection = loaded(tmp_path, "faq.jsonl", questions)
    assert collection.split.startswith("by answer")
    assert [len(part) for part in (collection.past, collection.dev, collection.test)] == [60, 20, 20]
    held_out = owners(collection.dev) | owners(collection.test)
    assert len(held_out) == 40 and not held_out & owners(collection.past)


@pytest.mark.parametrize("header", ["question,answer", "anchor;positive", "text\tcategory", "Query,Response"])
def test_past_questions_may_have_the_columns_of_other_tools(tmp_path, header):
    between = next(mark for mark in ",;\t" if mark in header)
    lines = [
        header,
        *(f"how to do {n}{between}in way {n % 5}" for n in range(40)),
        f"{between}an answer without a question",
    ]
    collection = loaded(tmp_path, "tickets.csv", "\n".join(lines))
    assert (collection.kind, len(collection.documents)) == ("past questions", 5)


def test_titles_become_headings_and_leave_their_bodies(tmp_path):
    texts = rows(20, id="t{n}", title="Title {n} of {word}", text="Title {n} of {word}. Body {n} of the text")
    collection = loaded(tmp_path, "texts.jsonl", texts)
    assert collection.passages[0] == Passage("t0", "Title 0 of amber", "Body 0 of the text")
    assert collection.passages[0].text == "Title 0 of amber. Body 0 of the text"


def test_the_sections_of_a_single_document_are_the_documents(tmp_path):
    collection = loaded(tmp_path, "notes.md", "\n".join(f"# About {word}\nText of {word}." for word in WORDS))
    assert [passage.document for passage in collection.passages] == [f"notes.md {n}" for n in range(1, 13)]
    assert collection.kind == "headings" and len(collection.dev) == len(collection.test) == 2


def test_judged_questions_of_a_hub_set_are_past_questions(tmp_path):
    """A local folder of three subsets, as datasets reads one of the hub."""
    corpus = rows(60, _id="d{n}", title="Title {n} of {word}", text="Body {n} of the text")
    asked = rows(61, _id="q{n}", text="who knows {n}?")
    judged = [{"query-id": f"q{n}", "corpus-id": f"d{n % 60}", "score": 1 if n else 0} for n in range(61)]
    judged.append({"query-id": "q1", "corpus-id": "gone", "score": 1})
    configs = [{"config_name": name, "data_files": f"{name}.jsonl"} for name in data.SUBSETS]
    files = dict(zip((f"{name}.jsonl" for name in data.SUBSETS), (corpus, asked, judged), strict=True))
    write(tmp_path, files | {"README.md": f"---\n{json.dumps({'configs': configs})}\n---\n"})
    texts = data._from_hub(Place(str(tmp_path), "x"))
    assert texts[:60:59] == [
        Passage(f"d{n}", f"Title {n} of {WORDS[n % 12]}", f"Body {n} of the text") for n in (0, 59)
    ]
    assert texts[60] == Passage("d1", "", "who knows 1?", answer=texts[1].text) and len(texts) == 60 + 60
    documents, questions, kind = data._content(texts)
    assert (documents, len(questions), kind) == (texts[:60], 60, "past questions")


# ---- what a user can do wrong


@pytest.mark.parametrize(
    ("suffix", "text", "message"),
    [
        ("jsonl", [{"txt": "one"}], "among ['txt']; name the columns `question` and `answer`"),
        ("jsonl", [{"anchor": "one", "positive": ""}], "column `positive` is empty"),
        ("jsonl", [{"text": [3]}], "column `text` holds a list and not text"),
        ("jsonl", rows(1, text="text {n}"), "only 1 of at least 2 texts to train on. Add documents"),
        ("txt", "same\n" * 20, "only 1 of at least 2 texts"),
        ("pdf", "no", "cannot be read: "),
        ("png", "no", "cannot read .png; use .jsonl, .csv"),
    ],
)
def test_files_that_cannot_be_used_are_named_with_the_remedy(tmp_path, suffix, text, message):
    with pytest.raises(ValueError, match=rf"a\.{suffix}") as caught:
        loaded(tmp_path, f"a.{suffix}", text)
    assert message in str(caught.value)


# ---- formats


FORMATS = {
    "a.md": "---\ntitle: x\n---\n# One\nfirst\n\n## Two\nsecond\n",
    "b.markdown": "One\n===\nfirst\n\nTwo\n---\nsecond\n",
    "d.html": "<head><title>x</title></head><nav>menu</nav><h1>One</h1><p>fi<b>rst</b></p><script>x()</script><h2>Two</h2><li>second",
}


@pytest.mark.parametrize("name", [*FORMATS, "e.docx"])
def test_headings_of_every_format_are_those_above_a_text(tmp_path, name):
    path = tmp_path / name
    if name == "e.docx":
        docx = pytest.importorskip("docx")
        written = docx.Document()
        for text, style in (("One", "Heading 1"), ("first", None), ("Two", "Heading 2"), ("second", None)):
            written.add_paragraph(text, style)
        written.save(path)
    else:
        path.write_text(FORMATS[name])
    assert documents.read_document(path, "x") == [Passage("x", "One", "first"), Passage("x", "One: Two", "second")]


PDF = """%PDF-1.4
1 0 obj <</Type /Catalog /Pages 2 0 R>> endobj
2 0 obj <</Type /Pages /Kids [3 0 R] /Count 1>> endobj
3 0 obj <</Type /Page /Parent 2 0 R /MediaBox [0 0 200 200] /Contents 4 0 R /Resources <</Font <</F 5 0 R>>>>>> endobj
4 0 obj <</Length {length}>> stream
{drawn}
endstream endobj
5 0 obj <</Type /Font /Subtype /Type1 /BaseFont /Helvetica>> endobj
trailer <</Root 1 0 R>>
startxref
0
%%EOF
"""


def test_the_text_of_a_pdf_is_read(tmp_path):
    pytest.importorskip("pypdf")
    for name, drawn in (("scan.pdf", ""), ("text.pdf", "BT /F 12 Tf 20 100 Td (Words of a page) Tj ET")):
        (tmp_path / name).write_text(PDF.format(length=len(drawn), drawn=drawn))
    with pytest.raises(ValueError, match="holds no text; scanned pages need OCR first"):
        documents.read_document(tmp_path / "scan.pdf", "scan.pdf")
    assert documents.read_document(tmp_path / "text.pdf", "x") == [Passage("x", "", "Words of a page")]


@pytest.mark.parametrize("text", ["学习需要时间。" * 300, "one two three. " * 300, "x" * 2000, "a heading " * 200])
def test_no_passage_is_longer_than_the_model_reads_and_no_text_is_lost(text):
    spans = lambda text: [(place, place + 1) for place, letter in enumerate(text) if not letter.isspace()]  # noqa: E731
    for heading in ("", "A heading", "h" * 90):
        parts = list(documents.cut(Passage("x", heading, text), spans, 100))
        assert all(len(spans(part.text)) <= 100 for part in parts)
        joined = "".join(part.body for part in parts).replace(" ", "")
        assert joined.endswith(text.replace(" ", "").strip()) and len(parts) < 3 * len(text) / 90
    assert len(list(documents.cut(Passage("x", "", "short"), words.spans, 100))) == 1
