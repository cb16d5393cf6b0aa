"""Time and memory of SIGReg's forward and backward pass, as ratios against plain autograd in the same run.

    python benchmarks/sigreg.py                  # CPU: N = 2,048, K = 384, M = 512
    python benchmarks/sigreg.py --device cuda    # a GPU: N = 4,096, K = 512, M = 1,024

Prints one line of JSON and writes it, with the machine, to docs/results.
"""

from __future__ import annotations

import json
import multiprocessing
import re
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report  # before torch, which it gives huge pages

# isort: split
import torch

from benchmarks.timing import taking_turns
from helpers.lejepa.loss import KNOTS, SIGReg, plain_sigreg

# N texts · K embedding · M slices · P knots

SIZES = {"cpu": (2048, 384, 512), "cuda": (4096, 512, 1024)}
TOLERANCE = 1e-5


def main() -> None:
    arguments = report.parsed(report.argument_parser(__doc__, repetitions=7), "sigreg_benchmark")
    torch.manual_seed(0)
    device = torch.device(arguments.device)
    machine = report.machine(device.type, ("torch",))
    result = forward_and_backward(device, arguments.repetitions)
    print(json.dumps(result))
    report.write(arguments.output, machine, repetitions=arguments.repetitions, comparisons=[result])


def forward_and_backward(device: torch.device, repetitions: int) -> dict:
    """Value and gradient of fp32 embeddings, the drawing of the slices included on both sides."""
    N, K, M = SIZES[device.type]
    sigreg = SIGReg(M).to(device)
    embeddings_NK = torch.randn(N, K, device=device, requires_grad=True)
    sides = {name: partial(trained, partial(loss, sigreg), embeddings_NK) for name, loss in LOSSES.items()}
    require_equal(sides["ours"](), sides["peer"]())
    memory = {name: extra_memory(name, call, device) for name, call in sides.items()}
    times = taking_turns(sides, device, repetitions)
    ratios = [theirs / mine for mine, theirs in zip(times["ours"], times["peer"], strict=True)]
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "comparison": "SIGReg forward and backward",
        "sizes": {"N": N, "K": K, "M": M, "knots": KNOTS},
        "peer": "autograd over cos and sin of [N, M, knots]",
        "ratio": round(medians["peer"] / medians["ours"], 2),
        "ratio_range": [round(min(ratios), 2), round(max(ratios), 2)],
        "memory_ratio": round(memory["peer"] / memory["ours"], 2),
        **{f"{name}_extra_megabytes": round(value / 1e6, 1) for name, value in memory.items()},
        **{f"{name}_milliseconds": round(1000 * value, 3) for name, value in medians.items()},
        **{f"{name}_seconds": [round(seconds, 6) for seconds in sorted(values)] for name, values in times.items()},
    }


def closed_form(sigreg: SIGReg, embeddings_NK: torch.Tensor) -> torch.Tensor:
    return sigreg(embeddings_NK[None], 0)


def plain(sigreg: SIGReg, embeddings_NK: torch.Tensor) -> torch.Tensor:
    return plain_sigreg(embeddings_NK, sigreg.slices(embeddings_NK.shape[1], 0).to(embeddings_NK.device))


LOSSES = {"ours": closed_form, "peer": plain}


def trained(loss: Callable, embeddings_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Value and gradient."""
    embeddings_NK.grad = None
    value = loss(embeddings_NK)
    value.backward()
    return value.detach(), embeddings_NK.grad


def require_equal(ours: tuple, peer: tuple) -> None:
    for name, found, expected in zip(("value", "gradient"), ours, peer, strict=True):
        difference = float((found - expected).abs().max() / expected.abs().max())
        if not difference <= TOLERANCE:
            raise SystemExit(
                f"no ratio reported: the {name} differs by {difference:.1e}, allowed {TOLERANCE:.0e} of the largest"
            )


def extra_memory(name: str, call: Callable, device: torch.device) -> int:
    """Bytes at the peak of a side's call beyond those before it; on a CPU of a whole process, as Linux tells."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return torch.cuda.max_memory_allocated() - before
    # A process of its own: memory that the other side gave back would be taken again without being counted.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(resident_growth, name).result()


def resident_growth(name: str) -> int:
    N, K, M = SIZES["cpu"]
    loss = partial(LOSSES[name], SIGReg(M))
    trained(loss, torch.randn(8, K, requires_grad=True))  # loads what the first call loads
    embeddings_NK = torch.randn(N, K, requires_grad=True)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # sets the peak back to what is resident now
    before = resident("VmRSS")
    trained(loss, embeddings_NK)
    return resident("VmHWM") - before


def resident(name: str) -> int:
    return 1024 * int(re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))[1])


if __name__ == "__main__":
    main()
