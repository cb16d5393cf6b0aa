"""The core tests at the ends of our version ranges and at Colab's own set."""

from build import result

from helpers.show import tables

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
