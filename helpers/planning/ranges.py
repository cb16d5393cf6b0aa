"""An estimate: an interval that says what it rests on."""

from __future__ import annotations

from dataclasses import dataclass

MEASURED, SCALED, BOUND, COUNTED = "measured", "scaled from a measurement", "datasheet bound", "counted from shapes"


@dataclass(frozen=True, kw_only=True)
class Range:
    """An interval, with a best guess where there is one."""

    low: float
    high: float
    value: float | None = None
    basis: str

    def __mul__(self, factor: float) -> Range:
        value = None if self.value is None else self.value * factor
        return Range(low=self.low * factor, high=self.high * factor, value=value, basis=self.basis)

    def __add__(self, other: Range) -> Range:
        """Of two things after each other, known in the same way."""
        value = None if self.value is None or other.value is None else self.value + other.value
        return Range(low=self.low + other.low, high=self.high + other.high, value=value, basis=self.basis)
