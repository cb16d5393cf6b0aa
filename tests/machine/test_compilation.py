"""Compiled layers beside eager ones: who gets them, the same numbers, no new graph after the first step and evaluation, few kernels.

`aot_eager` traces and differentiates as inductor does and runs torch's own kernels. What inductor itself writes needs a C++ compiler here.
"""

import re
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from helpers.machine.compilation import compiled_layers
from helpers.plan.__main__ import forecasts
from helpers.plan.counting import count
from helpers.plan.machines import machine, runtime_of
from helpers.plan.settings import Recipe, choose_compilation
from helpers.plan.workloads import Asked
from tests import harness
from tests.harness import result
from tests.machine import test_cards
from tests.machine.test_cards import DRIVER
from tests.models import tiny
from tests.workloads import bert

pytestmark = pytest.mark.once

SLOW = pytest.mark.slow
needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="inductor writes C++ on a CPU: install g++")
WITH_COMPILER = [SLOW, needs_compiler]
ROOMS = ("legal", "lejepa", "graphmer")
STEPS = 4  # of test_cards.STEPS for all rooms but GraphMER, which no overflow disturbs here


# ---- who gets them


def chosen(hardware: str, steps: int, launches: int = 6_000, compiled: bool | None = None) -> tuple[bool, str]:
    recipe = Recipe(batch_size=1, learning_rate=1.0, max_steps=steps, sequence_length=1, compiled=compiled)
    return choose_compilation(recipe, runtime_of(machine(hardware)), launches)


def test_layers_are_compiled_where_the_run_is_long_enough_and_the_card_new_enough_and_the_reason_is_told():
    long, reason = chosen("A100", 5_000)
    assert long and "5000 steps save about" in reason and "an estimate" in reason
    assert not chosen("A100", 100)[0] and not chosen("A100", 5_000, launches=100)[0]
    old, reason = chosen("T4", 10**6)
    assert not old and "sm_80" in reason
    assert not chosen("CPU", 10**6)[0] and not chosen("v5e-8", 10**6, compiled=True)[0]
    assert chosen("T4", 1, compiled=True) == (True, "set by you") and not chosen("H100", 10**6, compiled=False)[0]


def test_the_environment_decides_where_the_recipe_leaves_it_open(monkeypatch):
    for wanted, compiled in (("yes", True), ("no", False)):
        monkeypatch.setenv("COMPILE_LAYERS", wanted)
        assert chosen("T4", 1) == chosen("H100", 10**6) == (compiled, "set by you (COMPILE_LAYERS)")
        assert not chosen("v5e-8", 1)[0] and not chosen("H100", 10**6, compiled=False)[0]
    monkeypatch.setenv("COMPILE_LAYERS", "maybe")
    with pytest.raises(ValueError, match=r"COMPILE_LAYERS='maybe'.*give 'auto'"):
        chosen("H100", 1)


@pytest.mark.parametrize("notebook", ["legal_cot_sft", "lejepa_training", "graphmer_se"])
def test_the_plan_of_a_long_run_compiles_and_its_forecast_knows(notebook):
    short, long = (forecasts(notebook, ("A100",), Asked(steps=steps))[0] for steps in (20, 50_000))
    assert long.plan.compiled and not short.plan.compiled
    shown = {row["setting"]: row for row in long.plan.rows()}
    assert shown["compiled"]["value"] == "yes" and "steps save about" in shown["compiled"]["why"]
    assert long.seconds.low > long.step.low * 50_000


# ---- the same numbers


def trained(folder: Path, fresh: bool = False, **options):
    """fresh: in an interpreter of its own, which reads the environment when torch is imported."""
    return harness.train(DRIVER, folder, fresh, **{"steps": STEPS} | options)


@pytest.mark.parametrize(
    ("name", "backend", "card"),
    [(name, "aot_eager", "") for name in ROOMS]
    + [pytest.param(name, "inductor", card, marks=WITH_COMPILER) for name in ROOMS for card in ("", "A100")],
)
def test_a_trainer_with_compiled_layers_has_the_losses_of_an_eager_one_and_makes_no_new_graph(
    name, backend, card, tmp_path
):
    eager, compiled = (
        result(trained(tmp_path / (way or "eager"), room=name, backend=way, card=card, dropout=0.0))
        for way in ("", backend)
    )
    for losses in ("losses", "eval_losses"):
        assert compiled[losses] == pytest.approx(eager[losses], rel=2e-6)
    assert compiled["names"] == eager["names"]
    phases, graphs, breaks = zip(*compiled["graphs"], strict=True)
    assert not any(breaks) and eager["graphs"][-1][1] == 0 < graphs[0]
    seen = {}
    for before, phase, number in zip((0, *graphs), phases, graphs, strict=False):
        assert number == before or phase not in seen, f"a new graph in a later {phase}"
        seen[phase] = number


@pytest.mark.parametrize(
    ("name", "backend", "card"),
    [("legal", "aot_eager", "")]
    + [pytest.param(name, "aot_eager", "", marks=SLOW) for name in ("lejepa", "graphmer")]
    + [pytest.param(name, "inductor", "A100", marks=WITH_COMPILER) for name in ROOMS],
)
def test_a_killed_run_with_compiled_layers_and_dropout_ends_with_identical_weights(name, backend, card, tmp_path):
    steps = test_cards.STEPS[name]
    options = {"backend": backend, "card": card, "precision": "auto" if card else "fp32", "steps": steps}
    whole = result(trained(tmp_path / "whole", room=name, **options))
    assert whole["graphs"][-1][1] > 0
    reference = tmp_path / "whole", whole
    killed = tmp_path / "killed"
    harness.assert_killed_run_ends_as(reference, trained, killed, steps, steps - 2, room=name, **options)


def test_a_compiler_that_fails_is_told_in_a_line_and_the_run_goes_on_without(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "/bin/false")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "no graph of another run"))
    failed = result(trained(tmp_path / "failed", fresh=True, room="legal", backend="inductor", dropout=0.0))
    (line,) = [message for message in failed["train"]["messages"] if "not compiled" in message]
    assert "C++ compiler" in line and not failed["plan"]["compiled"]
    assert len(failed["losses"]) == STEPS and failed["graphs"][-1][1] == 0


def test_layers_are_eager_again_afterwards():
    model = bert(3).model
    with compiled_layers(model):
        assert all(layer._compiled_call_impl for layer in model.bert.encoder.layer)
    assert not any(layer._compiled_call_impl for layer in model.bert.encoder.layer)


# ---- how many kernels
#
# A layer is compiled by inductor with the inputs that it gets in a step. What its code calls, fused loops and products, takes the place
# of the layer's operations in the planner's count of the whole step. A card may divide a call of fused loops into several kernels.


def calls_of(layer: nn.Module, args: tuple, kwargs: dict) -> int:
    """Calls of inductor's code for a layer's forward and backward pass."""
    from peft.helpers import disable_input_dtype_casting
    from torch._inductor.utils import fresh_cache, run_fw_bw_and_get_code

    def forward():
        with torch.autocast("cpu", dtype=torch.bfloat16), disable_input_dtype_casting(layer):
            output = layer(*args, **kwargs)
        return (output[0] if isinstance(output, tuple) else output).float().sum()

    with fresh_cache(), compiled_layers(nn.ModuleList([layer])):
        _, codes = run_fw_bw_and_get_code(forward)
    call = re.compile(r"^ +(cpp_fused\w*\(|extern_kernels\.|buf\d+ = torch\.ops\.)", re.MULTILINE)
    return sum(len(call.findall(code.partition("def call(")[2])) for code in codes)


def of_a_layer(notebook: str) -> tuple[int, int]:
    """(operations, calls of inductor's code) that one more layer adds to a step of a small model: the planner's, and those of all its calls."""
    eager = [count(small(notebook, depth), 2, kind="cuda", precision="bf16").launches for depth in (2, 3)]
    workload, seen = small(notebook, 2), []
    layer = stack_of(workload)[-1]
    hook = layer.register_forward_pre_hook(lambda module, *inputs: seen.append(inputs), with_kwargs=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        workload.loss(workload.model.train(), workload.batch(1, workload.length))  # LeJEPA divides more on a CPU
    hook.remove()
    compiled = 0
    for args, kwargs in seen:
        hidden, *others = args
        compiled += calls_of(layer, (hidden.detach().requires_grad_(hidden.requires_grad), *others), kwargs)
    return eager[1] - eager[0], compiled


def stack_of(workload) -> nn.ModuleList:
    return max((module for module in workload.model.modules() if isinstance(module, nn.ModuleList)), key=len)


def small(notebook: str, depth: int):
    """The workload of the notebook's room with a small model of its kind."""
    import transformers

    if notebook == "legal_cot_sft":
        from helpers.legal.model import apply_lora
        from helpers.legal.workload import workload

        model = tiny("Qwen2", vocab_size=1_000, hidden_size=64, num_hidden_layers=depth).bfloat16()
        return workload(apply_lora(model, 4), "small", 64, "lora")
    if notebook == "graphmer_se":
        from helpers.graphmer.configuration import override, read_configuration
        from helpers.graphmer.encoder import GraphMERForPreTraining
        from helpers.graphmer.workload import workload

        sizes = {"hidden_size": 64, "num_layers": depth, "num_heads": 4, "intermediate_size": 96, "embedding_size": 16}
        configuration = override(read_configuration("rtx3050"), {f"model.{name}": size for name, size in sizes.items()})
        model = GraphMERForPreTraining(configuration.graphmer_config(600, 30))
        return workload(configuration, model)
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    from helpers.lejepa import workload as lejepa
    from helpers.lejepa.loss import LeJEPALoss

    sizes = {"vocab_size": 600, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": depth}
    config = transformers.MPNetConfig(**sizes, num_attention_heads=4)
    backbone = lejepa._backbone(transformers.AutoModel.from_config(config))
    model = SentenceTransformer(modules=[backbone, Pooling(64)], device="cpu")
    loss = LeJEPALoss(model, sigreg_weight=0.02, contrastive_weight=1.0)
    return lejepa.workload(loss, "small", (32, 32))


@pytest.mark.parametrize(
    ("notebook", "examples", "length", "most"),
    [("legal_cot_sft", 16, 1_024, 170), ("graphmer_se", 32, 768, 0), ("lejepa_training", 64, 256, 0)],
)
@SLOW
@needs_compiler
def test_compiled_layers_halve_the_operations_of_a_default_step(notebook, examples, length, most):
    """most: operations for 1,000 tokens."""
    eager, compiled = of_a_layer(notebook)
    (run,) = forecasts(notebook, ("H100",), Asked(batch_size=examples))
    step = run.plan.launches
    with_compiled = step - len(stack_of(run.workload)) * (eager - compiled)
    print(f"{notebook}: a layer {eager} -> {compiled}, a step {step} -> {with_compiled}")
    assert with_compiled <= step / 2
    assert not most or with_compiled / (examples * length / 1_000) <= most
