"""Private names of libraries that the helpers call or override: each must be there.

When a release of a library takes one away, this test fails with its name before anything else fails for a stranger reason.
"""

import ast
import importlib
import inspect
import itertools

import pytest
import torch
from accelerate.optimizer import AcceleratedOptimizer
from ipykernel.kernelbase import Kernel
from transformers import (
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)
from trl import SFTTrainer

from helpers.machine import xla
from tests.harness import ROOT

NAMES = {  # by the class that says it
    Trainer: (
        "_determine_best_metric",
        "_evaluate",
        "_get_dataloader",
        "_get_output_dir",
        "_get_train_sampler",
        "_globalstep_last_logged",
        "_load_from_checkpoint",
        "_prepare_inputs",
        "_remove_unused_columns",
        "_save",
        "_save_checkpoint",
        "_tr_loss",
        "_train_batch_size",
    ),
    SFTTrainer: ("_metrics", "_prepare_dataset"),
    TrainingArguments: ("_n_gpu",),
    PreTrainedModel: (
        "_init_weights",
        "_is_hf_initialized",
        "_is_stateful",
        "_keys_to_ignore_on_save",
        "_no_split_modules",
        "_set_gradient_checkpointing",
        "_supports_sdpa",
    ),
    GenerationMixin: ("_prepare_cache_for_generation", "_update_model_kwargs_for_generation"),
    PretrainedConfig: ("_attn_implementation", "_get_generation_parameters"),
    torch.nn.Module: (
        "_apply",
        "_buffers",
        "_compiled_call_impl",
        "_load_from_state_dict",
        "_non_persistent_buffers_set",
    ),
    torch.Tensor: ("_version",),
    torch.UntypedStorage: ("_cdata",),
    Kernel: ("_allow_stdin",),
    AcceleratedOptimizer: ("_is_overflow",),
    PreTrainedTokenizerFast: ("_tokenizer",),
}
OPERATIONS = (
    "_local_scalar_dense",
    "_log_softmax",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "_softmax",
    "_to_copy",
)
XLA = (
    "_get_graph_hash",
    "_get_xla_sharding_spec",
    "_xla_computation_cache_is_initialized",
    "_get_xla_tensors_hlo",
    "_get_xla_tensors_hlo_proto",
    "_get_tensors_xla_device_data_node",
    "_xla_get_tensor_id",
)
ELSEWHERE = {  # tested where they are used, or of the standard library
    *("_XLAC", "_xla", "_parallel_loader_kwargs", "_reorder_cache"),
    *("_linear_pointwise", "_orig_mod", "_overloadpacket", "_reorder_linear_weight"),
    *("_asdict", "_field_defaults", "_fields", "_make", "_replace"),
}


def text_of(owner) -> str:
    """Source of a class with its bases, and of the modules that they are in."""
    if inspect.ismodule(owner):
        return inspect.getsource(owner)
    modules = {base.__module__ for base in owner.__mro__ if base is not object}
    return "\n".join(inspect.getsource(importlib.import_module(name)) for name in modules)


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner, names in NAMES.items() for name in names], ids=str
)
def test_what_we_use_or_override_is_there(owner, name):
    there = hasattr(owner, name) or name in text_of(owner)  # an instance gets some only when it is made
    assert there, f"{owner.__name__} no longer has {name}"


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_that_is_counted_exists(name):
    assert hasattr(torch.ops.aten, name), f"torch.ops.aten.{name} is gone"


@pytest.mark.skipif(not xla.installed(), reason="torch_xla is not installed")
@pytest.mark.parametrize("name", XLA)
def test_torch_xla_has_it(name):
    import torch_xla

    assert hasattr(torch_xla._XLAC, name), f"torch_xla._XLAC.{name} is gone"


def test_every_private_name_of_a_library_in_the_helpers_is_tested_here():
    """A private attribute that no file of ours defines belongs to a library."""
    files = [*(ROOT / "helpers").rglob("*.py")]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text()))]
    ours = {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    ours |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    ours |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    read |= {
        node.args[1].value
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr")
        if len(node.args) > 1 and isinstance(node.args[1], ast.Constant)
    }
    foreign = {name for name in read - ours if name.startswith("_") and not name.startswith("__")}
    tested = {*itertools.chain(OPERATIONS, XLA, *NAMES.values())} | ELSEWHERE
    assert foreign <= tested, f"add {', '.join(sorted(foreign - tested))} to the tables of this file"
