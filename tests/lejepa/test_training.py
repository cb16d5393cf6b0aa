"""LeJEPATrainer on real, tiny runs: rows and batches, terms, parts of a batch, memory. Kills and XLA: test_xla.py."""

from collections import Counter

import pytest

from helpers.lejepa.data import Example
from helpers.lejepa.loss import views
from helpers.lejepa.parameters import EmbeddingParameters
from helpers.lejepa.training import pairs
from tests.lejepa_run import sentences

pytestmark = pytest.mark.once

# ---- rows and batches


def test_rows_go_pass_after_pass_and_are_the_same_for_a_seed():
    examples = [Example("", (" ".join(f"word{n}-{i}" for i in range(40)),), str(n)) for n in range(5)]
    examples.append(Example("A question", ("its answer", "another wording", "a third"), "5"))
    rows = pairs(examples, views, 16, 3, seed=1)
    positives = [example.texts[0] for example in examples]
    assert len(rows) == 48 and rows["document"] != pairs(examples, views, 16, 3, seed=2)["document"]
    assert rows.to_dict() == pairs(examples, views, 16, 3, seed=1).to_dict()
    crops = [row["query"] for row in rows if row["document"] == positives[0]]
    assert 7 <= len(crops) == len({*crops}) <= 9
    wordings = {row["document"] for row in rows if row["query"] == "A question"}
    assert wordings > {"its answer"} and wordings <= {"its answer", "another wording", "a third"}


def test_no_answer_is_twice_in_a_batch_and_its_questions_take_turns():
    """A row that repeats the answer of another would be a negative of itself."""
    examples = [Example(f"question {n}", (f"answer {n % 7}",), str(n % 7)) for n in range(31)]
    rows = pairs(examples, views, 31, 5, seed=0)
    for begin in range(0, len(rows), 5):
        assert len({*rows["document"][begin : begin + 5]}) == 5
    counts = Counter(rows["query"])
    assert len(counts) == 31
    for answer in range(7):
        of_one = [counts[example.question] for example in examples if example.key == str(answer)]
        assert max(of_one) - min(of_one) <= 1
    with pytest.raises(ValueError, match="batch_size=8: a batch has at most 7"):
        pairs(examples, views, 1, 8, seed=0)
    with pytest.raises(ValueError, match="batch_size=1: set at least 2"):
        EmbeddingParameters(batch_size=1)


def test_the_trainer_takes_the_rows_batch_by_batch_as_they_stand(finished):
    outcome = finished(batch_size=4, steps=3)
    assert [text.removeprefix("query : ") for text in outcome["texts"]] == sentences(40, 0)[:12]


# ---- one CPU run


def test_logs_hold_the_terms_of_which_the_loss_is_made(finished):
    outcome = finished()
    logged = [entry for entry in outcome["history"] if "loss" in entry]
    assert len(logged) == 12
    for entry in logged:
        assert entry["loss"] == pytest.approx(entry["invariance"] + entry["sigreg"] + entry["contrastive"], abs=2e-4)


def test_accumulation_and_short_memory_change_no_loss(finished):
    whole = finished(dropout=0.0, batch_size=16, steps=4)
    planned = finished(dropout=0.0, batch_size=4, accumulation=4, steps=4)
    shrunk = finished(dropout=0.0, batch_size=16, steps=4, fits=2)
    assert (whole["part"], planned["part"], shrunk["part"]) == (0, 4, 2)
    for parted in (planned, shrunk):
        assert {rows for rows, _ in parted["shapes"]} == {16}
        assert parted["losses"] == pytest.approx(whole["losses"], rel=1e-5)
    plan = shrunk["plan"]
    assert (plan["per_device_batch_size"], plan["gradient_accumulation_steps"], plan["batch_size"]) == (2, 8, 16)
