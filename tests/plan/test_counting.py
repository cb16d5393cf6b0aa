"""helpers.plan.counting: the step on fake tensors against real steps, torch's own counters and hand arithmetic."""

import contextlib
from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from helpers.plan import counting
from helpers.plan.forecast import UPDATE
from helpers.plan.workloads import Workload
from tests.workloads import Launches, bert, stack

pytestmark = pytest.mark.once


def count_on(workload, examples: int, kind: str = "cpu", precision: str = "fp32", **how) -> counting.Count:
    return counting.count(workload, examples, kind=kind, precision=precision, **how)


def real_peak(workload, examples: int, length: int, precision: str) -> int:
    """Bytes of tensors at the fullest moment of a real forward and backward on the CPU."""
    model, batch = workload.model.train(), workload.batch(examples, length)

    def step():
        half = torch.autocast("cpu", dtype=torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()
        with half:
            loss = workload.loss(model, batch)
        loss.backward()

    peak = allocated(model, step)
    model.zero_grad(set_to_none=True)
    return peak


def allocated(model, call) -> int:
    """Bytes of the model and of what is allocated at the fullest moment of a call, by the allocator's own totals."""
    there = sum(tensor.untyped_storage().nbytes() for tensor in (*model.parameters(), *model.buffers()))
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    now = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return there + peak


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_bytes_of_a_step_are_those_that_the_allocator_gives_in_a_real_one(attention, precision):
    workload = bert(3, attention=attention)
    counted = count_on(workload, 8, precision=precision, length=64)
    measured = real_peak(workload, 8, 64, precision)
    assert counted.step_peak - counted.optimizer == pytest.approx(measured, rel=0.05)


def test_flops_are_those_of_torchs_counter_on_a_real_step():
    workload = bert(2, attention="eager")
    with FlopCounterMode(display=False) as counter:
        workload.loss(workload.model, workload.batch(4, 32)).backward()
    assert count_on(workload, 4).flops == counter.get_total_flops()


@pytest.mark.parametrize(("workload", "unseen"), [(stack(3), 0), (bert(2), 2)], ids=["stack", "bert"])
def test_launches_are_the_operations_of_a_real_step_and_of_its_update(workload, unseen):
    """unseen: transformers asks the host whether a mask hides anything, but for fake tensors."""
    model, batch = workload.model.train(), workload.batch(4, workload.length)
    with Launches() as step:
        workload.loss(model, batch).backward()
    assert count_on(workload, 4).launches == step.count - unseen
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    optimizer.step()  # makes its state
    with Launches() as update:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
    assert update.count == UPDATE


def test_fused_attention_makes_the_scores_once_more_for_its_backward():
    fused, plain = (count_on(bert(2, attention=name, dropout=0.0), 4) for name in ("sdpa", "eager"))
    scores = 2 * 4 * 32 * 32 * 64  # floating-point operations of a layer: 2 x batch x T x T x width
    assert fused.flops - plain.flops == 2 * scores
    assert fused.activations < plain.activations


def test_parts_are_those_of_hand_arithmetic():
    counted = count_on(stack(3, width=64), 4)
    weights = 100 * 64 + 3 * (64 * 64 + 64) + 64 * 100 + 100
    assert (counted.parameters, counted.trained) == (weights, weights)
    assert (counted.weights, counted.gradients, counted.optimizer) == (4 * weights, 4 * weights, 8 * weights)
    assert counted.update_peak == 16 * weights + 8 * 6400  # and twice the largest weight, for the denominator
    products = 4 * 16 * (3 * 64 * 64 + 64 * 100)
    assert counted.flops == 2 * 3 * products  # forward, and backward twice


def test_counting_takes_no_memory_and_leaves_the_model_as_it_was():
    with torch.device("meta"):
        workload = bert(12, hidden_size=4096, intermediate_size=16384, num_attention_heads=32)
    counted = count_on(workload, 64, kind="cuda", precision="bf16", length=512)
    assert counted.parameters > 2 * 10**9 and counted.peak > 50 * 10**9  # far more than this machine has
    assert len(workload.model.bert.encoder.layer) == 12
    assert all(weight.is_meta and weight.grad is None for weight in workload.model.parameters())


def test_checkpointing_repeats_the_forward_pass_and_keeps_little():
    plain, again = (count_on(bert(9, attention="eager"), 16, kind="cuda", checkpointing=on) for on in (False, True))
    assert again.flops / plain.flops == pytest.approx(4 / 3, rel=0.02)
    assert again.activations < plain.activations / 4 and again.peak < plain.peak


def test_gradients_of_an_earlier_micro_batch_are_there_beside_the_activations():
    first, later = (count_on(stack(3), 512, kind="cuda", accumulating=on) for on in (False, True))
    assert later.activations == first.activations
    assert later.step_peak - first.step_peak == pytest.approx(first.gradients, rel=0.2)


def test_a_gpu_keeps_one_byte_a_dropped_number_and_no_matrix_of_attention():
    cpu, gpu = (count_on(bert(2), 8, kind=kind, length=128) for kind in ("cpu", "cuda"))
    matrices = 2 * 8 * 4 * 128 * 128 * 4  # layers x batch x heads x T x T floats
    assert cpu.activations - gpu.activations > matrices


def test_xla_has_no_fused_attention():
    """What is kept grows with the square of the length there, by a matrix of all heads a layer at least, and not with fused kernels."""

    def bent(kind):
        short, long = (count_on(bert(2, dropout=0.0), 8, kind=kind, length=length) for length in (128, 256))
        return long.activations - 2 * short.activations

    matrices = 2 * 8 * 4 * (256 * 256 - 2 * 128 * 128) * 4  # layers x batch x heads x T x T floats
    assert bent("xla") > 0.95 * matrices
    assert bent("cpu") < 0.3 * matrices  # the mask of one head alone


class Grouped(torch.nn.Module):
    """Attention in bf16 whose seven query heads share a key head."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(112, size).bfloat16() for size in (112, 16, 16))

    def forward(self, x_BTD):
        heads = [layer(x_BTD).unflatten(-1, (-1, 8)).transpose(1, 2) for layer in self.layers]
        return torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)


def grouped() -> Workload:
    return Workload(
        notebook="test",
        name="grouped",
        model=Grouped(),
        batch=lambda examples, length: torch.ones(examples, length, 112, dtype=torch.bfloat16),
        loss=lambda model, x: model(x).float().square().mean(),
        length=256,
    )


def saved_bytes(workload: Workload, examples: int) -> int:
    """Of different storages that autograd saves in a real forward pass on this CPU, beside the weights."""
    seen, weights = {}, {weight.untyped_storage().data_ptr() for weight in workload.model.parameters()}

    def note(tensor):
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = workload.loss(workload.model.train(), workload.batch(examples, workload.length))
    assert loss.requires_grad
    return sum(size for key, size in seen.items() if key not in weights)


def test_the_kernel_that_runs_is_counted_as_autograd_saves_it():
    """Grouped heads have a fused kernel, or fall to the math kernel. Both really run on this CPU."""
    ways = {
        "grouped, written out": (False, SDPBackend.MATH),
        "grouped, fused": (True, SDPBackend.FLASH_ATTENTION),
    }
    saved, counted = {}, {}
    for name, (shares_keys, kernel) in ways.items():
        workload = grouped()
        with sdpa_kernel(kernel):
            saved[name] = saved_bytes(workload, 4)
        counted[name] = count_on(workload, 4, kind="cuda", shares_keys=shares_keys).activations
        assert counted[name] == pytest.approx(saved[name], rel=0.05), name
    matrix = 4 * 14 * 256 * 256 * 2  # batch x heads x T x T, two bytes each
    assert counted["grouped, written out"] - counted["grouped, fused"] > matrix


def test_autocast_on_a_gpu_keeps_norms_in_fp32_where_a_cpu_does_not():
    """CUDA's autocast runs layer_norm in fp32 and returns fp32 (torch/aten/src/ATen/autocast_mode.h)."""
    states = torch.zeros(2, 8, dtype=torch.bfloat16)
    with counting._kernels_of("cuda", "bf16"):
        assert torch.nn.LayerNorm(8)(states).dtype == torch.float32
        assert torch.softmax(states, -1).dtype == torch.float32
        assert states.softmax(-1).dtype == torch.float32
    assert states.softmax(-1).dtype == torch.bfloat16


def test_a_number_that_code_looks_at_is_zero_and_no_error():
    workload = stack(2)
    seen = []

    def loss(model, ids):
        result = workload.loss(model, ids)
        seen.append(float(result.detach()))
        return result

    count_on(replace(workload, loss=loss), 2)
    assert seen == [0.0]


@pytest.mark.parametrize("way", ["", "_backward"])
def test_flops_of_a_cpus_fused_attention_are_those_that_torch_has_for_a_gpus(way):
    """Heads that share keys take as many as ones with keys of their own; torch 2.11's formula refuses them."""
    name, gradient = "_scaled_dot_product_flash_attention", [torch.empty(2, 14, 8, 4, device="meta")] * (way != "")
    query, key, own = (torch.empty(2, heads, length, 4, device="meta") for heads, length in ((14, 8), (2, 6), (14, 6)))
    expected = flop_registry[getattr(counting.ATEN, name + way)](*gradient, query, own, own, out_val=None)
    assert counting.FLOPS[getattr(counting.ATEN, f"{name}_for_cpu{way}")](*gradient, query, key, key) == expected
