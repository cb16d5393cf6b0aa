"""An object that would run code where it is unpickled."""

import os
from pathlib import Path

MARKER = "executed"  # a file that no payload may make


def payload(around: Path) -> object:
    """An object whose pickle makes the marker file when it is loaded."""

    class Payload:
        def __reduce__(self):
            return os.system, (f"touch '{around / MARKER}'",)

    return Payload()
