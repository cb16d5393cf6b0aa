"""What an hour costs. Edit this table, or give `--prices my.json`: {"T4": 0.40} or {"T4": {"usd_per_hour": ..., ...}}.

Prices change and differ by region: these are list prices on demand, in US dollars, as they were on the date beside each,
and approximate. What has no public list price has None and no cost is computed.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from pathlib import Path

from helpers.hardware import Machine


@dataclass(frozen=True, kw_only=True)
class Price:
    """Of one GPU, one TPU chip (v2, v3: one core), or one CPU machine."""

    usd_per_hour: float | None
    source: str
    as_of: str  # month the price was read
    remark: str = ""


def _google(usd: float, remark: str = "") -> Price:
    return Price(usd_per_hour=usd, source="Google Cloud list price, us-central1", as_of="2025", remark=remark)


def _market(usd: float) -> Price:
    return Price(
        usd_per_hour=usd,
        source="RunPod, as deploybase.ai/articles/runpod-gpu-pricing lists it",
        as_of="2026-03",
        remark="a marketplace's",
    )


def _lambda(usd: float, remark: str = "") -> Price:
    return Price(
        usd_per_hour=usd,
        source="Lambda on demand, as techbytes.app/posts/serverless-gpu-pricing-matrix-modal-replicate-lambda-2026 lists it",
        as_of="2026-05",
        remark=remark,
    )


def _none(remark: str) -> Price:
    return Price(usd_per_hour=None, source="none", as_of="", remark=remark)


GPU_ALONE = "the GPU alone; the machine that it is in costs extra"
TABLE: dict[str, Price] = {
    "T4": _google(0.35, GPU_ALONE),
    "V100": _google(2.48, GPU_ALONE),
    "A10": _lambda(0.86),
    "A100 40GB": _google(3.67, "a2-highgpu-1g, the whole machine"),
    "A100 80GB": _google(5.07, "a2-ultragpu-1g, the whole machine"),
    "L4": _google(0.71, "g2-standard-4, the whole machine"),
    "H100": _lambda(3.78, "one SXM"),
    "H200": _market(3.59),
    "RTX 4090": _market(0.34),
    "RTX 3090": _market(0.22),
    "RTX 3060": _none("no list price known; yours costs its electricity"),
    "RTX 3050": _none("no list price known; yours costs its electricity"),
    "TPU v2": _google(4.50 / 8, "v2-8 at $4.50"),
    "TPU v3": _google(8.00 / 8, "v3-8 at $8.00"),
    "TPU v5e": _google(1.20, "a chip"),
    "TPU v6e": Price(
        usd_per_hour=2.70,
        source="Google Cloud, as neowin.net reports the general availability of Trillium",
        as_of="2024-12",
        remark="a chip",
    ),
    "CPU": _none("whichever machine it is"),
}


def load(path: str | Path | None = None) -> dict[str, Price]:
    """The table, with the entries of a JSON file over it.

    Raises ValueError for an unknown name, a price that is not positive, or an entry that is not understood;
    FileNotFoundError where there is no such file.
    """
    if path is None:
        return dict(TABLE)
    try:
        given = json.loads(Path(path).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f'prices={str(path)!r}: no JSON ({error}); write {{"T4": 0.40}}') from error
    if not isinstance(given, dict):
        raise ValueError(f'prices={str(path)!r}: must be an object such as {{"T4": 0.40}}')
    return TABLE | {name: _checked(name, entry, path) for name, entry in given.items()}


def _checked(name: str, entry, path) -> Price:
    if name not in TABLE:
        raise ValueError(f"prices={str(path)!r}: {name!r} is unknown; there are {', '.join(TABLE)}")
    known = [field.name for field in fields(Price)]
    values = entry if isinstance(entry, dict) else {"usd_per_hour": entry}
    if unknown := [key for key in values if key not in known]:
        raise ValueError(f"prices={str(path)!r}: {name}: {', '.join(unknown)} unknown; there are {', '.join(known)}")
    usd = values.get("usd_per_hour")
    if usd is not None and (isinstance(usd, bool) or not isinstance(usd, int | float) or not 0 < usd < math.inf):
        raise ValueError(f"price of {name}={usd!r}: must be dollars an hour, more than 0; null where it is not known")
    return Price(**{"usd_per_hour": None, "source": str(path), "as_of": "", **values})


def of(machine: Machine, table: dict[str, Price] = TABLE) -> Price:
    """Of the whole machine."""
    key = machine.accelerator.name if machine.accelerator else "CPU"
    price = table[key]
    if price.usd_per_hour is None:
        return price
    return Price(**{**vars(price), "usd_per_hour": price.usd_per_hour * machine.count})
