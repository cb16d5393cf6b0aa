"""The core tests at the ends of our version ranges and at Colab's own set, and what the setup cell moves there."""

from helpers.show import tables
from tools.pages import result

NAMES = {
    "floor": "floor",
    "newest": "newest",
    "colab": "Colab's GPU runtime",
    "floor_tpu": "floor, TPU",
    "newest_tpu": "newest, TPU",
    "colab_tpu": "Colab's TPU runtime",
}


def table() -> str:
    """One line a set."""
    found = result("versions.json")["sets"]
    rows = [
        {"versions": NAMES[name]}
        | each["versions"]
        | {
            "Python": each["python"],
            "tests": f"{each['passed']} passed, {len(each['failed'])} failed",
            "on": each["date"],
        }
        for name, each in found.items()
    ]
    return tables.markdown(rows)


def images() -> str:
    """What the setup cell moves and keeps on Colab's runtimes."""
    lines = []
    for which, found in result("versions.json")["images"].items():
        pythons = " and ".join(each["python"] for each in found)
        moved = {name: versions for each in found for name, versions in each["moved"].items()}
        changes = ", ".join(f"{name} from {before} to {after}" for name, (before, after) in sorted(moved.items()))
        kept = min(each["kept"] for each in found)
        lines.append(
            f"- Colab's {which.upper()} runtime, for Python {pythons}: it changes {changes or 'nothing'}; at least {kept} packages stay as they are."
        )
    return "\n".join(lines)
