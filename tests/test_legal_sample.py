"""The sample grammar: its facts, its law and its English."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.legal.sample import AREAS, FORMS, sample_records

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[1]
RECORDS = sample_records(800, seed=0)


def test_questions_and_ids_are_all_different():
    records = sample_records(3000, seed=1)
    assert len({record["question"] for record in records}) == len({record["id"] for record in records}) == 3000


def test_nothing_of_the_grammar_is_left_in_a_text():
    for record in RECORDS:
        assert all(record.values())
        assert not re.search(r"[{}|]|  |\s$|\.\.|\. ?,|\bNone\b", "\n".join(record.values()))


def test_articles_fit_the_words_after_them():
    words = re.sub(r"[^\w' ]", " ", " ".join(text for record in RECORDS for text in record.values())).split()
    silent_or_long = ("one", "hour", "union")
    for article, word in itertools.pairwise(words):
        if article in ("a", "an") and not word.startswith(silent_or_long):
            assert (article == "an") == (word[0].lower() in "aeiou"), (article, word)


def test_the_reader_is_never_told_that_you_was():
    assert not any(re.search(r"\bYou was|\bYou [^.]*\band was\b", record["answer"]) for record in RECORDS)


def test_no_year_is_one_that_has_been():
    text = " ".join(text for record in RECORDS for text in record.values())
    years = {int(year) for year in re.findall(r"(?:[\[(]|Act )(\d{4})\b", text)}
    assert len(years) > 2 * len(AREAS)
    assert min(years) >= 2071


def test_steps_are_4_to_7_from_basic_to_expert():
    expected = {"basic": 4, "intermediate": 5, "advanced": 6, "expert": 7}
    for record in RECORDS:
        numbers = re.findall(r"Step (\d+): ", record["reasoning"])
        assert numbers == [str(number) for number in range(1, expected[record["difficulty"]] + 1)]


def test_a_claim_succeeds_exactly_when_every_fact_in_the_question_is_on_its_side():
    met = {fact for area in AREAS for element in area.elements for fact in element.met}
    unmet = {fact for area in AREAS for element in area.elements for fact in element.unmet}
    assert not met & unmet
    outcomes = {True: 0, False: 0}
    for record in RECORDS:
        against = any(fact in record["question"] for fact in unmet)
        assert against or any(fact in record["question"] for fact in met)
        assert record["reasoning"].endswith("The claim fails." if against else "so the claim succeeds.")
        assert ("The claim fails." in record["answer"]) == against
        outcomes[against] += 1
    assert min(outcomes.values()) > 300


def test_the_question_holds_as_many_facts_as_its_difficulty_has_elements():
    elements = [element for area in AREAS for element in area.elements]
    for record in RECORDS:
        facts = [fact for element in elements for fact in (*element.met, *element.unmet) if fact in record["question"]]
        assert len(facts) == {"basic": 1, "intermediate": 2, "advanced": 3, "expert": 4}[record["difficulty"]]


def test_a_changed_fact_changes_the_claim_only_where_it_decides():
    checked = 0
    for record in RECORDS:
        distinction = re.search(
            r"DISTINCTIONS: .* would (not be|be) shown and the claim would (\w+)\.", record["answer"]
        )
        if distinction:
            missing = record["reasoning"].count("is not shown")
            first_missing = "is not shown" in record["reasoning"].split("Step 4:")[0]
            assert distinction[1] == ("be" if first_missing else "not be")
            assert distinction[2] == ("succeed" if first_missing and missing == 1 else "fail")
            checked += 1
    assert checked > 100


def test_every_area_and_form_is_drawn_about_equally():
    topics = [record["topic"] for record in RECORDS]
    assert all(topics.count(area.topic) > 40 for area in AREAS)
    for _, *_, answer in FORMS.values():
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
