"""What it costs to survive: the time of saving, and memory over a long run (benchmarks/survival.py)."""

from build import result

from helpers.show import tables

KINDS = {"cpu": "CPU", "xla": "XLA on a CPU, eight devices"}


def saving() -> str:
    """One line a notebook."""
    found = result("survival_cpu.json")["saving"]
    rows = [
        {
            "notebook": name,
            "save_steps": each["save_steps"],
            "checkpoint": tables.size(each["bytes"]),
            "a checkpoint takes": f"{each['save_seconds']:.2f} s",
            "share of the training time": f"{each['share']:.2%}",
        }
        for name, each in found.items()
    ]
    return tables.markdown(rows)


def memory() -> str:
    """One line a kind of device."""
    found = result("survival_cpu.json")["memory"]
    rows = [
        {
            "device": KINDS[name],
            "steps": f"{each['steps']:,}",
            "after a quarter": tables.size(each["bytes_first_quarter"]),
            "at the end": tables.size(each["bytes_last"]),
            "growth a step (95 % interval)": "{:.0f} to {:.0f} bytes".format(*each["interval"]),
        }
        for name, each in found.items()
    ]
    return tables.markdown(rows)
