"""What a CUDA card can do decides, not that it is one: precision, TF32, attention, kernels. The CPU stands in a card's place."""

import functools
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.machine import attention, runtime
from helpers.machine.engine import CudaEngine
from tests import harness
from tests.harness import result
from tests.test_attention import llama

pytestmark = pytest.mark.once

RECENT = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]  # the cu130 wheel of torch 2.13


@pytest.mark.parametrize(("card", "capability"), [("Tesla P100-PCIE-16GB", (6, 0)), ("Tesla V100-SXM2-16GB", (7, 0))])
def test_a_card_without_kernels_in_the_installed_torch_is_refused_with_the_remedy(card, capability):
    with pytest.raises(RuntimeError, match=rf"{card}.*no kernels for it.*T4 x2.*cu126"):
        runtime.refuse_without_kernels(card, capability, RECENT)


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 3), (12, 0), (12, 1), (13, 0)])
def test_a_card_with_kernels_of_its_generation_or_newer_than_the_wheel_is_taken(capability):
    runtime.refuse_without_kernels("a card", capability, RECENT)


def test_detection_refuses_a_p100_before_its_first_kernel():
    code = "from tests.machine.cuda_stand_in import pretend; pretend('P100')\nfrom helpers.machine import runtime; runtime.detect(False)"
    refused = harness.python("-c", code)
    assert refused.returncode == 1 and "has no kernels for it" in refused.stderr.splitlines()[-1]


def test_a_gpu_computes_with_kernels_that_repeat_themselves_and_without_those_built_for_each_length():
    engine, ours = CudaEngine(), torch.utils.deterministic
    assert torch.backends.cuda.cudnn_sdp_enabled()
    with engine.computing(None):
        assert torch.are_deterministic_algorithms_enabled() and not ours.fill_uninitialized_memory
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        engine.repeats = False  # as a trainer goes on where torch has no such kernel, or is told to
        with engine.computing(None):
            assert not torch.are_deterministic_algorithms_enabled()
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled() and ours.fill_uninitialized_memory
    assert torch.backends.cuda.cudnn_sdp_enabled()


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
    assert len(overflows) <= whole["train"]["skipped_steps"] < steps
    options = {"room": room, "card": card, "overflows": overflows}
    resumed = harness.assert_killed_run_ends_as((folder, whole), trained, tmp_path / "out", steps, steps - 2, **options)
    assert resumed["train"]["skipped_steps"] == whole["train"]["skipped_steps"]
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
half = {machine.precision: True} if machine.precision != "fp32" else {}
trainer = training.ClassifierTrainer(task, task.start | half, "out", seed=0)
plan, arguments = trainer.plan, trainer.args
watch = training.Utilisation(machine)
watch.on_log(None, type("State", (), {"global_step": 1}), None, logs={"loss": 1.0})
windows.measure_window(task, task.start, 8)
print("RESULT " + json.dumps({
    "report": str(machine), "plan": plan.results(), "fused": arguments.optim.value, "fp16": arguments.fp16, "bf16": arguments.bf16,
    "rungs": {rung.name: rung.detail for rung in ladder.rungs(task)}, "advice": watch.advice(),
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
