"""XLA: everything that touches torch_xla, and the only file that imports it.

TPU training here is SPMD in the notebook's own process: one mesh axis over all chips, batches sharded along it,
parameters replicated. `PJRT_DEVICE=CPU CPU_NUM_DEVICES=8` compiles and runs the same graphs on a CPU.
"""

import importlib.metadata
import importlib.util
import os
import re
import sys
from pathlib import Path

from . import hardware

BATCH_AXIS = "data"
REHEARSAL = (
    "CPU"  # PJRT_DEVICE=CPU with CPU_NUM_DEVICES: the same XLA graphs without a TPU; an import sets the first alone
)
ON_CPU = "XLA on CPU"  # the name of that device
BELOW_ONE = 2.0**-24  # distance of two fp32 numbers just below 1
OWN_DRAWS = (
    "--xla_tpu_spmd_rng_bit_generator_unsafe=true"  # dropout: a chip draws for its own examples, not for those of all
)
NO_RATE = 1e-30  # times the full rate: moves no weight, but is not the 0 that XLA writes into a graph as a constant


def installed() -> bool:
    """Whether torch_xla can be imported, without importing it."""
    return importlib.util.find_spec("torch_xla") is not None


def check_versions() -> None:
    """Raises RuntimeError if the installed torch and torch_xla differ in major.minor: the import would fail."""
    torch_version = importlib.metadata.version("torch")
    xla_version = importlib.metadata.version("torch_xla")
    if torch_version.split(".")[:2] != xla_version.split(".")[:2]:
        raise RuntimeError(
            f"torch {torch_version} and torch_xla {xla_version} do not fit together: they must have the same major.minor "
            "version. On Colab and Kaggle restore the runtime's own pair (Runtime > Disconnect and delete runtime); "
            "elsewhere install requirements-tpu.txt into a new environment."
        )


def available() -> tuple[bool, str]:
    """Whether there is an XLA device to use, and why: a TPU, or with `PJRT_DEVICE=CPU` a rehearsal on the CPU.

    Raises RuntimeError as `check_versions` does, if XLA_USE_BF16 or XLA_DOWNCAST_BF16 is set, and for a TPU that is attached but
    does not start.
    """
    if not installed():
        return False, "torch_xla is not installed"
    check_versions()
    for flag in ("XLA_USE_BF16", "XLA_DOWNCAST_BF16"):
        if os.environ.get(flag, "0") not in ("", "0"):
            raise RuntimeError(
                f"{flag}={os.environ[flag]} stores the weights themselves in bf16, where AdamW at small learning rates "
                f"changes nothing. Unset {flag} and restart the kernel; for bf16 products set `precision`."
            )
    # Hides a C++ warning about GSPMD at each compilation.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if os.environ.get("PJRT_DEVICE") == REHEARSAL and "CPU_NUM_DEVICES" in os.environ:
        return True, "PJRT_DEVICE=CPU, CPU_NUM_DEVICES: the TPU's XLA graphs, run on the CPU"
    set_libtpu_arguments()
    if "," not in os.environ.get("TPU_PROCESS_ADDRESSES", ","):
        # Kaggle's images say "local", and libtpu then waits for further processes (huggingface/transformers#28204).
        del os.environ["TPU_PROCESS_ADDRESSES"]
    import torch_xla  # noqa: F401  sets PJRT_DEVICE to TPU when it finds a chip, to CPU otherwise

    chosen = os.environ.get("PJRT_DEVICE", "")
    if not chosen.startswith("TPU"):
        return False, f"torch_xla found no TPU chip (PJRT_DEVICE={chosen})"
    try:
        start()
    except (OSError, RuntimeError) as error:
        if not re.search(r"No \w+ device found|libtpu not found", str(error)):
            raise RuntimeError(hardware.BROKEN_TPU.format(reason=error)) from error
        return False, f"PJRT_DEVICE={chosen}, and no TPU could be started: {error}"
    return True, "torch_xla found a TPU"


def set_libtpu_arguments() -> None:
    """Adds `OWN_DRAWS` to what libtpu is told when it starts, unless the user has said something else about it."""
    arguments = os.environ.get("LIBTPU_INIT_ARGS", "")
    if OWN_DRAWS.partition("=")[0] not in arguments:
        os.environ["LIBTPU_INIT_ARGS"] = f"{arguments} {OWN_DRAWS}".strip()


def start():
    """Switches SPMD on with one mesh over all devices and returns the XLA device. Calling it again changes nothing."""
    import numpy as np
    import torch_xla
    import torch_xla.distributed.spmd as xs
    import torch_xla.runtime as xr

    if not xr.is_spmd():
        xr.use_spmd()
    if xs.get_global_mesh() is None:
        count = xr.global_runtime_device_count()
        xs.set_global_mesh(xs.Mesh(np.arange(count), (count,), (BATCH_AXIS,)))
    return torch_xla.device()


def keep_programs(folder: Path) -> None:
    """Writes what is compiled from now on into a folder, where a process that is started later finds it; nothing without XLA.

    torch_xla takes one folder a process, before the first program: later calls change nothing.
    """
    if "torch_xla" not in sys.modules:
        return
    import torch_xla
    import torch_xla.runtime as xr

    # No public function says whether the cache is there already, and making it again raises.
    if xr.is_spmd() and not torch_xla._XLAC._xla_computation_cache_is_initialized():
        xr.initialize_cache(str(folder))


def device_count() -> int:
    """The number of chips (or virtual CPU devices) in the mesh."""
    import torch_xla.runtime as xr

    return xr.global_runtime_device_count()


def host_count() -> int:
    """The number of hosts that the chips belong to; training needs one."""
    from torch_xla import runtime

    return runtime.process_count()


def device_name() -> str:
    """`TPU v5 lite`, as the driver names its kind, or `XLA on CPU`."""
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr

    return ON_CPU if xr.device_type() == REHEARSAL else xm.xla_device_kind()


def memory_info() -> dict[str, int] | None:
    """`{"bytes_used", "bytes_limit", ...}` of one device, or None if unknown (XLA on CPU)."""
    import torch_xla.core.xla_model as xm

    try:
        return dict(xm.get_memory_info("xla:0"))
    except RuntimeError:
        return None


class BatchSharding:
    """Splits dimension 0 over the mesh for tensors of any rank; a `ShardingSpec` silently replicates all but one rank."""

    minibatch = False

    def _spec_for(self, tensor):
        import torch_xla.distributed.spmd as xs

        return xs.ShardingSpec(xs.get_global_mesh(), (BATCH_AXIS,) + (None,) * (tensor.dim() - 1))

    def can_apply(self, tensor) -> bool:
        """Whether the batch, dimension 0, divides by the devices; else the tensor is replicated."""
        return tensor.dim() > 0 and tensor.shape[0] % device_count() == 0

    def xla_spec(self, tensor):
        return self._spec_for(tensor).xla_spec(tensor) if self.can_apply(tensor) else None

    def apply(self, tensor):
        self._spec_for(tensor).apply(tensor)


def shard_loader(loader):
    """Makes a device loader (accelerate's `MpDeviceLoaderWrapper`) shard every batch; returns the same loader."""
    loader._parallel_loader_kwargs["input_sharding"] = BatchSharding()
    return loader


def shard_batch(tensor):
    """Marks dimension 0 of an intermediate tensor as split over the mesh (does nothing outside SPMD)."""
    return _mark(tensor, (BATCH_AXIS,) + (None,) * (tensor.dim() - 1))


def replicate(model) -> None:
    """Marks every weight as whole on every device, since a later step would mark it and compile anew."""
    for tensor in (*model.parameters(), *model.buffers()):
        replicate_tensor(tensor)


def replicate_tensor(tensor):
    """Marks one tensor as whole on every device (does nothing outside SPMD) and returns it."""
    return _mark(tensor, (None,) * tensor.dim())


def _mark(tensor, axes: tuple):
    import torch_xla.distributed.spmd as xs
    import torch_xla.runtime as xr

    if xr.is_spmd():
        xs.mark_sharding(tensor, xs.get_global_mesh(), axes)
    return tensor


def settle(optimizer, running_loss) -> None:
    """Gives what a step changes the form that it has between two steps, so that the first step has the graph of all others.

    A first step that creates the optimizer's state, one that finds it loaded, and all later ones would be three graphs,
    which may round differently: a resumed run would not be the same bit for bit. Creates the state of AdamW; the first step
    of another optimizer creates its own and compiles once more. No value changes.

    Args:
        optimizer: its state is marked as whole on every device.
        running_loss: device tensor to which every step adds its loss.
    """
    import torch

    replicate_tensor(running_loss)
    for group in optimizer.param_groups:
        for weight in group["params"]:
            state = optimizer.state[weight]
            if not state and weight.requires_grad and _is_plain_adamw(optimizer, group):
                moments = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
                state.update(step=torch.zeros(()), **moments)
            for value in state.values():
                if torch.is_tensor(value) and value.device == weight.device:  # AdamW counts its steps on the host
                    replicate_tensor(value)
            with torch.no_grad():
                weight.mul_(1.0)  # a tensor that was never changed in place has other views
    sync()


def _is_plain_adamw(optimizer, group: dict) -> bool:
    import torch

    optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate's wrapper
    return type(optimizer) is torch.optim.AdamW and not (group["amsgrad"] or group["capturable"] or group["fused"])


def distinct_decays(groups) -> list[float | None]:
    """Weight decay of each optimizer group, moved so that no two factors 1 - lr x decay of a step are equal in fp32.

    Equal numbers are one input of a graph: if a schedule made the factors of two groups equal, or one of them 1, a whole
    step would compile anew. A factor moves by a few times 6e-8, its rounding error. Equal decays stay equal.
    """
    products = [group["lr"] * (group.get("weight_decay") or 0.0) for group in groups]
    units, last = {}, 0
    for product in sorted(set(products) - {0.0}):
        last = units[product] = max(round(product / BELOW_ONE), last + 1)
    return [
        units[product] * BELOW_ONE / group["lr"] if product else group.get("weight_decay")
        for group, product in zip(groups, products, strict=True)
    ]


def rates_above_zero(groups) -> list[float]:
    """Learning rate of each optimizer group; instead of 0, with which a warm-up begins, 1e-30 of the full rate.

    XLA writes 0 into a graph as a constant, so the first step would have another graph than the second. A group whose rate
    is always 0 keeps it.
    """
    return [group["lr"] or NO_RATE * group.get("initial_lr", 0.0) for group in groups]


def sync() -> None:
    """Ends the graph here and starts it."""
    import torch_xla

    torch_xla.sync()


def wait() -> None:
    """Blocks until the device has finished its work (to measure time, never inside a step)."""
    import torch_xla.core.xla_model as xm

    sync()
    xm.wait_device_ops()


def checkpoint_function():
    """torch_xla's own gradient checkpointing; every mode of `torch.utils.checkpoint` crashes on XLA."""
    from torch_xla.utils.checkpoint import checkpoint

    return checkpoint


def counters() -> dict[str, float]:
    """Since the process began: compilations, their seconds, device-to-host transfers, `.item()` calls."""
    import torch_xla.debug.metrics as met

    compile_data = met.metric_data("CompileTime")
    transfers = met.metric_data("TransferFromDeviceTime")
    return {
        "compiles": met.counter_value("UncachedCompile") or 0,
        "compile_seconds": compile_data[1] / 1e9 if compile_data else 0.0,
        "host_transfers": transfers[0] if transfers else 0,
        "item_calls": met.counter_value("aten::_local_scalar_dense") or 0,
    }
