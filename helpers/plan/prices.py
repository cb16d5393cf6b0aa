"""What an hour costs: `prices.json`, over which a person lays a file of the same form, {"T4": 0.40} for short.

Prices change and differ by region: these are list prices on demand, in US dollars, as they were on the date beside each,
and approximate. What has no price that a source gives for a month has null, and no cost is computed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from helpers.machine.hardware import Machine

FILE = Path(__file__).with_name("prices.json")
# Of whole machines: Colab's free tier and Kaggle's weekly quota of GPU and TPU hours as of November 2026.
FREE = {
    "T4": "$0 on Colab's free tier",
    "2xT4": "$0 on Kaggle",
    "v5e-1": "$0 on Colab's free tier",
    "v5e-8": "$0 on Kaggle",
}
Dollars = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]


class Price(BaseModel, frozen=True, extra="forbid"):
    """Of one GPU, one TPU chip (v2, v3: one core), or one CPU machine."""

    usd_per_hour: Dollars | None
    source: str = ""
    as_of: str = ""  # month the price was read
    remark: str = ""
    free: str = ""  # where the whole machine is to be had for nothing, within a quota

    def __str__(self) -> str:
        price = "no public price" if self.usd_per_hour is None else f"${self.usd_per_hour:.2f} an hour"
        return ", ".join(filter(None, (self.free, price, self.source, self.as_of, self.remark)))


def table(path: str | Path | None = None) -> dict[str, Price]:
    """Price of each device, by its name; those of a file of the user's over ours.

    Raises ValueError for an unknown name, a price that is not positive, or an entry that is not understood;
    FileNotFoundError where there is no such file.
    """
    ours = {} if path is None else table()
    try:
        given = TypeAdapter(dict[str, Dollars | Price]).validate_json(Path(path or FILE).read_bytes())
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise ValueError(
            f'prices={str(path)!r}: {where}: {error.errors()[0]["msg"]}; write dollars an hour such as {{"T4": 0.40}}'
        ) from error
    if path and (unknown := given.keys() - ours.keys()):
        raise ValueError(f"prices={str(path)!r}: {', '.join(unknown)} unknown; there are {', '.join(ours)}")
    entries = {name: each if isinstance(each, Price) else Price(usd_per_hour=each) for name, each in given.items()}
    return ours | {name: each.model_copy(update={"source": each.source or str(path)}) for name, each in entries.items()}


def of(machine: Machine, prices: dict[str, Price] | None = None) -> Price:
    """Of the whole machine."""
    price = (prices or table())[machine.accelerator.name if machine.accelerator else "CPU"]
    usd = price.usd_per_hour and price.usd_per_hour * machine.count
    return price.model_copy(update={"usd_per_hour": usd, "free": FREE.get(machine.name, "")})
