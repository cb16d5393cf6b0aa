"""A device `tpu` without a TPU: TorchTPU over XLA's CPU plugin (tests/requirements-torchtpu.txt).

    start()      # first thing in a process of its own, before torch is imported

The plugin is a year older than TorchTPU and no TPU: it has no `cumsum`, no SDPA kernel and no `torch.compile`. All of this is
private interface of one release, which is why the requirements pin it.
"""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

PLUGIN = Path(sysconfig.get_paths()["purelib"], "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so")


def start() -> None:
    """Loads TorchTPU with one chip that a CPU stands in for."""
    os.environ |= {
        "TPU_LIBRARY_PATH": str(PLUGIN),
        "TPU_SKIP_MDS_QUERY": "1",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",  # conftest's others are unknown to the older XLA and end the process
    }
    import torch  # noqa: F401  the backend is registered with it
    import torch_tpu._loader
    from torch_tpu._internal.utils import hardware

    hardware.get_tpu_device_count = lambda *args, **kwargs: 1
    hardware.get_tpu_device_name = lambda *args, **kwargs: "TPU v5 lite"
    hardware.get_hbm_bytes_per_device = lambda *args, **kwargs: 16 * 2**30
    torch_tpu._loader.load()
