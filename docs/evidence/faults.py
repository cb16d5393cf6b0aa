"""The fault table: what was disturbed, and how it ended."""

from helpers.show import tables
from tools.faults import cells
from tools.pages import result

MOMENTS = {"step": "in a step", "saving": "while a checkpoint is saved"}


def _cells() -> list[dict]:
    return list(result("faults.json")["cells"].values())


def _survived(found: list[dict]) -> str | None:
    return f"{sum(cell['outcome'] == 'identical' for cell in found)} / {len(found)}" if found else None


def summary() -> str:
    """How many there are, and how they ended."""
    found = _cells()
    return (
        f"`make faults` knows {len(cells())} ways to disturb a run. {len(found)} of them have been tried, and {_survived(found).partition(' ')[0]} runs survived: "
        "started again, they ended with the weights, optimizer, schedule and losses of an undisturbed run, bit for bit."
    )


def table() -> str:
    """Survived / tried by place and moment, signals together, and the steps that were saved of those that were finished."""
    found = [cell for cell in _cells() if cell["when"]]
    rows = []
    for where, kind in dict.fromkeys((cell["where"], cell["kind"]) for cell in found):
        cells = [cell for cell in found if (cell["where"], cell["kind"]) == (where, kind)]
        name = where if kind == "cpu" else f"{where}, XLA on 8 virtual devices"
        moments = {shown: _survived([c for c in cells if c["when"] == when]) for when, shown in MOMENTS.items()}
        rows.append({"where": name, **moments})
    return tables.markdown(rows)
