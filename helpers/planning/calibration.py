"""What a device was measured to reach, as the file that plans rest on; `calibrate.py` writes it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ValidationError

from helpers import tables

from .workloads import Workload

if TYPE_CHECKING:
    from helpers.hardware import Machine

FILE = "calibration.json"


class Size(BaseModel, frozen=True, extra="forbid"):
    """One size that was measured."""

    examples: int
    length: int
    flops: float
    seconds: float  # median of a step
    seconds_range: tuple[float, float]
    peak_bytes: int | None
    counted_bytes: int


class Measured(BaseModel, frozen=True, extra="forbid"):
    """One workload on one device."""

    notebook: str
    model: str
    precision: str
    sizes: tuple[Size, ...]
    fixed: float  # seconds of a step, whatever its size
    flops_per_second: float  # of what grows with it

    def seconds(self, flops: float) -> float:
        return self.fixed + flops / self.flops_per_second


class Calibration(BaseModel, frozen=True, extra="forbid"):
    """One device."""

    schema_version: Literal[2] = 2
    kind: str
    device: str
    threads: int
    date: str
    versions: dict[str, str | None]
    measured: tuple[Measured, ...]

    def rows(self) -> list[dict[str, Any]]:
        """What was reached, for `tables.show`."""
        return [
            {
                "device": self.device,
                "model": each.model,
                "precision": each.precision,
                "GFLOP/s": round(each.flops_per_second / 1e9, 1),
                "fixed time of a step": tables.seconds(each.fixed),
                "sizes timed": ", ".join(f"{size.examples} x {size.length}" for size in each.sizes),
            }
            for each in self.measured
        ]

    def find(self, workload: Workload, precision: str) -> Measured | None:
        """What was measured for this very model."""
        wanted = (workload.notebook, workload.name, precision)
        return next((each for each in self.measured if (each.notebook, each.model, each.precision) == wanted), None)

    def is_for(self, machine: Machine) -> bool:
        """Whether it was taken on this kind of device; a CPU is taken for the one that was measured."""
        from helpers import hardware

        same_kind = self.kind == machine.kind
        return same_kind and (machine.kind == "cpu" or hardware.find(self.device) == machine.accelerator)


def load(paths: Iterable[str | Path]) -> list[Calibration]:
    """Calibrations from their files. Raises FileNotFoundError, and ValueError for a file that is no calibration."""
    found = []
    for path in paths:
        try:
            found.append(Calibration.model_validate_json(Path(path).read_bytes()))
        except ValidationError as error:
            raise ValueError(
                f"calibration={str(path)!r}: not understood ({error.errors()[0]['msg']}); make it anew with "
                "python -m helpers.planning.calibrate"
            ) from error
    return found


def here() -> list[str]:
    """The file in the working directory, if there is one."""
    return [FILE] if Path(FILE).is_file() else []
