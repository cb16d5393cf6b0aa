"""Tables: HTML in a notebook, aligned text everywhere else, with units and few digits.

tables.show([{"model": "reservoir", "bits per byte": 1.2021}, {"model": "transformer", "bits per byte": 1.186}])
"""

import html
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
UNITS = (("ms", 1e-3, 1), ("s", 1, 120), ("min", 60, 7_200), ("h", 3_600, 172_800), ("d", 86_400, 1e12))


class Table:
    """Rows, which map column to value, below a caption; a missing column stays empty."""

    def __init__(self, rows: Sequence[Row], caption: str = ""):
        import pandas

        self.caption = caption
        self.frame = pandas.DataFrame([{name: cell(value) for name, value in row.items()} for row in rows]).fillna("")

    def __repr__(self) -> str:
        return f"{self.caption}\n{self.frame.to_string(index=False)}".lstrip()

    def _repr_html_(self) -> str:
        table = self.frame.to_html(index=False, border=0, justify="left").replace(
            "<td>", '<td style="text-align:left">'
        )
        return f"<p><b>{html.escape(self.caption)}</b></p>{table}"


def show(rows: Sequence[Row], caption: str = "") -> None:
    """Shows rows as a table: HTML in a notebook, aligned text elsewhere."""
    from IPython.display import display

    display(Table(rows, caption))


def markdown(rows: Sequence[Row]) -> str:
    """Rows as a Markdown table, for docs."""
    frame = Table(rows).frame
    lines = [frame.columns, ["---"] * len(frame.columns), *frame.to_numpy()]
    joined = [" | ".join(line) for line in lines]
    return "\n".join(f"| {line} |" for line in joined)


def cell(value: Any) -> str:
    """One value: floats in four digits, integers in groups of three, None as nothing."""
    if isinstance(value, bool):
        return ["no", "yes"][value]
    if isinstance(value, int) or (isinstance(value, float) and abs(value) >= 10_000):
        return f"{value:,.0f}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value).replace("\n", " ")  # a table has one line a row


def size(value: float | None) -> str | None:
    """Bytes in GiB or MiB."""
    if value is None:
        return None
    if value < 2**30 / 10:
        return f"{value / 2**20:.0f} MiB"
    return f"{value / 2**30:.2f} GiB"


def seconds(value: float | None) -> str | None:
    """Seconds in a unit that fits their size."""
    for unit, length, limit in UNITS:
        if value is not None and value < limit:
            digits = ".2g" if value < 10 * length else ".0f"
            return f"{value / length:{digits}} {unit}"
    return None
