"""XLA: everything that touches torch_xla, and the only file that imports it.

TPU training here is SPMD in the notebook's own process: one mesh axis over all chips, batches sharded along it,
parameters replicated. `PJRT_DEVICE=CPU CPU_NUM_DEVICES=8` compiles and runs the same graphs on a CPU.
"""

import functools
import importlib.metadata
import importlib.util
import os
import sys
from pathlib import Path

BATCH_AXIS = "data"
REHEARSAL = (
    "CPU"  # PJRT_DEVICE=CPU with CPU_NUM_DEVICES: the same XLA graphs without a TPU; an import sets the first alone
)
BELOW_ONE = 2.0**-24  # distance of two fp32 numbers just below 1
OWN_DRAWS = (
    "--xla_tpu_spmd_rng_bit_generator_unsafe=true"  # dropout: a chip draws for its own examples, not for those of all
)
NO_RATE = 1e-30  # times the full rate: moves no weight, but is not the 0 that XLA writes into a graph as a constant


def installed() -> bool:
    """Whether torch_xla can be imported, without importing it."""
    return importlib.util.find_spec("torch_xla") is not None


def available() -> tuple[bool, str]:
    """Whether there is an XLA device to use, and why: a TPU, or with `PJRT_DEVICE=CPU` a rehearsal on the CPU.

    Raises RuntimeError if torch_xla is of another version than torch, or if XLA_USE_BF16 is set.
    """
    if not installed():
        return False, "torch_xla is not installed"
    if os.environ.get("XLA_USE_BF16") == "1":
        raise RuntimeError(
            "XLA_USE_BF16=1 stores the weights themselves in bf16, where a small learning rate changes nothing: unset it"
        )
    # Hides a C++ warning about GSPMD at each compilation.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    set_libtpu_arguments()
    if "," not in os.environ.get("TPU_PROCESS_ADDRESSES", ","):
        # Kaggle's images say "local", and libtpu then waits for further processes (huggingface/transformers#28204).
        del os.environ["TPU_PROCESS_ADDRESSES"]
    rehearsal = os.environ.get("PJRT_DEVICE") == REHEARSAL and "CPU_NUM_DEVICES" in os.environ
    try:
        import torch_xla  # noqa: F401  sets PJRT_DEVICE to TPU when it finds a chip, to CPU otherwise
    except ImportError as error:
        versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "torch_xla")]
        raise RuntimeError(
            f"{' and '.join(versions)} do not fit together ({error}). On Colab and Kaggle restore the runtime's own pair (Runtime > "
            "Disconnect and delete runtime); elsewhere install requirements-tpu.txt into a new environment."
        ) from error
    if rehearsal:
        start()
        return True, "PJRT_DEVICE=CPU, CPU_NUM_DEVICES: the TPU's XLA graphs, run on the CPU"
    chosen = os.environ.get("PJRT_DEVICE", "")
    if not chosen.startswith("TPU"):
        return False, f"torch_xla found no TPU chip (PJRT_DEVICE={chosen})"
    try:
        start()
    except (OSError, RuntimeError) as error:
        return False, f"no TPU could be started: {error}"
    return True, "torch_xla found a TPU"


def set_libtpu_arguments() -> None:
    """Adds `OWN_DRAWS` to what libtpu is told when it starts, unless the user has said something else about it."""
    arguments = os.environ.get("LIBTPU_INIT_ARGS", "")
    if OWN_DRAWS.partition("=")[0] not in arguments:
        os.environ["LIBTPU_INIT_ARGS"] = f"{arguments} {OWN_DRAWS}".strip()


def start():
    """Switches SPMD on with one mesh over all devices and returns the XLA device. Calling it again changes nothing.

    From then on every loader that accelerate makes splits its batches over the devices. `MpDeviceLoader` has no setting for that
    which accelerate would pass on, and `skip_first_batches` makes a new loader when a run is resumed.
    """
    import numpy as np
    import torch_xla
    import torch_xla.distributed.spmd as xs
    import torch_xla.runtime as xr
    from torch_xla.distributed.parallel_loader import MpDeviceLoader

    if xs.get_global_mesh() is None:
        xr.use_spmd()
        xs.set_global_mesh(xs.Mesh(np.arange(device_count()), (device_count(),), (BATCH_AXIS,)))
        MpDeviceLoader.__init__ = functools.partialmethod(MpDeviceLoader.__init__, input_sharding=BatchSharding())
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

    return "XLA on CPU" if xr.device_type() == REHEARSAL else xm.xla_device_kind()


def memory_info() -> dict[str, int]:
    """`{"bytes_used", "bytes_limit", ...}` of one device; empty if unknown (XLA on CPU)."""
    import torch_xla.core.xla_model as xm

    try:
        return dict(xm.get_memory_info("xla:0"))
    except RuntimeError:
        return {}


class BatchSharding:
    """Splits dimension 0 over the mesh for tensors of any rank; a `ShardingSpec` silently replicates all but one rank."""

    minibatch = False

    def xla_spec(self, tensor):
        """None, which means a tensor on every device, if the batch does not divide by the devices."""
        import torch_xla.distributed.spmd as xs

        if not tensor.dim() or tensor.shape[0] % device_count():
            return None
        return xs.ShardingSpec(xs.get_global_mesh(), _batch_axes(tensor)).xla_spec(tensor)


def _batch_axes(tensor) -> tuple:
    return BATCH_AXIS, *[None] * (tensor.dim() - 1)


def shard_batch(tensor):
    """Marks dimension 0 of an intermediate tensor as split over the mesh (does nothing outside SPMD)."""
    return _mark(tensor, _batch_axes(tensor))


def replicate(model) -> None:
    """Marks every weight as whole on every device, since a later step would mark it and compile anew."""
    for tensor in (*model.parameters(), *model.buffers()):
        _mark(tensor, (None,) * tensor.dim())


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
        optimizer: accelerate's wrapper; its state is marked as whole on every device.
        running_loss: device tensor to which every step adds its loss.
    """
    import torch

    changed = [running_loss]
    for group in optimizer.param_groups:
        for weight in group["params"]:
            state = optimizer.state[weight]
            if not state and weight.requires_grad and type(optimizer.optimizer) is torch.optim.AdamW:
                moments = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
                state.update(step=torch.zeros(()), **moments)
            changed += state.values()
            with torch.no_grad():
                weight.mul_(1.0)  # a tensor that was never changed in place has other views
    for tensor in changed:
        if torch.is_tensor(tensor) and tensor.device == running_loss.device:  # AdamW counts its steps on the host
            _mark(tensor, (None,) * tensor.dim())
    sync()


def avoid_constants(groups) -> None:
    """Moves the learning rates and weight decays of optimizer groups by less than their rounding, so that no schedule changes the graph.

    XLA writes 0, with which a warm-up begins, and 1 into a graph as constants, and equal numbers are one input of it: a whole step would
    compile anew. A rate of 0 becomes 1e-30 of the full rate, unless the full rate is 0. No two factors 1 - lr x decay are equal in
    fp32, and none is 1, but equal decays stay equal.
    """
    decays = {}
    for group in groups:
        group["lr"] = group["lr"] or NO_RATE * group["initial_lr"]
        decays[group["lr"] * group["weight_decay"]] = 0.0
    units = 0
    for decay in sorted(decays):
        if decay:
            units = max(round(decay / BELOW_ONE), units + 1)
            decays[decay] = units * BELOW_ONE
    for group in groups:
        decay = decays[group["lr"] * group["weight_decay"]]
        if decay:
            group["weight_decay"] = decay / group["lr"]


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


def compilations() -> tuple[int, float]:
    """How many programs this process has compiled, and in how many seconds."""
    from torch_xla.debug import metrics

    count, nanoseconds, _ = metrics.metric_data("CompileTime") or (0, 0, ())
    return count, nanoseconds / 1e9
