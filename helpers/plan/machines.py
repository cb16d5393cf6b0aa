"""Machines by their names (`T4`, `2xT4`, `v5e-8`, `CPU`), the runtime that a notebook would find on one, and what an hour costs.

Prices are list prices on demand in US dollars, as they were in the month beside each (`prices.json`). What has no price that a
source gives for a month has none, and no cost is computed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from helpers.machine.hardware import CATALOGUE, Machine, find
from helpers.machine.runtime import Runtime, choose_precision
from helpers.parameters import did_you_mean

SLICES = ("v2-8", "v3-8", "v5e-1", "v5e-4", "v5e-8", "v6e-1", "v6e-4", "v6e-8")
GPUS = tuple(accelerator.name for accelerator in CATALOGUE if accelerator.kind == "cuda")
NAMES = (*GPUS, *SLICES, "CPU")
MOST_GPUS = 16  # of one machine; beyond it a network is part of the step, which nothing here knows
PRICES = json.loads(Path(__file__).with_name("prices.json").read_text(encoding="utf-8"))
# Free tiers, within a quota, as of November 2026.
FREE = {"T4": "Colab", "P100": "Kaggle", "2xT4": "Kaggle", "v5e-1": "Colab", "v5e-8": "Kaggle"}


def machine(name: str) -> Machine:
    """The machine of a name: a GPU of the catalogue, `N x` of one, a TPU slice, or `CPU`.

    Case, spaces and hyphens do not matter; `A100` is the one of 40 GB.

    Raises ValueError for an unknown name, with the known ones.
    """
    times, plain = re.fullmatch(r"(?:(\d+)[x×])?(.*)", _plain(name)).groups()
    known = {_plain(each): each for each in NAMES} | {"a100": "A100 40GB"}
    count, found = int(times or 1), known.get(plain)
    if not found or not 1 <= count <= (MOST_GPUS if found in GPUS else 1):
        raise ValueError(
            f"hardware={name!r}: unknown; {did_you_mean(name, NAMES)}there are {', '.join(NAMES)}, and 2 to {MOST_GPUS} of a GPU, "
            "such as 2xT4"
        )
    if found in SLICES:
        generation, devices = found.split("-")
        return Machine(name=found, kind="xla", accelerator=find(f"TPU {generation}"), count=int(devices))
    kind, several = "cuda" if found in GPUS else "cpu", f"{count}x" if count > 1 else ""
    return Machine(name=several + found, kind=kind, accelerator=find(found), count=count)


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
