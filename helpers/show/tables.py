"""Tables: HTML in a notebook, aligned text everywhere else, with units and few digits.

tables.show([{"model": "reservoir", "bits per byte": 1.2021}, {"model": "transformer", "bits per byte": 1.186}])
"""

import html
from collections.abc import Mapping, Sequence
from typing import Any

from .tracking import in_kernel

Row = Mapping[str, Any]


def show(rows: Sequence[Row], caption: str = "") -> None:
    """Shows rows, which map column to value, as a table: HTML in a notebook, text elsewhere; a missing column stays empty."""
    from IPython.display import display

    plain = text(rows, caption)
    if not in_kernel():
        print(plain)
        return
    table = frame(rows).to_html(index=False, border=0, justify="left").replace("<td>", '<td style="text-align:left">')
    display({"text/plain": plain, "text/html": f"<p><b>{html.escape(caption)}</b></p>{table}"}, raw=True)


def text(rows: Sequence[Row], caption: str = "") -> str:
    """Rows as text in aligned columns."""
    return f"{caption}\n{frame(rows).to_string(index=False)}".lstrip()


def markdown(rows: Sequence[Row]) -> str:
    """Rows as a Markdown table, for docs."""
    table = frame(rows)
    lines = [table.columns, ["---"] * len(table.columns), *table.to_numpy()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def frame(rows: Sequence[Row]):
    """The cells of a table, as text."""
    import pandas

    cells = []
    for row in rows:
        cells.append({name: cell(value) for name, value in row.items()})
    return pandas.DataFrame(cells).fillna("")


def cell(value: Any) -> str:
    """One value: floats in four digits, integers in groups of three, None as nothing."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value).replace("\n", " ")  # a table has one line a row


def size(value: float | None) -> str | None:
    """Bytes in GiB or MiB."""
    if value is None:
        return None
    return f"{value / 2**20:.0f} MiB" if value < 2**30 / 10 else f"{value / 2**30:.2f} GiB"


def seconds(value: float | None) -> str | None:
    """Seconds in a unit that fits their size."""
    if value is None:
        return None
    for unit, length, limit in (("ms", 1e-3, 1), ("s", 1, 120), ("min", 60, 7_200), ("h", 3_600, 172_800)):
        if value < limit:
            digits = ".2g" if value < 10 * length else ".0f"
            return f"{value / length:{digits}} {unit}"
    return f"{value / 86_400:.1f} d"
