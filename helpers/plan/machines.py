"""Machines by their names (`T4`, `2xT4`, `v5e-8`, `CPU`), the runtime that a notebook would find on one, and what an hour costs.

Prices are list prices on demand in US dollars, as they were in the month beside each (`prices.json`). What has no price that a
source gives for a month has none, and no cost is computed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from helpers.machine.hardware import CATALOGUE, Accelerator, Machine, find
from helpers.machine.runtime import Runtime, choose_precision
from helpers.parameters import did_you_mean

SLICES = ("v2-8", "v3-8", "v5e-1", "v5e-4", "v5e-8", "v6e-1", "v6e-4", "v6e-8")
GPUS = tuple(accelerator.name for accelerator in CATALOGUE if accelerator.kind == "cuda")
NAMES = (*GPUS, *SLICES, "CPU")
DATASHEET = "A6000:48GB,768GB/s,155TFLOPS"
MOST_GPUS = 16  # of one machine; beyond it a network is part of the step, which nothing here knows
PRICES = json.loads(Path(__file__).with_name("prices.json").read_text(encoding="utf-8"))
# Free tiers, within a quota, as of November 2026.
FREE = {"T4": "Colab", "P100": "Kaggle", "2xT4": "Kaggle", "v5e-1": "Colab", "v5e-8": "Kaggle"}


def machine(name: str) -> Machine:
    """The machine of a name: a GPU of the catalogue, `N x` of one, a TPU slice, `CPU`, or a card with its datasheet.

    A GPU may also be called as `nvidia-smi` calls it. Case, spaces and hyphens do not matter; `A100` is the one of 40 GB.
    A datasheet has memory, bandwidth and the dense peak of 16-bit products: `A6000:48GB,768GB/s,155TFLOPS`.

    Raises ValueError for an unknown name, with the known ones, and for a datasheet that lacks a figure.
    """
    if ":" in name:
        return _by_datasheet(name)
    times, plain = re.fullmatch(r"(?:(\d+)[x×])?(.*)", _plain(name)).groups()
    names = {_plain(known): known for known in NAMES} | {"a100": "A100 40GB"}
    count, catalogued = int(times or 1), names.get(plain)
    if catalogued is None:
        reported = find(re.sub(r"^\s*\d+\s*[x×]", "", name))
        catalogued = reported.name if reported and reported.name in GPUS else None
    if catalogued is None or not 1 <= count <= (MOST_GPUS if catalogued in GPUS else 1):
        raise ValueError(
            f"hardware={name!r}: unknown; {did_you_mean(name, NAMES)}there are {', '.join(NAMES)}, and 2 to {MOST_GPUS} of a GPU, "
            f"such as 2xT4. For another card give its datasheet: {DATASHEET}"
        )
    if catalogued in SLICES:
        generation, devices = catalogued.split("-")
        return Machine(name=catalogued, kind="xla", accelerator=find(f"TPU {generation}"), count=int(devices))
    kind, several = "cuda" if catalogued in GPUS else "cpu", f"{count}x" if count > 1 else ""
    return Machine(name=several + catalogued, kind=kind, accelerator=find(catalogued), count=count)


def split_names(hardware: str) -> list[str]:
    """The names between commas; the commas inside a datasheet belong to it."""
    return re.split(r",(?!\s*[\d.]+\s*(?:GB|GB/s|TFLOPS)\s*(?:,|$))", hardware, flags=re.IGNORECASE)


def _by_datasheet(text: str) -> Machine:
    name, _, sheet = text.partition(":")
    figures = {}
    for unit, pattern in (
        ("GB", r"([\d.]+)\s*GB(?!/)"),
        ("GB/s", r"([\d.]+)\s*GB/s"),
        ("TFLOPS", r"([\d.]+)\s*TFLOPS"),
    ):
        match = re.search(pattern, sheet, re.IGNORECASE)
        figures[unit] = float(match[1]) if match else 0.0
    missing = [unit for unit, value in figures.items() if value <= 0]
    if missing or not name.strip():
        raise ValueError(
            f"hardware={text!r}: the datasheet has no {' and no '.join(missing) or 'name'}; write {DATASHEET}"
        )
    accelerator = Accelerator(
        name=name.strip(),
        kind="cuda",
        pattern=re.escape(name.strip()),
        gigabytes=round(figures["GB"]),
        gigabytes_per_second=round(figures["GB/s"]),
        teraflops={"bf16": figures["TFLOPS"], "fp16": figures["TFLOPS"], "fp32": figures["TFLOPS"] / 2},
        compute_capability=(8, 0),
        source="given by hand",
        note="datasheet given by hand, taken for a card with bf16 (sm_80 or newer)",
    )
    return Machine(name=accelerator.name, kind="cuda", accelerator=accelerator, count=1)


def _plain(name: str) -> str:
    return re.sub(r"[\s_]|(?<=\w)-|gb$", "", name.lower().strip()).removeprefix("tpu")


def runtime_of(machine: Machine) -> Runtime:
    """The runtime that `detect` would report on a machine of the catalogue, to plan for it from anywhere else."""
    capability = machine.accelerator and machine.accelerator.compute_capability
    chosen, why = choose_precision(machine.kind, machine.name, capability, "auto")
    return Runtime(
        kind=machine.kind,
        reason=f"planned for {machine.name}",
        device_name=machine.name if machine.accelerator is None else machine.accelerator.name,
        device_count=machine.count,
        memory=machine.memory,
        compute_capability=capability,
        precision=chosen,
        precision_reason=why,
    )


def usd_per_hour(machine: Machine) -> float | None:
    """Of the whole machine; None where no source gives it for a month. Colab sells single GPUs alone."""
    about = PRICES.get(machine.accelerator.name) if machine.accelerator else None
    if not about or (machine.count > 1 and about["source"].startswith("Colab")):
        return None
    return about["usd_per_hour"] * machine.count
