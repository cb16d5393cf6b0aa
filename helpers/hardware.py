"""Catalogue of accelerators: memory, bandwidth and dense peak per dtype, each from the maker's datasheet.

A device that is not in the catalogue gets `None`, never a guess: its memory and speed are then only measured.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

GB = 10**9
TERA = 10**12


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One device as its datasheet states it; a TPU entry is one chip."""

    name: str
    kind: str  # "cuda" or "xla"
    pattern: str  # matches the name the runtime reports, case-insensitive
    memory: int  # bytes
    bandwidth: int  # bytes/s
    peak: dict[str, float]  # dense FLOP/s by dtype: fp32, tf32, fp16, bf16
    compute_capability: tuple[int, int] | None = None
    source: str

    def peak_for(self, precision: str) -> float | None:
        """Dense FLOP/s for a training precision; fp32 uses TF32 where the device has it (we switch it on)."""
        if precision == "fp32":
            return self.peak.get("tf32", self.peak.get("fp32"))
        return self.peak.get(precision)


def _entry(name, pattern, sm, gigabytes, bandwidth, source, **tera) -> Accelerator:
    return Accelerator(
        name=name,
        kind="cuda" if sm else "xla",
        pattern=pattern,
        memory=gigabytes * GB,
        bandwidth=bandwidth * GB,
        peak={dtype: value * TERA for dtype, value in tera.items()},
        compute_capability=sm,
        source=source,
    )


# Order matters where one name contains another (A100-80GB before A100). GeForce bf16/fp16 rates are those with
# fp32 accumulation, the only mode that training uses. All rates are dense; sparsity marketing figures are halved.
CATALOGUE: tuple[Accelerator, ...] = (
    _entry("T4", r"\bT4\b", (7, 5), 16, 320, "NVIDIA T4 datasheet (2018)", fp32=8.1, fp16=65),
    _entry("V100", r"\bV100(-SXM2-16GB)?$", (7, 0), 16, 900, "NVIDIA V100 SXM2 datasheet (2017)", fp32=15.7, fp16=125),
    _entry("A10", r"\bA10\b", (8, 6), 24, 600, "NVIDIA A10 datasheet (2021)", fp32=31.2, tf32=62.5, fp16=125, bf16=125),
    _entry(
        "A100 80GB",
        r"A100.*80\s?GB",
        (8, 0),
        80,
        2039,
        "NVIDIA A100 SXM datasheet (2021)",
        fp32=19.5,
        tf32=156,
        fp16=312,
        bf16=312,
    ),
    _entry(
        "A100 40GB",
        r"\bA100\b",
        (8, 0),
        40,
        1555,
        "NVIDIA A100 SXM datasheet (2020)",
        fp32=19.5,
        tf32=156,
        fp16=312,
        bf16=312,
    ),
    _entry("L4", r"\bL4\b", (8, 9), 24, 300, "NVIDIA L4 datasheet (2023)", fp32=30.3, tf32=60, fp16=121, bf16=121),
    _entry(
        "H200",
        r"\bH200\b(?! NVL)",
        (9, 0),
        141,
        4800,
        "NVIDIA H200 SXM datasheet (2023)",
        fp32=67,
        tf32=494.5,
        fp16=989,
        bf16=989,
    ),
    _entry(
        "H100",
        r"\bH100\b(?! PCIe| NVL)",
        (9, 0),
        80,
        3350,
        "NVIDIA H100 SXM datasheet (2022)",
        fp32=67,
        tf32=494.5,
        fp16=989,
        bf16=989,
    ),
    _entry(
        "RTX 4090",
        r"RTX 4090(?! D| Laptop)",
        (8, 9),
        24,
        1008,
        "NVIDIA Ada whitepaper (2022)",
        fp32=82.6,
        tf32=82.6,
        fp16=165.2,
        bf16=165.2,
    ),
    _entry(
        "RTX 3090",
        r"RTX 3090(?! Ti)",
        (8, 6),
        24,
        936,
        "NVIDIA GA102 whitepaper (2020)",
        fp32=35.6,
        tf32=35.6,
        fp16=71,
        bf16=71,
    ),
    _entry("TPU v5e", r"v5\s?(lite|e)", None, 16, 819, "cloud.google.com/tpu/docs/v5e, per chip", bf16=197),
    _entry("TPU v6e", r"v6\s?(lite|e)", None, 32, 1640, "cloud.google.com/tpu/docs/v6e, per chip", bf16=918),
)


def find(device_name: str) -> Accelerator | None:
    """The catalogue entry for the name a runtime reports (`Tesla T4`, `NVIDIA A100-SXM4-80GB`), or None."""
    if re.search(r"\bMIG\b", device_name):  # a slice of the board
        return None
    for accelerator in CATALOGUE:
        if re.search(accelerator.pattern, device_name, re.IGNORECASE):
            return accelerator
    return None
