"""A training step compiled by Google's TPU compiler, on a machine without a TPU. The only file that knows libtpu and jax.

    begin()
    recipe, step = notebook_step("legal_cot_sft", runtime_of("v5e-8"))
    traced = trace(step, 8, precision="bf16")            # torch_xla, no TPU, no memory; seconds
    compiled = compile_step(traced, "v5e-8")             # minutes
    compiled.peak, compiled.flops

The step is the trainer's: forward and backward under autocast, clipping, AdamW; every weight, moment and batch is a
placeholder. libtpu holds the compiler; jax's compile-only client gives it a topology in the place of chips. The module that
torch_xla traced becomes MLIR, whose arguments are marked: the batch is split over the chips, everything else is whole on each,
and what the step overwrites may be overwritten in place. GSPMD does the rest, as it does under torch_xla.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from helpers.machine import attention, xla
from helpers.machine.hardware import find
from helpers.machine.runtime import Runtime, choose_precision
from helpers.plan.settings import DoesNotFit, Recipe

NEEDED = "'torch_xla[tpu,pallas]~=2.9.0'"  # names the libtpu and the jax that it was built with
# libtpu's name of a slice, and its chips on a host along each axis.
TOPOLOGIES = {"v5e-1": ("v5e:1x1", (1, 1, 1)), "v5e-8": ("v5e:2x4", (2, 4, 1))}
ARRAY = r"\b[a-z]+(\d*)\[([\d,]*)\](?:\{[^}]*\})?"  # bits of a number, axes


# ---- machines that are not here, and the steps of the notebooks on them


def runtime_of(hardware: str) -> Runtime:
    """The runtime that `detect` would report on a TPU slice such as `v5e-8`, or on one GPU of the catalogue such as `T4`."""
    slice_of = re.fullmatch(r"(v\d\w?)-(\d+)", hardware)
    kind, name, devices = "cuda", hardware, 1
    if slice_of:
        kind, name, devices = "xla", f"TPU {slice_of[1]}", int(slice_of[2])
    accelerator = find(name)
    assert accelerator, hardware
    precision, why = choose_precision(kind, accelerator.name, accelerator.compute_capability)
    return Runtime(
        kind=kind,
        reason=f"in the place of {hardware}",
        device_name=accelerator.name,
        device_count=devices,
        memory=accelerator.gigabytes * 10**9,
        compute_capability=accelerator.compute_capability,
        precision=precision,
        precision_reason=why,
    )


@dataclass(frozen=True, kw_only=True)
class Step:
    """A training step as `plan` takes it."""

    model: Any  # a module; its weights are looked at for shapes alone
    batch: Callable[[int], Any]
    loss: Callable[[Any, Any], Any]
    length: int  # tokens of a sequence


def notebook_step(
    notebook: str, runtime: Runtime, *, model: str = "", method: str = "", length: int = 0
) -> tuple[Recipe, Step]:
    """Recipe and step of a notebook's default run, with a model on the device "meta", which takes no memory.

    model: a folder with another configuration (of the reservoir: its units; not of GraphMER). method: of `LegalParameters`. length: tokens; 0: the notebook's.
    """
    steps = {
        "tinystories_reservoir": _reservoir,
        "hardware_tuning": _tuning,
        "lejepa_training": _lejepa,
        "legal_cot_sft": _legal,
        "graphmer_se": _graphmer,
    }
    return steps[notebook](runtime, model, method, length)


def _loss_of(model, inputs):
    return model(**inputs).loss


def _reservoir(runtime: Runtime, units: str, method: str, length: int) -> tuple[Recipe, Step]:
    from helpers.reservoir.model import ReservoirConfig, ReservoirForCausalLM
    from helpers.reservoir.parameters import UNITS_OF_A_BLOCK, ReservoirParameters, recipe
    from helpers.reservoir.training import blank_batch

    default = ReservoirParameters.defaults()
    number = int(units or default.units)
    # 10,000 stories of TinyStories have a vocabulary of 4,608 entries and some 220 tokens each.
    config = ReservoirConfig(vocab_size=4_608, units=number, unit_blocks=number // UNITS_OF_A_BLOCK)
    step = Step(
        model=ReservoirForCausalLM(config),
        batch=lambda examples: blank_batch(config, examples),
        loss=_loss_of,
        length=1,
    )
    return recipe(2_200_000), step


def _tuning(runtime: Runtime, folder: str, method: str, length: int) -> tuple[Recipe, Step]:
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification, BertConfig

    from helpers.tuning.parameters import TuningParameters

    # BertConfig() is bert-base-uncased; the notebook's data has 16,000 rows of six labels.
    config = AutoConfig.from_pretrained(folder) if folder else BertConfig()
    config.num_labels = 6
    with torch.device("meta"):
        model = AutoModelForSequenceClassification.from_config(config, attn_implementation="sdpa")
    tokens = length or TuningParameters.defaults().max_length

    def batch(examples: int) -> dict:
        mask = torch.ones(examples, tokens, dtype=torch.long)
        mask[0, -1] = 0  # as where texts are padded: attention gets a mask
        return {"input_ids": torch.ones_like(mask), "attention_mask": mask, "labels": torch.zeros_like(mask[:, 0])}

    settings = Recipe(batch_size=8, learning_rate=4e-5, max_steps=6_000, sequence_length=tokens, tpu_batch_factor=1)
    return settings, Step(model=model, batch=batch, loss=_loss_of, length=tokens)


EMBEDDING_GEMMA = {  # google/embeddinggemma-300m config.json, which is gated
    "vocab_size": 262_144,
    "hidden_size": 768,
    "intermediate_size": 1_152,
    "num_hidden_layers": 24,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "max_position_embeddings": 2_048,
    "use_bidirectional_attention": True,
}
GEMMA = "google/embeddinggemma-300m"


def _lejepa(runtime: Runtime, name: str, method: str, length: int) -> tuple[Recipe, Step]:
    """name: GEMMA, a folder, or "" for mpnet; sentence-transformers' own first module would need weights on disk."""
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Pooling

    from helpers.lejepa.loss import LeJEPALoss
    from helpers.lejepa.parameters import EmbeddingParameters, recipe
    from helpers.lejepa.training import blank_columns

    class Backbone(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.auto_model = transformers.AutoModel.from_config(config)

        def forward(self, features):
            # Into the batch, as sentence-transformers writes it, where it stays until the step is done.
            features["token_embeddings"] = self.auto_model(**features).last_hidden_state
            return features

    default = EmbeddingParameters.defaults()
    tokens = length or default.train_length
    config = transformers.MPNetConfig(vocab_size=30_527)
    sizes = []
    if name == GEMMA:
        config = transformers.Gemma3TextConfig(**EMBEDDING_GEMMA)
        sizes = [(768, 3_072), (3_072, 768)]  # its two linear layers after pooling
    elif name:
        config = transformers.AutoConfig.from_pretrained(name)
    config.use_cache = False
    D = config.hidden_size
    with torch.device("meta"):
        modules = [Backbone(), Pooling(D)]
        for inputs, outputs in [*sizes, (D, min(default.output_dim, D))]:
            modules.append(Dense(inputs, outputs, activation_function=torch.nn.Identity()))
        model = SentenceTransformer(modules=modules, device="meta")
    loss = LeJEPALoss(model, **default.model_dump(include={"sigreg_weight", "contrastive_weight"}))
    loss = loss.to("meta")  # only now: it reads its own numbers while it is made, and "meta" has none
    # One length a column is compiled on XLA, and questions are short.
    lengths = (min(tokens, 32), tokens)
    step = Step(
        model=loss,
        batch=lambda examples: blank_columns(lengths, examples),
        loss=lambda loss, columns: loss(columns),
        length=tokens,
    )
    chosen = recipe(1_600, 1_600, tokens, 2 * tokens, runtime.kind)  # pairs of the default data set
    return replace(chosen, fp16=name != GEMMA), step


QWEN_HALF_B = {  # Qwen/Qwen2.5-0.5B-Instruct config.json
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4_864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}


def _legal(runtime: Runtime, folder: str, method: str, length: int) -> tuple[Recipe, Step]:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config

    from helpers.legal.launch import blank_blocks, step_loss
    from helpers.legal.model import apply_lora, frozen_dtype
    from helpers.legal.packing import BLOCK
    from helpers.legal.parameters import LegalParameters, recipe

    default = LegalParameters.defaults()
    method, tokens = method or default.method, length or BLOCK
    config = AutoConfig.from_pretrained(folder) if folder else Qwen2Config(**QWEN_HALF_B)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=frozen_dtype(method, runtime.precision))
        if method != "full":
            model = apply_lora(model, default.lora_rank)
    blocks = 36  # of the sample at 1,024 tokens
    step = Step(model=model, batch=lambda examples: blank_blocks(tokens, examples), loss=step_loss, length=tokens)
    return recipe(blocks, tokens, method, config.hidden_size, runtime.device_count), step


def _graphmer(runtime: Runtime, model: str, method: str, length: int) -> tuple[Recipe, Step]:
    """The sequences of a graph with one triple and no sources, which have the fields and the sizes of any other."""
    import torch

    from helpers.graphmer.chains import EncodedGraph, LeafyChains, Relations
    from helpers.graphmer.encoder import GraphMERForPreTraining
    from helpers.graphmer.graph.knowledge_graph import Entity, new_graph
    from helpers.graphmer.parameters import GraphParameters
    from helpers.graphmer.text import Documents, train_tokenizer
    from helpers.graphmer.training import run_recipe

    configuration = GraphParameters.defaults().configuration(runtime)
    graph = new_graph([Entity(name, "function") for name in ("f", "g")], [("f", "calls", "g")], {})
    tokenizer = train_tokenizer([], configuration.encoding.vocab_size)
    chains = LeafyChains(graph.triples, EncodedGraph(Documents(graph), tokenizer, configuration), configuration)
    tokens = length or configuration.training_data.max_seq_len
    sequence = chains.with_roots(configuration.roots(tokens))[0]
    with torch.device("meta"):
        config = configuration.graphmer_config(configuration.encoding.vocab_size, **Relations().properties)
        encoder = GraphMERForPreTraining(config)
    step = Step(
        model=encoder, batch=lambda examples: chains.collate([sequence] * examples), loss=_loss_of, length=tokens
    )
    return run_recipe(configuration, 15_000, runtime), step  # sequences of Python's standard library at 512 tokens


# ---- the step, traced


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A step as an HLO module of one device that sees the whole batch."""

    module: bytes
    batch: frozenset[int]  # arguments that are split over the chips, along their first axis
    state: frozenset[int]  # arguments that the step overwrites: weights, moments, gradients


def available() -> str:
    """Why nothing can be compiled here, or ""."""
    there = all(map(importlib.util.find_spec, ("torch_xla", "libtpu", "jax")))
    return "" if there else f"the TPU compiler needs torch_xla, libtpu and jax: pip install {NEEDED}"


def begin() -> None:
    """Makes the device that steps are traced on; before the first backward pass of the process, even of a counted step.

    Autograd looks at the devices once, at its first backward pass, and knows no later one.

    Raises RuntimeError where the compiler is not installed.
    """
    if problem := available():
        raise RuntimeError(problem)
    os.environ |= {"PJRT_DEVICE": xla.REHEARSAL, "CPU_NUM_DEVICES": "1"}
    import torch

    xla.device_count()  # imports torch_xla, without which there is no such device
    torch.zeros(1, device="xla")


def trace(
    step: Step,
    examples: int,
    *,
    precision: str = "bf16",
    checkpointing: bool = False,
    accumulating: bool = False,
    chips: int = 1,
) -> Traced:
    """The optimizer step after a micro-batch; where a run cuts that into programs, the last and largest of them.

    Args:
        examples: of the micro-batch, over all chips.
        precision: "bf16" autocast, or "fp32".
        checkpointing: activations are computed again in backward.
        accumulating: gradients of earlier micro-batches are added to.
        chips: that will share the micro-batch; modules with `batch_groups` sum over each chip's part by itself.
    """
    import torch
    from torch.utils._pytree import tree_leaves, tree_map_only
    from torch_xla import _XLAC as bindings
    from torch_xla.core import xla_builder as builder

    from helpers.machine.engine import copy_with

    bindings._xla_set_rng_seed(0)  # or dropout's random numbers go on from those of an earlier trace

    def placeholder(tensor):  # without numbers: steps on it can be traced, and never be run
        return builder.create_placeholder_tensor(tensor.shape, tensor.dtype)

    model = copy_with(step.model, placeholder)
    model.train()
    transformers = [module for module in model.modules() if hasattr(module, "supports_gradient_checkpointing")]
    if transformers:
        attention.use_one_dtype(transformers[0])
        if checkpointing:
            attention.checkpoint_activations(transformers[0], "xla")
    for module in model.modules():
        if hasattr(module, "batch_groups"):
            module.batch_groups = chips
    batch = tree_map_only(torch.Tensor, placeholder, step.batch(examples))
    trained, moments, gradients = [weight for weight in model.parameters() if weight.requires_grad], [], []
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    for weight in trained:
        first, second = placeholder(weight), placeholder(weight)
        optimizer.state[weight] = {"step": torch.tensor(1.0), "exp_avg": first, "exp_avg_sq": second}
        moments += [first, second]
        if accumulating:
            weight.grad = placeholder(weight)
            gradients.append(weight.grad)
    number = bindings._xla_get_tensor_id
    batches, states = (set(map(number, each)) for each in (tree_leaves(batch), [*trained, *moments, *gradients]))
    with mock.patch.object(xla, "sync", lambda: None):  # a step that cuts its graph would start it
        with torch.autocast("xla", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = step.loss(model, batch)
        loss.backward()
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    outputs = [each.detach() for each in (loss, *trained, *moments)]
    arguments = bindings._get_tensors_xla_device_data_node(outputs)[0]
    return Traced(
        module=bindings._get_xla_tensors_hlo_proto(outputs),
        batch=frozenset(at for at, each in enumerate(arguments) if each in batches),
        state=frozenset(at for at, each in enumerate(arguments) if each in states),
    )


# ---- the step, compiled


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What the compiler made of a step: bytes and FLOPs of one chip."""

    arguments: int
    outputs: int
    aliased: int  # of the outputs, written over arguments
    temporaries: int
    flops: float
    program: str  # optimised HLO in text

    @property
    def peak(self) -> int:
        """Bytes that a chip needs: what comes in, what goes out beside it, and what lies between."""
        return self.arguments + self.outputs - self.aliased + self.temporaries


def compile_step(traced: Traced, hardware: str) -> Compiled:
    """Compiles a traced step for a TPU slice, whose chips share its batch. Raises DoesNotFit as the compiler says it."""
    executable = _compile(traced, _devices(hardware))
    stats = executable.get_compiled_memory_stats()
    return Compiled(
        arguments=stats.argument_size_in_bytes,
        outputs=stats.output_size_in_bytes,
        aliased=stats.alias_size_in_bytes,
        temporaries=stats.temp_size_in_bytes,
        flops=executable.cost_analysis()["flops"],
        program=executable.hlo_modules()[0].to_string(),
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
            needed = re.search(r"Used [\d.]+G of [\d.]+G hbm", str(error))
            if not needed:
                raise
            raise DoesNotFit(needed[0]) from None


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


# ---- the compiled program, read


def size(shape: str) -> int:
    """Bytes of a shape in HLO's notation, without padding: `bf16[8,128]{1,0:T(8,128)(2,1)}`, or a tuple of such."""
    total = 0
    for bits, axes in re.findall(ARRAY, shape):
        total += int(bits or 8) // 8 * math.prod(map(int, axes.split(",") if axes else ()))  # `pred` takes a byte
    return total
