"""The TPU compiler's answers: what the twins' steps need, send and overwrite on chips that are not there."""

import functools
import importlib
import json
import os
import re
import sys
from pathlib import Path

import pytest

from helpers.machine import xla
from tests.harness import ROOT, printed

sys.path.insert(0, str(ROOT / "benchmarks"))
tpu = importlib.import_module("tpu_step")
collectives = importlib.import_module("tpu_compiler").collectives
TWINS = ("reservoir", "lejepa", "legal")  # beside the tuning notebook's; GraphMER's takes two minutes: make tpu
needs_compiler = pytest.mark.skipif(bool(tpu.available()), reason=tpu.available())


def compiled(folder: Path, hardware: str, *names: str) -> dict[str, dict]:
    """Of each named step (tests/plan/tpu_programs.py), in a process of their own: its first backward pass must find the device."""
    environment = {**os.environ, "XLA_FLAGS": ""}
    output = printed("tests/plan/tpu_programs.py", folder, hardware, *names, env=environment)
    found = [json.loads(line.removeprefix("STEP ")) for line in output.splitlines() if line.startswith("STEP ")]
    return {each["step"]: each for each in found}


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """What the compiler says of steps on a slice; those of a call are compiled once."""
    return functools.cache(lambda *names: compiled(tmp_path_factory.mktemp("steps"), *names))


ON_ONE_CHIP = ("v5e-1", "huge", "tuning in fp32", "tuning")
ON_EIGHT = ("v5e-8", "stack", "gathering", "tuning")


@needs_compiler
@pytest.mark.parametrize("twin", ["tuning", *(pytest.param(each, marks=pytest.mark.slow) for each in TWINS)])
def test_a_twins_step_compiles_for_a_tpu_and_overwrites_what_it_replaces(steps, twin):
    step = (steps("v5e-1", *TWINS) if twin in TWINS else steps(*ON_ONE_CHIP))[twin]
    assert step["flops"] > 0 and not step["collectives"]
    assert step["aliased"] > 0.99 * (step["outputs"] - 4096)  # the loss and an index of the outputs are new
    assert (
        step["arguments"] >= step["held"] and step["peak"] < step["arguments"] + step["outputs"] + step["temporaries"]
    )


@needs_compiler
def test_a_chip_draws_for_its_own_examples_alone(steps):
    """Both slices have as many examples a chip. Without libtpu's flag (xla.OWN_DRAWS) a chip of eight would draw for all of them."""
    assert 0 < steps(*ON_EIGHT)["tuning"]["drawn"] <= steps(*ON_ONE_CHIP)["tuning"]["drawn"]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (None, xla.OWN_DRAWS),
        ("--xla_tpu_something=1", f"--xla_tpu_something=1 {xla.OWN_DRAWS}"),
        (xla.OWN_DRAWS.replace("true", "false"), xla.OWN_DRAWS.replace("true", "false")),
    ],
)
def test_libtpu_is_told_unless_the_user_has_said_otherwise(monkeypatch, told, expected):
    monkeypatch.delenv("LIBTPU_INIT_ARGS", raising=False)
    if told:
        monkeypatch.setenv("LIBTPU_INIT_ARGS", told)
    for _ in range(2):
        xla.set_libtpu_arguments()
        assert os.environ["LIBTPU_INIT_ARGS"] == expected


@needs_compiler
def test_eight_chips_send_each_other_gradients_alone(steps):
    step = steps(*ON_EIGHT)["tuning"]
    assert set(step["collectives"]) == {"all-reduce"}
    assert step["collectives"]["all-reduce"]["bytes"] < 1.1 * step["held"] / 3  # weights and two moments each
    assert set(steps(*ON_EIGHT)["stack"]["collectives"]) == {"all-reduce"}


@needs_compiler
def test_a_loss_that_compares_all_examples_is_seen_to_gather(steps):
    gathered = steps(*ON_EIGHT)["gathering"]["collectives"]["all-gather"]
    assert gathered["count"] > 0 and gathered["bytes"] > 64 * 16 * 100  # every example's logits


@needs_compiler
def test_what_no_chip_holds_is_refused_with_the_compilers_figures(steps):
    problem = steps(*ON_ONE_CHIP)["huge"]["problem"]
    needs, has, held = map(float, re.findall(r"[\d.]+\d", problem))
    assert problem.startswith("needs ") and needs > held > has == 15.75


def test_an_unknown_slice_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"hardware='v9-1': unknown to the TPU compiler; there are v5e-1, "):
        tpu.compile_step(None, "v9-1")
    assert {"v5e-1", "v5e-8", "v6e-1", "v6e-8"} <= set(tpu.TOPOLOGIES)


PROGRAM = """HloModule step

%body (a: f32[8,128]) -> f32[8,128] {
  ROOT %all-gather.1 = f32[64,128]{1,0} all-gather(%a), dimensions={0}
}

ENTRY %main (a: f32[8,128], b: bf16[4,128]) -> f32[8,128] {
  %a = f32[8,128]{1,0:T(8,128)} parameter(0)
  %b = bf16[4,128]{1,0:T(8,128)(2,1)} parameter(1)
  %copy-start.1 = (f32[8,128]{1,0:T(8,128)S(1)}, f32[8,128]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%a)
  %near = f32[8,128]{1,0:T(8,128)S(1)} copy-done(%copy-start.1)
  %fusion.1 = f32[8,128]{1,0:T(8,128)} fusion(%near, %b), kind=kLoop, metadata={op_name="aten__mul" source_file="/x/y/z/model.py" source_line=7}
  %dynamic-update-slice.2 = f32[8,128]{1,0:T(8,128)} fusion(%fusion.1, %b), kind=kLoop
  ROOT %all-reduce.1 = f32[8,128]{1,0:T(8,128)} all-reduce(%dynamic-update-slice.2), to_apply=%add
}
"""


def test_bytes_of_a_program_are_those_that_cross_the_border_of_the_chips_memory():
    wide, narrow = 4 * 8 * 128, 2 * 4 * 128
    assert collectives(PROGRAM) == {
        "all-gather": {"count": 1, "bytes": 8 * wide},
        "all-reduce": {"count": 1, "bytes": wide},
    }
    copied = wide  # read once; what it becomes lies in the core
    fused = wide + narrow  # written, and the one operand that lies outside
    in_place = 2 * narrow  # what is put there is read, and written
    assert tpu.moved(PROGRAM) == copied + fused + in_place + 2 * wide


def test_products_in_fp32_are_named():
    assert tpu.PRODUCT.findall("%dot.1 = f32[8,16]{1,0} dot(f32[8,8]{1,0} %a, f32[8,16]{1,0} %b)") == ["f32"]


@needs_compiler
def test_a_step_whose_products_became_fp32_is_seen(steps):
    """The planted fault: the same step traced without autocast. FLOPs differ by less than a percent; the dtypes do not."""
    mixed, wide = (steps(*ON_ONE_CHIP)[name]["products"] for name in ("tuning", "tuning in fp32"))
    assert sum(mixed.values()) == sum(wide.values()) and mixed["bf16"] > 0.9 * sum(mixed.values())
    assert set(wide) == {"f32"}
