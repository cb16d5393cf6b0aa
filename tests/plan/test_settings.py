"""helpers.plan.settings: from a recipe, a model and a machine to settings, and from the settings to TrainingArguments."""

import math
import types
from dataclasses import replace

import pytest

from helpers.plan import memory
from helpers.plan.settings import DoesNotFit, Recipe, plan, usable_memory
from helpers.train.arguments import training_arguments
from tests.harness import cpu_here
from tests.workloads import cpu_by_hand, machine_by_hand, plan_by_hand

from .test_memory import stack, stack_batch, stack_loss

GIB = 2**30

pytestmark = pytest.mark.once

MODEL = stack()
RECIPE = Recipe(batch_size=32, learning_rate=1e-3, max_steps=200, sequence_length=16)
T4 = machine_by_hand("cuda", "Tesla T4", memory=15 * GIB)
A100 = machine_by_hand("cuda", "NVIDIA A100-SXM4-40GB")
CHIPS = machine_by_hand("xla", "TPU v5e", devices=8, memory=16 * GIB)


def planned(runtime=None, recipe=RECIPE, **by_user):
    return plan(recipe, MODEL, stack_loss, stack_batch, runtime or cpu_by_hand(), **by_user)


def cpu_for(examples: int):
    """A CPU on which so many examples just fit."""
    saved = memory.activations(MODEL, stack_loss, stack_batch(examples), "fp32", False)
    return cpu_by_hand(memory=math.ceil((sum(memory.state(MODEL).values()) + saved) / 0.4) + 10)


# ---- the micro-batch


@pytest.mark.parametrize("fitting", [1, 4, 12])
def test_the_micro_batch_is_the_largest_divisor_that_fits(fitting):
    chosen = planned(cpu_for(fitting), batch_size=12)
    assert (chosen.per_device_batch_size, chosen.gradient_accumulation_steps) == (fitting, 12 // fitting)
    assert chosen.batch_size == 12
    assert sum(chosen.memory.values()) == pytest.approx(0.4 * cpu_for(fitting).memory, rel=0.001)


def test_no_micro_batch_is_smaller_than_the_loss_can_take():
    pairs = replace(RECIPE, smallest=4)
    assert planned(cpu_for(3), pairs).per_device_batch_size == 4
    assert planned(cpu_for(3)).per_device_batch_size == 2


def test_several_processes_leave_more_room():
    one, two = (replace(T4, device_count=count) for count in (1, 2))
    assert usable_memory(two) == usable_memory(one) / 2
    assert usable_memory(CHIPS) == usable_memory(replace(CHIPS, device_count=1))


def test_a_model_whose_state_does_not_fit_is_refused_with_what_it_needs():
    with pytest.raises(DoesNotFit, match=r"CPU has 0 MiB: weights, gradients and optimizer need \d MiB, and 1 example"):
        planned(cpu_by_hand(memory=1000))
    state = sum(memory.state(MODEL).values())
    assert planned(cpu_by_hand(memory=2 * state)).per_device_batch_size == 1  # little is left, and it is tried


def test_a_batch_that_the_devices_cannot_share_is_refused():
    with pytest.raises(ValueError, match="batch_size=3: 8 devices share it, so it must be a multiple of 8"):
        planned(CHIPS, batch_size=3)


# ---- what a TPU, a card and a user change


def test_a_tpu_takes_the_recipes_factors_but_for_what_the_user_has_set():
    recipe = replace(RECIPE, tpu_batch_factor=4, tpu_learning_rate_factor=1.5)
    chosen, by_user = planned(CHIPS, recipe), planned(CHIPS, recipe, batch_size=16, learning_rate=3e-4)
    assert (chosen.batch_size, chosen.learning_rate) == (128, pytest.approx(1.5e-3))
    assert "x 4" in chosen.reasons["batch_size"] and "x 1.5" in chosen.reasons["learning_rate"]
    assert (by_user.batch_size, by_user.learning_rate) == (16, 3e-4)
    assert by_user.reasons["batch_size"] == by_user.reasons["learning_rate"] == "set by you"


@pytest.mark.parametrize(("runtime", "batch"), [(None, 0), (None, 8), (CHIPS, 256)])
def test_a_run_sees_the_recipes_number_of_examples(runtime, batch):
    chosen = planned(runtime, batch_size=batch)
    assert chosen.max_steps * chosen.batch_size == RECIPE.max_steps * RECIPE.batch_size
    assert planned(runtime, max_steps=7).max_steps == 7


def test_a_model_that_overflows_fp16_trains_in_fp32_where_there_is_no_bf16():
    recipe = replace(RECIPE, fp16=False)
    chosen = planned(T4, recipe)
    assert chosen.precision == "fp32" and "has no bf16" in chosen.reasons["precision"]
    assert planned(CHIPS, recipe).precision == "bf16" and planned(T4).precision == "fp16"


# ---- TrainingArguments


def test_the_settings_of_a_plan_are_those_of_its_arguments(tmp_path):
    """Each has a value that no other has, and none its default."""
    expected = {
        "gradient_accumulation_steps": 7,
        "learning_rate": 0.123,
        "max_steps": 17,
        "warmup_steps": 11,
        "weight_decay": 0.5,
        "max_grad_norm": 0.25,
    }
    settings = {"per_device_batch_size": 3, "precision": "bf16", "optimizer": "adafactor", "dataloader_workers": 2}
    base = plan_by_hand(cpu_by_hand(), batch_size=4, steps=100, length=64)
    made = training_arguments(replace(base, **expected, **settings), cpu_here(), str(tmp_path), seed=5)
    expected |= {"bf16": True, "optim": "adafactor", "dataloader_num_workers": 2, "seed": 5, "data_seed": 5}
    expected |= dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size"), 3)
    assert vars(made).items() >= expected.items()


@pytest.mark.parametrize(
    ("there", "fp16", "bf16", "tf32", "pinned"),
    [(T4, True, False, None, True), (A100, False, True, True, True), (CHIPS, False, False, None, False)],
    ids=["T4", "A100", "TPU"],
)
def test_half_precision_goes_where_the_device_wants_it(there, fp16, bf16, tf32, pinned):
    """The class gets its fields as a namespace, since TrainingArguments for these devices cannot be made on a CPU."""
    if there is CHIPS:
        pytest.importorskip("torch_xla")
    planned = plan_by_hand(there, batch_size=8, steps=100, length=64)
    given = training_arguments(planned, there, "run", seed=3, cls=types.SimpleNamespace, lr=1)
    assert (given.fp16, given.bf16, given.tf32, given.use_cpu) == (fp16, bf16, tf32, False)
    assert given.dataloader_pin_memory == pinned and given.lr == 1  # an override reaches the class
