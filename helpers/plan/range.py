"""An estimate: an interval that says what it rests on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Range:
    """An interval, with a best guess where there is one. `high` is infinite where nothing bounds it."""

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


def around(value: float, factor: float, basis: str) -> Range:
    """`value` and as many times less or more."""
    return Range(low=value / factor, high=value * factor, value=value, basis=basis)
