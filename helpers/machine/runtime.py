"""The device and the precision of a run, each with the reason for the choice."""

import functools
import logging
import os
import re
import sys
import warnings
from dataclasses import dataclass

from . import hardware, ranks, xla

AMPERE = (8, 0)  # `torch.cuda.is_bf16_supported()` is also true where bf16 is emulated (T4)


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

    @property
    def device(self):
        """The `torch.device` to put tensors on."""
        import torch

        return xla.start() if self.kind == "xla" else torch.device(self.kind)

    @property
    def accelerator(self) -> hardware.Accelerator | None:
        """The catalogue's entry for this device; None if it has none, as for every CPU."""
        return hardware.find(self.device_name)

    @functools.cached_property
    def engine(self):
        """What this device asks of a training run (`engine.Engine`)."""
        from . import engine

        if self.kind == "xla":
            return engine.XlaEngine(self.device_count)
        if self.kind == "cuda":
            return engine.CudaEngine(repeats_heads=self.is_before_ampere)
        return engine.Engine()

    @property
    def is_before_ampere(self) -> bool:
        """Whether this is a GPU without native bf16, TF32 and fused attention with grouped heads (huggingface/transformers#48633)."""
        return self.kind == "cuda" and (self.compute_capability or ()) < AMPERE

    @property
    def has_tf32(self) -> bool:
        return self.kind == "cuda" and not self.is_before_ampere

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
        memory, capability = "memory unknown", ""
        if self.memory:
            memory = f"{self.memory / 2**30:.1f} GiB"
        if self.compute_capability:
            capability = " · sm_{}{}".format(*self.compute_capability)
        return (
            f"device     {self.device_count} x {self.device_name} ({self.kind}) · {memory}{capability}\n"
            f"           {self.reason}\n"
            f"precision  {self.precision}: {self.precision_reason}"
        )


def choose_precision(
    kind: str, name: str, compute_capability: tuple | None, precision: str = "auto"
) -> tuple[str, str]:
    """Training dtype for one device and the reason for it.

    Raises ValueError: the device cannot train in this `precision`.
    """
    refused = "fp16"
    if kind == "xla":
        chosen, why = "bf16", "the matrix unit multiplies bf16; weights and optimizer stay fp32 under autocast"
    elif kind == "cpu":
        chosen, why = "fp32", "exact; a CPU with AVX512-BF16 or AMX is faster with precision='bf16'"
    elif (compute_capability or ()) >= AMPERE:
        chosen, why, refused = "bf16", f"{name} has native bf16; what stays fp32 uses TF32", ""
    else:
        chosen, why, refused = "fp16", f"{name} has no native bf16; fp16 with loss scaling over fp32 weights", "bf16"
    if precision == refused:
        raise ValueError(f"precision={precision!r} is emulated and slow on {name}; use 'auto' ({chosen}) or 'fp32'")
    if precision == "auto":
        return chosen, why
    return precision, f"set by you; 'auto' would be {chosen}: {why}"


def detect(use_tpu: bool, precision: str = "auto", num_processes: int = 1) -> Runtime:
    """Finds the device to train on: a TPU (if `use_tpu`), else a GPU, else the CPU.

    Args:
        use_tpu: prefer a TPU; warns if there is none.
        precision: "auto", "fp32", "bf16" or "fp16".
        num_processes: processes that a notebook will train in, each with its own GPU; 0: one for each GPU. Ignored under a launcher.

    Raises:
        RuntimeError: a TPU or a GPU is attached but cannot be used; torch and torch_xla versions differ, XLA stores weights in
            bf16, or transformers was already imported for the other kind of device in this kernel.
        ValueError: a precision that the device cannot train in, more processes than GPUs, or several processes on a TPU.
    """
    has_tpu, reason = False, "use_tpu=False"
    if use_tpu:
        has_tpu, reason = xla.available()
    if use_tpu and not has_tpu:
        chip = hardware.attached_tpu()
        if chip:
            raise RuntimeError(
                f"use_tpu=True, and the TPU of this machine ({chip}) cannot be used: {reason}. If a process holds it, end that process or "
                "restart its notebook; else restart this session. Then run all cells again. To train without the TPU, set use_tpu=False."
            )
        warnings.warn(
            f"use_tpu=True, but {reason}: going on without a TPU. On Colab choose Runtime > Change runtime type > TPU.",
            stacklevel=2,
        )
    processes = ranks.count()
    if processes == 1:
        processes = num_processes
    if has_tpu and (processes > 1 or xla.host_count() > 1):
        raise ValueError(
            f"num_processes={processes}: one process drives all chips of one host, and more of either are not supported"
        )
    _announce_to_huggingface(has_tpu)
    capability = None
    if has_tpu:
        kind, name, count = "xla", xla.device_name(), xla.device_count()
        memory = xla.memory_info().get("bytes_limit")
    else:
        # Read at torch's first large CPU array: with small pages, page faults cost as much as the arithmetic, and a
        # language model's step on two cores took 1.5 times as long.
        os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for deterministic products; read at the first one
        import psutil
        import torch

        gpus = torch.cuda.device_count()
        reason += f"; torch sees {gpus} GPU(s)"
        kind, name, count, memory = "cpu", hardware.cpu_name(), processes or 1, psutil.virtual_memory().total
        if gpus:
            if num_processes > gpus:
                raise ValueError(f"num_processes={processes}: {reason}, one for a process; 0 takes them all")
            kind, name, count = "cuda", torch.cuda.get_device_name(0), processes or gpus
            capability = torch.cuda.get_device_capability(0)
            _, memory = torch.cuda.mem_get_info(0)  # takes the card, and raises if another process has it for itself
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
    )


def get_device(use_tpu: bool = False):
    """The `torch.device` of `detect(use_tpu)`: XLA, CUDA or CPU, with a warning if there is no TPU."""
    return detect(use_tpu).device


def _announce_to_huggingface(use_xla: bool) -> None:
    """Tells transformers and accelerate, which otherwise use XLA wherever torch_xla can be imported."""
    if "transformers" in sys.modules:
        from transformers.utils import is_torch_xla_available

        if is_torch_xla_available() != use_xla:
            raise RuntimeError(
                f"transformers was imported in this kernel {'without' if use_xla else 'for'} a TPU and cannot change over. Restart the "
                "kernel (Runtime > Restart session), then run all cells with the new use_tpu."
            )
    os.environ["USE_TORCH_XLA"] = str(int(use_xla))
    # Progress widgets: no saved notebook can show them, and a headless kernel only warns about them.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    silence_chatter()


# First words of warnings that a user of a notebook can do nothing about; all others stay.
CHATTER = (
    "IProgress not found",  # widgets, which no saved notebook can show
    "'pin_memory' argument is set as true but no accelerator is found",
    "The tied weights mapping and config for this model specifies to tie",
    "`broadcast_buffers` is deprecated",  # transformers sets it
    "`is_gradient_checkpointing` is deprecated",  # peft asks for it
    "`gradient_checkpointing` is deprecated",  # trl sets it
    "The tokenizer has new PAD/BOS/EOS tokens",  # on purpose
)


def silence_chatter() -> None:
    """Keeps CHATTER from warnings and from the loggers of the Hugging Face libraries."""
    for words in CHATTER:
        warnings.filterwarnings("ignore", message=re.escape(words))
    for name in ("trainer_callback", "modeling_utils", "trainer_utils", "training_args"):
        logging.getLogger(f"transformers.{name}").addFilter(lambda record: not record.getMessage().startswith(CHATTER))
