"""A traced step compiled by Google's TPU compiler, on a machine without a TPU. The only file that knows libtpu and jax.

    compiled = compile_step(trace(workload, 8), "v5e-8")
    compiled.peak, compiled.collectives

libtpu holds the compiler; jax's compile-only client gives it a topology in the place of chips. The module that torch_xla
traced becomes MLIR, whose arguments are marked: the batch is split over the chips, everything else is whole on each, and
what the step overwrites may be overwritten in place. GSPMD does the rest, as it does under torch_xla.
"""

from __future__ import annotations

import collections
import importlib.util
import math
import os
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from helpers.machine import xla

if TYPE_CHECKING:
    from .tpu_step import Traced

NEEDED = "'torch_xla[tpu,pallas]~=2.9.0'"  # names the libtpu and the jax that it was built with
# libtpu's name of a slice, and its chips on a host along each axis.
TOPOLOGIES = {
    "v5e-1": ("v5e:1x1", (1, 1, 1)),
    "v5e-4": ("v5e:2x2", (2, 2, 1)),
    "v5e-8": ("v5e:2x4", (2, 4, 1)),
    "v5e-16": ("v5e:4x4", (2, 4, 1)),
    "v6e-1": ("v6e:1x1", (1, 1, 1)),
    "v6e-4": ("v6e:2x2", (2, 2, 1)),
    "v6e-8": ("v6e:2x4", (2, 4, 1)),
    "v4-8": ("v4:2x2x1", (2, 2, 1)),
}
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")
COLLECTIVE = re.compile(rf"\s+(?:ROOT )?%\S+ = (.+?) ({'|'.join(COLLECTIVES)})(?:-start)?\(")
WIDTHS = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f64": 8, "s64": 8, "u64": 8}  # else 4
INSTRUCTION = re.compile(r"\s+(?:ROOT )?%(\S+) = (.+?) ([a-z-]+)\((.*)")
ARRAY = r"\b[a-z]+\d*\[[\d,]*\](?:\{[^}]*\})?"
# Names for what is there, the second half of a copy, and loops, whose state stays where it is.
MOVES_NOTHING = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "copy-done", "slice-done", "while")
MOST = 8  # parts that are named


class DoesNotFitChip(RuntimeError):
    """The program needs more memory than a chip has.

    Attributes:
        needs, has, held: GiB, in words: of the program, of a chip, and of weights, moments and gradients alone.
        buffers: the largest between the step's beginning and its end, largest first.
    """

    def __init__(self, needs: str, has: str, held: str, buffers: list[str]):
        remedy = "a smaller micro-batch, a shorter sequence or gradient checkpointing"
        named = "".join(f"\n  {each}" for each in buffers)
        super().__init__(
            f"no: needs {needs} of {has} GiB, {held} of it for weights and optimizer; try {remedy}, or a smaller model{named}"
        )
        self.needs, self.has, self.held, self.buffers = needs, has, held, buffers


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What the compiler made of a step. Bytes and FLOPs are of one chip."""

    name: str
    hardware: str
    chips: int
    examples: int  # of the step, over all chips
    seconds: float  # that compiling took
    arguments: int
    outputs: int
    aliased: int  # of the outputs, written over arguments
    temporaries: int
    flops: float
    accessed: float  # bytes read and written by the compiler's own count, copies to the core's memory and back included
    moved: int  # bytes read from the chip's memory and written to it
    collectives: dict[str, dict[str, int]]  # kind: how many, and their bytes
    custom_calls: dict[str, int]  # target: how many
    largest: tuple[tuple[str, int], ...]  # of `moved`, by where the model asked for it
    arrays: tuple[tuple[str, int], ...]  # of `moved`, by the kind and the shape of what is moved
    program: str = field(repr=False)  # optimised HLO in text

    @property
    def peak(self) -> int:
        """Bytes that a chip needs: what comes in, what goes out beside it, and what lies between."""
        return self.arguments + self.outputs - self.aliased + self.temporaries

    def results(self) -> dict[str, Any]:
        found = {**asdict(self), "peak": self.peak}
        del found["program"]
        return found


def available() -> str:
    """Why nothing can be compiled here, or ""."""
    missing = [name for name in ("torch_xla", "libtpu", "jax") if importlib.util.find_spec(name) is None]
    return f"the TPU compiler needs {', '.join(missing)}: pip install {NEEDED}" if missing else ""


def compile_step(traced: Traced, hardware: str) -> Compiled:
    """Compiles a traced step for a TPU slice.

    Raises:
        ValueError: an unknown slice, or a batch that its chips cannot share.
        RuntimeError: libtpu or jax is not installed.
        DoesNotFitChip: the compiler's own answer where memory does not suffice, with its largest buffers.
    """
    if hardware not in TOPOLOGIES:
        raise ValueError(f"hardware={hardware!r}: unknown to the TPU compiler; there are {', '.join(TOPOLOGIES)}")
    if problem := available():
        raise RuntimeError(problem)
    devices = _devices(hardware)
    if traced.examples % len(devices):
        raise ValueError(f"{traced.examples} examples cannot be split over the {len(devices)} chips of {hardware}")
    began = time.perf_counter()
    executable = _compile(traced, devices)
    seconds = time.perf_counter() - began
    stats, costs = executable.get_compiled_memory_stats(), executable.cost_analysis()
    program = executable.hlo_modules()[0].to_string()
    return Compiled(
        name=traced.name,
        hardware=hardware,
        chips=len(devices),
        examples=traced.examples,
        seconds=round(seconds, 1),
        arguments=stats.argument_size_in_bytes,
        outputs=stats.output_size_in_bytes,
        aliased=stats.alias_size_in_bytes,
        temporaries=stats.temp_size_in_bytes,
        flops=costs["flops"],
        accessed=costs["bytes accessed"],
        **read(program),
        program=program,
    )


def _devices(hardware: str) -> list:
    # Read by libtpu, which looks for a machine with chips otherwise, and wants it for itself.
    os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    xla.set_libtpu_arguments()
    import libtpu
    from jax.experimental import topologies

    os.environ.setdefault("TPU_LIBRARY_PATH", libtpu.get_library_path())
    name, bounds = TOPOLOGIES[hardware]
    return list(topologies.get_topology_desc(platform="tpu", topology_name=name, chips_per_host_bounds=bounds).devices)


def _compile(traced: Traced, devices: list):
    import jax
    import numpy as np
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jaxlib import xla_client
    from jaxlib.mlir import ir

    count = len(devices)
    options = compiler.get_compile_options(
        num_replicas=1,
        num_partitions=count,
        device_assignment=np.arange(count).reshape(1, count),
        use_spmd_partitioning=True,
        use_auto_spmd_partitioning=False,
    )
    options.executable_build_options.use_shardy_partitioner = False  # torch_xla's annotations are GSPMD's
    text = xla_client._xla.mlir.xla_computation_to_mlir_module(xla_client.XlaComputation(traced.module))
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        _mark(module, traced, count, ir)
        try:
            return compiler.backend_compile(devices[0].client, module, xla_client.DeviceList(tuple(devices)), options)
        except jax.errors.JaxRuntimeError as error:
            raise _in_words(str(error)) or error from None


def _mark(module, traced: Traced, count: int, ir) -> None:
    """Says of each argument of `main` how it is split, and whether it may be overwritten."""
    main = next(each for each in module.body.operations if ir.StringAttr(each.attributes["sym_name"]).value == "main")
    marked = []
    for number, (before, kind) in enumerate(zip(main.arg_attrs, main.type.inputs, strict=True)):
        sharding = "{replicated}"
        if number in traced.batch:
            axes = ",".join(map(str, [count, *[1] * (len(ir.RankedTensorType(kind).shape) - 1)]))
            sharding = f"{{devices=[{axes}]<=[{count}]}}"
        marks = {each.name: each.attr for each in before} | {"mhlo.sharding": ir.StringAttr.get(sharding)}
        if number in traced.state:
            marks["jax.buffer_donor"] = ir.BoolAttr.get(True)
        marked.append(ir.DictAttr.get(marks))
    main.arg_attrs = ir.ArrayAttr.get(marked)


def _in_words(said: str) -> DoesNotFitChip | None:
    """The compiler's refusal of a program that is too large."""
    found = re.search(r"Used ([\d.]+)G of ([\d.]+)G hbm", said)
    if "RESOURCE_EXHAUSTED" not in said or not found:
        return None
    held = re.search(r"arguments\s+([\d.]+)G", said)
    buffers = []
    for entry in said.split("  Size: ")[1:]:
        size, shape = re.match(r"[\d.]+[MG]", entry), re.search(r"Shape: (\S+?)[{\s]", entry)
        if size and shape:
            buffers.append(f"{size[0]} {shape[1]} {_asked_by(entry)}".strip())
    return DoesNotFitChip(found[1], found[2], held[1] if held else "0", buffers[:MOST])


def read(program: str) -> dict[str, Any]:
    """`moved`, `collectives`, `custom_calls`, `largest` and `arrays` of an optimised HLO module in text."""
    collectives: dict[str, dict[str, int]] = {}
    calls: collections.Counter = collections.Counter()
    moved: collections.Counter = collections.Counter()
    arrays: collections.Counter = collections.Counter()
    for line in program.splitlines():
        if found := COLLECTIVE.match(line):
            kind = collectives.setdefault(found[2], {"count": 0, "bytes": 0})
            kind["count"] += 1
            kind["bytes"] += size(found[1])
        if found := re.search(r'custom_call_target="([^"]+)"', line):
            calls[found[1]] += 1
    shapes: dict[str, str] = {}
    for line in program[program.index("\nENTRY ") :].splitlines():
        if found := INSTRUCTION.match(line):
            name, shapes[name], kind, rest = found[1], found[2], found[3], found[4]
            operands = [shapes.get(each, "") for each in re.findall(r"%([\w.-]+)", rest.split("), ")[0])]
            crossing = _moved(kind, name, shapes[name], operands)
            moved[f"{kind} {_asked_by(rest)}".strip()] += crossing.total()
            arrays += crossing
    return {
        "moved": moved.total(),
        "collectives": collectives,
        "custom_calls": dict(calls),
        "largest": tuple(moved.most_common(MOST)),
        "arrays": tuple(arrays.most_common(MOST)),
    }


def _asked_by(instruction: str) -> str:
    """`aten__mul torch/optim/adam.py:537` of an instruction's metadata."""
    found = re.search(r'op_name="(\w+)[^"]*"(?: source_file="([^"]+)" source_line=(\d+))?', instruction)
    if not found:
        return ""
    return f"{found[1]} {'/'.join(found[2].split('/')[-3:])}:{found[3]}" if found[2] else found[1]


def _moved(kind: str, name: str, result: str, operands: Sequence[str]) -> collections.Counter:
    """Bytes that an instruction reads from a chip's memory and writes to it, by array; what lies in the core's own does not count."""
    if kind in MOVES_NOTHING or "ConcatBitcast" in name:
        return collections.Counter()
    if kind in ("copy-start", "slice-start"):  # (destination, source, ...) and ((source), destination, ...)
        ends = re.findall(ARRAY, result)[:2]
        part = min(size(end) for end in ends)
        return collections.Counter({_shape(ends[0]): part * sum(size(end, far=True) > 0 for end in ends)})
    times, ends = 1, [result, *operands]
    if "dynamic-update-slice" in name and result in operands:  # in place
        times, ends = 2, [each for each in operands if each != result]
    crossing: collections.Counter = collections.Counter()
    for array in re.findall(ARRAY, " ".join(ends)):
        crossing[_shape(array)] += times * size(array, far=True)
    return crossing


def _shape(array: str) -> str:
    return array.split("{")[0]


def size(shape: str, far: bool = False) -> int:
    """Bytes of a shape in HLO's notation, without padding: `bf16[8,128]{1,0:T(8,128)(2,1)}`, or a tuple of such.

    far: only of what lies in the chip's memory; `S(1)` in a layout is the core's own.
    """
    total = 0
    for array in re.findall(ARRAY, shape):
        kind, axes = re.match(r"([a-z]+\d*)\[([\d,]*)\]", array).groups()
        if not (far and "S(" in array):
            total += WIDTHS.get(kind, 4) * math.prod(int(axis) for axis in axes.split(",") if axis)
    return total
