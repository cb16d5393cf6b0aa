"""What XLA's compiler says that a graph needs."""

from __future__ import annotations

from helpers.tuning.compiled_memory import CompiledMemory

from .xla_process import answers_on_xla


def test_the_compiler_says_what_a_graph_needs_before_anything_is_measured():
    found = answers_on_xla(
        """
import json
from helpers import xla
from helpers.tuning.compiled_memory import CompiledMemory
memory = CompiledMemory()
device = xla.start()
import torch
weight = torch.ones(256, 256, device=device)
def peak(rows):
    mark = memory.mark()
    product = (torch.ones(rows, 256).to(device) @ weight).relu()
    xla.sync()
    return memory.peak(mark)
first, second, again = peak(1024), peak(8192), peak(8192)
print("ANSWERS " + json.dumps([first, second, again]))
""",
        devices=1,
    )
    first, second, again = found
    product = 256 * 4
    assert first >= 1024 * product + 256 * 256 * 4 - 4096  # six digits of a GiB are printed
    assert second - first >= (8192 - 1024) * product - 4096
    assert again is None  # compiled before


def test_a_process_that_was_asked_too_late_is_told_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PT_XLA_DEBUG_FILE", str(tmp_path / "none.txt"))
    monkeypatch.setenv("PT_XLA_DEBUG_LEVEL", "1")
    memory = CompiledMemory()
    assert memory.mark() == 0
    assert memory.peak() is None
