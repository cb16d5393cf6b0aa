"""The CPU in the place of a named CUDA card: torch answers as if the card were there, and tensors stay on the CPU.

    pretend("T4")        # first thing in a process of its own; nothing is put back

What runs is real: the trainers, `GradScaler`, fp16 and bf16 autocast, fused optimizers (all on the CPU's kernels). What it cannot
show: a tensor that was left on the wrong device, speed, and memory.
"""

from types import SimpleNamespace

import torch
import torch._dynamo  # makes a table of torch's functions, which must be its own
from torch.overrides import TorchFunctionMode

GIB = 2**30
CARDS = {  # name that the driver says, compute capability, memory in bytes
    "T4": ("Tesla T4", (7, 5), 15 * GIB),
    "A100": ("NVIDIA A100-SXM4-40GB", (8, 0), 40 * GIB),
}


class _OnTheCPU(TorchFunctionMode):
    """Reads every device "cuda" as "cpu"."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.device:  # a run is told that its device is cuda
            return function(*args, **(kwargs or {}))
        if function is torch.Tensor.cuda:
            return args[0]
        moved = {name: _cpu(value) for name, value in (kwargs or {}).items() if name != "pin_memory"}
        return function(*map(_cpu, args), **moved)


def _cpu(value):
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return "cpu"
    return value


def pretend(card: str) -> None:
    """Makes this process see one card: a key of CARDS."""
    name, capability, memory = CARDS[card]
    major, minor = capability
    properties = SimpleNamespace(
        name=name,
        major=major,
        minor=minor,
        total_memory=memory,
        multi_processor_count=40,
        is_integrated=False,
    )
    answers = {
        "is_available": lambda: True,
        "is_initialized": lambda: False,
        "is_bf16_supported": lambda including_emulation=True: including_emulation or major >= 8,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda device=None: name,
        "get_device_capability": lambda device=None: capability,
        "get_device_properties": lambda device=None: properties,
        "mem_get_info": lambda device=None: (memory, memory),
        "max_memory_allocated": lambda device=None: GIB,
        "memory_allocated": lambda device=None: GIB // 2,
        "max_memory_reserved": lambda device=None: GIB,
        "memory_reserved": lambda device=None: GIB,
        "utilization": lambda device=None: 50,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": _nothing,
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "set_rng_state_all": _nothing,
        **dict.fromkeys(("init", "_lazy_init", "set_device", "synchronize", "empty_cache", "ipc_collect"), _nothing),
        **dict.fromkeys(("reset_peak_memory_stats", "reset_max_memory_allocated", "manual_seed_all"), _nothing),
        "manual_seed": _nothing,
    }
    for each, answer in answers.items():
        setattr(torch.cuda, each, answer)
        if hasattr(torch.cuda.random, each):
            setattr(torch.cuda.random, each, answer)
        if hasattr(torch.cuda.memory, each):
            setattr(torch.cuda.memory, each, answer)
    torch._C._cuda_getCurrentRawStream = _nothing  # of a CUDA build; torch's compiler imports it where there is a card
    _rename_device(torch.amp.autocast_mode.autocast)
    _rename_device(torch.amp.grad_scaler.GradScaler)
    _OnTheCPU().__enter__()


def _nothing(*args, **kwargs) -> None:
    """What there is to do for a card that is not there."""


def _rename_device(cls: type) -> None:
    """`cls("cuda", ...)` becomes `cls("cpu", ...)`."""
    first = cls.__init__

    def __init__(self, *args, **kwargs):
        first(self, *map(_cpu, args), **{name: _cpu(value) for name, value in kwargs.items()})

    cls.__init__ = __init__
