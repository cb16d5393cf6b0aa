"""What XLA's compiler says that a graph needs."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

GIB = 2**30


class CompiledMemory:
    """What XLA's compiler says that a graph needs on one device: inputs, outputs and what lies between, in bytes.

    torch_xla writes it to a file when asked to before the first graph of the process is compiled (PT_XLA_DEBUG_LEVEL=1);
    asked later, it stays silent, and `peak` returns None. Nothing runs to find out.
    """

    LINES = re.compile(
        r"Graph input size: ([\d.]+) GB.*?Graph output size: ([\d.]+) GB.*?Aliased Input size: ([\d.]+) GB"
        r".*?Intermediate tensor size: ([\d.]+) GB",
        re.DOTALL,
    )

    def __init__(self):
        if os.environ.setdefault("PT_XLA_DEBUG_LEVEL", "1") == "0":
            os.environ["PT_XLA_DEBUG_LEVEL"] = "1"
        if "PT_XLA_DEBUG_FILE" not in os.environ:
            os.environ["PT_XLA_DEBUG_FILE"] = str(Path(tempfile.mkdtemp(prefix="xla-compiled-")) / "compiled.txt")
        self.path = Path(os.environ["PT_XLA_DEBUG_FILE"])

    def mark(self) -> int:
        """Where the file ends now."""
        return len(self._text())

    def peak(self, since: int = 0) -> int | None:
        """Bytes of the largest graph that was compiled after the mark; None where none was, or nothing was told."""
        text = self._text()[since:].replace("Post Compilation Analysis: ", "")
        sizes = [tuple(map(float, match.groups())) for match in self.LINES.finditer(text)]
        return max((round((i + o - a + t) * GIB) for i, o, a, t in sizes), default=None)

    def _text(self) -> str:
        return self.path.read_text(encoding="utf-8", errors="replace") if self.path.is_file() else ""
