"""The memory of the notebooks' training steps, and what each machine makes of them (benchmarks/memory.py)."""

from helpers.show import tables
from tools.pages import result


def memory() -> str:
    """State of each default model, exactly, and activations of an example."""
    rows = []
    for name, step in result("memory.json")["steps"].items():
        row = {"notebook, model": name}
        for part, size in step["memory"].items():
            row["activations of an example" if part == "example" else part] = tables.size(size)
        rows.append(row)
    return tables.markdown(rows)


def choices() -> str:
    """The micro-batch that the plan takes on each machine."""
    rows = {}
    for name, step in result("memory.json")["steps"].items():
        for hardware, choice in step["machines"].items():
            row = rows.setdefault(hardware, {"machine": hardware})
            row[name] = _choice(choice)
    return tables.markdown([*rows.values()])


def _choice(choice: dict) -> str:
    """`4 x 2`: examples of a device at a time, and how many times before the optimizer's step."""
    if "problem" in choice:
        return "does not fit"
    text = f"{choice['micro_batch']} x {choice['parts']}"
    if choice["recomputed"]:
        text += ", recomputed"
    return text
