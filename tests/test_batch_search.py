"""The largest batch: against a loop over all batches, with real allocators that refuse, and with what XLA's compiler says."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest
import torch

from helpers.tuning.batch_search import GIB, SHARE, CompiledMemory, largest_batch

from .forked import ROOT
from .xla_process import answers_on_xla


def by_looking_at_all(fixed: int, each: int, *, first: int, limit: int, multiple_of: int, memory: int) -> int:
    fitting = [n for n in range(multiple_of, limit + 1, multiple_of) if fixed + n * each <= SHARE * memory]
    return max(fitting, default=0)


def linear(fixed: int, each: int, raises_above: float = float("inf")):
    """A step of so many bytes, and the list of the batches that were run."""
    ran = []

    def step(batch: int) -> int:
        ran.append(batch)
        if fixed + batch * each > raises_above:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return fixed + batch * each

    return step, ran


@pytest.mark.parametrize("raising", [False, True])
@pytest.mark.parametrize("look_ahead", [False, True])
def test_it_is_the_batch_that_a_look_at_all_of_them_finds(raising, look_ahead):
    draw = random.Random(0)
    for _ in range(10 if raising else 100):  # what is left of a failed step is collected each time
        multiple_of = draw.choice((1, 1, 2, 8))
        limit = draw.randint(multiple_of * 2, 3000)
        sizes = {"first": multiple_of, "limit": limit, "multiple_of": multiple_of, "memory": draw.randint(10**6, 10**9)}
        fixed, each = draw.randint(0, 10**5), draw.randint(1, 10**5)
        expected = by_looking_at_all(fixed, each, **sizes)
        step, ran = linear(fixed, each, SHARE * sizes["memory"] if raising else float("inf"))
        if not expected:
            with pytest.raises(RuntimeError, match="does not fit"):
                largest_batch(step, look_ahead=look_ahead, **sizes)
            continue
        found = largest_batch(step, look_ahead=look_ahead, **sizes)
        assert found.batch_size == expected
        assert len(ran) == len(set(ran)) <= 2 * limit.bit_length() + 2


def test_nothing_is_run_that_the_steps_before_say_will_not_fit():
    step, ran = linear(fixed=100, each=10)
    found = largest_batch(step, first=1, limit=1000, memory=1000, look_ahead=True)
    assert found.batch_size == 80 == max(ran)  # 0.9 x 1000 bytes
    refused = [trial for trial in found.trials if not trial.fits]
    assert refused and all(trial.note.startswith("not run") for trial in refused)
    assert all(trial.bytes == 100 + 10 * trial.batch_size for trial in refused)


def test_without_a_known_memory_only_what_raises_does_not_fit():
    step, _ = linear(fixed=0, each=1, raises_above=37)
    assert largest_batch(step, first=1, limit=100, memory=float("inf")).batch_size == 37
    assert largest_batch(lambda batch: None, first=1, limit=100, memory=10).batch_size == 100


def test_the_limit_is_tried_although_it_is_no_power_of_two():
    found = largest_batch(linear(0, 1)[0], first=8, limit=50, memory=10**6, multiple_of=8)
    assert found.batch_size == 48
    assert found.reason == "the limit of the search is 50"


def test_what_is_no_lack_of_memory_is_raised():
    def step(batch: int) -> int:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        largest_batch(step, first=1, limit=8, memory=10**9)


def test_where_nothing_fits_the_message_says_what_is_short():
    with pytest.raises(
        RuntimeError, match=r"batch_size=1 does not fit: it needs 3\.00 GiB, 1\.20 more than there are; use"
    ):
        largest_batch(linear(fixed=2 * GIB, each=GIB)[0], first=1, limit=8, memory=2 * GIB)


@pytest.mark.parametrize(
    "sizes",
    [{"first": 0}, {"first": 3, "multiple_of": 2}, {"first": 9, "limit": 8}, {"multiple_of": 0}],
)
def test_sizes_that_make_no_sense_are_refused(sizes):
    with pytest.raises(AssertionError):
        largest_batch(linear(0, 1)[0], **{"first": 1, "limit": 8, "memory": 100, **sizes})


@pytest.mark.once
@pytest.mark.skipif(sys.platform != "linux", reason="an address space cannot be limited here")
def test_a_real_allocator_that_refuses_is_answered_with_a_smaller_batch():
    """A process that may have 1.5 GiB more than it has: 100 MiB an example, freed after every step."""
    script = """
import json, resource
import torch
from helpers.tuning.batch_search import largest_batch
pages = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (pages + 1536 * 2**20,) * 2)
def step(batch):
    return torch.empty(batch * 100 * 2**20, dtype=torch.uint8).numel()
found = largest_batch(step, first=1, limit=64, memory=float("inf"))
print("ANSWERS " + json.dumps([found.batch_size, found.reason]))
"""
    process = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr[-2000:]
    batch, reason = json.loads(process.stdout.rsplit("ANSWERS ", 1)[1])
    assert 8 <= batch <= 15
    assert reason.startswith(f"{batch + 1} does not fit (RuntimeError: ")
    assert "allocate" in reason


def test_the_compiler_says_what_a_graph_needs_before_anything_is_measured():
    found = answers_on_xla(
        """
import json
from helpers import xla
from helpers.tuning.batch_search import CompiledMemory
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
