"""Catalogue of accelerators (`hardware.json`): memory, bandwidth and dense peak per dtype, each from the maker's datasheet.

A device that is not in the catalogue gets `None`, never a guess: its memory and speed are then only measured.
"""

import os
import platform
import re
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, TypeAdapter

GOOGLE = "0x1ae0"  # PCI vendor
BROKEN_TPU = (
    "use_tpu=True, and the TPU of this machine cannot be used: {reason}. If a process holds it, end that process or restart its notebook; "
    "else restart this session. Then run all cells again. To train without the TPU, set use_tpu=False."
)


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

    @property
    def memory(self) -> int:
        """Memory in bytes."""
        return self.gigabytes * 10**9

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
    for vendor in Path("/sys/bus/pci/devices").glob("*/vendor"):
        network_or_disk = vendor.with_name("class").read_text().startswith(("0x01", "0x02"))
        if vendor.read_text().strip() == GOOGLE and not network_or_disk:
            return f"PCI device {vendor.parent.name}"
    for device in Path("/dev").glob("accel[0-9]*"):
        return str(device)
    promised = os.environ.get("TPU_ACCELERATOR_TYPE")  # by the image of a TPU runtime
    return f"TPU_ACCELERATOR_TYPE={promised}" if promised else ""


def attached_gpu() -> str:
    """The device file of an NVIDIA GPU whose driver is loaded; "" if there is none, or CUDA_VISIBLE_DEVICES hides all."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1"):
        return ""
    return next(map(str, Path("/dev").glob("nvidia[0-9]*")), "")


def cpu_name() -> str:
    """The processor's model name."""
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8") if info.exists() else ""
    model = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return model[1].strip() if model else platform.processor() or platform.machine()
