"""The share of a peak that training reaches, from runs that others published: docs/results/public_runs.json.

    python benchmarks/public_runs.py   # writes docs/results/public_runs_fit.json; seconds

The seconds of a step over what peak and bandwidth allow are fitted by least squares, in which each source weighs the root
of its number of runs. The interval of a kind of device is the shortest that holds HELD of the residuals of its runs, each
left out of the fit, but never wider than WIDEST. It is tested on each run by a fit to all others, and on each source by a
fit, with intervals of its own, to all other sources. helpers/plan/speed.py has the numbers.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from report import machine, write  # noqa: E402

from helpers.machine.hardware import CATALOGUE  # noqa: E402
from helpers.plan.speed import ADAMW_BYTES, clipped  # noqa: E402

RUNS = ROOT / "docs/results/public_runs.json"
FIT = RUNS.with_name("public_runs_fit.json")
HELD = 0.96  # of the residuals inside of the interval
WIDEST = 5  # its upper end over its lower
RIDGE = 0.1  # on what is not the constant


@dataclass(frozen=True, kw_only=True)
class Run:
    """A published step, counted as the planner counts: FLOPs with recomputation, attention over all pairs of tokens."""

    about: dict  # the line of the file
    source: dict
    kind: str
    ideal: float  # seconds of a micro-batch at the peak
    balance: float  # FLOPs of the peak for a byte of bandwidth
    bound: float  # seconds of the step that peak and bandwidth allow
    seconds: float

    @property
    def features(self) -> list[float]:
        """GPU, TPU, balance, and on a GPU size, and size where each kernel is launched by itself."""
        size, gpu = clipped(self.ideal), float(self.kind == "cuda")
        return [gpu, 1 - gpu, math.log(self.balance), gpu * size, gpu * size * (not self.about["fused"])]

    @property
    def slowdown(self) -> float:
        return math.log(self.seconds / self.bound)

    def __str__(self) -> str:
        run = self.about
        devices = f"{run['devices']} x " if run["devices"] > 1 else ""
        return (
            f"{run['model']} ({run['method']}, {run['examples']} x {run['length']:,} tokens, {run['precision']}) "
            f"on {devices}{run['device']}"
        )


def load(path: Path = RUNS) -> list[Run]:
    """Each run of the file, with its FLOPs counted."""
    found = json.loads(path.read_text(encoding="utf-8"))
    known = {each.name: each for each in CATALOGUE}
    runs = []
    for run in found["runs"]:
        weights, layers, width = found["models"][run["model"]]
        full, again = run["method"] == "full", run["checkpointing"]
        attention = (12 + 4 * again) * (layers or 0) * (width or 0) * run["length"]
        tokens = run["examples"] * run["length"]
        flops = (((6 if full else 4) + 2 * again) * weights + attention) * tokens
        if device := known.get(run["device"]):
            kind, rates, bandwidth = device.kind, device.teraflops, device.gigabytes_per_second
        else:
            kind, rates, bandwidth = (
                found["devices"][run["device"]][n] for n in ("kind", "teraflops", "gigabytes_per_second")
            )
        peak, bandwidth = rates[run["precision"]] * 1e12, bandwidth * 1e9
        trained = weights / (run["devices"] if run.get("sharded") else 1) if full else 0
        runs.append(
            Run(
                about=run,
                source=found["sources"][run["source"]],
                kind=kind,
                ideal=flops / peak,
                balance=peak / bandwidth,
                bound=run["accumulation"] * flops / peak + ADAMW_BYTES * trained / bandwidth,
                seconds=_seconds(run, flops / (8 / 6 if again else 1) / peak),
            )
        )
    return runs


def _seconds(run: dict, useful: float) -> float:
    """Of an optimizer step; `useful`: of a micro-batch at the peak, without recomputation, as an MFU has it."""
    examples = run["examples"] * run["devices"] * run["accumulation"]
    if "seconds_per_step" in run:
        return run["seconds_per_step"]
    if "steps_in_seconds" in run:
        steps, seconds = run["steps_in_seconds"]
        return seconds / steps
    if "samples_in_seconds" in run:
        samples, seconds = run["samples_in_seconds"]
        return examples * seconds / samples
    if "samples_per_second" in run:
        return examples / run["samples_per_second"]
    if "tokens_per_second" in run:
        return examples * run["length"] / run["tokens_per_second"]
    if "tokens_per_second_a_device" in run:
        return examples / run["devices"] * run["length"] / run["tokens_per_second_a_device"]
    return useful * run["accumulation"] / run["mfu"]


def fit(runs: Sequence[Run]) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients of the features, and the residual of each run under a fit to all others."""
    features, found = np.array([run.features for run in runs]), np.array([run.slowdown for run in runs])
    of = Counter(run.about["source"] for run in runs)
    weights = np.array([of[run.about["source"]] ** -0.5 for run in runs])
    penalty = RIDGE * np.diag([0.0, 0.0, 1.0, 1.0, 1.0])  # not on the constants
    inverse = np.linalg.inv(features.T @ (weights[:, None] * features) + penalty)
    coefficients = inverse @ features.T @ (weights * found)
    leverage = weights * np.einsum("ij,jk,ik->i", features, inverse, features)
    return coefficients, (found - features @ coefficients) / (1 - leverage)


def intervals(runs: Sequence[Run], residuals: np.ndarray) -> dict[str, tuple[float, float]]:
    """Of each kind of device."""
    return {kind: interval(residuals[[run.kind == kind for run in runs]]) for kind in ("cuda", "xla")}


def interval(residuals: np.ndarray) -> tuple[float, float]:
    """The shortest that holds HELD of them, and one more (split conformal prediction); of WIDEST where that is wider."""
    ordered, widest = np.sort(residuals), math.log(WIDEST) - 0.002  # which rounding may add
    held = min(len(ordered), math.ceil(HELD * (len(ordered) + 1)))
    starts = ordered[: len(ordered) - held + 1]
    width, low = min((ordered[at + held - 1] - start, start) for at, start in enumerate(starts))
    if width <= widest:
        return float(low), float(low + width)
    inside = max((ordered[(ordered >= low) & (ordered <= low + widest)] for low in ordered), key=len)
    slack = (widest - (inside[-1] - inside[0])) / 2
    return float(inside[0] - slack), float(inside[-1] + slack)


def planner(runs: Sequence[Run]) -> dict[str, tuple[float, ...]]:
    """`helpers.plan.speed.PUBLIC`: least, most, size and balance; on a GPU of kernels that are launched one by one."""
    (gpu, tpu, balance, size, alone), residuals = fit(runs)
    constants, slopes = {"cuda": gpu, "xla": tpu}, {"cuda": size + alone, "xla": 0.0}
    return {
        kind: tuple(
            round(float(value), 3) for value in (constants[kind] + low, constants[kind] + high, slopes[kind], balance)
        )
        for kind, (low, high) in intervals(runs, residuals).items()
    }


def held_out(runs: Sequence[Run]) -> dict:
    """How many of the runs, and of the runs of whole sources, that a fit has not seen lie in its interval, and how wide it is."""
    _, residuals = fit(runs)
    found = {"runs": _inside(runs, residuals, intervals(runs, residuals))}
    seen, widths = [], []
    for name in {run.about["source"]: None for run in runs}:
        rest, own = ([run for run in runs if (run.about["source"] == name) is of] for of in (False, True))
        coefficients, left = fit(rest)
        off = np.array([run.slowdown - float(np.dot(run.features, coefficients)) for run in own])
        seen.append(_inside(own, off, intervals(rest, left)))
        widths.append(max(seen[-1].pop("width").values()))
    found["sources"] = {
        "inside": {kind: sum(each["inside"][kind] for each in seen) for kind in ("cuda", "xla")},
        "of": found["runs"]["of"],
        "widest": max(widths),
        "outside": [run for each in seen for run in each["outside"]],
    }
    return found


def _inside(runs: Sequence[Run], residuals: np.ndarray, within: dict[str, tuple[float, float]]) -> dict:
    good = [
        within[run.kind][0] <= left <= within[run.kind][1] for run, left in zip(runs, residuals.tolist(), strict=True)
    ]
    return {
        "inside": {kind: sum(one for one, run in zip(good, runs, strict=True) if run.kind == kind) for kind in within},
        "of": {kind: sum(run.kind == kind for run in runs) for kind in within},
        "width": {kind: round(math.exp(high - low), 2) for kind, (low, high) in within.items()},
        "outside": [str(run) for one, run in zip(good, runs, strict=True) if not one],
    }


def nearest(runs: Sequence[Run], kind: str, ideal: float, balance: float, fused: bool) -> Run:
    """The run on this kind of device whose size, balance and way of launching are most alike."""

    def distance(run: Run) -> float:
        size = abs(clipped(run.ideal) - clipped(ideal))
        return size + abs(math.log(run.balance / balance)) + (run.about["fused"] != fused)

    return min((run for run in runs if run.kind == kind), key=distance)


def share_inside(part: dict) -> float:
    """Of all runs."""
    return sum(part["inside"].values()) / sum(part["of"].values())


def by_source(runs: Sequence[Run]) -> list[dict]:
    """Each source with its devices and the shares of their bound that its steps reached."""
    found = []
    for name in {run.about["source"]: None for run in runs}:
        own = [run for run in runs if run.about["source"] == name]
        shares = [run.bound / run.seconds for run in own]
        devices = {f"{run.about['device']} {run.about['precision']}": None for run in own}
        found.append(
            own[0].source
            | {"devices": list(devices), "runs": len(own), "shares": [round(min(shares), 3), round(max(shares), 3)]}
        )
    return found


def main() -> int:
    runs = load()
    found = held_out(runs)
    write(
        FIT,
        machine("cpu", ("numpy",)),
        runs=len(runs),
        sources=by_source(runs),
        planner=planner(runs),
        held_out=found,
    )
    print(json.dumps({"planner": planner(runs)} | found, indent=1))
    widest = max(*found["runs"]["width"].values(), found["sources"]["widest"])
    return int(min(map(share_inside, found.values())) < 0.9 or widest > WIDEST)


if __name__ == "__main__":
    raise SystemExit(main())
