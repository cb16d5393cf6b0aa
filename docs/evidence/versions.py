"""The core tests with the oldest and the newest releases that the requirements allow, and with Colab's."""

from helpers.show import tables
from tools.pages import result


def table() -> str:
    """One line a set."""
    rows = []
    for name, each in result("versions.json")["sets"].items():
        tests = f"{each['passed']} passed, {each.get('failed', 0)} failed"
        rows.append(
            {"versions": name} | each["versions"] | {"Python": each["python"], "tests": tests, "on": each["date"]}
        )
    return tables.markdown(rows)
