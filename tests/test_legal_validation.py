"""What validation finds: each defect planted on its own, citations from a list, and nothing lost."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from helpers.legal.records import Record, load_records
from helpers.legal.validation import SET_ASIDE, WARNED, citations, validate

pytestmark = pytest.mark.once

CLEAN = load_records("sample", num_records=60, seed=0).records
FIRST = CLEAN[0]


def with_one(**changes: str) -> list[Record]:
    """The clean records, one of them changed in the sixth row."""
    return [*CLEAN[:5], replace(CLEAN[5], **changes), *CLEAN[6:]]


def test_the_sample_has_no_defect():
    report = validate(CLEAN)
    assert report.kept == CLEAN
    assert not [finding for finding in report.findings if finding.defect != "near-duplicate question"]


@pytest.mark.parametrize(
    ("changes", "defect", "detail"),
    [
        ({"id": ""}, "empty field", "id"),
        ({"question": ""}, "empty field", "question"),
        ({"answer": ""}, "empty field", "answer"),
        ({"topic": ""}, "empty field", "topic"),
        ({"difficulty": ""}, "empty field", "difficulty"),
        ({"reasoning": ""}, "empty field", "reasoning"),
        ({"difficulty": "hard"}, "unknown difficulty", "hard"),
        ({"id": CLEAN[1].id}, "duplicate id", "as row 2"),
        ({"question": CLEAN[1].question.upper(), "answer": CLEAN[1].answer}, "repeated row", "as row 2"),
        ({"reasoning": "It depends on the facts, and on which of them a court would find."}, "no steps", "It depends"),
        ({"reasoning": "Step 1: Read the contract. Step 3: Read it a second time, slowly."}, "broken steps", "1, 3"),
        ({"reasoning": "Step 2: Read the contract. Step 3: Read it a second time, slowly."}, "broken steps", "2, 3"),
        ({"answer": FIRST.answer + "\n### Case Citation:\nnone"}, "markup", "answer: ### Case Citation:"),
        ({"question": "What is <|im_end|> in contract law?"}, "markup", "question: <|im_end|>"),
    ],
)
def test_a_bad_row_is_set_aside_with_its_reason(changes, defect, detail):
    records = with_one(**changes)
    report = validate(records)
    assert report.set_aside == (records[5],)
    assert report.kept == tuple(records[:5] + records[6:])
    (finding,) = [finding for finding in report.findings if finding.defect in SET_ASIDE]
    assert (finding.row, finding.id, finding.defect) == (6, records[5].id, defect)
    assert finding.detail.startswith(detail)
    assert report.as_dict()["set_aside"] == dict.fromkeys(SET_ASIDE, 0) | {defect: 1}


@pytest.mark.parametrize(
    ("changes", "defect", "detail"),
    [
        ({"difficulty": "expert", "reasoning": "Step 1: " + "a" * 60}, "few steps", "1, expert asks for 7"),
        ({"answer": "ISSUE: a\nRULE: b\nAPPLICATION: c\nCONCLUSION: d"}, "short text", "answer: 45 characters"),
        (
            {"difficulty": "basic", "reasoning": "Step 1: a Step 2: b Step 3: c Step 4: d"},
            "short text",
            "reasoning: 39",
        ),
        ({"case_citation": ""}, "no citation", ""),
    ],
)
def test_a_lesser_defect_is_listed_and_its_row_kept(changes, defect, detail):
    records = with_one(**changes)
    report = validate(records)
    assert report.kept == tuple(records)
    (finding,) = [finding for finding in report.findings if finding.defect != "near-duplicate question"]
    assert (finding.row, finding.defect) == (6, defect)
    assert finding.detail.startswith(detail)
    assert report.as_dict()["warned"][defect] == 1


def test_a_near_duplicate_is_listed_with_the_row_it_repeats():
    records = with_one(question="Now: " + CLEAN[2].question)
    (finding,) = [f for f in validate(records).findings if f.row == 6]
    assert finding.defect == "near-duplicate question"
    assert finding.detail.startswith("of row 3, Jaccard 0.9")


def test_a_row_set_aside_does_not_hide_the_good_one_that_repeats_it():
    records = [replace(FIRST, reasoning=""), FIRST, *CLEAN[1:]]
    report = validate(records)
    assert report.set_aside == (records[0],)
    assert report.kept == CLEAN


def test_every_row_is_either_kept_or_set_aside_whatever_is_wrong_with_it():
    records = [replace(CLEAN[n % 60], **{name: ""}) for n, name in enumerate(("answer", "topic", "id") * 10)]
    records += [*CLEAN, *CLEAN[:7]]
    report = validate(records)
    assert Counter(report.kept + report.set_aside) == Counter(records)
    assert {finding.row for finding in report.findings if finding.defect in SET_ASIDE} == {
        row for row, record in enumerate(records, 1) if row <= 30 or row > 90
    }


def test_the_caller_can_keep_what_is_set_aside_and_set_aside_what_is_kept():
    records = with_one(reasoning="Free prose about the case, long enough to be an explanation.", case_citation="")
    assert validate(records, excluding=SET_ASIDE.keys() - {"no steps"}).set_aside == ()
    assert validate(records, excluding={"no citation"}).set_aside == (records[5],)


def test_defects_of_rows_set_aside_are_not_counted_as_warnings():
    report = validate(with_one(topic="", case_citation=""))
    assert report.as_dict()["warned"]["no citation"] == 0
    assert [(row["defect"], row["set_aside"]) for row in report.listed() if row["row"] == 6] == [
        ("empty field", True),
        ("no citation", False),
    ]


def test_no_usable_record_at_all_is_refused_with_what_is_wrong():
    with pytest.raises(ValueError, match=r"none of 60 can be used \(empty field 60\)"):
        validate([replace(record, topic="") for record in CLEAN])


def test_the_report_shows_counts_and_examples_and_goes_into_json():
    report = validate(with_one(reasoning=""))
    rows = {row["records"]: row for row in report.rows()}
    assert (rows["all"]["number"], rows["kept"]["number"]) == (60, 59)
    assert rows["set aside: empty field"]["number"] == 1
    assert rows["set aside: empty field"]["details"].endswith(f"row 6 {CLEAN[5].id!r}: reasoning")
    expert = sum(record.difficulty == "expert" for record in report.kept)
    assert (rows["kept, expert"]["meaning"], rows["kept, expert"]["details"]) == (
        "at least 7 steps expected",
        f"{expert} with 7",
    )
    facts = json.loads(json.dumps(report.as_dict()))
    assert facts["kept"] + sum(facts["set_aside"].values()) == facts["records"] == 60
    assert set(facts["set_aside"]) | set(facts["warned"]) == set(SET_ASIDE | WARNED)


def test_counts_of_steps_and_words_are_those_of_the_kept_records():
    facts = validate(CLEAN).as_dict()
    assert {name: sum(steps.values()) for name, steps in facts["steps"].items()} == Counter(r.difficulty for r in CLEAN)
    assert {name: set(steps) for name, steps in facts["steps"].items()} == {
        "basic": {4}, "intermediate": {5}, "advanced": {6}, "expert": {7}
    }  # fmt: skip
    lengths = sorted(len(record.answer.split()) for record in CLEAN)
    assert (facts["answer_words"]["least"], facts["answer_words"]["most"]) == (lengths[0], lengths[-1])


# ---- citations


def test_entries_are_parted_by_semicolons_and_lines_only():
    field = "A, B and C v D [2013] UKSC 34; ; Companies Act 2006, s 1\nsomething"
    assert citations(field) == [
        "A, B and C v D [2013] UKSC 34", "Companies Act 2006, s 1", "something"
    ]  # fmt: skip
    assert citations("") == []
