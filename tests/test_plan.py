"""helpers.plan: from a job and a machine to settings, and from the settings to TrainingArguments."""

import json
import math
import os
import random
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from helpers.plan import GIB, MEMORY_MARGIN, ModelSize, Plan, Recipe, plan
from helpers.runtime import Runtime, choose_precision

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]
SMALL = ModelSize(trainable=1_000, frozen=500, activations=100)
RECIPE = Recipe(batch_size=32, learning_rate=1e-3, max_steps=200, sequence_length=64)


def machine(kind: str = "cpu", *, devices: int = 1, memory: int | None = 16 * GIB, **changed) -> Runtime:
    capability = (7, 5) if kind == "cuda" else None
    name = {"cuda": "Tesla T4", "xla": "TPU v5e", "cpu": "x86_64"}[kind]
    precision, reason = choose_precision(kind, name, capability)
    known = {
        "kind": kind,
        "reason": "built by hand",
        "device_name": name,
        "device_count": devices,
        "memory": memory,
        "compute_capability": capability,
        "precision": precision,
        "precision_reason": reason,
        "torch": "2.9.0",
        "torch_xla": None,
    }
    return Runtime(**{**known, **changed})


# -- the effective batch --


def test_the_effective_batch_survives_every_machine():
    chance = random.Random(0)
    fitted = shrunk = 0
    for _ in range(500):
        devices = chance.choice([1, 2, 4, 8])
        batch = devices * chance.randint(1, 96)
        memory = chance.choice([None, *range(100_000, 3_000_000, 100_000)])
        runtime = machine("xla" if devices > 1 else chance.choice(["cpu", "xla"]), devices=devices, memory=memory)
        chosen = plan(RECIPE, SMALL, runtime, batch_size=batch)
        assert chosen.per_device_batch_size * devices * chosen.gradient_accumulation_steps == batch == chosen.batch_size
        assert chosen.micro_batch_size == chosen.per_device_batch_size * devices
        if memory:
            assert chosen.memory_estimate <= MEMORY_MARGIN * memory
        fitted += chosen.gradient_accumulation_steps == 1
        shrunk += chosen.gradient_accumulation_steps > 1
    assert fitted > 50 and shrunk > 50  # the loop saw both sides


def test_the_micro_batch_is_the_largest_that_divides_the_batch_and_fits():
    # 18,000 fixed bytes and 25,600 an example: 4 examples fit into 0.8 x 152,000 = 121,600, and 5 do not.
    chosen = plan(RECIPE, SMALL, machine(memory=152_000), batch_size=12)
    assert (chosen.per_device_batch_size, chosen.gradient_accumulation_steps) == (4, 3)
    assert chosen.memory_estimate == 18_000 + 4 * 25_600


def test_a_prime_batch_goes_down_to_single_examples():
    chosen = plan(RECIPE, SMALL, machine(memory=152_000), batch_size=13)
    assert (chosen.per_device_batch_size, chosen.gradient_accumulation_steps) == (1, 13)


def test_unknown_memory_takes_the_whole_batch_and_says_so():
    chosen = plan(RECIPE, SMALL, machine(memory=None))
    assert chosen.per_device_batch_size == 32
    assert "unknown" in chosen.reasons["per_device_batch_size"]


def test_a_batch_that_the_devices_cannot_share_is_refused_with_one_that_they_can():
    with pytest.raises(ValueError, match=r"batch_size=30: 8 devices.*try 24"):
        plan(RECIPE, SMALL, machine("xla", devices=8), batch_size=30)


def test_a_batch_below_the_device_count_is_refused_with_the_device_count():
    with pytest.raises(ValueError, match=r"batch_size=3: 8 devices.*try 8"):
        plan(RECIPE, SMALL, machine("xla", devices=8), batch_size=3)


@pytest.mark.parametrize("memory", [16 * GIB, None])
def test_a_negative_batch_is_refused_naming_it(memory):
    with pytest.raises(ValueError, match="batch_size=-4"):
        plan(RECIPE, SMALL, machine(memory=memory), batch_size=-4)


@pytest.mark.parametrize(("name", "value"), [("learning_rate", -1e-3), ("max_steps", -1)])
def test_a_negative_wish_is_refused_naming_it(name, value):
    with pytest.raises(ValueError, match=name):
        plan(RECIPE, SMALL, machine(), **{name: value})


def test_a_model_that_does_not_fit_is_refused_with_what_it_needs():
    with pytest.raises(
        ValueError, match=r"64 tokens needs about 14\.\d GiB and x86_64 has 8\.0.*gradient_checkpointing"
    ):
        plan(RECIPE, ModelSize(trainable=10**9, frozen=0, activations=1), machine(memory=8 * GIB))


# -- what a TPU changes --


def test_a_tpu_takes_the_recipes_factors():
    chosen = plan(replace(RECIPE, tpu_batch_factor=4, tpu_learning_rate_factor=1.5), SMALL, machine("xla", devices=8))
    assert chosen.batch_size == 128 and math.isclose(chosen.learning_rate, 1.5e-3)
    assert "x 4" in chosen.reasons["batch_size"] and "x 1.5" in chosen.reasons["learning_rate"]


def test_a_batch_asked_for_is_not_multiplied_on_a_tpu():
    chosen = plan(RECIPE, SMALL, machine("xla", devices=8), batch_size=16)
    assert chosen.batch_size == 16 and chosen.reasons["batch_size"] == "asked for"


def test_a_learning_rate_asked_for_is_not_multiplied_on_a_tpu():
    chosen = plan(RECIPE, SMALL, machine("xla"), learning_rate=3e-4)
    assert chosen.learning_rate == 3e-4 and chosen.reasons["learning_rate"] == "asked for"


@pytest.mark.parametrize("kind", ["cpu", "xla"])
def test_a_gpu_or_cpu_takes_the_recipe_as_it_is_and_a_tpu_does_not(kind):
    chosen = plan(RECIPE, SMALL, machine(kind))
    assert (chosen.batch_size == 32) == (chosen.learning_rate == 1e-3) == (kind == "cpu")


def test_no_loader_process_feeds_a_tpu_however_costly_an_example_is():
    chosen = plan(RECIPE, SMALL, machine("xla"), compute_bound_loader=True)
    assert chosen.dataloader_workers == 0 and not chosen.pin_memory and chosen.optimizer == "adamw_torch"


# -- memory --


def test_the_estimate_agrees_with_hand_arithmetic():
    # GPT-2 small, 2 x 1024 tokens: weights, gradients and two moments of 4 bytes each; every activation kept in fp32;
    # logits, their fp32 copy and their gradient of 4 bytes each.
    model = ModelSize(trainable=124_439_808, frozen=1_000_000, activations=442_368, vocab_size=50_257)
    by_hand = 124_439_808 * (4 + 4 + 4 + 4) + 1_000_000 * 4 + 2 * 1024 * (442_368 * 4 + 50_257 * (4 + 4 + 4))
    chosen = plan(replace(RECIPE, sequence_length=1024), model, machine(memory=None), batch_size=2)
    assert chosen.memory_estimate == by_hand


def test_checkpointing_keeps_a_fifth_of_the_activations_and_all_logits():
    model = ModelSize(trainable=0, frozen=0, activations=1_000, vocab_size=10)
    chosen = plan(RECIPE, model, machine(memory=None), batch_size=1, gradient_checkpointing=True)
    assert chosen.memory_estimate == 64 * (4_000 // 5 + 120)


def test_checkpointing_lets_a_larger_micro_batch_fit():
    model, runtime = ModelSize(trainable=1_000, frozen=0, activations=1_000), machine(memory=2_000_000)
    plain, checkpointed = (plan(RECIPE, model, runtime, gradient_checkpointing=on) for on in (False, True))
    assert plain.per_device_batch_size < checkpointed.per_device_batch_size
    assert plain.batch_size == checkpointed.batch_size


# -- the printed plan --


@pytest.mark.parametrize("kind", ["cpu", "xla"])
def test_every_printed_line_ends_with_a_reason(kind):
    chosen = plan(RECIPE, SMALL, machine(kind))
    names = [line.split()[0] for line in str(chosen).splitlines()]
    assert [name for name in names if not chosen.reasons.get(name)] == []


def test_every_setting_of_the_plan_is_printed():
    shown = {line.split()[0] for line in str(plan(RECIPE, SMALL, machine())).splitlines()}
    elsewhere = {"reasons", "device_count", "pin_memory"}  # beside a reason, the batch and the workers
    assert {field.name for field in fields(Plan)} - elsewhere <= shown


def test_warm_up_is_a_fraction_of_the_steps_that_are_asked_for():
    assert plan(replace(RECIPE, warmup_fraction=0.1), SMALL, machine(), max_steps=50).warmup_steps == 5


def test_results_are_json_and_hold_the_effective_batch():
    results = json.loads(json.dumps(plan(RECIPE, SMALL, machine()).results()))
    assert results["batch_size"] == 32 and results["reasons"]["learning_rate"] == "the recipe's"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0),
        ("max_steps", 0),
        ("sequence_length", 0),
        ("tpu_batch_factor", 0),
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("tpu_learning_rate_factor", -1.0),
    ],
)
def test_an_impossible_recipe_is_refused_naming_the_field(name, value):
    with pytest.raises(ValueError, match=f"^{name}="):
        replace(RECIPE, **{name: value})


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
# The first two have tests of their own, the next two reach the data and the model, the last two only inform.
ELSEWHERE = {"device_count", "pin_memory", "sequence_length", "gradient_checkpointing", "memory_estimate", "reasons"}
BASE = dict(
    precision="fp32",
    per_device_batch_size=4,
    gradient_accumulation_steps=2,
    device_count=1,
    learning_rate=1e-3,
    max_steps=100,
    sequence_length=64,
    warmup_steps=5,
    weight_decay=0.01,
    max_grad_norm=1.0,
    optimizer="adamw_torch",
    gradient_checkpointing=False,
    dataloader_workers=0,
    pin_memory=False,
    memory_estimate=0,
)
DEVICES = {
    "T4": ({"precision": "fp16"}, vars(machine("cuda"))),
    "A100": ({"precision": "bf16", "pin_memory": True}, vars(machine("cuda", compute_capability=(8, 0)))),
    "TPU": ({"precision": "bf16", "device_count": 8}, vars(machine("xla", devices=8))),
}
ARGUMENTS = """
import json, sys
from helpers.plan import Plan
from helpers.runtime import Runtime
from helpers.arguments import training_arguments
base, flips, runtime, output_dir, devices = json.loads(sys.stdin.read())
def arguments(**changed):
    made = training_arguments(Plan(**{**base, **changed}), Runtime(**runtime), output_dir, seed=3)
    return made.to_dict() | {"optim": str(made.optim.value)}
answers = {"": arguments()} | {name: arguments(**{name: value}) for name, (value, _) in flips.items()}
def handed_over(changed, device):
    # As a dict, because TrainingArguments for a GPU or TPU cannot be built on a CPU.
    device["compute_capability"] = device["compute_capability"] and tuple(device["compute_capability"])
    return training_arguments(Plan(**{**base, **changed}), Runtime(**device), output_dir, seed=3, cls=dict, lr=1)
answers["devices"] = {name: handed_over(*pair) for name, pair in devices.items()}
print("\\n" + json.dumps(answers, default=str))
"""


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    """TrainingArguments of the base plan ("") and of the plan with one field flipped, by field."""
    finished = subprocess.run(
        [sys.executable, "-c", ARGUMENTS],
        input=json.dumps([BASE, FLIPS, vars(machine()), str(tmp_path_factory.mktemp("run")), DEVICES]),
        env=os.environ | {"USE_TORCH_XLA": "0", "CUDA_VISIBLE_DEVICES": ""},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    return json.loads(finished.stdout.splitlines()[-1])


def test_every_field_of_the_plan_is_accounted_for():
    assert {field.name for field in fields(Plan)} == set(FLIPS) | ELSEWHERE


@pytest.mark.parametrize("name", FLIPS)
def test_a_changed_field_of_the_plan_changes_exactly_its_arguments(arguments, name):
    changed = {key for key, value in arguments[name].items() if value != arguments[""][key]}
    expected = FLIPS[name][1]
    assert changed == set(expected)
    assert {key: arguments[name][key] for key in expected} == expected


def test_the_seed_decides_weights_and_data_order(arguments):
    assert (arguments[""]["seed"], arguments[""]["data_seed"]) == (3, 3)


@pytest.mark.parametrize(
    ("device", "fp16", "bf16", "tf32"),
    [("T4", True, False, None), ("A100", False, True, True), ("TPU", False, False, None)],
)
def test_half_precision_goes_where_the_device_wants_it_and_never_to_a_tpu(arguments, device, fp16, bf16, tf32):
    given = arguments["devices"][device]
    assert (given["fp16"], given["bf16"], given["tf32"], given["use_cpu"]) == (fp16, bf16, tf32, False)


def test_on_a_tpu_one_process_feeds_all_chips(arguments):
    given = arguments["devices"]["TPU"]
    assert (given["per_device_train_batch_size"], given["per_device_eval_batch_size"]) == (32, 32)


def test_an_override_reaches_the_class(arguments):
    assert all(given["lr"] == 1 for given in arguments["devices"].values())


def test_memory_is_pinned_where_the_plan_says_so(arguments):
    pinned = {name: given["dataloader_pin_memory"] for name, given in arguments["devices"].items()}
    assert pinned == {"T4": False, "A100": True, "TPU": False}


@pytest.mark.parametrize(("kind", "batch_size"), [("cpu", 0), ("xla", 0), ("cpu", 8), ("cpu", 128), ("xla", 256)])
def test_a_run_sees_the_recipes_number_of_examples_whatever_the_batch(kind, batch_size):
    chosen = plan(RECIPE, SMALL, machine(kind), batch_size=batch_size)
    assert chosen.max_steps * chosen.batch_size == RECIPE.max_steps * RECIPE.batch_size


def test_steps_that_were_asked_for_are_the_steps():
    assert plan(RECIPE, SMALL, machine("xla"), max_steps=7).max_steps == 7


# -- the command line --


def run_plan(capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of the command."""
    from helpers.planning.choosing import main

    status = main(arguments)
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def test_the_module_is_a_command_and_loads_no_heavy_library():
    code = (
        "import runpy, sys; sys.argv = ['plan', 'lejepa_training', '--hardware', 'T4,v5e-8', '--examples', '50000']\n"
        "try: runpy.run_module('helpers.plan', run_name='__main__')\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "assert not {'torch', 'numpy', 'transformers'} & set(sys.modules)"
    )
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0 and "v5e-8" in finished.stdout, finished.stderr


def test_the_command_prints_a_row_a_machine_and_says_what_decided(capsys, alone):
    status, shown, _ = run_plan(capsys, "lejepa_training", "--hardware", "T4,v5e-8", "--examples", "50000")
    rows = [line.split()[0] for line in shown.splitlines() if "datasheet bound" in line]
    assert status == 0 and rows == ["T4", "v5e-8"]
    assert "GPU or TPU:" in shown and "price an hour" in shown and "compilation" in shown


def test_json_holds_every_outlook_with_its_basis(capsys, alone):
    _, shown, _ = run_plan(capsys, "legal_cot_sft", "--hardware", "2xT4,v5e-8,A100", "--json")
    answer = json.loads(shown)
    assert [each["hardware"] for each in answer["outlooks"]] == ["2xT4", "v5e-8", "A100 40GB"]
    assert all(each["step_seconds"]["basis"] == "datasheet bound" for each in answer["outlooks"])
    assert answer["decision"]["numbers"] and sum(answer["parameters"].values()) == 511_629_184


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["lejepa_training", "--hardware", "T5"], "hardware='T5': unknown"),
        (["lejepa", "--hardware", "T4"], "job='lejepa': unknown"),
        ([], "job: missing"),
        (["lejepa_training", "--examples", "-5"], "examples=-5: is negative"),
        (["lejepa_training", "--prices", "none.json"], "none.json"),
        (["lejepa_training", "--precision", "bf16", "--hardware", "T4"], "precision='bf16': T4 has none"),
    ],
)
def test_bad_input_is_one_sentence_on_standard_error(capsys, alone, arguments, says):
    status, shown, error = run_plan(capsys, *arguments)
    assert status == 2 and not shown and says in error and error.count("\n") == 1


def test_a_zero_price_is_refused(capsys, alone):
    (alone / "prices.json").write_text('{"T4": 0}')
    status, _, error = run_plan(capsys, "lejepa_training", "--prices", "prices.json")
    assert status == 2 and "price of T4=0" in error


def test_a_job_that_fits_nowhere_says_how_many_gigabytes_are_missing(capsys, alone):
    status, shown, _ = run_plan(capsys, "legal_cot_sft", "--hardware", "RTX 3050,T4", "--length", "100000")
    assert status == 1 and "fits on none of them: T4 comes nearest and is 9.9 GB short" in shown


# -- GPU or TPU --


def decided(name: str, *hardware: str, **asked):
    from helpers.planning.catalogue import job
    from helpers.planning.choosing import compare, decide

    return decide(job(name), compare(job(name), hardware, **asked))


def test_equal_shares_of_the_peaks_are_compared_where_nothing_was_measured():
    decision = decided("legal_cot_sft", "T4", "v5e-8")
    # 8 x 197 over 65 TFLOP/s, the update of 18 million numbers beside it; 9.60 over 0.35 dollars.
    assert "v5e-8 is faster; T4 is cheaper" in decision.sentence
    assert decision.numbers[0].startswith("time an example, T4 over v5e-8: 24") and "27.43" in decision.numbers[1]


def test_without_both_prices_the_cost_stays_open():
    assert "unknown without both prices" in decided("graphmer_se", "RTX 3050", "v5e-1").sentence


def test_one_kind_of_device_alone_needs_no_decision():
    assert decided("graphmer_se", "T4", "A100") is None


def test_a_recurrence_that_nobody_measured_decides_nothing():
    decision = decided("tinystories_reservoir", "T4", "v5e-8")
    assert "stays open" in decision.sentence and "not known before" in decision.flips[0]


def test_the_number_of_examples_that_pays_for_compiling_follows_from_the_gain():
    from helpers.planning.catalogue import job
    from helpers.planning.choosing import COMPILE_SECONDS, compare
    from helpers.planning.estimate import LEAST_SHARE

    gpu, tpu = compare(job("hardware_tuning"), ("T4", "v5e-8"))
    gain = gpu.step_seconds.low / gpu.batch_size - tpu.step_seconds.low / tpu.batch_size
    fewest, most = COMPILE_SECONDS[0] / (gain / LEAST_SHARE), COMPILE_SECONDS[1] / gain
    assert f"between {fewest:,.0f} and {most:,.0f} examples" in decided("hardware_tuning", "T4", "v5e-8").flips[0]


# -- the page --


def test_the_page_is_the_same_for_the_same_inputs_and_answers_all_five_documents():
    from helpers.planning.page import page
    from helpers.planning.prices import TABLE

    first, second = (page([], TABLE, today="2026-11-21") for _ in range(2))
    assert first == second and first.count("*The document:*") == 5
    assert "Colab retired its v2-8" in first and "as of" in first and "2026-11-21" in first
