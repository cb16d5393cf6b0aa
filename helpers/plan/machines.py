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
UNITS = ("GB", "GB/s", "TFLOPS")
DATASHEET = "A6000:48GB,768GB/s,155TFLOPS"
GPU_LIMIT = 16  # of one machine; beyond it a network is part of the step, which nothing here knows
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
    times, plain = re.findall(r"^(?:(\d+)[x×])?(.*)", _plain(name))[0]
    count = int(times or 1)
    catalogue = {_plain(entry): entry for entry in NAMES} | {"a100": "A100 40GB"}
    reported = find(re.sub(r"^\s*\d+\s*[x×]", "", name))
    catalogued = catalogue.get(plain) or (reported and reported.name)
    if catalogued == "CPU" and count == 1:
        return Machine(name=catalogued, kind="cpu")
    if catalogued in SLICES and count == 1:
        generation, devices = catalogued.split("-")
        return Machine(name=catalogued, kind="xla", accelerator=find(f"TPU {generation}"), count=int(devices))
    if catalogued not in GPUS or not 1 <= count <= GPU_LIMIT:
        raise ValueError(
            f"hardware={name!r}: unknown; {did_you_mean(name, NAMES)}there are {', '.join(NAMES)}, and 2 to {GPU_LIMIT} of a GPU, "
            f"such as 2xT4. For another card give its datasheet: {DATASHEET}"
        )
    accelerator = find(catalogued)
    if count > 1:
        catalogued = f"{count}x{catalogued}"
    return Machine(name=catalogued, kind="cuda", accelerator=accelerator, count=count)


def split_names(hardware: str) -> list[str]:
    """The names between commas; the commas inside a datasheet belong to it."""
    return re.split(rf",(?!\s*[\d.]+\s*(?:{'|'.join(UNITS)})\s*(?:,|$))", hardware, flags=re.IGNORECASE)


def _by_datasheet(text: str) -> Machine:
    name, figures = map(str.strip, text.rsplit(":", 1))
    pattern = ",".join(rf"\s*([\d.]+)\s*{unit}\s*" for unit in UNITS)
    datasheet = re.fullmatch(pattern, figures, re.IGNORECASE)
    if not name or not datasheet or not all(map(float, datasheet.groups())):
        raise ValueError(f"hardware={text!r}: no datasheet; write memory, bandwidth and peak such as {DATASHEET}")
    memory, bandwidth, peak = map(float, datasheet.groups())
    accelerator = Accelerator(
        name=name,
        kind="cuda",
        pattern=re.escape(name),
        gigabytes=round(memory),
        gigabytes_per_second=round(bandwidth),
        teraflops={"bf16": peak, "fp16": peak, "fp32": peak / 2},
        compute_capability=(8, 0),
        source="given by hand",
        note="datasheet given by hand, taken for a card with bf16 (sm_80 or newer)",
    )
    return Machine(name=name, kind="cuda", accelerator=accelerator)


def _plain(name: str) -> str:
    return re.sub(r"[\s_]|(?<=\w)-|gb$", "", name.lower().strip()).removeprefix("tpu")


def runtime_of(machine: Machine) -> Runtime:
    """The runtime that `detect` would report on a machine of the catalogue, to plan for it from anywhere else."""
    accelerator = machine.accelerator
    capability = accelerator.compute_capability if accelerator else None
    precision, why = choose_precision(machine.kind, machine.name, capability, "auto")
    return Runtime(
        kind=machine.kind,
        reason=f"planned for {machine.name}",
        device_name=accelerator.name if accelerator else machine.name,
        device_count=machine.count,
        memory=machine.memory,
        compute_capability=capability,
        precision=precision,
        precision_reason=why,
    )


def usd_per_hour(machine: Machine) -> float | None:
    """Of the whole machine; None where no source gives it for a month. Colab sells single GPUs alone."""
    if not machine.accelerator:
        return None
    price = PRICES.get(machine.accelerator.name)
    if not price or (machine.count > 1 and price["source"].startswith("Colab")):
        return None
    return price["usd_per_hour"] * machine.count
