"""Catalogue of accelerators: memory, bandwidth and dense peak per dtype, each from the maker's datasheet.

A device that is not in the catalogue gets `None`, never a guess: its memory and speed are then only measured.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

GB = 10**9
TERA = 10**12


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One device as its datasheet states it. A TPU entry is what torch_xla counts as one device: a chip, v2 and v3 a core."""

    name: str
    kind: str  # "cuda" or "xla"
    pattern: str  # matches the name the runtime reports, case-insensitive
    memory: int  # bytes
    bandwidth: int  # bytes/s
    peak: dict[str, float]  # dense FLOP/s by dtype: fp32, tf32, fp16, bf16
    compute_capability: tuple[int, int] | None = None
    cores: int = 0  # CUDA cores; of a TPU, TensorCores
    source: str
    note: str = ""

    def peak_for(self, precision: str) -> float | None:
        """Dense FLOP/s for a training precision; fp32 uses TF32 where the device has it (we switch it on)."""
        if precision == "fp32":
            return self.peak.get("tf32", self.peak.get("fp32"))
        return self.peak.get(precision)


def _gpu(name, pattern, sm, cores, gigabytes, bandwidth, source, **tera) -> Accelerator:
    return _entry(name, pattern, "cuda", cores, gigabytes, bandwidth, source, "", tera, sm)


def _tpu(name, pattern, cores, gigabytes, bandwidth, source, note="", **tera) -> Accelerator:
    return _entry(name, pattern, "xla", cores, gigabytes, bandwidth, source, note, tera)


def _entry(name, pattern, kind, cores, gigabytes, bandwidth, source, note, tera, sm=None) -> Accelerator:
    return Accelerator(
        name=name,
        kind=kind,
        pattern=pattern,
        memory=gigabytes * GB,
        bandwidth=bandwidth * GB,
        peak={dtype: value * TERA for dtype, value in tera.items()},
        compute_capability=sm,
        cores=cores,
        source=source,
        note=note,
    )


AMPERE = "NVIDIA GA102 whitepaper (2020) rates a core and clock"
# Order matters where one name contains another (A100-80GB before A100). GeForce bf16/fp16 rates are those with
# fp32 accumulation, the only mode that training uses. All rates are dense; sparsity marketing figures are halved.
# fmt: off
CATALOGUE: tuple[Accelerator, ...] = (
    _gpu("T4", r"\bT4\b", (7, 5), 2560, 16, 320, "NVIDIA T4 datasheet (2018)", fp32=8.1, fp16=65),
    _gpu("V100", r"\bV100(-SXM2-16GB)?$", (7, 0), 5120, 16, 900, "NVIDIA V100 SXM2 datasheet (2017)", fp32=15.7, fp16=125),
    _gpu("A10", r"\bA10\b", (8, 6), 9216, 24, 600, "NVIDIA A10 datasheet (2021)", fp32=31.2, tf32=62.5, fp16=125, bf16=125),
    _gpu("A100 80GB", r"A100.*80\s?GB", (8, 0), 6912, 80, 2039, "NVIDIA A100 SXM datasheet (2021)", fp32=19.5, tf32=156, fp16=312, bf16=312),
    _gpu("A100 40GB", r"\bA100\b", (8, 0), 6912, 40, 1555, "NVIDIA A100 SXM datasheet (2020)", fp32=19.5, tf32=156, fp16=312, bf16=312),
    _gpu("L4", r"\bL4\b", (8, 9), 7424, 24, 300, "NVIDIA L4 datasheet (2023)", fp32=30.3, tf32=60, fp16=121, bf16=121),
    _gpu("H200", r"\bH200\b(?! NVL)", (9, 0), 16896, 141, 4800, "NVIDIA H200 SXM datasheet (2023)", fp32=67, tf32=494.5, fp16=989, bf16=989),
    _gpu("H100", r"\bH100\b(?! PCIe| NVL)", (9, 0), 16896, 80, 3350, "NVIDIA H100 SXM datasheet (2022)", fp32=67, tf32=494.5, fp16=989, bf16=989),
    _gpu("RTX 4090", r"RTX 4090(?! D| Laptop)", (8, 9), 16384, 24, 1008, "NVIDIA Ada whitepaper (2022)", fp32=82.6, tf32=82.6, fp16=165.2, bf16=165.2),
    _gpu("RTX 3090", r"RTX 3090(?! Ti| Laptop)", (8, 6), 10496, 24, 936, "NVIDIA GA102 whitepaper (2020)", fp32=35.6, tf32=35.6, fp16=71, bf16=71),
    # Siblings of the same name have 8 or 6 GB, a narrower bus or another chip; the driver tells only some of them apart.
    _gpu("RTX 3060", r"RTX 3060(?! Ti| Laptop)", (8, 6), 3584, 12, 360, f"{AMPERE}, RTX 3060 12GB specifications (2021): 3,584 cores at 1.777 GHz", fp32=12.7, tf32=12.7, fp16=25.5, bf16=25.5),
    _gpu("RTX 3050", r"RTX 3050(?! Ti| Laptop| 6GB)", (8, 6), 2560, 8, 224, f"{AMPERE}, RTX 3050 8GB specifications (2022): 2,560 cores at 1.777 GHz", fp32=9.1, tf32=9.1, fp16=18.2, bf16=18.2),
    _tpu("TPU v5e", r"v5\s?(lite|e)", 1, 16, 819, "cloud.google.com/tpu/docs/v5e, per chip", bf16=197),
    _tpu("TPU v6e", r"v6\s?(lite|e)", 1, 32, 1640, "cloud.google.com/tpu/docs/v6e, per chip", bf16=918),
    _tpu("TPU v3", r"\bTPU v3\b", 1, 16, 450, "cloud.google.com/tpu/docs/v3: 123 TFLOP/s, 32 GiB, 900 GB/s a chip of two cores", "Google advises newer ones", bf16=61.5),
    _tpu("TPU v2", r"\bTPU v2\b", 1, 8, 350, "Jouppi et al., CACM 63(7), 2020: 46 TFLOP/s, 16 GB, 700 GB/s a chip of two cores", "Colab retired its v2-8 in September 2025 (googlecolab/colabtools#5566)", bf16=23),
)
# fmt: on


def find(device_name: str) -> Accelerator | None:
    """The catalogue entry for the name a runtime reports (`Tesla T4`, `NVIDIA A100-SXM4-80GB`), or None."""
    if re.search(r"\bMIG\b", device_name):  # a slice of the board
        return None
    for accelerator in CATALOGUE:
        if re.search(accelerator.pattern, device_name, re.IGNORECASE):
            return accelerator
    return None


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Devices that share a batch: `2xT4`, `v5e-8`, `CPU`."""

    name: str
    kind: str  # "cpu", "cuda" or "xla"
    accelerator: Accelerator | None  # None for a CPU: no datasheet figure says how fast it trains
    count: int

    @property
    def memory(self) -> int | None:
        """Bytes a device; None for a CPU, whose memory is the computer's."""
        return self.accelerator and self.accelerator.memory

    @property
    def precision(self) -> str:
        """What it trains in: see `runtime.choose_precision`."""
        from .runtime import choose_precision

        capability = self.accelerator and self.accelerator.compute_capability
        return choose_precision(self.kind, self.name, capability)[0]

    @property
    def note(self) -> str:
        return self.accelerator.note if self.accelerator else ""


SLICES = ("v2-8", "v3-8", "v5e-1", "v5e-4", "v5e-8", "v6e-1", "v6e-4", "v6e-8")
GPUS = tuple(accelerator.name for accelerator in CATALOGUE if accelerator.kind == "cuda")
NAMES = (*GPUS, *SLICES, "CPU")
MOST_GPUS = 16  # of one machine; beyond it a network is part of the step, which nothing here knows


def machine(name: str) -> Machine:
    """The machine of a name: a GPU of the catalogue, `N x` of one, a TPU slice, or `CPU`.

    Case, spaces and hyphens do not matter; `A100` is the one of 40 GB.

    Raises ValueError for an unknown name, with the known ones, and for a count out of range.
    """
    plain = _plain(name)
    repeated = re.fullmatch(r"(-?\d+)[x×](.+)", plain)
    count, plain = (int(repeated[1]), repeated[2]) if repeated else (1, plain)
    if not 1 <= count <= MOST_GPUS:
        raise ValueError(f"hardware={name!r}: {count} devices; give 1 to {MOST_GPUS}")
    known = {_plain(each): each for each in NAMES} | {"a100": "A100 40GB", "a10040": "A100 40GB", "a10080": "A100 80GB"}
    known |= {f"tpu{_plain(each)}": each for each in SLICES}
    if plain not in known or (count > 1 and known[plain] not in GPUS):
        close = difflib.get_close_matches(plain, list(known), n=1)
        hint = f"did you mean {known[close[0]]}? " if close and plain not in known else ""
        raise ValueError(
            f"hardware={name!r}: unknown; {hint}there are {', '.join(NAMES)}, and N x a GPU such as 2xT4. "
            "For other hardware run `python -m helpers.planning.calibration` on it"
        )
    found = known[plain]
    if found == "CPU":
        return Machine(name="CPU", kind="cpu", accelerator=None, count=1)
    if found in SLICES:
        generation, devices = found.split("-")
        return Machine(name=found, kind="xla", accelerator=find(f"TPU {generation}"), count=int(devices))
    label = found if count == 1 else f"{count}x{found}"
    return Machine(name=label, kind="cuda", accelerator=find(found), count=count)


def _plain(name: str) -> str:
    return re.sub(r"[\s_]|(?<=\w)-", "", name.lower())
