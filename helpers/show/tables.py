"""Tables: HTML in a notebook, aligned text everywhere else, with units and few digits.

tables.show([{"model": "reservoir", "bits per byte": 1.2021}, {"model": "transformer", "bits per byte": 1.186}])
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
GIB = 2**30


def show(rows: Sequence[Row], caption: str = "") -> None:
    """Shows rows, which map column to value, as a table: HTML in a notebook, text elsewhere; a missing column stays empty."""
    from IPython.display import display

    display(Table(rows, caption))


def text(rows: Sequence[Row], caption: str = "") -> str:
    """Rows as text in aligned columns."""
    cells = _cells(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    if caption:
        lines.append(caption)
    for row in cells:
        lines.append("  ".join(map(str.ljust, row, widths)).rstrip())
    return "\n".join(lines)


def markdown(rows: Sequence[Row]) -> str:
    """Rows as a Markdown table, for docs."""
    head, *lines = _cells(rows)
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *lines))


def cell(value: Any) -> str:
    """One value: floats in four digits, integers in groups of three, None as nothing."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float) and abs(value) >= 10_000:
        return f"{value:,.0f}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).replace("\n", " ")  # a table has one line a row


def size(value: float | None) -> str | None:
    """Bytes in GiB or MiB."""
    if value is None:
        return None
    if value < GIB / 10:
        return f"{value / 2**20:.0f} MiB"
    return f"{value / GIB:.2f} GiB"


def seconds(value: float | None) -> str | None:
    """Seconds in a unit that fits their size."""
    if value is None:
        return None
    for unit, length, limit in (("ms", 1e-3, 1), ("s", 1, 120), ("min", 60, 7_200), ("h", 3_600, 172_800)):
        if value < limit:
            digits = ".2g" if value / length < 10 else ".0f"
            return f"{value / length:{digits}} {unit}"
    return f"{value / 86_400:.1f} d"


class Table:
    """Rows for `IPython.display.display`."""

    def __init__(self, rows: Sequence[Row], caption: str = ""):
        self.rows, self.caption = rows, caption

    def __repr__(self) -> str:
        return text(self.rows, self.caption)

    def _repr_html_(self) -> str:
        import pandas

        head, *lines = _cells(self.rows)
        table = pandas.DataFrame(lines, columns=head).to_html(index=False, border=0, justify="left")
        table = table.replace("<td>", '<td style="text-align:left">')
        if not self.caption:
            return table
        return f"<p><b>{html.escape(self.caption)}</b></p>{table}"


def _cells(rows: Sequence[Row]) -> list[list[str]]:
    """The head, with the columns of all rows, and the lines."""
    columns: dict[str, None] = {}
    for row in rows:
        columns |= dict.fromkeys(row)
    lines = [[*columns]]
    for row in rows:
        lines.append([cell(row.get(name)) for name in columns])
    return lines
