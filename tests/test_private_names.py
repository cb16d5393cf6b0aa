"""Private names of libraries that the helpers call or override: each must be there, and what is overridden must be called.

When a release of a library takes one away, this test fails with its name before anything else fails for a stranger reason.
"""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch
import transformers.trainer
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
from transformers.integrations import WandbCallback
from transformers.masking_utils import eager_mask, sdpa_mask
from trl import SFTTrainer

from helpers.machine import xla

ROOT = Path(__file__).resolve().parents[1]
# Methods that our classes put in the place of a library's, and which that library must go on calling.
OVERRIDDEN = {
    Trainer: (
        "_determine_best_metric",
        "_evaluate",
        "_get_dataloader",
        "_get_output_dir",
        "_get_train_sampler",
        "_load_from_checkpoint",
        "_save",
        "_save_checkpoint",
    ),
    SFTTrainer: ("_prepare_dataset",),
    PreTrainedModel: ("_init_weights",),
    GenerationMixin: ("_prepare_cache_for_generation", "_reorder_cache", "_update_model_kwargs_for_generation"),
    PretrainedConfig: ("_get_generation_parameters",),
    torch.nn.Module: ("_apply", "_load_from_state_dict"),
}
# What our code reads or calls: where the library says it.
USED = {
    Trainer: ("_globalstep_last_logged", "_prepare_inputs", "_remove_unused_columns", "_tr_loss", "_train_batch_size"),
    SFTTrainer: ("_metrics",),
    TrainingArguments: ("_n_gpu",),
    PreTrainedModel: (
        "_is_hf_initialized",
        "_is_stateful",
        "_keys_to_ignore_on_save",
        "_no_split_modules",
        "_set_gradient_checkpointing",
        "_supports_sdpa",
    ),
    PretrainedConfig: ("_attn_implementation",),
    torch.nn.Module: ("_buffers", "_non_persistent_buffers_set"),
    Kernel: ("_allow_stdin",),
    WandbCallback: ("_wandb",),
    torch.Tensor: ("_version",),
    AcceleratedOptimizer: ("_is_overflow",),
    PreTrainedTokenizerFast: ("_tokenizer",),
}
CALLED_BY = {"_reorder_cache": "_is_stateful"}  # beam search asks for the one where the other says so
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
ELSEWHERE = {  # tested below, or of the standard library
    "_XLAC",
    "_get_graph_hash",
    "_xla",
    "_get_xla_sharding_spec",
    "_get_xla_tensors_hlo",
    "_get_xla_tensors_hlo_proto",
    "_get_tensors_xla_device_data_node",
    "_xla_get_tensor_id",
    "_cdata",
    "_linear_pointwise",
    "_orig_mod",
    "_overloadpacket",
    "_parallel_loader_kwargs",
    "_reorder_linear_weight",
    *OPERATIONS,
    *("_asdict", "_field_defaults", "_fields", "_make", "_replace"),
}


def text_of(owner) -> str:
    """Source of a class with its bases, and of the modules that they are in."""
    if inspect.ismodule(owner):
        return inspect.getsource(owner)
    modules = {base.__module__ for base in owner.__mro__ if base is not object}
    return "\n".join(inspect.getsource(importlib.import_module(name)) for name in modules)


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner, names in OVERRIDDEN.items() for name in names], ids=str
)
def test_what_we_override_is_there_and_is_called(owner, name):
    assert hasattr(owner, name) or name in CALLED_BY, f"{owner.__name__}.{name} is gone"
    asked = CALLED_BY.get(name, rf"\b(self|module|model)\.{name}\b")
    assert re.search(asked, text_of(owner)), f"nothing in {owner.__module__} calls {owner.__name__}.{name} any more"


@pytest.mark.parametrize(("owner", "name"), [(owner, name) for owner, names in USED.items() for name in names], ids=str)
def test_what_we_use_is_there(owner, name):
    there = hasattr(owner, name) or name in text_of(owner)  # an instance gets some only when it is made
    assert there, f"{owner.__name__} no longer has {name}"


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_that_is_counted_exists(name):
    assert hasattr(torch.ops.aten, name), f"torch.ops.aten.{name} is gone"


def test_masks_still_take_the_keywords_that_keep_them_from_looking_at_values():
    assert {"allow_is_causal_skip", "allow_is_bidirectional_skip"} <= set(inspect.signature(sdpa_mask).parameters)
    accepted = inspect.signature(eager_mask).parameters
    passed_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
    assert "allow_is_bidirectional_skip" in accepted or passed_on, "eager_mask: allow_is_bidirectional_skip is gone"


def test_the_function_that_is_replaced_while_training_is_the_one_that_the_trainer_calls():
    assert callable(transformers.trainer.skip_first_batches), "transformers.trainer.skip_first_batches is gone"
    assert "skip_first_batches(" in inspect.getsource(Trainer), "Trainer calls skip_first_batches no more"


def test_storages_and_compiled_modules_have_their_names():
    assert isinstance(torch.empty(1).untyped_storage()._cdata, int)
    module = torch.nn.Linear(1, 1)
    assert torch.compile(module)._orig_mod is module
    assert torch.ops.aten.add.Tensor._overloadpacket is torch.ops.aten.add


@pytest.mark.skipif(not xla.installed(), reason="torch_xla is not installed")
def test_torch_xla_says_how_a_tensor_is_split_and_its_loader_is_told_how_to():
    import torch_xla
    import torch_xla.distributed.parallel_loader as parallel_loader

    assert "_parallel_loader_kwargs" in inspect.getsource(parallel_loader), (
        "MpDeviceLoader._parallel_loader_kwargs is gone"
    )
    for name in sorted(each for each in ELSEWHERE if "_xla_" in each):
        assert hasattr(torch_xla._XLAC, name), f"torch_xla._XLAC.{name} is gone"


def test_every_private_name_of_a_library_in_the_helpers_is_tested_here():
    """A private attribute that no file of ours defines belongs to a library."""
    files = [*(ROOT / "helpers").rglob("*.py")]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
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
    tested = {name for names in (*OVERRIDDEN.values(), *USED.values()) for name in names} | ELSEWHERE
    assert foreign <= tested, f"add {', '.join(sorted(foreign - tested))} to the tables of this file"


def test_onednn_adds_to_a_product_in_its_own_layout_of_the_weight():
    weight, state, drive = torch.randn(8, 8), torch.randn(4, 8), torch.randn(4, 8)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, 4)
    found = torch.ops.mkldnn._linear_pointwise.binary(state, drive, packed, None, "add")
    torch.testing.assert_close(found, state @ weight.T + drive)
