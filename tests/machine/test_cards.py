"""What a CUDA card can do decides, not that it is one: precision, TF32, attention, kernels. The CPU stands in a card's place."""

import functools
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.machine import attention
from helpers.machine.engine import CudaEngine
from tests import harness
from tests.harness import result
from tests.test_attention import llama

pytestmark = pytest.mark.once


def test_a_gpu_repeats_its_bits_where_asked_and_never_builds_attention_for_each_length():
    engine = CudaEngine()
    for repeats in (False, True):
        engine.repeats = repeats
        with engine.computing(None):
            assert torch.are_deterministic_algorithms_enabled() == repeats
            assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert not torch.are_deterministic_algorithms_enabled() and torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize("padded", [False, True])
def test_repeated_heads_give_the_logits_of_grouped_ones(padded):
    ids, mask = torch.randint(0, 50, (2, 9)), torch.ones(2, 9, dtype=torch.long)
    mask[0, : 4 * padded] = 0
    model, stock = llama(), llama()
    assert attention.repeat_heads(model)
    seen = mask.bool()
    expected = stock(ids, attention_mask=mask).logits[seen]
    assert torch.allclose(model(ids, attention_mask=mask).logits[seen], expected, atol=1e-6)


@pytest.mark.parametrize(("card", "kernel"), [("T4", attention.SDPA_REPEATED_HEADS), ("A100", "sdpa")])
def test_a_model_with_grouped_heads_gets_the_attention_that_its_card_has_a_fused_kernel_for(card, kernel):
    code = (
        f"from tests.machine.cuda_stand_in import pretend; pretend({card!r})\n"
        "from helpers.machine import runtime\nfrom tests.test_attention import llama\n"
        "model = llama(); runtime.detect(False).engine.prepare(model, model)\nprint(model.config._attn_implementation)"
    )
    assert harness.printed("-c", code).splitlines()[-1] == kernel


# ---- the trainers of all notebooks

ROOMS = ("reservoir", "lejepa", "legal", "graphmer", "tuning")
HALF = {"T4": "fp16", "A100": "bf16"}
OVERFLOWS = {"T4": [2], "A100": []}
SLOW = pytest.mark.slow
BOTH = [
    pytest.param(
        room,
        card,
        marks=[] if (room, card) in (("reservoir", "T4"), ("legal", "T4"), ("reservoir", "A100")) else [SLOW],
    )
    for room in ROOMS
    for card in HALF
]
DRIVER = "tests.machine.room_trainers"
STEPS = dict.fromkeys(ROOMS, 4) | {"graphmer": 8}  # whose loss scale falls four times before its first fp16 step


def trained(folder: Path, *, room: str, **options) -> subprocess.CompletedProcess:
    return harness.train(DRIVER, folder, **{"room": room, "precision": "auto", "steps": STEPS[room]} | options)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """(folder, results) of each trainer on each card: four steps; in fp16 a gradient of the second is infinite."""

    @functools.cache
    def of(room: str, card: str) -> tuple[Path, dict]:
        folder = tmp_path_factory.mktemp(f"{room}-{card}") / "out"
        return folder, result(trained(folder, room=room, card=card, overflows=OVERFLOWS[card]))

    return of


@pytest.mark.parametrize(("room", "card"), BOTH)
def test_a_trainer_in_half_precision_that_is_killed_ends_with_identical_weights_and_loss_scale(
    room, card, undisturbed, tmp_path
):
    (folder, whole), steps, overflows = undisturbed(room, card), STEPS[room], OVERFLOWS[card]
    assert whole["device"].startswith("cuda") and whole["plan"]["precision"] == HALF[card]
    assert len(whole["losses"]) == whole["train"]["steps"] == steps and np.isfinite(whole["losses"]).all()
    options = {"room": room, "card": card, "overflows": overflows}
    harness.assert_killed_run_ends_as((folder, whole), trained, tmp_path / "out", steps, steps - 2, **options)
    assert ("scaler.pt" in harness.fingerprint(folder, steps)) is (HALF[card] == "fp16")


@pytest.mark.parametrize(
    "room", [pytest.param(each, marks=[] if each in ("lejepa", "legal") else [SLOW]) for each in ROOMS]
)
def test_a_trainer_that_runs_out_of_memory_in_backward_and_in_the_first_update_goes_on_with_smaller_parts(
    room, tmp_path
):
    outcome = result(trained(tmp_path / "out", room=room, card="T4", exhausted=["backward", "update"]))
    assert sum(message.startswith("out of memory") for message in outcome["train"]["messages"]) == 2
    plan = outcome["plan"]
    assert (plan["per_device_batch_size"], plan["gradient_accumulation_steps"]) == (2, 4)
    assert outcome["train"]["steps"] == STEPS[room] and np.isfinite(outcome["losses"]).all()


# ---- the planner's count of a step

BESIDE = (
    30  # operations of the trainer itself: whether the loss is finite, its sum since the last log, the labels of a step
)


@pytest.mark.parametrize("room", ROOMS)
def test_a_trainers_step_starts_as_many_operations_as_the_planner_counts(room, tmp_path):
    outcome = result(trained(tmp_path / "out", room=room, precision="bf16", dropout=0.0, steps=2, counted=True))
    planned, steps = outcome["launches"]["planned"], outcome["launches"]["steps"]
    assert len(steps) == 2 and planned > 100
    assert all(planned <= step <= planned + BESIDE for step in steps), outcome["launches"]


# ---- what is answered for every card

ANSWERS = """
import json, sys
from tests.machine.cuda_stand_in import ARCHITECTURES, pretend
card, count = sys.argv[1], int(sys.argv[2])
pretend(card, count, ["sm_60", "sm_70", *ARCHITECTURES])  # as of a torch for older cards, too
from helpers.machine import runtime
from helpers.tuning import ladder, training, windows
from tests.tuning_run import task_of
machine = runtime.detect(False, num_processes=1)
task = task_of(machine)
plan = task.plan(task.start | ({machine.precision: True} if machine.precision != "fp32" else {}))
arguments = training.arguments(task, task.start, "out", plan, seed=0)
watch = training.Utilisation(machine)
watch.on_log(None, type("State", (), {"global_step": 1}), None, logs={"loss": 1.0})
windows.measure_window(task, task.start, 8)
print("RESULT " + json.dumps({
    "report": str(machine), "plan": plan.results(), "fused": arguments.optim.value, "fp16": arguments.fp16, "bf16": arguments.bf16,
    "rungs": {rung.name: rung.why_not for rung in ladder.rungs(task)}, "advice": watch.advice(),
}))
"""
CARDS = {  # precision; TF32 came with bf16
    **dict.fromkeys(("P100", "V100", "T4"), "fp16"),
    **dict.fromkeys(("A100", "L4", "H100"), "bf16"),
}


@functools.cache
def answers(card, count=1):
    return result(harness.run("-c", ANSWERS, card, count))


@pytest.mark.parametrize("card", [pytest.param(each, marks=[] if each in HALF else [SLOW]) for each in CARDS])
def test_runtime_plan_arguments_and_ladder_answer_for_every_card(card):
    precision, found = CARDS[card], answers(card)
    assert card in found["report"] and f"precision  {precision}" in found["report"]
    assert found["plan"]["precision"] == precision and found[precision] is True
    assert found["fused"] == "adamw_torch_fused"
    rungs = found["rungs"]
    assert list(rungs)[:5] == ["length-grouped batches", "padding to multiples of 8", "TF32", precision, "fused AdamW"]
    assert (rungs["TF32"] == "") is (precision == "bf16") and rungs["fused AdamW"] == ""
    assert "loader workers, pinned memory" in rungs
    assert found["advice"].startswith("Utilisation was 50%")


def test_of_two_cards_a_notebook_takes_one():
    assert "using 1 of 2" in answers("T4", 2)["report"]
