"""Which hardware for a job: outlooks side by side, GPU or TPU with the numbers that decide, as a table, JSON or page.

python -m helpers.plan lejepa_training --hardware T4,v5e-8 --examples 50000
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.hardware import NAMES, machine

from . import calibration as calibrations_of
from . import prices as price_table
from .catalogue import BUILDERS, MODELS, job
from .estimate import GB, LEAST_SHARE, Outlook, outlook
from .jobs import Job
from .ranges import BOUND, Range

DEFAULT_HARDWARE = "T4,2xT4,L4,A100 40GB,H100,v5e-1,v5e-8"
# Not measured on a TPU by this project: one public guide says 30 to 60 s, ours allow for minutes.
COMPILE_SECONDS = (30.0, 600.0)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """GPU or TPU, and what decided."""

    sentence: str
    numbers: tuple[str, ...]
    flips: tuple[str, ...]  # where the answer changes


def compare(job: Job, names: Sequence[str], **asked) -> list[Outlook]:
    """`estimate.outlook` of a job on each named machine."""
    return [outlook(job, machine(name), **asked) for name in names]


# ---- GPU or TPU


def decide(job: Job, outlooks: Sequence[Outlook]) -> Decision | None:
    """The fastest GPU against the fastest TPU among machines that fit; None without one of each.

    Where both times are datasheet bounds they are compared at the same share of the peak.
    """
    gpus, tpus = (
        [each for each in outlooks if each.step_seconds and each.fits and machine(each.hardware).kind == kind]
        for kind in ("cuda", "xla")
    )
    if not gpus or not tpus:
        return None
    gpu, tpu = (min(group, key=lambda each: _seconds_an_example(each).low) for group in (gpus, tpus))
    ours, theirs = _seconds_an_example(gpu), _seconds_an_example(tpu)
    alike = ours.basis == theirs.basis == BOUND and not job.serial
    ratio = Range(low=ours.low / theirs.high, high=ours.high / theirs.low, basis="")
    if alike:
        ratio = Range(low=ours.low / theirs.low, high=ours.low / theirs.low, basis="")
    numbers = [
        f"time an example, {gpu.hardware} over {tpu.hardware}: {_interval(ratio)}"
        + (" at equal shares of the peaks" if alike else "")
    ]
    cost = None
    if gpu.usd_per_hour and tpu.usd_per_hour:
        prices = tpu.usd_per_hour / gpu.usd_per_hour
        numbers.append(
            f"price an hour, {tpu.hardware} over {gpu.hardware}: {prices:.2f} "
            f"(${tpu.usd_per_hour:.2f} and ${gpu.usd_per_hour:.2f})"
        )
        cost = Range(low=ratio.low / prices, high=ratio.high / prices, basis="")
    numbers.append(
        f"compilation on {tpu.hardware}, once a run: {COMPILE_SECONDS[0]:.0f} to {COMPILE_SECONDS[1]:.0f} s "
        "(assumed, not measured)"
    )
    faster = _verdict(ratio, tpu.hardware, gpu.hardware, "faster")
    cheaper = (
        "the cost is unknown without both prices"
        if cost is None
        else _verdict(cost, tpu.hardware, gpu.hardware, "cheaper")
    )
    return Decision(
        sentence=f"{faster}; {cheaper}.",
        numbers=tuple(numbers),
        flips=(_flip_examples(gpu, tpu, ours, theirs, alike), _flip_batch(job, gpu, tpu)),
    )


def _seconds_an_example(each: Outlook) -> Range:
    return each.step_seconds * (1 / each.batch_size)


def _verdict(ratio: Range, tpu: str, gpu: str, word: str) -> str:
    if ratio.low > 1:
        return f"{tpu} is {word}"
    if ratio.high < 1:
        return f"{gpu} is {word}"
    return f"which is {word} stays open: the intervals overlap, so measure (python -m helpers.planning.calibration)"


def _flip_examples(gpu: Outlook, tpu: Outlook, ours: Range, theirs: Range, alike: bool) -> str:
    """Examples seen in a run from which a TPU has made up for compiling."""
    if alike:
        gains = [(ours.low - theirs.low) / share for share in (1.0, LEAST_SHARE)]
    else:
        gains = [ours.high - theirs.low, ours.low - theirs.high]
    if math.inf in gains:
        return "the number of examples at which the answer flips is not known before one of them is measured"
    if max(gains) <= 0:
        return f"{gpu.hardware} is faster at every number of examples"
    fewest = COMPILE_SECONDS[0] / max(gains)
    if min(gains) <= 0:
        return f"{tpu.hardware} cannot be faster below {fewest:,.0f} examples seen in a run"
    most = COMPILE_SECONDS[1] / min(gains)
    return (
        f"{tpu.hardware} is faster from somewhere between {fewest:,.0f} and {most:,.0f} examples seen in a run; below, "
        "compiling costs more than it saves"
    )


def _flip_batch(job: Job, gpu: Outlook, tpu: Outlook) -> str:
    """Examples an optimizer step from which an example costs less on the TPU, by the datasheets alone."""
    if not (gpu.usd_per_hour and tpu.usd_per_hour):
        return "the batch at which the cost flips is unknown without both prices"
    fixed_gpu, each_gpu = _cost_line(job, gpu)
    fixed_tpu, each_tpu = _cost_line(job, tpu)
    gain, extra = each_gpu - each_tpu, fixed_tpu - fixed_gpu
    if gain <= 0:
        return (
            f"by the datasheets {gpu.hardware} costs less an example at every batch"
            if extra >= 0
            else (f"by the datasheets {tpu.hardware} costs less only below {extra / gain:,.0f} examples a step")
        )
    if extra <= 0:
        return f"by the datasheets {tpu.hardware} costs less an example at every batch"
    return f"by the datasheets {tpu.hardware} costs less from {extra / gain:,.0f} examples a step"


def _cost_line(job: Job, each: Outlook) -> tuple[float, float]:
    """Dollars of a step, and of an example in it, at the datasheet's bounds."""
    where = machine(each.hardware)
    hourly = each.usd_per_hour / 3600
    update = 28.0 * job.updated / where.accelerator.bandwidth
    product = sum(job.flops(job.views, each.length)) / (where.accelerator.peak_for(each.precision) * where.count)
    return hourly * update, hourly * product


# ---- as text


def seconds(value: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1), ("ms", 1e-3)):
        if value >= size * (2 if unit == "d" else 1) or unit == "ms":
            return f"{value / size:.3g} {unit}"
    raise AssertionError(value)


def duration(span: Range | None) -> str:
    if span is None:
        return "unknown"
    return f"at least {seconds(span.low)}" if span.high == math.inf else f"{seconds(span.low)} to {seconds(span.high)}"


def dollars(span: Range | None) -> str:
    if span is None:
        return "-"
    return f"at least ${span.low:.2g}" if span.high == math.inf else f"${span.low:.2g} to {span.high:.2g}"


def _interval(span: Range) -> str:
    if span.high == math.inf:
        return "anything, since neither was measured and a recurrence has no bound from above"
    return f"{span.low:.2g}" if f"{span.low:.2g}" == f"{span.high:.2g}" else f"{span.low:.2g} to {span.high:.2g}"


HEAD = (
    "hardware",
    "precision",
    "a device x devices x accumulation",
    "memory",
    "fits",
    "largest",
    "step",
    "epoch",
    "run",
    "cost",
    "time is",
)


def rows(outlooks: Sequence[Outlook]) -> list[tuple[str, ...]]:
    """A row a machine, as HEAD says."""
    return [
        (
            each.hardware + ("*" if each.note else ""),
            each.precision + (" + checkpointing" if each.gradient_checkpointing else ""),
            f"{each.per_device_batch_size} x {each.devices} x {each.gradient_accumulation_steps} = {each.batch_size}",
            f"{each.memory.peak.low / GB:.1f} to {each.memory.peak.high / GB:.1f} GB",
            "unknown" if each.fits is None else "yes" if each.fits else f"{each.shortfall / GB:.1f} GB short",
            "-" if each.largest_batch is None else f"{each.largest_batch}",
            duration(each.step_seconds),
            duration(each.epoch_seconds),
            duration(each.run_seconds),
            dollars(each.run_usd),
            each.step_seconds.basis
            if each.step_seconds
            else "unknown: run python -m helpers.planning.calibration there",
        )
        for each in outlooks
    ]


def table(outlooks: Sequence[Outlook], *, markdown: bool = False) -> str:
    lines = [HEAD, *rows(outlooks)]
    if markdown:
        body = ["| " + " | ".join(line) + " |" for line in lines]
        return "\n".join([body[0], "|" + "---|" * len(HEAD), *body[1:]])
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def memory_table(outlooks: Sequence[Outlook]) -> str:
    """GB of one device by part."""
    lines = []
    for each in outlooks:
        held = each.memory
        parts = ", ".join(f"{name} {value / GB:.2f}" for name, value in held.parts.items() if value)
        lines.append(
            f"{each.hardware}: {parts} GB (activations {held.activations_fused / GB:.2f} with fused attention, "
            f"{held.activations_unfused / GB:.2f} without); at once at most {held.peak.value / GB:.2f} GB, {held.peak.basis}"
        )
    return "\n".join(lines)


def report(job: Job, outlooks: Sequence[Outlook]) -> str:
    """Everything about a job on some machines."""
    first = outlooks[0]
    lines = [
        f"{job.name} ({job.model}): {job.parameters:,} parameters, {job.updated:,} trained; "
        f"{first.examples:,} {job.example}s, {first.epochs} epochs, {first.length} tokens a sequence",
        "",
        table(outlooks),
        "",
        memory_table(outlooks),
        "",
        *(
            f"{each.hardware}: {each.steps:,} steps of {each.batch_size} ({each.reasons['batch_size']}), learning rate "
            f"{each.learning_rate:.3g} ({each.reasons['learning_rate']}); "
            + (
                f"${each.usd_per_hour:.2f} an hour ({each.price_source})"
                if each.usd_per_hour
                else f"no price: {each.price_source}"
            )
            for each in outlooks
        ),
        *(f"* {each.hardware}: {each.note}" for each in outlooks if each.note),
    ]
    if sentence := nowhere(job, outlooks):
        lines += ["", sentence]
    if decision := decide(job, outlooks):
        lines += [
            "",
            f"GPU or TPU: {decision.sentence}",
            *(f"  {line}" for line in (*decision.numbers, *decision.flips)),
        ]
    return "\n".join(lines)


def nowhere(job: Job, outlooks: Sequence[Outlook]) -> str:
    """What to say where one example fits on no machine; "" where it does on some."""
    if not all(each.fits is False for each in outlooks):
        return ""
    nearest = min(outlooks, key=lambda each: each.shortfall)
    return (
        f"{job.name} with {nearest.length} tokens fits on none of them: {nearest.hardware} comes nearest and is "
        f"{nearest.shortfall / GB:.1f} GB short for one {job.example}"
        + (" even with gradient checkpointing" if nearest.gradient_checkpointing else "")
        + "; use a device with more memory, a shorter length or a smaller model."
    )


# ---- command line


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m helpers.plan", description=__doc__.splitlines()[0])
    parser.add_argument("job", nargs="?", help=", ".join(BUILDERS))
    parser.add_argument("--hardware", default=DEFAULT_HARDWARE, help=f"with commas, of {', '.join(NAMES)} or N x a GPU")
    parser.add_argument("--model", default="", help="; ".join(f"{name}: {', '.join(MODELS[name])}" for name in MODELS))
    for name, what in (
        ("examples", "rows of the data; 0 = the notebook's"),
        ("steps", "optimizer steps; 0 = from examples and epochs"),
        ("epochs", "0 = the recipe's"),
        ("batch-size", "examples an optimizer step; 0 = the recipe's"),
        ("length", "tokens of a sequence; 0 = the notebook's"),
    ):
        parser.add_argument(f"--{name}", type=int, default=0, help=what)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--prices", help="JSON with prices that are yours")
    parser.add_argument(
        "--calibration", action="append", default=[], help=f"file; ./{calibrations_of.FILE} is read if there"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--page", metavar="FILE", help="write the page that answers the documents' questions")
    given = parser.parse_args(arguments)
    here = [calibrations_of.FILE] if Path(calibrations_of.FILE).is_file() else []
    try:
        measured = calibrations_of.load([*given.calibration, *here])
        table_of_prices = price_table.load(given.prices)
        if given.page:
            from .page import page

            Path(given.page).write_text(page(measured, table_of_prices), encoding="utf-8")
            _out(f"{given.page} written")
            return 0
        if not given.job:
            raise ValueError(f"job: missing; there are {', '.join(BUILDERS)}")
        chosen = job(given.job, given.model)
        outlooks = compare(
            chosen,
            [name.strip() for name in given.hardware.split(",")],
            examples=given.examples,
            steps=given.steps,
            epochs=given.epochs,
            batch_size=given.batch_size,
            length=given.length,
            precision=given.precision,
            calibrations=measured,
            prices=table_of_prices,
        )
    except (ValueError, FileNotFoundError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sentence = nowhere(chosen, outlooks)
    if given.json:
        decision = decide(chosen, outlooks)
        _out(
            json.dumps(
                {
                    "job": chosen.name,
                    "model": chosen.model,
                    "parameters": {part.name: part.parameters for part in chosen.parts if part.parameters},
                    "outlooks": [each.as_dict() for each in outlooks],
                    "decision": decision and vars(decision),
                    "message": sentence,
                },
                indent=1,
            )
        )
    else:
        _out(report(chosen, outlooks))
    return 1 if sentence else 0


def _out(text: str) -> None:
    """To standard output; `tracking.say` would load transformers."""
    sys.stdout.write(f"{text}\n")
