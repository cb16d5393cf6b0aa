"""Whether answers are right: each measure on answers changed by hand, baselines that know nothing, and gold as the ceiling."""

import random
import re
from dataclasses import replace
from statistics import fmean

import matplotlib.pyplot as plt
import pytest

from helpers.legal import correctness
from helpers.legal.correctness import (
    Sample,
    baselines,
    beside,
    closest,
    left_out,
    mean,
    measure,
    nearest,
    note,
    overlap,
    plot,
    rate,
    show,
    table,
)
from helpers.legal.generation import Generated
from helpers.legal.layout import response
from helpers.legal.records import Record, load_records, split_records
from helpers.legal.sample import Gold

pytestmark = pytest.mark.once

SAMPLE = split_records(load_records("sample", num_records=2000, seed=0).records, 0)
GOLD = Gold(
    part="test",
    verdict="fails",
    findings=(("joint care", True), ("good faith", False)),
    facts=("managed to feed the animal at noon", "failed to keep each handover in Lent"),
    parties=("Alba", "Foxton"),
    citation="Cranham v Dunett [2091] EWFC 7",
    other_citation="Inkby v Lowson [2092] FLR 8",
)
RECORD = Record(
    id="by-hand",
    question=(
        "Alba shared a cat with Foxton. Section 8 of the Shared Pets Act 2086 asks for joint care and good faith. A claim was "
        "allowed in Inkby v Lowson [2092] FLR 8 and dismissed in Cranham v Dunett [2091] EWFC 7. Alba managed to feed the animal "
        "at noon and failed to keep each handover in Lent."
    ),
    answer="ISSUE: Whether Alba may have an order against Foxton.\nCONCLUSION: The claim fails.",
    topic="Family Law",
    difficulty="basic",
    case_citation="Cranham v Dunett [2091] EWFC 7; Shared Pets Act 2086, s 8",
    reasoning=(
        "Step 1: Alba asks Foxton for an order. Step 2: The claimant managed to feed the animal at noon, so joint care is shown. "
        "Step 3: The claimant failed to keep each handover in Lent, so good faith is not shown. Step 4: Not shown: good faith. "
        "The claim fails. A claim was dismissed in Cranham v Dunett."
    ),
    gold=GOLD,
)
RIGHT = response(RECORD)


def sample(record, text, *, stopped=True):
    return Sample(record, Generated(text, (), stopped))


KNOWN = {name for name in correctness.MEASURES if name != "option"}  # no question of the sample has options


def shares(text, *, stopped=True, record=RECORD):
    found = measure([sample(record, text, stopped=stopped)])
    return {name: found[name]["rate"] for name in correctness.MEASURES if name in found}


# ---- each measure on answers changed by hand


def test_the_right_answer_has_everything_right():
    assert shares(RIGHT) == dict.fromkeys(KNOWN, 1.0)


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        ("CONCLUSION: The claim fails.", "CONCLUSION: The claim succeeds.", {"verdict": 0, "agreement": 0}),
        ("CONCLUSION: The claim fails.", "CONCLUSION: It depends.", {"verdict": 0, "agreement": 0}),
        ("CONCLUSION: The claim fails.", "The claim fails. No, the claim succeeds.", {"verdict": 0, "agreement": 0}),
        ("good faith. The claim fails.", "good faith. The claim succeeds.", {"agreement": 0}),
        ("good faith is not shown", "good faith is shown", {"findings": 0.5, "agreement": 0}),
        ("joint care is shown", "joint care is not shown", {"findings": 0.5}),
        (" Step 3: The claimant failed to keep each handover in Lent, so good faith is not shown. Step 4:", " Step 3:",
         {"findings": 0.5, "facts": 0.5, "agreement": 0, "steps": 0}),
        ("good faith is not", "good will is not", {"findings": 0.5}),
        ("feed the animal at noon", "feed the animal at night", {"facts": 0.5}),
        ("Foxton", "Bexmoor", {"parties": 0}),
        ("against Foxton", "against Foxton and Bexmoor", {"parties": 0}),
        ("1: Alba asks Foxton", "1: Foxton asks Foxton", {}),  # Alba is named in the answer still
        ("Cranham v Dunett [2091] EWFC 7;", "Inkby v Lowson [2092] FLR 8;", {"support": 0, "cited": 0.5}),
        ("[2091] EWFC 7;", "[2091] EWFC 7; Inkby v Lowson [2092] FLR 8;", {"support": 0}),
        ("s 8", "s 9", {"cited": 0.5}),
        ("### Topic: ", "", {"format": 0}),
        ("Step 2:", "Step 9:", {"steps": 0}),
    ],
)  # fmt: skip
def test_a_change_costs_what_it_makes_wrong_and_nothing_else(old, new, wrong):
    assert old in RIGHT
    assert shares(RIGHT.replace(old, new)) == dict.fromkeys(KNOWN, 1.0) | wrong


def test_an_answer_that_is_cut_off_does_not_stop_and_noise_has_nothing_right():
    assert shares(RIGHT, stopped=False)["stops"] == 0
    noise = shares("of the the in of", stopped=False)
    assert set(noise.values()) == {0.0}


def test_a_record_without_labels_is_measured_by_its_form_and_its_citations_alone():
    found = shares(RIGHT, record=replace(RECORD, gold=None))
    assert set(found) == {"cited", "steps", "format", "stops"}
    assert "cited" not in shares(RIGHT, record=replace(RECORD, gold=None, case_citation=""))


def test_fewer_steps_than_the_record_has_are_too_few_and_more_are_not():
    longer = replace(RECORD, reasoning=RECORD.reasoning + " Step 5: That is all.")
    assert shares(RIGHT, record=longer)["steps"] == 0
    assert shares(response(longer))["steps"] == 1


def test_records_of_any_form_pass_every_measure_that_they_have():
    """In prose, without reasoning, without sections, with steps of any number: gold is at 100 %."""
    changes = (
        {"reasoning": "It depends."},
        {"reasoning": ""},
        {"case_citation": ""},
        {"topic": "", "difficulty": "expert"},
    )
    forms = [replace(RECORD, gold=None, **each) for each in changes] + [Record("2", "Hello?", "Hello.")]
    assert [set(shares(response(record), record=record).values()) for record in forms] == [{1.0}] * 5
    assert set(shares(response(forms[-1]), record=forms[-1])) == {"stops"}
    assert "steps" not in shares(response(forms[0]), record=forms[0])


@pytest.mark.parametrize(
    ("answer", "right"),
    [("B) because", 1), ("The correct answer is (B).", 1), ("Answer: b", 1), ("A) because", 0), ("Both.", 0)],
)
def test_an_option_is_right_where_the_answer_begins_with_the_records_own(answer, right):
    asked = Record("1", "Which? A) One. B) Two. C) Three.", "B. It is the second.")
    assert shares(answer, record=asked)["option"] == right
    assert "option" not in shares(answer, record=replace(asked, question="Which is it?"))


# ---- intervals


def test_a_mean_of_shares_has_the_interval_of_resampled_questions():
    generator = random.Random(3)
    values = [generator.choice((0.0, 0.25, 0.5, 1.0)) for _ in range(80)]
    drawn = sorted(fmean(generator.choices(values, k=80)) for _ in range(4000))
    found = mean(values)
    assert found["rate"] == fmean(values)
    assert (found["low"], found["high"]) == pytest.approx((drawn[100], drawn[3900]), abs=0.02)
    assert rate(81, 100)["low"] < 0.81 < rate(81, 100)["high"]


# ---- answers that cost nothing


@pytest.mark.parametrize("part", ["test", "areas"])
def test_gold_is_the_ceiling_and_answers_that_know_nothing_are_at_chance(part):
    asked = getattr(SAMPLE, part)
    found = baselines(SAMPLE.train, asked)
    assert {found["gold"][name]["rate"] for name in KNOWN} == {1.0}
    assert left_out(found["gold"]) == {}
    for name in ("constant", "nearest training record"):
        assert found[name]["verdict"]["low"] < 0.5 < found[name]["verdict"]["high"]
        assert found[name]["verdict"]["rate"] < 0.6
        assert found[name]["findings"]["rate"] < 0.6
        assert {found[name][measure]["rate"] for measure in ("facts", "parties", "support")} == {0.0}
        assert found[name]["format"]["rate"] == found[name]["stops"]["rate"] == 1.0
    assert found["constant"]["steps"]["rate"] == 1.0, "it is the longest: form alone it has"


def test_the_nearest_text_shares_the_rare_words_not_the_many():
    train = ["the cat of the house and the", "a dog in a garden", "the fish of the sea"]
    asked = ["the dog of the and the house the", "the fish", "A GARDEN", "nothing known"]
    assert nearest(train, asked)[:3] == [0, 2, 1]
    assert nearest(train, train) == [0, 1, 2]


# ---- the split


def test_no_fact_name_case_or_set_of_elements_of_a_test_question_is_in_training():
    train = "\n".join(f"{record.question}\n{response(record)}" for record in SAMPLE.train)
    words = {*re.findall(r"\w+", train)}
    patterns = {(record.topic, tuple(name for name, _ in record.gold.findings)) for record in SAMPLE.train}
    for record in (*SAMPLE.validation, *SAMPLE.test, *SAMPLE.areas):
        for fact in record.gold.facts:
            told, act = fact.split(" to ", 1)
            assert told in train
            assert act not in train
        assert words.isdisjoint(record.gold.parties)
        assert record.gold.citation not in train
        assert (record.topic, tuple(name for name, _ in record.gold.findings)) not in patterns
    assert {record.topic for record in SAMPLE.areas}.isdisjoint(record.topic for record in SAMPLE.train)
    assert {record.topic for record in SAMPLE.test} == {record.topic for record in SAMPLE.train}


def test_no_reasoning_step_of_a_test_question_is_in_training_word_for_word():
    for part in (SAMPLE.test, SAMPLE.areas):
        found = overlap(SAMPLE.train, part)
        assert found["steps"] == sum(len(record.gold.facts) + 3 for record in part)
        assert (found["verbatim"], found["records_with_every_step_verbatim"]) == (0, 0)
    assert overlap(SAMPLE.train, SAMPLE.areas)["near_duplicates"] < 0.3 * found["steps"]


def test_steps_that_are_in_training_are_counted():
    learnt = replace(RECORD, id="2", reasoning=RECORD.reasoning.replace("Lent", "January"))
    found = overlap([RECORD], [learnt, RECORD])
    assert (found["steps"], found["verbatim"], found["records_with_every_step_verbatim"]) == (8, 7, 1)
    assert found["near_duplicates"] == 8
    assert overlap([RECORD], [replace(RECORD, reasoning="Step 1: Something else altogether.")])["near_duplicates"] == 0
    assert overlap([RECORD], [replace(RECORD, reasoning="In prose.")])["records_with_every_step_verbatim"] == 0


def test_the_closest_is_that_of_a_loop():
    def shingles(text):
        text = " ".join(re.findall(r"\w+", text.lower()))
        return {text[i : i + 5] for i in range(max(1, len(text) - 4))}

    texts = [record.question for record in SAMPLE.test[:30]]
    others = [record.question for record in SAMPLE.train[:300]]
    expected = [max(len(shingles(a) & shingles(b)) / len(shingles(a) | shingles(b)) for b in others) for a in texts]
    assert closest(texts, others) == pytest.approx(expected)


# ---- to read


def test_the_table_leaves_out_what_gold_does_not_pass_and_says_so():
    references = baselines(SAMPLE.train, SAMPLE.test[:40])
    before = measure([sample(record, "noise", stopped=False) for record in SAMPLE.test[:40]])
    references["gold"]["steps"] = rate(39, 40)  # a measure that one record fails
    rows = table(references, before)
    assert [row["answers"] for row in rows] == ["constant", "nearest training record", "base model", "gold"]
    assert all("steps" not in row for row in rows)
    assert rows[-1]["format"] == "100 [91, 100]"
    assert rows[-2]["format"] == "0 [0, 9]"
    assert note(references).endswith("not shown, because the records themselves do not pass: steps 98%")
    assert "not shown" not in note(baselines(SAMPLE.train, SAMPLE.test))


def test_the_table_after_training_has_the_trained_model_before_gold():
    references = baselines(SAMPLE.train, SAMPLE.test)
    right = measure([sample(record, response(record)) for record in SAMPLE.test])
    rows = table(references, references["constant"], right)
    assert [row["answers"] for row in rows][-3:] == ["base model", "trained", "gold"]
    assert rows[-2] == rows[-1] | {"answers": "trained"}
    assert rows[-1].keys() == {"answers", *KNOWN, "mean steps", "mean reasoning words", "mean words"}


def asked_of(*sets):
    """References, an untrained model that writes noise and a trained one that writes the records, by set of questions."""
    names = ("test", "areas")[: len(sets)]
    references = {name: baselines(SAMPLE.train[:200], each) for name, each in zip(names, sets, strict=True)}
    before, after = (
        {name: measure([sample(r, text(r)) for r in each]) for name, each in zip(names, sets, strict=True)}
        for text in (lambda record: "noise", response)
    )
    return references, before, after


def bars(axes) -> dict[str, tuple[float, float, float]]:
    """Rate and ends of the interval of each bar, as they are drawn."""
    names = [label.get_text() for label in axes.figure.axes[0].get_yticklabels()]
    found = {}
    for name, bar, lines in zip(names, axes.patches, axes.collections, strict=True):
        (((low, _), (high, _)),) = lines.get_segments()
        found[name] = bar.get_width(), low, high
    return found


SYSTEMS = ["constant", "nearest training record", "base model", "trained", "gold"]


def test_the_figure_has_a_bar_of_right_verdicts_with_its_interval_for_each_row_of_the_tables(tmp_path):
    references, before, after = asked_of(SAMPLE.test[:20], SAMPLE.areas[:20])
    figure = plot(references, before, after, tmp_path / "new" / "answers.png")
    assert (tmp_path / "new" / "answers.png").read_bytes().startswith(b"\x89PNG")
    for axes, name in zip(figure.axes, ("test", "areas"), strict=True):
        rows = table(references[name], before[name], after[name])
        drawn = bars(axes)
        assert [*drawn] == [row["answers"] for row in rows] == SYSTEMS
        for row in rows:
            assert row["verdict"] == "{:.0f} [{:.0f}, {:.0f}]".format(*(round(x) for x in drawn[row["answers"]]))
        assert axes.get_title() == f"{name}: verdict" and "of 20 questions" in axes.get_xlabel()
        colors = [bar.get_facecolor() for bar in axes.patches]
        assert colors.count(colors[3]) == 1, "the trained model stands out"
    plt.close(figure)


@pytest.mark.parametrize(
    ("changes", "measure"),
    [({}, "cited"), ({"case_citation": ""}, "steps"), ({"case_citation": "", "reasoning": "In prose."}, "format")],
)
def test_the_figure_of_records_without_verdicts_has_the_first_measure_that_they_pass(changes, measure, tmp_path):
    real = [replace(record, gold=None, **changes) for record in SAMPLE.test[:6]]
    figure = plot(*asked_of(real), tmp_path / "answers.png")
    (axes,) = figure.axes
    assert axes.get_title() == f"test: {measure}"
    assert [*bars(axes)] == SYSTEMS
    assert bars(axes)["gold"][0] == bars(axes)["trained"][0] == 100
    plt.close(figure)


def test_each_set_of_questions_is_shown_and_labelled_ones_after_training(capsys):
    references, before, after = asked_of(SAMPLE.test[:5], SAMPLE.areas[:5])
    asked = {"tasks": {"contracts": {"acc": 0.25}}}
    before["test"]["questions"], after["test"]["questions"] = asked, asked
    show(references, before)
    said = capsys.readouterr().out
    assert said.count("Percent of 5 questions") == 2 and "test: " in said and "areas: " in said
    assert "trained" not in said.replace("training", "") and "contracts" not in said
    show(references, before, after)
    said = capsys.readouterr().out
    assert said.count("\ntrained ") == 2 and "Labelled questions" in said and "contracts" in said


def test_texts_stand_beside_each_other_under_their_question():
    records = SAMPLE.test[:2]
    before = [sample(record, "words words", stopped=False) for record in records]
    after = [sample(record, response(record)) for record in records]
    text = beside(before, after, 1)
    assert records[1].id not in text
    question, first, second, reference = text.split("\n--- ")
    assert question.startswith(f"=== {records[0].id} ({records[0].difficulty}): {records[0].question}")
    assert first.startswith("before training: no topic; 0 steps; 2 words, cut off\nwords words")
    verdict, _, written = second.partition("\n")
    words = len(response(records[0]).split())
    assert verdict == f"after training: well-formed; {after[0].response.steps} steps; {words} words, stopped by itself"
    assert written.strip() == response(records[0])
    assert reference.strip() == f"the reference\n{response(records[0])}"
    assert beside(before, after, 5).count("--- the reference") == 2
