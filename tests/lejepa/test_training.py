"""LeJEPATrainer on real, tiny runs: exact resume with the slices of SIGReg, parts of a batch, memory, and eight XLA devices."""

import functools
import signal
from collections import Counter
from pathlib import Path

import pytest
import torch

from helpers.lejepa.data import Example
from helpers.lejepa.loss import LeJEPALoss, views
from helpers.lejepa.model import linear_head, principal_head
from helpers.lejepa.training import pairs, train_head
from helpers.train.sentence_encoder import preprocess_at_length
from tests import harness
from tests.harness import answers_on_xla, fingerprint, result
from tests.lejepa_run import build_model, sentences
from tests.test_resume import ON_XLA, SLOW_ON_XLA

DRIVER = Path(__file__).parents[1] / "lejepa_run.py"


run = functools.partial(harness.train, DRIVER)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Results of runs by their options; each runs once."""

    @functools.cache
    def of(**options) -> dict:
        return result(run(tmp_path_factory.mktemp("run"), **options))

    return of


# ---- rows and batches


@pytest.mark.once
def test_rows_go_pass_after_pass_with_other_views_and_the_same_ones_for_a_seed():
    examples = [Example("", (" ".join(f"word{n}-{i}" for i in range(40)),), str(n)) for n in range(5)]
    examples.append(Example("A question", ("its answer", "another wording", "a third"), "5"))
    rows = pairs(examples, views, 16, 3, seed=1)
    positives = [example.texts[0] for example in examples]
    assert len(rows) == 48 and rows["positive"] != pairs(examples, views, 16, 3, seed=2)["positive"]
    assert rows.to_dict() == pairs(examples, views, 16, 3, seed=1).to_dict()
    crops = [
        anchor for anchor, positive in zip(rows["anchor"], rows["positive"], strict=True) if positive == positives[0]
    ]
    assert 7 <= len(crops) == len({*crops}) <= 9
    wordings = {
        positive for anchor, positive in zip(rows["anchor"], rows["positive"], strict=True) if anchor == "A question"
    }
    assert wordings > {"its answer"} and wordings <= {"its answer", "another wording", "a third"}


@pytest.mark.once
def test_no_answer_is_twice_in_a_batch_and_all_questions_of_an_answer_come_as_often():
    """A row that repeats the answer of another would be a negative of itself."""
    examples = [Example(f"question {n}", (f"answer {n % 7}",), str(n % 7)) for n in range(31)]
    rows = pairs(examples, views, 31, 5, seed=0)
    for begin in range(0, len(rows), 5):
        assert len({*rows["positive"][begin : begin + 5]}) == 5
    counts = Counter(rows["anchor"])
    assert len(counts) == 31
    for answer in range(7):
        of_one = [counts[example.question] for example in examples if example.key == str(answer)]
        assert max(of_one) - min(of_one) <= 1
    with pytest.raises(ValueError, match="batch_size=8: there are 7 different answers or headings"):
        pairs(examples, views, 1, 8, seed=0)


@pytest.mark.once
def test_the_trainer_takes_the_rows_batch_by_batch_as_they_stand(finished):
    outcome = finished(batch_size=4, steps=3)
    assert [text.removeprefix("query : ") for text in outcome["texts"]] == sentences(40, 0)[:12]


@pytest.mark.once
def test_a_head_that_is_trained_on_frozen_embeddings_is_closer_to_its_pairs():
    torch.manual_seed(0)
    anchors_ND, noise_ND = torch.randn(2, 512, 16)
    positives_ND = anchors_ND * torch.linspace(0, 2, 16) + noise_ND * torch.linspace(2, 0, 16)
    weight_KD = principal_head(positives_ND.numpy())
    make_loss = lambda head: LeJEPALoss(head, sigreg_weight=0.02, contrastive_weight=1.0)  # noqa: E731
    trained_KD = train_head(make_loss, weight_KD, anchors_ND.numpy(), positives_ND.numpy(), 32)
    columns = [{"sentence_embedding": side_ND[:64]} for side_ND in (anchors_ND, positives_ND)]
    before, after = (
        float(make_loss(torch.nn.Sequential(linear_head(weight))).eval()(map(dict, columns)))
        for weight in (weight_KD, trained_KD)
    )
    assert after < 0.95 * before


@pytest.mark.once
def test_batches_are_cut_at_a_length_that_all_have_on_xla(tmp_path):
    model = build_model(tmp_path, dropout=0.0)
    few, one = (preprocess_at_length(model, 48, fixed=fixed) for fixed in (False, True))
    texts = [" ".join(["cat"] * words) for words in range(1, 60)]
    assert [few([text])["input_ids"].shape[1] for text in texts] == [min(words + 2, 48) for words in range(1, 60)]
    assert {one([text])["input_ids"].shape[1] for text in texts} == {48}


# ---- one CPU run


@pytest.mark.once
def test_a_token_costs_six_operations_a_weight_of_the_encoder_and_columns_have_the_models_prompts(finished):
    outcome = finished()
    layer = 4 * (32 * 32 + 32) + 2 * 32 * 64 + 64 + 32 + 4 * 32
    pooler, head = 32 * 32 + 32, 32 * 16 + 16
    assert outcome["flops_per_token"] == 6 * (2 * layer + pooler + head)
    assert outcome["prompts"] == {"text": "query: ", "part": "document: "}


@pytest.mark.once
def test_logs_hold_the_terms_of_which_the_loss_is_made(finished):
    outcome = finished()
    logged = [entry for entry in outcome["history"] if "loss" in entry]
    assert len(logged) == 12
    for entry in logged:
        assert entry["loss"] == pytest.approx(entry["invariance"] + entry["sigreg"] + entry["contrastive"], abs=1e-4)


@pytest.mark.once
def test_a_plan_that_accumulates_trains_on_the_whole_batch_in_parts(finished):
    whole = finished(dropout=0.0, batch_size=16, steps=4)
    parts = finished(dropout=0.0, batch_size=4, accumulation=4, steps=4)
    assert (whole["part"], parts["part"]) == (0, 4)
    assert {rows for rows, _ in parts["shapes"]} == {16}
    assert parts["losses"] == pytest.approx(whole["losses"], rel=1e-5)


@pytest.mark.once
def test_out_of_memory_halves_the_part_and_keeps_the_batch(finished):
    whole = finished(dropout=0.0, batch_size=16, steps=4)
    shrunk = finished(dropout=0.0, batch_size=16, steps=4, fits=2)
    assert shrunk["part"] == 2 and {rows for rows, _ in shrunk["shapes"]} == {16}
    plan = shrunk["plan"]
    assert (plan["per_device_batch_size"], plan["gradient_accumulation_steps"], plan["batch_size"]) == (2, 8, 16)
    assert shrunk["losses"] == pytest.approx(whole["losses"], rel=1e-5)


# ---- resume


@pytest.mark.parametrize("kind", SLOW_ON_XLA)
def test_a_killed_run_ends_with_identical_weights_and_losses(kind, tmp_path):
    options = {"steps": 8, "accumulation": 2} | ({"kind": "xla"} if kind == "xla" else {})
    reference = result(run(tmp_path / "whole", **options))
    killed = run(tmp_path / "cut", **options, kill_step=7)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    resumed = result(run(tmp_path / "cut", fresh=kind == "cpu", **options))
    assert resumed["train"]["resumed_from_step"] == 4
    assert resumed["losses"] == reference["losses"]
    assert fingerprint(tmp_path / "cut", 8) == fingerprint(tmp_path / "whole", 8)
    if kind == "xla":
        assert resumed["xla"]["compiles_after_warmup"] == 0


@pytest.mark.once
def test_a_stock_loss_resumes_exactly_too(tmp_path):
    options = {"loss": "ranking", "steps": 8}
    reference = result(run(tmp_path / "whole", **options))
    assert run(tmp_path / "cut", **options, kill_step=7).returncode == -signal.SIGKILL
    assert result(run(tmp_path / "cut", **options))["losses"] == reference["losses"]


# ---- XLA


@ON_XLA
def test_eight_xla_devices_and_a_cpu_give_the_same_losses_and_no_value_leaves_a_device_between_logs(finished):
    options = {"steps": 12, "dropout": 0.0, "logging_steps": 4, "save_steps": 12, "accumulation": 2}
    ours = finished(**options, kind="xla", lengths=(("text", 48), ("part", 32)))
    reference = finished(**options)
    assert ours["losses"] == pytest.approx(reference["losses"], rel=1e-4)
    assert ours["xla"]["compiles_after_warmup"] == ours["xla"]["host_syncs_per_step"] == 0
    assert ours["shapes"] == [[16, 32], [16, 48]]
    assert ours["train"]["padding"] > reference["train"]["padding"]
    whole = {spec for name, spec in ours["sharding"].items() if name.endswith(("input_ids", "attention_mask"))}
    assert whole == {"{devices=[8,1]0,1,2,3,4,5,6,7}"}


@ON_XLA
def test_bf16_on_xla_stays_near_fp32_and_is_another_number(finished):
    options = {"steps": 4, "dropout": 0.0}
    exact = finished(**options)
    ours = finished(**options, kind="xla", precision="bf16")
    assert ours["losses"] == pytest.approx(exact["losses"], rel=3e-2)
    assert ours["losses"] != exact["losses"]


ENCODED = """
import json, random
from helpers.machine import runtime, xla
from helpers.train.sentence_encoder import encode, load_sentence_encoder
machine = runtime.detect(True)
draw = random.Random(0)
texts = [" ".join(draw.choices(["tide", "harbour", "moon", "cliff"], k=draw.randint(1, 40))) for _ in range(150)]
model = load_sentence_encoder("sample", texts=texts, max_seq_length=48)
on_cpu, seen = encode(model, texts), []
model = model.to(machine.device)
for count in (150, 150, 70):
    before = xla.counters()
    difference = float(abs(encode(model, texts[:count]) - on_cpu[:count]).max())
    after = xla.counters()
    seen.append([difference, *(after[name] - before[name] for name in ("compiles", "host_transfers", "item_calls"))])
print("ANSWERS", json.dumps(seen))
"""


def test_texts_are_encoded_on_the_chip_in_four_lengths_that_compile_once():
    first, again, fewer = answers_on_xla(ENCODED)
    assert all(difference < 1e-5 for difference, *_ in (first, again, fewer))
    assert first[1] <= 4 and again[1:] == [0, 3, 0] and fewer[1:] == [0, 2, 0]
