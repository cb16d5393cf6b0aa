"""The sample grammar: its facts, its law and its English."""

import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from helpers.legal.sample import AREAS, DIFFICULTIES, FORMS, sample_records

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[1]
RECORDS = sample_records(800, seed=0)


def texts(record):
    return [text for name, text in record.items() if name != "gold"]


def test_questions_and_ids_are_all_different():
    records = sample_records(3000, seed=1)
    assert len({record["question"] for record in records}) == len({record["id"] for record in records}) == 3000


def test_nothing_of_the_grammar_is_left_in_a_text():
    for record in RECORDS:
        assert all(record.values())
        assert not re.search(r"[{}|]|  |\s$|\.\.|\. ?,|\bNone\b", "\n".join(texts(record)))


def test_articles_fit_the_words_after_them():
    words = re.sub(r"[^\w' ]", " ", " ".join(text for record in RECORDS for text in texts(record))).split()
    silent_or_long = ("one", "hour", "union")
    for article, word in itertools.pairwise(words):
        if article in ("a", "an") and not word.startswith(silent_or_long):
            assert (article == "an") == (word[0].lower() in "aeiou"), (article, word)


def test_no_year_is_one_that_has_been():
    text = " ".join(text for record in RECORDS for text in texts(record))
    years = {int(year) for year in re.findall(r"(?:[\[(]|Act )(\d{4})\b", text)}
    assert len(years) > len(AREAS)
    assert min(years) >= 2071


def test_steps_are_4_to_7_from_basic_to_expert():
    expected = {"basic": 4, "intermediate": 5, "advanced": 6, "expert": 7}
    for record in RECORDS:
        numbers = re.findall(r"Step (\d+): ", record["reasoning"])
        assert numbers == [str(number) for number in range(1, expected[record["difficulty"]] + 1)]


def test_a_claim_succeeds_exactly_when_each_fact_tells_of_what_its_element_asks_for():
    """Read from the question alone: two negatives make a positive, and an absence is shown by what was not done."""
    negative = ("fail", "forg", "declin")
    outcomes = Counter()
    for record in RECORDS:
        gold, shown = record["gold"], []
        for fact, (element, _) in zip(gold.facts, gold.findings, strict=True):
            assert record["question"].count(fact) == 1
            done = fact.startswith("did not ") == fact.removeprefix("did not ").startswith(negative)
            shown.append(done != element.startswith("absence of "))
        assert [met for _, met in gold.findings] == shown
        assert gold.verdict == ("succeeds" if all(shown) else "fails")
        assert f"The claim {gold.verdict}." in record["answer"]
        assert f"The claim {gold.verdict}." in record["reasoning"]
        way = {"succeeds": "allowed", "fails": "dismissed"}[gold.verdict]
        assert f"{way} in {gold.citation}" in record["question"]
        assert gold.other_citation in record["question"]
        assert record["case_citation"].endswith(f"; {gold.citation}")
        outcomes[gold.verdict] += 1
    assert min(outcomes.values()) > 350


def test_the_question_holds_all_that_the_answer_needs():
    for record in RECORDS:
        gold = record["gold"]
        assert len(gold.facts) == len(gold.findings) == DIFFICULTIES[record["difficulty"]]
        asked = ", ".join(name for name, _ in gold.findings)
        assert f" asks for {' and '.join(asked.rsplit(', ', 1))}." in record["question"]
        assert all(name in record["question"] for name in gold.parties)


def test_of_ten_records_seven_are_to_train_on_and_one_is_of_an_area_that_is_not():
    parts = Counter(record["gold"].part for record in RECORDS)
    assert parts == {"train": 560, "validation": 80, "test": 80, "areas": 80}
    held_out = {area.split("\n")[0] for area in AREAS[-2:]}
    assert {record["topic"] for record in RECORDS if record["gold"].part == "areas"} == held_out
    assert {record["topic"] for record in RECORDS if record["gold"].part != "areas"}.isdisjoint(held_out)


def test_every_area_and_form_is_drawn_about_equally():
    topics = [record["topic"] for record in RECORDS]
    assert all(topics.count(area.split("\n")[0]) > 25 for area in AREAS)
    for *_, answer in FORMS.values():
        first_heading = answer.split(":")[0]
        assert sum(record["answer"].startswith(first_heading) for record in RECORDS) > 150


def test_a_longer_sample_begins_with_the_shorter_one_and_a_seed_changes_it():
    assert sample_records(20, seed=5) == sample_records(60, seed=5)[:20]
    assert sample_records(20, seed=5) != sample_records(20, seed=6)


def test_sample_is_the_same_in_another_process():
    code = "from helpers.legal.sample import sample_records as s; print(s(50, 7))"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_sample_refuses_a_negative_count():
    with pytest.raises(ValueError, match="count=-1"):
        sample_records(-1, seed=0)
