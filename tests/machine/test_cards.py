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
