"""The device and the precision of a run, each with the reason for the choice."""

from __future__ import annotations

import functools
import os
import platform
import sys
import warnings
from dataclasses import dataclass

from helpers.show import tracking

from . import hardware, ranks, xla

ONE_HOST = "one process drives all chips of one host, and more are not supported; run one process on one host"
NATIVE_BF16 = (8, 0)  # Ampere; `torch.cuda.is_bf16_supported()` is also true where bf16 is emulated (T4)


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The device of a run, and how it computes."""

    kind: str  # "cpu", "cuda" or "xla"
    reason: str  # why this kind
    device_name: str
    device_count: int  # devices that share a batch
    memory: int | None  # bytes of one device; None if unknown
    compute_capability: tuple[int, int] | None
    precision: str  # "fp32", "fp16" or "bf16": dtype of the matrix products
    precision_reason: str
    torch: str
    torch_xla: str | None

    @property
    def device(self):
        """The `torch.device` to put tensors on."""
        import torch

        return xla.start() if self.kind == "xla" else torch.device(self.kind)

    @property
    def accelerator(self) -> hardware.Accelerator | None:
        """The catalogue's entry for this device; None if it has none, as for every CPU."""
        return hardware.find(self.device_name)

    def wait(self) -> None:
        """Blocks until the device has finished its work."""
        if self.kind == "xla":
            xla.wait()
        elif self.kind == "cuda":
            import torch

            torch.cuda.synchronize()

    def results(self) -> dict:
        """The `runtime` part of results.json."""
        return {
            "kind": self.kind,
            "device_name": self.device_name,
            "device_count": self.device_count,
            "memory_bytes": self.memory,
            "cpu_count": os.cpu_count(),
            "precision": self.precision,
        }

    def __str__(self) -> str:
        memory = f"{self.memory / 2**30:.1f} GiB" if self.memory else "memory unknown"
        capability = "" if self.compute_capability is None else " · sm_{}{}".format(*self.compute_capability)
        xla_version = f" · torch_xla {self.torch_xla}" if self.torch_xla else ""
        return "\n".join(
            (
                f"device     {self.device_count} x {self.device_name} ({self.kind}) · {memory}{capability}",
                f"           {self.reason}",
                f"precision  {self.precision}: {self.precision_reason}",
                f"versions   Python {platform.python_version()} · torch {self.torch}{xla_version}",
            )
        )


def choose_precision(
    kind: str, name: str, compute_capability: tuple[int, int] | None, wanted: str = "auto"
) -> tuple[str, str]:
    """Training dtype for one device and the reason for it.

    Raises ValueError: the device cannot train in the `wanted` precision.
    """
    sm = compute_capability and "sm_{}{}".format(*compute_capability)
    native = kind != "cuda" or compute_capability >= NATIVE_BF16
    if wanted == "fp16" and kind != "cuda":
        raise ValueError(
            f"precision='fp16' needs a CUDA GPU, and this is {name} ({kind}); use 'auto', 'fp32' or 'bf16'"
        )
    if wanted == "bf16" and not native:
        raise ValueError(
            f"precision='bf16' is emulated and slow on {name}; use 'auto' (fp16 with loss scaling) or 'fp32'"
        )
    if kind == "xla":
        chosen, why = "bf16", "the matrix unit multiplies bf16; weights and optimizer stay fp32 under autocast"
    elif kind == "cpu":
        chosen, why = "fp32", "exact; a CPU with AVX512-BF16 or AMX is faster with precision='bf16'"
    elif native:
        chosen, why = "bf16", f"{name} ({sm}) multiplies bf16 natively; what stays fp32 uses TF32"
    else:
        chosen, why = "fp16", f"{name} ({sm}) has no native bf16; fp16 with loss scaling over fp32 weights"
    if wanted == "auto":
        return chosen, why
    return wanted, f"asked for (precision={wanted!r}); auto would be {chosen}: {why}"


def detect(use_tpu: bool, precision: str = "auto", num_processes: int = 1) -> Runtime:
    """Finds the device to train on: a TPU (if `use_tpu`), else a GPU, else the CPU.

    Args:
        use_tpu: prefer a TPU; warns if there is none.
        precision: "auto", "fp32", "bf16" or "fp16".
        num_processes: that a notebook will train in, each with its own GPU; 0: one for each GPU. Ignored under a launcher.

    Raises:
        RuntimeError: torch and torch_xla versions differ, XLA stores weights in bf16, or transformers was already
            imported for the other kind of device in this kernel.
        ValueError: a precision that the device cannot train in, more processes than GPUs, or several processes on a TPU.
    """
    if precision not in ("auto", "fp32", "bf16", "fp16"):
        raise ValueError(f"precision={precision!r}: give 'auto', 'fp32', 'bf16' or 'fp16'")
    reason = "use_tpu=False"
    if use_tpu:
        found, reason = xla.available()
        if not found:
            warnings.warn(
                f"use_tpu=True, but {reason}: going on without a TPU. On Colab choose Runtime > Change runtime type > TPU.",
                stacklevel=2,
            )
    else:
        found = False
    if found and (num_processes > 1 or ranks.count() > 1):
        raise ValueError(f"num_processes={max(num_processes, ranks.count())}: {ONE_HOST}")
    _announce_to_huggingface(found)

    if found:
        xla.start()
        if xla.host_count() > 1:
            raise ValueError(f"use_tpu=True: {xla.host_count()} hosts share this TPU; {ONE_HOST}")
        torch_version, xla_version = xla.versions()
        info = xla.memory_info()
        kind, name, count, capability = "xla", xla.device_name(), xla.device_count(), None
        memory = info and info.get("bytes_limit")
    else:
        # Read at torch's first large CPU array: with small pages, page faults cost as much as the arithmetic, and a
        # language model's step on two cores took 1.5 times as long.
        os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
        import psutil
        import torch

        torch_version, xla_version = torch.__version__, None
        count = _processes(num_processes)
        if count > 1:
            reason += f"; {count} processes share a batch"
        if torch.cuda.is_available():
            note = _pin_to_one_gpu(torch)
            kind, name, capability = "cuda", torch.cuda.get_device_name(0), torch.cuda.get_device_capability(0)
            memory = torch.cuda.get_device_properties(0).total_memory
            reason = f"{reason}; torch sees a GPU{note}"
        else:
            kind, name, capability = "cpu", hardware.cpu_name(), None
            memory = psutil.virtual_memory().total
            reason = f"{reason}; torch sees no GPU"

    chosen, why = choose_precision(kind, name, capability, precision)
    return Runtime(
        kind=kind,
        reason=reason,
        device_name=name,
        device_count=count,
        memory=memory,
        compute_capability=capability,
        precision=chosen,
        precision_reason=why,
        torch=torch_version,
        torch_xla=xla_version,
    )


def get_device(use_tpu: bool = False):
    """The `torch.device` of `detect(use_tpu)`: XLA, CUDA or CPU, with a warning if there is no TPU."""
    return detect(use_tpu).device


def _announce_to_huggingface(use_xla: bool) -> None:
    """Tells transformers and accelerate, which otherwise use XLA wherever torch_xla can be imported."""
    wanted = "1" if use_xla else "0"
    # The values that mean yes to transformers; its default is one of them.
    current = "1" if os.environ.get("USE_TORCH_XLA", "1").upper() in ("1", "ON", "YES", "TRUE", "AUTO") else "0"
    loaded = [name for name in ("transformers", "accelerate") if name in sys.modules]
    if xla.installed() and loaded and current != wanted:
        raise RuntimeError(
            f"{' and '.join(loaded)} already run for {'a GPU or CPU' if use_xla else 'a TPU'} in this kernel and cannot "
            "change over. Restart the kernel (Runtime > Restart session), then run all cells with the new use_tpu."
        )
    os.environ["USE_TORCH_XLA"] = wanted
    # Progress widgets: no saved notebook can show them, and a headless kernel only warns about them.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    tracking.silence_chatter()


@functools.cache  # before `_pin_to_one_gpu`
def gpus() -> tuple[int, str | None]:
    """How many GPUs this process saw at first, and CUDA_VISIBLE_DEVICES at that time."""
    import torch

    return torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")


def _processes(wanted: int) -> int:
    found, _ = gpus()
    if ranks.count() > 1:
        return ranks.count()
    if found and wanted > found:
        raise ValueError(f"num_processes={wanted}: torch sees {found} GPU(s), and each needs its own; set it to 0")
    return wanted or max(1, found)


def _pin_to_one_gpu(torch) -> str:
    """Makes only one GPU visible unless a launcher started this process; returns a note about it."""
    count = torch.cuda.device_count()
    if count > 1 and "LOCAL_RANK" not in os.environ and not torch.cuda.is_initialized():
        # Trainer would wrap the model in DataParallel, which is slower than one GPU and which TRL refuses.
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        return f"; using 1 of {count} (torchrun uses all: docs/several-processes.md)"
    return ""
