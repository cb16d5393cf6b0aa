"""TorchTPU, the successor of torch_xla: a TPU as an ordinary torch device, `tpu` (`pip install torch_tpu`).

In all that this file leaves out, the trainers treat the device as they treat a GPU. TorchTPU is a beta (0.2 in October 2026); docs/tpu.md says what was shown.
"""

from __future__ import annotations

import importlib.util
from importlib import metadata

SEVERAL = (
    "TorchTPU drives one chip of a process here; for all chips of a TPU install torch_xla ({count} chips are there), or let this process "
    "see one with TPU_VISIBLE_CHIPS=0"
)


def installed() -> bool:
    """Whether `torch_tpu` can be imported; imports nothing."""
    return importlib.util.find_spec("torch_tpu") is not None


def available() -> tuple[bool, str]:
    """Whether torch has a device `tpu`, and the reason."""
    if not installed():
        return False, "torch_tpu is not installed"
    import torch  # loads torch_tpu by itself where a chip is seen

    if torch.accelerator.is_available() and torch.accelerator.current_accelerator().type == "tpu":
        return True, f"torch_tpu {metadata.version('torch_tpu')} finds a TPU chip"
    return False, "torch_tpu is installed, but finds no TPU chip"


def start() -> None:
    """Makes torch and accelerate train on the TPU; accelerate (1.15) does not put models and batches there by itself.

    Raises ValueError where this process sees several chips.
    """
    import torch
    from accelerate import PartialState

    count = torch.accelerator.device_count()
    if count > 1:
        raise ValueError(f"use_tpu=True: {SEVERAL.format(count=count)}")
    # Otherwise a module that moves to `tpu` gets new parameters, and weights that were tied come apart.
    torch.__future__.set_swap_module_params_on_conversion(True)
    PartialState.default_device = property(lambda state: torch.device("tpu"))


def device_name() -> str:
    """Name of the chip, as its driver says it."""
    import torch

    return torch.tpu.get_device_name(0)


def memory() -> int | None:
    """Bytes of the chip's memory; None if the driver does not say."""
    import torch

    return getattr(torch.tpu.get_device_properties(0), "total_memory", None)
