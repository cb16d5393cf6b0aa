"""What a CUDA card can do decides, not that it is one: precision, TF32, attention, kernels. The CPU stands in a card's place."""

import functools

import numpy as np
import pytest
import torch

from helpers.machine import attention
from tests import harness
from tests.graphmer.batches import library
from tests.harness import result
from tests.test_attention import llama

pytestmark = pytest.mark.once


@pytest.mark.parametrize("padded", [False, True])
def test_repeated_heads_give_the_logits_of_grouped_ones(padded):
    ids, mask = torch.randint(0, 50, (2, 9)), torch.ones(2, 9, dtype=torch.long)
    mask[0, : 4 * padded] = 0
    model, stock = llama(), llama()
    attention.repeat_heads(model)
    seen = mask.bool()
    expected = stock(ids, attention_mask=mask).logits[seen]
    assert torch.allclose(model(ids, attention_mask=mask).logits[seen], expected, atol=1e-6)


@pytest.mark.parametrize(("card", "kernel"), [("T4", attention.SDPA_REPEATED_HEADS), ("A100", "sdpa")])
def test_grouped_heads_get_the_attention_that_their_card_is_fast_at(card, kernel):
    code = (
        f"from tests.machine.cuda_stand_in import pretend; pretend({card!r})\n"
        "from helpers.machine import runtime\nfrom tests.test_attention import llama\n"
        "model = llama(); runtime.detect(False).engine.prepare(model, model)\nprint(model.config._attn_implementation)"
    )
    assert harness.printed("-c", code).splitlines()[-1] == kernel


# ---- trainers in half precision

HALF = {"T4": "fp16", "A100": "bf16"}
ROOMS = {
    "training_run": {"accumulation": 1},
    "legal_run": {"learning_rate": 1e-3},
    "lejepa_run": {"length": 16},
    "graph_run": {"changes": dict.fromkeys(("run.eval_interval_steps", "run.save_interval_steps"), 2)},
}
QUICK = [("training_run", "T4"), ("legal_run", "T4"), ("training_run", "A100")]
SLOW = [("lejepa_run", "T4"), ("graph_run", "T4"), ("legal_run", "A100")]


@pytest.fixture
def options(room, card, tmp_path) -> dict:
    """Four steps, with two checkpoints; GraphMER's eight, since its loss scale falls four times before its first one in fp16."""
    given = {"card": card, "precision": "auto"} | ROOMS[room]
    if room != "graph_run":
        return given | {"steps": 4, "save_steps": 2}
    return given | {"data": str(library(tmp_path / "sources")), "changes": given["changes"] | {"run.max_steps": 8}}


@pytest.mark.parametrize(("room", "card"), [*QUICK, *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOW)])
def test_a_killed_run_in_half_precision_ends_as_an_undisturbed_one(room, card, options, tmp_path):
    train, fp16 = functools.partial(harness.train, f"tests.{room}"), card == "T4"
    options["overflows"] = [2] if fp16 else []
    whole = result(train(tmp_path / "whole", **options))
    steps = whole["train"]["steps"]
    assert whole["plan"]["precision"] == HALF[card]
    assert len(whole["losses"]) == steps and np.isfinite(whole["losses"]).all()
    harness.assert_killed_run_ends_as((tmp_path / "whole", whole), train, tmp_path / "out", steps, steps - 2, **options)
    assert ("scaler.pt" in harness.fingerprint(tmp_path / "out", steps)) is fp16


@pytest.mark.parametrize(("room", "card"), [("lejepa_run", "T4"), ("legal_run", "T4")])
def test_memory_that_runs_out_on_a_card_makes_the_parts_smaller(options, room, tmp_path):
    outcome = result(harness.train(f"tests.{room}", tmp_path / "out", **options, exhausted=["backward", "update"]))
    assert sum(message.startswith("out of memory") for message in outcome["train"]["messages"]) == 2
    plan = outcome["plan"]
    assert (plan["per_device_batch_size"], plan["gradient_accumulation_steps"]) == (2, 4)
    assert outcome["train"]["steps"] == 4 and np.isfinite(outcome["losses"]).all()
