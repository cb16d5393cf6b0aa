"""helpers.plan: from a recipe, a workload and a machine to settings, and from the settings to TrainingArguments."""

import math
import random
import types
from dataclasses import replace

import pytest
import torch

from helpers.machine.runtime import Runtime
from helpers.plan.machines import machine as named
from helpers.plan.machines import runtime_of
from helpers.plan.settings import DoesNotFit, Recipe, memory_of, plan
from helpers.show.tables import GIB
from helpers.train.arguments import training_arguments
from tests.harness import cpu_here
from tests.workloads import bert, plan_by_hand, stack

pytestmark = pytest.mark.once

SMALL = stack(3, length=64)
DEEP = bert(9, attention="eager")
RECIPE = Recipe(batch_size=32, learning_rate=1e-3, max_steps=200, sequence_length=64)


def machine(kind: str = "cpu", *, devices: int = 1, memory: int | None = 16 * GIB) -> Runtime:
    """A CPU, T4s or chips of a TPU with so much memory each."""
    name = {"cpu": "CPU", "cuda": "T4", "xla": "v5e-1"}[kind]
    return replace(runtime_of(named(name)), device_count=devices, memory=memory)


def needed(workload, examples: int, share: int, checkpointing: bool = False) -> int:
    """Bytes of a CPU on which so many examples just fit."""
    held = memory_of(workload, machine(), examples, share, checkpointing)
    return math.ceil(held.peak.high / 0.8) + 10  # of which a run may take four fifths


# -- the effective batch --


def test_the_effective_batch_survives_every_machine():
    chance = random.Random(0)
    fitted = shrunk = 0
    most, least = needed(SMALL, 32, 32), needed(SMALL, 1, 32)
    for _ in range(60):
        devices = chance.choice([1, 2, 4, 8])
        batch = devices * chance.choice([1, 6, 16, 32])
        memory = chance.choice([None, *range(least, most, (most - least) // 4)])
        runtime = machine("xla" if devices > 1 else chance.choice(["cpu", "xla"]), devices=devices, memory=memory)
        chosen = plan(RECIPE, SMALL, runtime, batch_size=batch)
        assert chosen.per_device_batch_size * devices * chosen.gradient_accumulation_steps == batch == chosen.batch_size
        assert chosen.micro_batch_size == chosen.per_device_batch_size * devices
        if memory and chosen.per_device_batch_size > 1:
            assert chosen.memory.fits == "yes"
        fitted += chosen.gradient_accumulation_steps == 1
        shrunk += chosen.gradient_accumulation_steps > 1
    assert fitted > 5 and shrunk > 5  # the loop saw both sides


@pytest.mark.parametrize("fitting", [1, 2, 4, 6, 12])
def test_the_micro_batch_is_the_largest_that_divides_the_batch_and_fits(fitting):
    chosen = plan(RECIPE, SMALL, machine(memory=needed(SMALL, fitting, 12)), batch_size=12)
    assert (chosen.per_device_batch_size, chosen.gradient_accumulation_steps) == (fitting, 12 // fitting)


def test_the_plan_has_the_memory_of_an_evaluation_that_takes_more_than_training():
    def large(model):
        return torch.zeros(3 * 10**9 // 4)

    chosen, plain = (plan(RECIPE, replace(SMALL, evaluation=each), machine()) for each in (large, None))
    weights, moments = chosen.memory.count.weights, chosen.memory.count.optimizer
    assert chosen.memory.peak.value == weights + moments + 3 * 10**9 > plain.memory.peak.value
    assert "evaluation takes more than training" in chosen.reasons["memory"]
    assert chosen.per_device_batch_size == plain.per_device_batch_size and plain.memory.peak.basis == "counted"


def test_no_micro_batch_is_smaller_than_the_loss_can_take():
    pairs = replace(SMALL, least=4)
    assert plan(RECIPE, pairs, machine(memory=needed(SMALL, 4, 32)), batch_size=32).per_device_batch_size == 4
    with pytest.raises(DoesNotFit, match="4 example"):
        plan(RECIPE, pairs, machine(memory=needed(SMALL, 1, 32) // 2), batch_size=32)


def test_a_recipe_that_says_the_micro_batch_gets_it_whether_it_fits_or_not():
    chosen = plan(replace(RECIPE, micro_batch_size=8), SMALL, machine(memory=needed(SMALL, 1, 8)), batch_size=8)
    assert chosen.per_device_batch_size == 8 and chosen.memory.fits != "yes"
    for wanted in (3, 16):
        with pytest.raises(ValueError, match=f"micro_batch_size={wanted}: a device has 8 examples"):
            plan(replace(RECIPE, micro_batch_size=wanted), SMALL, machine(), batch_size=8)
    default = plan(replace(RECIPE, micro_batch_size=16, clips_micro_batch=True), SMALL, machine(), batch_size=8)
    assert default.per_device_batch_size == 8
    assert default.reasons["per_device_batch_size"] == "the recipe has 16, and a device 8"


def test_unknown_memory_takes_the_whole_batch_and_says_so():
    chosen = plan(RECIPE, SMALL, machine(memory=None))
    assert chosen.per_device_batch_size == 32 and chosen.memory.fits == "unknown"
    assert "unknown" in chosen.reasons["per_device_batch_size"]


@pytest.mark.parametrize(("batch", "remedy"), [(30, 24), (3, 8)])
def test_a_batch_that_the_devices_cannot_share_is_refused_with_one_that_they_can(batch, remedy):
    with pytest.raises(ValueError, match=rf"batch_size={batch}: 8 devices.*try {remedy}"):
        plan(RECIPE, SMALL, machine("xla", devices=8), batch_size=batch)


@pytest.mark.parametrize(("name", "value"), [("batch_size", -4), ("learning_rate", -1e-3), ("max_steps", -1)])
def test_a_negative_wish_is_refused_naming_it(name, value):
    with pytest.raises(ValueError, match=rf"Recipe\n{name}\n.*input_value={value}"):
        plan(RECIPE, SMALL, machine(), **{name: value})


def test_a_model_that_does_not_fit_is_refused_with_what_it_needs():
    with pytest.raises(
        DoesNotFit, match=r"1 example\(s\) in sequences of 64 tokens need at least \d+ MiB.*smaller model"
    ):
        plan(RECIPE, SMALL, machine(memory=1000))


# -- recomputing activations --


def test_activations_are_recomputed_where_nothing_fits_else_or_a_step_is_faster_with_the_larger_micro_batch():
    enough, little = needed(DEEP, 1, 4), needed(DEEP, 1, 4, checkpointing=True)
    assert not plan(RECIPE, DEEP, machine(memory=enough), batch_size=4).gradient_checkpointing
    found = plan(RECIPE, DEEP, machine(memory=little), batch_size=4)
    assert (
        found.gradient_checkpointing and found.reasons["gradient_checkpointing"] == "a larger micro-batch fits with it"
    )
    of_t4 = [memory_of(DEEP, machine("cuda"), *sizes).peak.high for sizes in ((1, 4, False), (4, 4, True))]
    room = machine("cuda", memory=math.ceil(max(of_t4)))
    faster = plan(RECIPE, DEEP, room, batch_size=4)
    assert (faster.gradient_checkpointing, faster.per_device_batch_size) == (True, 4)
    asked = plan(RECIPE, DEEP, room, batch_size=4, gradient_checkpointing=False)
    assert asked.per_device_batch_size < 4 and faster.launches < asked.launches


def test_recomputing_that_is_asked_for_is_done_and_that_is_refused_is_not():
    assert plan(RECIPE, DEEP, machine(), batch_size=4, gradient_checkpointing=True).gradient_checkpointing
    little = machine(memory=needed(DEEP, 1, 4, checkpointing=True))
    with pytest.raises(DoesNotFit, match="or gradient_checkpointing=True"):
        plan(RECIPE, DEEP, little, batch_size=4, gradient_checkpointing=False)


# -- what a TPU changes --


def test_a_tpu_takes_the_recipes_factors():
    recipe = replace(RECIPE, tpu_batch_factor=4, tpu_learning_rate_factor=1.5)
    chosen, plain = (plan(recipe, SMALL, each) for each in (machine("xla", devices=8), machine()))
    assert (plain.batch_size, plain.learning_rate) == (32, 1e-3)
    assert chosen.batch_size == 128 and math.isclose(chosen.learning_rate, 1.5e-3)
    assert "x 4" in chosen.reasons["batch_size"] and "x 1.5" in chosen.reasons["learning_rate"]


def test_what_is_asked_for_is_not_multiplied_on_a_tpu():
    chosen = plan(RECIPE, SMALL, machine("xla", devices=8), batch_size=16, learning_rate=3e-4)
    assert (chosen.batch_size, chosen.learning_rate) == (16, 3e-4)
    assert chosen.reasons["batch_size"] == chosen.reasons["learning_rate"] == "set by you"


def test_no_loader_process_feeds_a_tpu_however_costly_an_example_is():
    chosen = plan(RECIPE, SMALL, machine("xla"))
    assert chosen.dataloader_workers == 0 and not chosen.pin_memory and chosen.optimizer == "adamw_torch"


# -- the printed plan --


def test_every_decision_is_shown_with_its_reason():
    rows = {row["setting"]: row for row in plan(RECIPE, SMALL, machine()).rows()}
    assert all(row["why"] for row in rows.values())
    assert {"precision", "batch_size", "learning_rate", "max_steps", "gradient_checkpointing", "memory"} <= set(rows)


def test_warm_up_is_a_fraction_of_the_steps_that_are_asked_for():
    assert plan(replace(RECIPE, warmup_fraction=0.1), SMALL, machine(), max_steps=50).warmup_steps == 5


# -- TrainingArguments --

FLIPS = {
    "precision": ("bf16", {"bf16": True}),
    "per_device_batch_size": (3, {"per_device_train_batch_size": 3, "per_device_eval_batch_size": 3}),
    "gradient_accumulation_steps": (7, {"gradient_accumulation_steps": 7}),
    "learning_rate": (0.123, {"learning_rate": 0.123}),
    "max_steps": (17, {"max_steps": 17}),
    "warmup_steps": (11, {"warmup_steps": 11}),
    "weight_decay": (0.5, {"weight_decay": 0.5}),
    "max_grad_norm": (0.25, {"max_grad_norm": 0.25}),
    "optimizer": ("adafactor", {"optim": "adafactor"}),
    "dataloader_workers": (2, {"dataloader_num_workers": 2}),
}
BASE = plan_by_hand(machine(), batch_size=4, accumulation=2, steps=100, length=64, precision="fp32")
DEVICES = {
    "T4": ({"precision": "fp16"}, machine("cuda")),
    "A100": ({"precision": "bf16", "pin_memory": True}, replace(machine("cuda"), compute_capability=(8, 0))),
    "TPU": ({"precision": "bf16", "device_count": 8}, machine("xla", devices=8)),
}


def arguments(folder, **changed) -> dict:
    """Of a run on this CPU."""
    made = training_arguments(replace(BASE, **changed), cpu_here(), str(folder), seed=3)
    return made.to_dict() | {"optim": made.optim.value}


def handed_over(device: str) -> dict:
    """What the class of a device's arguments gets; as a namespace, since TrainingArguments for it cannot be made on a CPU."""
    changed, there = DEVICES[device]
    return vars(training_arguments(replace(BASE, **changed), there, "run", seed=3, cls=types.SimpleNamespace, lr=1))


@pytest.mark.parametrize("name", FLIPS)
def test_a_changed_field_of_the_plan_changes_exactly_its_arguments(name, tmp_path):
    value, expected = FLIPS[name]
    before, after = arguments(tmp_path), arguments(tmp_path, **{name: value})
    assert {key: after[key] for key in after if after[key] != before[key]} == expected


def test_the_seed_decides_weights_and_data_order(tmp_path):
    given = arguments(tmp_path)
    assert (given["seed"], given["data_seed"]) == (3, 3)


@pytest.mark.parametrize(
    ("device", "fp16", "bf16", "tf32"),
    [("T4", True, False, None), ("A100", False, True, True), ("TPU", False, False, None)],
)
def test_half_precision_goes_where_the_device_wants_it_and_never_to_a_tpu(device, fp16, bf16, tf32):
    given = handed_over(device)
    assert (given["fp16"], given["bf16"], given["tf32"], given["use_cpu"]) == (fp16, bf16, tf32, False)
    assert given["lr"] == 1  # an override reaches the class


def test_on_a_tpu_one_process_feeds_all_chips():
    given = handed_over("TPU")
    assert (given["per_device_train_batch_size"], given["per_device_eval_batch_size"]) == (32, 32)


def test_memory_is_pinned_where_the_plan_says_so():
    pinned = {name: handed_over(name)["dataloader_pin_memory"] for name in DEVICES}
    assert pinned == {"T4": False, "A100": True, "TPU": False}


@pytest.mark.parametrize(("kind", "batch_size"), [("cpu", 0), ("xla", 0), ("cpu", 8), ("cpu", 128), ("xla", 256)])
def test_a_run_sees_the_recipes_number_of_examples_whatever_the_batch(kind, batch_size):
    chosen = plan(RECIPE, SMALL, machine(kind), batch_size=batch_size)
    assert chosen.max_steps * chosen.batch_size == RECIPE.max_steps * RECIPE.batch_size


def test_steps_that_were_asked_for_are_the_steps():
    assert plan(RECIPE, SMALL, machine("xla"), max_steps=7).max_steps == 7
