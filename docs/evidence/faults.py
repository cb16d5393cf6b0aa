"""The fault table: what was disturbed, and how it ended."""

import importlib
from collections.abc import Callable, Iterable

from build import result

from helpers.parameters import LENGTH, extra
from helpers.show import tables

GOOD = ("identical", "equal", "stopped")
MOMENTS = {
    "step": "in a step",
    "evaluation": "in an evaluation",
    "write": "writing a checkpoint",
    "compile": "compiling (XLA)",
}
NOTEBOOKS = {
    "lejepa": "lejepa_training",
    "legal": "legal_cot_sft",
    "reservoir": "tinystories_reservoir",
    "graphmer": "graphmer_se",
    "tuning": "hardware_tuning",
}


def _cells() -> list[dict]:
    return list(result("faults.json")["cells"].values())


def _counts(found: Iterable[dict], good: Callable[[dict], bool]) -> str | None:
    found = list(found)
    return f"{sum(map(good, found))} / {len(found)}" if found else None


def _survived(cell: dict) -> bool:
    return cell["outcome"] in GOOD


def _kept(cell: dict) -> bool:
    return _survived(cell) and (cell["saved"] or 0) >= cell["finished"]


def summary() -> str:
    """How many there are, and how they ended."""
    found = _cells()
    slowest = max(cell.get("seconds") or 0 for cell in found if cell["where"] not in ("single fault", "Ray node"))
    close = sum(cell["outcome"] == "equal" for cell in found)
    return (
        f"{sum(map(_survived, found))} of {len(found)} disturbed runs survived: run again, they ended with the weights, the optimizer, "
        f"the schedule and the losses of an undisturbed run, bit for bit (in {close} of them, where memory ran out, the losses "
        f"agree to five digits). After a signal it took at most {slowest:.0f} seconds until all processes were gone."
    )


def table() -> str:
    """Survived / tried by place and moment, signals and notebooks together."""
    found = [cell for cell in _cells() if cell["where"] != "single fault"]
    rows = [
        {"where": where}
        | {
            shown: _counts((c for c in found if (c["where"], c["when"]) == (where, when)), _survived)
            for when, shown in MOMENTS.items()
        }
        for where in dict.fromkeys(cell["where"] for cell in found)
    ]
    return tables.markdown(rows)


def notebooks() -> str:
    """Survived / tried by notebook, as a bare script."""
    found = [cell for cell in _cells() if cell["where"] == "bare script"]
    rows = [
        {"trainer of": name}
        | {
            shown: _counts((c for c in found if (c["model"], c["kind"]) == (model, kind)), _survived)
            for kind, shown in (("cpu", "CPU"), ("xla", "XLA, 8 virtual devices"))
        }
        for model, name in NOTEBOOKS.items()
    ]
    return tables.markdown(rows)


def kept() -> str:
    """Cells in which the stop lost no finished step / tried, by place and signal."""
    found = [cell for cell in _cells() if cell["where"] != "single fault" and _survived(cell)]
    rows = [
        {"where": where}
        | {
            how: _counts((c for c in found if (c["where"], c["how"]) == (where, how)), _kept)
            for how in ("SIGTERM", "SIGINT", "SIGKILL")
        }
        for where in dict.fromkeys(cell["where"] for cell in found)
    ]
    return tables.markdown(rows)


def single() -> str:
    """Each fault with what the run said; damaged files are one line a kind of damage."""
    found = [cell for cell in _cells() if cell["where"] == "single fault"]
    harms = ("truncated", "flipped", "missing")

    def name(cell: dict) -> str:
        harm, _, file = cell["how"].partition(" ")
        return f"{harm} file in the newest checkpoint (each of its files)" if harm in harms and file else cell["how"]

    def quoted(text: str) -> str:
        return f"`{text[:110].strip()}{'...' if len(text) > 110 else ''}`".replace("|", "/") if text else ""

    rows = []
    for each in dict.fromkeys(map(name, found)):
        cells = [cell for cell in found if name(cell) == each]
        rows.append(
            {"fault": each}
            | {
                shown: _counts((c for c in cells if c["kind"] == kind), _survived)
                for kind, shown in (("cpu", "CPU"), ("xla", "XLA"))
            }
            | {"what the run said": quoted(cells[0]["said"])}
        )
    return tables.markdown(rows)


def changeable() -> str:
    """Parameters that may differ when a run goes on, by notebook."""
    rows = []
    for model, name in NOTEBOOKS.items():
        module = importlib.import_module(f"helpers.{model}.parameters")
        (cls,) = (each for each in vars(module).values() if getattr(each, "__module__", "") == module.__name__
                  and hasattr(each, "model_fields"))  # fmt: skip
        free = [field for field, info in cls.model_fields.items() if field in LENGTH or not extra(info)["identity"]]
        rows.append({"notebook": name, "may change": ", ".join(f"`{field}`" for field in free)})
    return tables.markdown(rows)
