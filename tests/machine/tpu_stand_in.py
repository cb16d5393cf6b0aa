"""A device `tpu` without a TPU: TorchTPU over XLA's CPU plugin (tests/requirements-torchtpu.txt).

    start()      # first thing in a process of its own, before torch_tpu is imported

The plugin is a year older than TorchTPU and no TPU: it cannot read TorchTPU's cumulative sum (a composite), runs no kernel for a TPU's
core (fused attention), and has no `torch.compile`. The first two are written out here. All of this is private interface of one
release, which is why the requirements pin it.
"""

import os
import sysconfig
from pathlib import Path

PLUGIN = Path(sysconfig.get_paths()["purelib"], "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so")


def start() -> None:
    """`load`, and what takes steps on it needs, too."""
    load()
    import torch

    # The plugin can wait for itself where several operations are under way.
    torch.tpu.eager_mode = torch.tpu.EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING
    global KERNELS  # for as long as the process runs
    KERNELS = torch.library.Library("aten", "IMPL")
    KERNELS.impl("cumsum", _cumsum, "PrivateUse1", allow_override=True)


def load(chips: int = 1) -> None:
    """Loads TorchTPU with chips that a CPU stands in for, and writes attention out."""
    os.environ |= {
        "TPU_LIBRARY_PATH": str(PLUGIN),
        "TPU_SKIP_MDS_QUERY": "1",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",  # conftest's others are unknown to the older XLA and end the process
    }
    import torch
    import torch_tpu._loader
    from torch_tpu._internal.utils import hardware

    hardware.get_tpu_device_count = lambda *args, **kwargs: chips
    hardware.get_tpu_device_name = lambda *args, **kwargs: "TPU v5 lite"
    hardware.get_hbm_bytes_per_device = lambda *args, **kwargs: 16 * 2**30
    torch_tpu._loader.load()
    torch.nn.functional.scaled_dot_product_attention = _attention


def _cumsum(tensor, dim, *, dtype=None):
    return tensor.cpu().cumsum(dim, dtype=dtype).to(tensor.device)


def _attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **kwargs):
    """torch's own formula of attention, in products and a softmax."""
    import torch

    if attn_mask is not None and attn_mask.dtype == torch.bool:  # which the formula would add as 0 and 1
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(~attn_mask, float("-inf"))
    written_out = torch.ops.aten._scaled_dot_product_attention_math
    return written_out(query, key, value, attn_mask, dropout_p, is_causal, **kwargs)[0]
