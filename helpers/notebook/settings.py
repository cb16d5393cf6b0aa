"""Says when a notebook's settings were changed after its run was claimed with them."""

from collections.abc import Mapping
from typing import Any

from helpers.parameters import Parameters, check


def say_changed(claimed: Parameters, namespace: Mapping[str, Any]) -> None:
    """Prints a line for each setting that differs from what the run was claimed with.

    namespace: the notebook's `globals()`. Raises ValueError as `parameters.check` for a setting that cannot be.
    """
    current = check(type(claimed), namespace)
    for name, value in claimed:
        if getattr(current, name) != value:
            print(f"`{name}` was changed after the settings cell: run it again")
