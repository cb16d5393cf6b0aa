"""Catalogue of accelerators (`hardware.json`): memory, bandwidth and dense peak per dtype, each from the maker's datasheet.

A device that is not in the catalogue gets `None`, never a guess: its memory and speed are then only measured.
"""

import os
import platform
import re
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, TypeAdapter


class Accelerator(BaseModel, frozen=True, extra="forbid"):
    """One device in its datasheet. For TPUs, what torch_xla counts as a device: a chip, but in v2 and v3 a core."""

    name: str
    kind: Literal["cuda", "xla"]
    pattern: str  # regular expression for the name that the runtime reports, case-insensitive
    gigabytes: int
    gigabytes_per_second: int
    teraflops: dict[str, float]  # dense, by dtype: fp32, tf32, fp16, bf16
    compute_capability: tuple[int, int] | None = None
    source: str
    note: str = ""

    def peak_for(self, precision: str) -> float | None:
        """Dense FLOP/s for a training precision; fp32 uses TF32 if the device has it, since training switches it on."""
        tera = self.teraflops.get(precision)
        if precision == "fp32":
            tera = self.teraflops.get("tf32", tera)
        return tera and tera * 1e12


# Order matters where one name contains another (A100 80GB before A100). GeForce bf16/fp16 rates are those with fp32
# accumulation, the only mode that training uses. All rates are dense; sparsity marketing figures are halved. Siblings
# of a GeForce of the same name have less memory, a narrower bus or another chip; the driver tells only some of them apart.
CATALOGUE = TypeAdapter(tuple[Accelerator, ...]).validate_json(Path(__file__).with_name("hardware.json").read_bytes())


def find(device_name: str) -> Accelerator | None:
    """The catalogue entry for the name a runtime reports (`Tesla T4`, `NVIDIA A100-SXM4-80GB`), or None."""
    if re.search(r"\bMIG\b", device_name):  # a slice of the board
        return None
    for accelerator in CATALOGUE:
        if re.search(accelerator.pattern, device_name, re.IGNORECASE):
            return accelerator
    return None


def attached_tpu() -> str:
    """What shows that a TPU is attached to this machine, with or without a library that can use it; "" if nothing does."""
    promised = os.environ.get("TPU_ACCELERATOR_TYPE", "")  # by the image of a TPU runtime
    return _first_device("accel[0-9]*", "vfio/[0-9]*") or promised


def attached_gpu() -> str:
    """The device file of an NVIDIA GPU whose driver is loaded; "" if there is none, or CUDA_VISIBLE_DEVICES hides all."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return "" if hidden else _first_device("nvidia[0-9]*")


def _first_device(*patterns: str) -> str:
    for pattern in patterns:
        for device in Path("/dev").glob(pattern):
            return str(device)
    return ""


def cpu_name() -> str:
    """The processor's model name."""
    info = Path("/proc/cpuinfo")
    model = info.exists() and re.search(r"model name\s*: (.+)", info.read_text())
    return model[1] if model else platform.machine()
