"""The CPU in the place of a named CUDA card: torch answers as if the card were there, and tensors stay on the CPU.

    pretend("T4"); pretend("T4", count=2)        # first thing in a process of its own; nothing is put back
    pretend("T4", fake=True)                     # with a CUDA build of torch

What runs is real: the trainers, `GradScaler`, fp16 and bf16 autocast, fused optimizers (all on the CPU's kernels). What it cannot
show: a tensor that was left on the wrong device, speed, and memory. `out_of_memory` raises what CUDA's allocator raises.

`fake`: tensors of the card have a shape, a dtype and the device cuda:0, but no numbers. An operation on one of them and a tensor of
the CPU raises as it would on the card. There is no backward pass: torch's autograd engine asks the driver for a device.
"""

import time
from types import SimpleNamespace

import torch
import torch._dynamo  # makes a table of torch's functions, which must be its own
from torch._subclasses import fake_tensor
from torch.overrides import TorchFunctionMode

GIB = 2**30
CARDS = {  # name that the driver says, compute capability, memory in bytes
    "P100": ("Tesla P100-PCIE-16GB", (6, 0), 16 * GIB),
    "V100": ("Tesla V100-SXM2-16GB", (7, 0), 16 * GIB),
    "T4": ("Tesla T4", (7, 5), 15 * GIB),
    "A100": ("NVIDIA A100-SXM4-40GB", (8, 0), 40 * GIB),
    "L4": ("NVIDIA L4", (8, 9), 22 * GIB),
    "H100": ("NVIDIA H100 80GB HBM3", (9, 0), 80 * GIB),
}
# Kernels in the cu128 wheel of torch 2.11 and later: none for Pascal and Volta (torch 2.8 was the last with them).
ARCHITECTURES = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
FOR_INDUCTOR = {  # device properties that torch's compiler reads
    "gcnArchName": "",  # AMD's name of a card
    "regs_per_multiprocessor": 65_536,
    "max_threads_per_multi_processor": 1_024,
    "max_threads_per_block": 1_024,
    "warp_size": 32,
    "shared_memory_per_block": 48 * 2**10,
    "L2_cache_size": 4 * 2**20,
    "uuid": "none",
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


class _WithoutCard(fake_tensor.FakeTensorMode):
    avoid_device_init = True  # which it would not where a card is said to be there


class _Fakes(TorchFunctionMode):
    """Makes fake tensors of what is made on "cuda" or moved there. What comes back: what was moved, else zeros."""

    BACK = (torch.Tensor.cpu, torch.Tensor.item, torch.Tensor.numpy, torch.Tensor.__bool__)

    def __init__(self):
        super().__init__()
        torch._C._ensureCUDADeviceGuardSet()
        fake_tensor.init_gpu_context = _nothing  # makes a real tensor where there is a card
        fake_tensor.FakeTensor.tolist = lambda tensor: self.numbers(tensor).tolist()  # which is not torch's
        torch.utils.swap_tensors = _nothing  # for weights that `Module.to` finds where they should be
        self.fakes = _WithoutCard(allow_non_fake_inputs=True)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        values = (*args, *kwargs.values())
        fakes = [each for each in values if isinstance(each, fake_tensor.FakeTensor)]
        if function is torch.Tensor.pin_memory:
            return args[0]
        counting = torch._C._get_dispatch_mode(self.fakes._mode_key)  # the planner has fakes of its own
        if function is torch.device or counting or not (fakes or any(_is(each, "cuda") for each in values)):
            return function(*args, **kwargs)
        moves = function is torch.Tensor.to
        if function in self.BACK or (moves and any(_is(each, "cpu") for each in values)):
            return function(self.numbers(args[0]), *args[1:], **kwargs)
        with self.fakes:
            made = function(*args, **kwargs)
        if moves and made.dtype == args[0].dtype:
            made.moved = self.numbers(args[0])
        return made

    def numbers(self, tensor: torch.Tensor) -> torch.Tensor:
        """What was moved to the card; zeros for what was computed there."""
        if not isinstance(tensor, fake_tensor.FakeTensor):
            return tensor.detach()
        moved = getattr(tensor, "moved", None)
        return torch.zeros(tensor.shape, dtype=tensor.dtype) if moved is None else moved


def _is(value, kind: str) -> bool:
    return isinstance(value, str | torch.device) and str(value).partition(":")[0] == kind


def pretend(card: str, count: int = 1, architectures: list[str] | None = None, fake: bool = False) -> None:
    """Makes this process see `count` cards of one kind.

    card: a key of CARDS. architectures: what the installed torch has kernels for (default: those of a recent wheel).
    """
    name, capability, memory = CARDS[card]
    major, minor = capability
    properties = SimpleNamespace(
        name=name,
        major=major,
        minor=minor,
        total_memory=memory,
        multi_processor_count=40,
        is_integrated=False,
        **FOR_INDUCTOR,
    )
    answers = {
        "is_available": lambda: True,
        "is_initialized": lambda: False,
        "is_bf16_supported": lambda including_emulation=True: including_emulation or major >= 8,
        "device_count": lambda: count,
        "current_device": lambda: 0,
        "get_device_name": lambda device=None: name,
        "get_device_capability": lambda device=None: capability,
        "get_device_properties": lambda device=None: properties,
        "get_arch_list": lambda: architectures or ARCHITECTURES,
        "mem_get_info": lambda device=None: (memory, memory),
        "max_memory_allocated": lambda device=None: GIB,
        "memory_allocated": lambda device=None: GIB // 2,
        "max_memory_reserved": lambda device=None: GIB,
        "memory_reserved": lambda device=None: GIB,
        "utilization": lambda device=None: 50,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": _nothing,
        "get_rng_state_all": lambda: [torch.get_rng_state()] * count,
        "set_rng_state_all": _nothing,
        **dict.fromkeys(("init", "_lazy_init", "set_device", "synchronize", "empty_cache", "ipc_collect"), _nothing),
        **dict.fromkeys(("reset_peak_memory_stats", "reset_max_memory_allocated", "manual_seed_all"), _nothing),
        "manual_seed": _nothing,
        "Event": _Event,
    }
    for each, answer in answers.items():
        setattr(torch.cuda, each, answer)
        if hasattr(torch.cuda.random, each):
            setattr(torch.cuda.random, each, answer)
        if hasattr(torch.cuda.memory, each):
            setattr(torch.cuda.memory, each, answer)
    if fake:
        torch.inference_mode = lambda mode=True: torch.no_grad()  # in which fakes are asked before the card is
        _Fakes().__enter__()
        return
    torch._C._cuda_getCurrentRawStream = _nothing  # of a CUDA build; torch's compiler imports it where there is a card
    _rename_device(torch.amp.autocast_mode.autocast)
    _rename_device(torch.amp.grad_scaler.GradScaler)
    _OnTheCPU().__enter__()


def _nothing(*args, **kwargs) -> None:
    """What there is to do for a card that is not there."""


class _Event:
    """A moment on the CPU's clock."""

    def __init__(self, enable_timing: bool = False):
        self.moment = 0.0

    def record(self) -> None:
        self.moment = time.perf_counter()

    def elapsed_time(self, end: "_Event") -> float:
        """Milliseconds."""
        return 1e3 * (end.moment - self.moment)


def _rename_device(cls: type) -> None:
    """`cls("cuda", ...)` becomes `cls("cpu", ...)`."""
    first = cls.__init__

    def __init__(self, *args, **kwargs):
        first(self, *map(_cpu, args), **{name: _cpu(value) for name, value in kwargs.items()})

    cls.__init__ = __init__


def out_of_memory() -> None:
    """Raises CUDA's error for memory that has run out."""
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 14.74 GiB"
    )
