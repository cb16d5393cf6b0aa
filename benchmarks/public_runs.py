"""The share of a peak that training reaches, and which of two machines is faster, from runs that others published.

    python benchmarks/public_runs.py   # writes docs/results/public_runs_fit.json; seconds

docs/results/public_runs.json lists the sources. Every second one, from the first on, chooses the numbers of
helpers/plan/forecast.py; the others test them and choose nothing. Seconds of a step over what peak and bandwidth allow are fitted
by least squares, in which each source weighs the root of its number of runs. The interval is WIDTH from its lower to its upper
end. Its centre is that rule of CENTRES which holds the most runs of a source that chose nothing, each of the choosing sources left
out in turn: the testing sources have no part in it.

A pair is the same model, method and length of one source on two machines, each with its own batch. The error of a predicted ratio
that 95 % of the choosing pairs stay within is RATIO, of one and several of a card SAME_CARD; a pair is decided where that leaves 1 outside.
"""

from __future__ import annotations

import itertools
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
from helpers.plan.forecast import ADAMW_BYTES, clipped  # noqa: E402

RUNS = ROOT / "docs/results/public_runs.json"
FIT = RUNS.with_name("public_runs_fit.json")
WIDTH = 3.5
RIDGE = 0.1  # on what is not a constant
JOB = ("source", "model", "method", "length", "software", "checkpointing")


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
    chooses: bool

    @property
    def features(self) -> list[float]:
        """GPU, TPU, balance, and on a GPU size, and size where each kernel is launched by itself."""
        size, gpu = clipped(self.ideal), float(self.kind == "cuda")
        return [gpu, 1 - gpu, math.log(self.balance), gpu * size, gpu * size * (not self.about["fused"])]

    @property
    def slowdown(self) -> float:
        return math.log(self.seconds / self.bound)

    @property
    def examples(self) -> int:
        """Of an optimizer step."""
        return self.about["examples"] * self.about["devices"] * self.about["accumulation"]

    @property
    def machine(self) -> tuple[str, int]:
        return self.about["device"], self.about["devices"]

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
    known = {each.name: each.model_dump() for each in CATALOGUE}
    order = list(found["sources"])
    runs = []
    for run in found["runs"]:
        weights, layers, width = found["models"][run["model"]]
        full, again = run["method"] == "full", run["checkpointing"]
        attention = (12 + 4 * again) * (layers or 0) * (width or 0) * run["length"]
        flops = (((6 if full else 4) + 2 * again) * weights + attention) * run["examples"] * run["length"]
        device = known.get(run["device"]) or found["devices"][run["device"]]
        peak, bandwidth = device["teraflops"][run["precision"]] * 1e12, device["gigabytes_per_second"] * 1e9
        trained = weights / (run["devices"] if run.get("sharded") else 1) if full else 0
        runs.append(
            Run(
                about=run,
                source=found["sources"][run["source"]],
                kind=device["kind"],
                ideal=flops / peak,
                balance=peak / bandwidth,
                bound=run["accumulation"] * flops / peak + ADAMW_BYTES * trained / bandwidth,
                seconds=_seconds(run, flops / (8 / 6 if again else 1) / peak),
                chooses=order.index(run["source"]) % 2 == 0,
            )
        )
    return runs


def _seconds(run: dict, useful: float) -> float:
    """Of an optimizer step; `useful`: of a micro-batch at the peak, without recomputation, as an MFU has it."""
    examples = run["examples"] * run["devices"] * run["accumulation"]
    if "seconds_per_step" in run:
        return run["seconds_per_step"]
    if "steps_in_seconds" in run:
        return run["steps_in_seconds"][1] / run["steps_in_seconds"][0]
    if "samples_in_seconds" in run:
        return examples * run["samples_in_seconds"][1] / run["samples_in_seconds"][0]
    if "samples_per_second" in run:
        return examples / run["samples_per_second"]
    if "tokens_per_second" in run:
        return examples * run["length"] / run["tokens_per_second"]
    if "tokens_per_second_a_device" in run:
        return examples / run["devices"] * run["length"] / run["tokens_per_second_a_device"]
    return useful * run["accumulation"] / run["mfu"]


# ---- one machine


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


def densest(residuals: np.ndarray) -> float:
    """The middle of the interval of WIDTH that holds the most of them."""
    ordered = np.sort(residuals)
    held = max((ordered[(ordered >= low) & (ordered <= low + math.log(WIDTH))] for low in ordered), key=len)
    return float(held[0] + held[-1]) / 2


CENTRES = {"densest": densest, "median": np.median, "least squares": lambda residuals: 0.0}


def centres(runs: Sequence[Run], residuals: np.ndarray, rule: str) -> dict[str, float]:
    """Of the interval of each kind of device; the residuals are of a fit without the run."""
    return {kind: float(CENTRES[rule](residuals[[run.kind == kind for run in runs]])) for kind in ("cuda", "xla")}


def inside(runs: Sequence[Run], coefficients: np.ndarray, at: dict[str, float]) -> list[bool]:
    """Whether each run lies in the interval."""
    off = [run.slowdown - float(np.dot(run.features, coefficients)) - at[run.kind] for run in runs]
    return [abs(each) <= math.log(WIDTH) / 2 for each in off]


def left_out(runs: Sequence[Run], rule: str) -> float:
    """Share of the runs inside of an interval that a fit without their source makes."""
    good = []
    for name in {run.about["source"]: None for run in runs}:
        rest, own = ([run for run in runs if (run.about["source"] == name) is of] for of in (False, True))
        coefficients, residuals = fit(rest)
        good += inside(own, coefficients, centres(rest, residuals, rule))
    return sum(good) / len(good)


def chosen_fit(runs: Sequence[Run]) -> tuple[np.ndarray, dict[str, float], dict[str, float]]:
    """Coefficients, centres, and the share that each rule of CENTRES holds, from the runs that choose alone."""
    chosen = [run for run in runs if run.chooses]
    held = {rule: round(left_out(chosen, rule), 3) for rule in CENTRES}
    coefficients, residuals = fit(chosen)
    return coefficients, centres(chosen, residuals, max(held, key=held.get)), held


# ---- two machines


def pairs(runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Of the same job on two machines."""
    jobs: dict[tuple, list[Run]] = {}
    for run in runs:
        jobs.setdefault(tuple(run.about.get(name) for name in JOB), []).append(run)
    every = itertools.chain.from_iterable(itertools.combinations(job, 2) for job in jobs.values())
    return [(one, other) for one, other in every if one.machine != other.machine]


def log_ratios(pairs: Sequence[tuple[Run, Run]], coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of the seconds of an example: predicted and measured."""

    def log_seconds(run: Run, slowdown: float) -> float:
        return math.log(run.bound / run.examples) + slowdown

    predicted = [
        log_seconds(one, float(np.dot(one.features, coefficients)))
        - log_seconds(other, float(np.dot(other.features, coefficients)))
        for one, other in pairs
    ]
    measured = [log_seconds(one, one.slowdown) - log_seconds(other, other.slowdown) for one, other in pairs]
    return np.array(predicted), np.array(measured)


def same_card(one: Run, other: Run) -> bool:
    """Whether only the number of devices differs."""
    return all(one.about[name] == other.about[name] for name in ("device", "precision"))


def planner(runs: Sequence[Run]) -> dict:
    """The constants of helpers/plan/forecast.py, from the runs that choose."""
    coefficients, at, _ = chosen_fit(runs)
    gpu, tpu, balance, size, alone = map(float, coefficients)
    jobs = pairs([run for run in runs if run.chooses])
    predicted, measured = log_ratios(jobs, coefficients)
    error, alike = abs(predicted - measured), np.array([same_card(*pair) for pair in jobs])
    return {
        "CONSTANT": {"cuda": round(gpu + at["cuda"], 3), "xla": round(tpu + at["xla"], 3)},
        "BALANCE": round(balance, 3),
        "SIZE": round(size, 3),
        "SIZE_UNFUSED": round(size + alone, 3),
        "EITHER_WAY": round(math.sqrt(WIDTH), 2),
        "RATIO": round(math.exp(np.quantile(error, 0.95)), 2),
        "SAME_CARD": round(math.exp(np.quantile(error[alike], 0.95)), 2),
    }


def tested(runs: Sequence[Run]) -> dict:
    """What the chosen numbers make of the runs and of the pairs that chose nothing."""
    others = [run for run in runs if not run.chooses]
    coefficients, at, held = chosen_fit(runs)
    good = inside(others, coefficients, at)
    held_out = pairs(others)
    predicted, measured = log_ratios(held_out, coefficients)
    found = planner(runs)
    errors = [found["SAME_CARD" if same_card(*pair) else "RATIO"] for pair in held_out]
    decided = abs(predicted) > np.log(errors)
    right = np.sign(predicted[decided]) == np.sign(measured[decided])
    kinds = {kind: [one for one, run in zip(good, others, strict=True) if run.kind == kind] for kind in ("cuda", "xla")}
    return {
        "width": WIDTH,
        "inside": {kind: sum(each) for kind, each in kinds.items()},
        "of": {kind: len(each) for kind, each in kinds.items()},
        "outside": [str(run) for one, run in zip(good, others, strict=True) if not one],
        "pairs": len(held_out),
        "decided": int(decided.sum()),
        "right": int(right.sum()),
        "sources_of_pairs": sorted({one.about["source"] for one, _ in held_out}),
        "choosing_sources_left_out": held,
    }


def main() -> int:
    runs = load()
    found = {"planner": planner(runs), "tested": tested(runs)}
    counts = {
        "runs": len(runs),
        "chose": sum(run.chooses for run in runs),
    }
    write(FIT, machine("cpu", ("numpy",)), **counts, **found)
    print(json.dumps(counts | found, indent=1))
    test = found["tested"]
    covered = sum(test["inside"].values()) / sum(test["of"].values())
    return int(covered < 0.9 or test["decided"] < 0.6 * test["pairs"] or test["right"] < 0.95 * test["decided"])


if __name__ == "__main__":
    raise SystemExit(main())
