"""What validation finds: each defect planted on its own, citations from a list, and nothing lost."""

import json
from dataclasses import replace

import pytest

from helpers.legal.records import Record, load_records
from helpers.legal.validation import SET_ASIDE, citations, validate

pytestmark = pytest.mark.once

CLEAN = load_records("sample", num_records=60, seed=0).records
FIRST = CLEAN[0]


def with_one(**changes: str) -> list[Record]:
    """The clean records, one of them changed in the sixth row."""
    return [*CLEAN[:5], replace(CLEAN[5], **changes), *CLEAN[6:]]


def set_aside(report) -> list[str]:
    return [*dict.fromkeys(finding.id for finding in report.findings if finding.set_aside)]


def test_the_sample_has_no_defect():
    report = validate(CLEAN)
    assert report.kept == CLEAN
    assert not [finding for finding in report.findings if finding.defect != "near-duplicate question"]


@pytest.mark.parametrize(
    ("changes", "defect", "detail"),
    [
        ({"question": ""}, "no question", ""),
        ({"answer": ""}, "no answer", ""),
        ({"question": CLEAN[1].question.upper(), "answer": CLEAN[1].answer}, "repeated row", "as row 2"),
        (
            {"reasoning": "Step 1: Read the contract. Step 3: Sign. Step 2: Read it a second time."},
            "broken steps",
            "1, 3, 2",
        ),
        ({"reasoning": "Step 1: Read the contract. Step 1: Read it a second time, slowly."}, "broken steps", "1, 1"),
        ({"answer": FIRST.answer + "\n### Case Citation:\nnone"}, "markup", "### Case Citation:"),
        ({"question": "What is <|im_end|> in contract law?"}, "markup", "<|im_end|>"),
        ({"question": "What is <｜end▁of▁sentence｜> in contract law?"}, "markup", "<｜end▁of▁sentence｜>"),
        ({"turns": (("user", "<|im_start|> is what?"), ("assistant", "A token."))}, "markup", "<|im_start|>"),
    ],
)
def test_a_bad_row_is_set_aside_with_its_reason(changes, defect, detail):
    records = with_one(**changes)
    report = validate(records)
    assert set_aside(report) == [records[5].id]
    assert report.kept == tuple(records[:5] + records[6:])
    (finding,) = [finding for finding in report.findings if finding.defect in SET_ASIDE]
    assert (finding.row, finding.id, finding.defect) == (6, records[5].id, defect)
    assert finding.detail.startswith(detail)
    assert report.as_dict()["set_aside"] == {defect: 1}


@pytest.mark.parametrize(
    ("changes", "defect", "detail"),
    [
        ({"topic": ""}, "no section", "topic"),
        ({"difficulty": ""}, "no section", "difficulty"),
        ({"reasoning": ""}, "no section", "reasoning"),
        (
            {"reasoning": "It depends on the facts, and on which of them a court would find."},
            "prose reasoning",
            "It depends",
        ),
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
    records = [replace(FIRST, reasoning="Step 2: a Step 1: b"), FIRST, *CLEAN[1:]]
    report = validate(records)
    assert set_aside(report) == [records[0].id]
    assert report.kept == CLEAN


def test_every_row_is_either_kept_or_set_aside_whatever_is_wrong_with_it():
    records = [replace(CLEAN[n % 60], **{name: ""}) for n, name in enumerate(("answer", "question", "answer") * 10)]
    records += [*CLEAN, *CLEAN[:7]]
    report = validate(records)
    out = {finding.row for finding in report.findings if finding.set_aside}
    assert report.kept == tuple(record for row, record in enumerate(records, 1) if row not in out)
    assert {finding.row for finding in report.findings if finding.defect in SET_ASIDE} == {
        row for row, record in enumerate(records, 1) if row <= 30 or row > 90
    }


def test_the_caller_can_keep_what_is_set_aside():
    records = with_one(reasoning="Step 2: Read the contract. Step 1: Sign it, and keep a copy of it.", case_citation="")
    report = validate(records, keeping={"broken steps"})
    assert report.kept[5] == records[5]
    assert report.as_dict()["warned"]["broken steps"] == 1
    assert "kept, but look at: broken steps" in [row["records"] for row in report.rows()]


def test_defects_of_rows_set_aside_are_not_counted_as_warnings():
    report = validate(with_one(answer="", case_citation=""))
    assert "no citation" not in report.as_dict()["warned"]
    assert [(found.defect, found.set_aside) for found in report.findings if found.row == 6] == [
        ("no answer", True),
        ("no citation", False),
    ]


def test_no_usable_record_at_all_is_refused_with_what_is_wrong():
    with pytest.raises(ValueError, match=r"none of 60 can be used \(no answer 60\)"):
        validate([replace(record, answer="") for record in CLEAN])


def test_the_report_shows_counts_and_examples_and_goes_into_json():
    report = validate(with_one(answer=""))
    rows = {row["records"]: row for row in report.rows()}
    assert (rows["all"]["number"], rows["kept"]["number"]) == (60, 59)
    assert rows["kept"]["meaning"] == "98%"
    assert rows["set aside: no answer"]["number"] == 1
    assert rows["set aside: no answer"]["details"].endswith(f"row 6 {CLEAN[5].id!r}")
    facts = json.loads(json.dumps(report.as_dict()))
    assert facts["kept"] + sum(facts["set_aside"].values()) == facts["records"] == 60


def test_gaps_in_the_numbering_are_closed_and_told_and_nothing_else_is_changed():
    records = with_one(reasoning="Step 2: Read the contract. Step 3: Sign it. Step 9: Keep what was said in Step 3.")
    report = validate(records)
    text = "Step 1: Read the contract. Step 2: Sign it. Step 3: Keep what was said in Step 3."
    assert report.kept[5] == replace(records[5], reasoning=text)
    assert report.kept[:5] + report.kept[6:] == CLEAN[:5] + CLEAN[6:]
    (finding,) = [f for f in report.findings if f.defect != "near-duplicate question"]
    assert (finding.row, finding.defect, finding.detail) == (6, "renumbered steps", "2, 3, 9")


def test_a_conversation_is_kept_without_sections_and_may_hold_headings():
    chat = Record(
        "1", "And then?", "### Answer: " + "It falls. " * 20, turns=(("user", "If it fails?"), ("assistant", "Yes."))
    )
    report = validate([*CLEAN, chat])
    assert report.kept[-1] == chat
    assert not [finding for finding in report.findings if finding.id == "1"]
    again = replace(chat, turns=(("user", "If it rains?"), ("assistant", "Yes.")))
    assert validate([chat, again]).kept == (chat, again), "what was said before is part of the question"
    assert set_aside(validate([chat, replace(chat, id="2")])) == ["2"]


# ---- citations


def test_entries_are_parted_by_semicolons_and_lines_only():
    field = "A, B and C v D [2013] UKSC 34; ; Companies Act 2006, s 1\nsomething"
    assert citations(field) == [
        "A, B and C v D [2013] UKSC 34", "Companies Act 2006, s 1", "something"
    ]  # fmt: skip
    assert citations("") == []
