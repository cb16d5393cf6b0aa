"""A training step lowered through TorchTPU and compiled by libtpu for one v5e chip; nothing is executed. See tpu_compiler.py.

Every call into TorchTPU and jax is a private one of the releases that tests/requirements-torchtpu.txt names.
"""

import os

import torch
from torch._decomp import get_decompositions
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten
from tpu_step import moved

from helpers.plan.counting import copy_with
from tests.machine import tpu_stand_in

# TorchTPU lowers a norm of two dtypes, as autocast leaves them, only in its parts; the stand-in cannot read its cumulative sum.
IN_PARTS = [getattr(torch.ops.aten, name) for name in ("native_layer_norm", "native_layer_norm_backward", "cumsum")]


def adamw(weight, gradient, first, second):
    """The second step of Loshchilov & Hutter 2019 for one weight: weight and moments afterwards."""
    first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient * gradient
    towards = first / (1 - 0.9**2) / ((second / (1 - 0.999**2)).sqrt() + 1e-8)
    return weight * (1 - 1e-6) - 1e-4 * towards, first, second


def lowered(workload, examples: int, *, precision: str, length: int, checkpointing: bool, accumulating: bool) -> str:
    """StableHLO in text of forward and backward under autocast, clipping and AdamW; weights and moments may be overwritten."""
    assert not checkpointing, "no plan for v5e-1 has it"
    from torch_tpu._internal.compile import tpu_torch_compile
    from torch_tpu._internal.export import export

    def on_chip(tensor):
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="tpu")

    with FakeTensorMode(allow_non_fake_inputs=True):
        model = copy_with(workload.model, on_chip).train()
        trained = {name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}
        fixed = {name: weight for name, weight in model.named_parameters() if not weight.requires_grad}
        batch = tree_map_only(torch.Tensor, on_chip, workload.batch(examples, length))

        def like():
            return {name: torch.empty_like(weight) for name, weight in trained.items()}

        # With accumulation the gradients of earlier micro-batches come in, too.
        state = trained, like(), like(), like() if accumulating else {}
        leaves, structure = tree_flatten((*state, fixed | dict(model.named_buffers()), batch))

        def step(*leaves):
            trained, first, second, sums, fixed, batch = tree_unflatten(leaves, structure)
            weights = {name: weight.detach().requires_grad_() for name, weight in trained.items()}
            with (
                _reparametrize_module(model, weights | fixed, tie_weights=True),
                torch.autocast("tpu", dtype=torch.bfloat16, enabled=precision == "bf16"),
            ):
                loss = workload.loss(model, batch)
            loss.backward()
            gradients = {name: weight.grad + sums.get(name, 0) for name, weight in weights.items()}
            norm = torch.nn.utils.get_total_norm(gradients.values(), foreach=False).clamp(min=1)
            new = [adamw(trained[name], gradients[name] / norm, first[name], second[name]) for name in trained]
            return loss.detach(), *sum(zip(*new, strict=True), ())

        graph = make_fx(step, get_decompositions(IN_PARTS), tracing_mode="fake")(*leaves)
    given = [tpu_torch_compile.placeholder(list(each.shape), each.dtype, False) for each in leaves]
    return export.fx_to_mlir(graph, given, donated_inputs=range(3 * len(trained))).serialize_text()


def compiled(workload, examples: int, **step) -> dict:
    """Memory, FLOPs and bytes that libtpu says of the step, or why it has nothing to say."""
    try:
        return by_libtpu(lowered(workload, examples, **step))
    except Exception as error:  # the row says which operator, and why
        return {"problem": f"{type(error).__name__}: {error}"}


def by_libtpu(text: str) -> dict:
    import libtpu

    os.environ |= {"TPU_WORKER_HOSTNAMES": "localhost", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "JAX_PLATFORMS": "cpu"}
    os.environ |= {"TPU_LIBRARY_PATH": libtpu.get_library_path(), "XLA_FLAGS": ""}  # the stand-in's are of another XLA
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax.experimental import topologies
    from jaxlib import _jax
    from jaxlib.mlir import ir

    devices = topologies.get_topology_desc("v5e:1x1", "tpu", chips_per_host_bounds=(1, 1, 1)).devices
    options = compiler.get_compile_options(1, 1, [0])
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        made = devices[0].client.compile(module, _jax.DeviceList(tuple(devices)), options)
    stats = made.get_compiled_memory_stats()
    written = stats.output_size_in_bytes - stats.alias_size_in_bytes
    return {
        "peak": stats.argument_size_in_bytes + written + stats.temp_size_in_bytes,
        "flops": made.cost_analysis()["flops"],
        "moved": moved(made.hlo_modules()[0].to_string()),
    }


tpu_stand_in.load()
