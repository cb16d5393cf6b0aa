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
GPU_LIMIT = 16  # of one machine; beyond it a network is part of the step, which nothing here knows
PRICES = json.loads(Path(__file__).with_name("prices.json").read_text(encoding="utf-8"))
# Free tiers, within a quota, as of November 2026.
FREE = {"T4": "Colab", "P100": "Kaggle", "2xT4": "Kaggle", "v5e-1": "Colab", "v5e-8": "Kaggle"}


def machine(name: str) -> Machine:
    """The machine of a name: a GPU of the catalogue, `N x` of one, a TPU slice, `CPU`, or the .json file of another card.

    A GPU may also be called as `nvidia-smi` calls it. Case, spaces and hyphens do not matter; `A100` is the one of 40 GB.
    The file holds one card, as `helpers/machine/hardware.json` has them.

    Raises ValueError for an unknown name, with the known ones, and for a file that is not there or lacks a figure.
    """
    if name.endswith(".json"):
        try:
            card = Accelerator.model_validate_json(Path(name.strip()).read_bytes())
        except (OSError, ValueError) as error:
            raise ValueError(
                f"hardware={name!r}: no card as helpers/machine/hardware.json has them ({error})"
            ) from error
        return Machine(name=card.name, kind=card.kind, accelerator=card)
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
            f"such as 2xT4. For another card give a .json file with its datasheet"
        )
    accelerator = find(catalogued)
    if count > 1:
        catalogued = f"{count}x{catalogued}"
    return Machine(name=catalogued, kind="cuda", accelerator=accelerator, count=count)


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
