"""docs/choosing-hardware.md: the planner's numbers beside what five public documents answered with unmeasured tables.

python -m helpers.plan --page docs/choosing-hardware.md --calibration docs/results/planner_calibration_cpu.json
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path

from helpers.hardware import CATALOGUE

from .calibration import Calibration, describe
from .catalogue import job
from .choosing import compare, decide, dollars, duration, table
from .estimate import GB, Outlook

RESULTS = Path(__file__).resolve().parents[2] / "docs/results"
COMMAND = (
    "python -m helpers.plan --page docs/choosing-hardware.md --calibration docs/results/planner_calibration_cpu.json"
)


def page(calibrations: Sequence[Calibration], prices: dict, today: str = "", results: Path = RESULTS) -> str:
    """The whole page as Markdown; the same inputs give the same bytes.

    today: date of the page; "" is that of the computer.
    """
    asked = {"calibrations": calibrations, "prices": prices}
    sections = (
        _head(calibrations, today or datetime.date.today().isoformat()),
        _lejepa(asked),
        _legal(asked),
        _tinystories(asked),
        _classifier(asked),
        _graphmer(asked),
        _accuracy(results),
        _calibrations(calibrations),
        _catalogue(),
        _prices(prices),
    )
    return "\n\n".join(sections) + "\n"


def _head(calibrations, today) -> str:
    measured = ", ".join(f"{each.device} ({each.date})" for each in calibrations) or "none"
    return f"""# Choosing hardware

Written by `{COMMAND}` on {today}; do not edit. Calibrations used: {measured}.

How to read it. **measured**: this device ran this model, and time is within 20 % and memory within 15 % at sizes that it did not
run (below). **scaled from a measurement**: another device of the same kind ran it; the interval spans the ratios of their peaks and
bandwidths, and a quarter more. **datasheet bound**: nothing comparable was measured; the short end is the whole peak, which no run
reaches, the long end is 5 % of it (public training runs report 7 to 73 %). Memory is counted from shapes where it was not measured.
A run includes no download, evaluation, saving or compilation. Prices are approximate list prices, with their dates at the end.

Your own: `python -m helpers.plan lejepa_training --hardware T4,v5e-8 --examples 50000`, and `python -m helpers.planning.calibration` on a
machine makes its numbers measured ones."""


def _question(title: str, claim: Sequence[str], body: str) -> str:
    return f"## {title}\n\n" + "\n".join(f"> {line}" for line in claim) + f"\n\n{body}"


def _decided(chosen, outlooks: Sequence[Outlook]) -> str:
    decision = decide(chosen, outlooks)
    if decision is None:
        return ""
    lines = (f"- {line}" for line in (*decision.numbers, *decision.flips))
    return f"\n\n**GPU or TPU:** {decision.sentence}\n\n" + "\n".join(lines)


def _lejepa(asked) -> str:
    chosen, hardware = job("lejepa_training"), ("T4", "V100", "A100 40GB", "v2-8", "v5e-1", "v5e-8")
    few, many = (compare(chosen, hardware, examples=count, epochs=5, **asked) for count in (5_000, 50_000))
    body = (
        f"EmbeddingGemma, {chosen.parameters:,} parameters, {chosen.updated:,} trained (three layers frozen), pairs of 2 x 128 tokens, "
        f"5 epochs as in the document; the recipe ends after {chosen.longest:,} steps.\n\n5,000 pairs:\n\n{table(few, markdown=True)}\n\n"
        f"50,000 pairs:\n\n{table(many, markdown=True)}"
    )
    return _question(
        "LeJEPA embeddings: 5,000 and 50,000 samples",
        (
            "*The document:* 5K: T4 2-3 h, V100 1-2 h, A100 30-60 min, TPU v2-8 1-2 h; 50K: T4 20+ h, V100 10-15 h, A100 5-8 h, TPU",
            "v2-8 3-5 h. Use a TPU from 50K samples or batch 128.",
        ),
        body + _decided(chosen, [many[0], many[-1]]),
    )


def _legal(asked) -> str:
    chosen = job("legal_cot_sft")
    found = compare(
        chosen, ("T4", "2xT4", "A100 40GB", "v5e-1", "v5e-8"), examples=2_054, epochs=3, batch_size=0, **asked
    )
    gpu, tpu = found[1], found[-1]
    one = job("legal_cot_sft")
    logits = 4 * 1000 * one.sizes.vocab * 4 / GB
    body = (
        f"Qwen2.5-0.5B with LoRA, {chosen.updated:,} of {chosen.parameters:,} parameters trained, 2,054 records packed into blocks of "
        f"{chosen.length} tokens (0.72 blocks a record, from the public run's steps).\n\n{table(found, markdown=True)}\n\n"
        f"An epoch: 2xT4 {duration(gpu.epoch_seconds)} and {dollars(gpu.epoch_usd)}; v5e-8 {duration(tpu.epoch_seconds)} and "
        f"{dollars(tpu.epoch_usd)}. The document's rates contradict its times: 2,054 samples at 320 a second are 6.4 s, not 10 min. Its "
        f"memory estimate leaves out the logits, {logits:.1f} GB for 4 x 1,000 tokens in fp32; this project's loss keeps one tile of 2,048 "
        f"tokens. The owner's own run on 2xT4 logged 2.70 s for a step of 4 blocks of 1,000 tokens."
    )
    return _question(
        "Legal fine-tuning: 2,054 records, 3 epochs, 2xT4 or v5e-8",
        (
            "*The document:* v5e-8: 10 min an epoch, $4.80 an hour on demand, $2.40 a run; 2xT4: 30 min an epoch, $0.74 an hour, $1.11 a",
            "run. TPU 3x faster and 46 % cheaper.",
        ),
        body + _decided(chosen, [gpu, tpu]),
    )


def _tinystories(asked) -> str:
    chosen = job("tinystories_reservoir")
    found = compare(chosen, ("T4", "A100 40GB", "v3-8", "v5e-1", "v5e-8"), **asked)
    gpu, tpu = found[0], found[-1]
    body = (
        f"The reservoir model, {chosen.updated:,} trained and {chosen.still:,} frozen numbers, blocks of {chosen.length} tokens.\n\n"
        f"{table(found, markdown=True)}\n\n"
        f"The rules hold here as choices, not as facts about TPUs: {gpu.batch_size} blocks at {gpu.learning_rate:.2g} on a GPU, "
        f"{tpu.batch_size} at {tpu.learning_rate:.2g} on a TPU, and the number of steps falls by as much, so that a run sees the same "
        "text. A sequential recurrence decides this job, which no datasheet rates: its bounds are loose, so calibrate."
    )
    return _question(
        "TinyStories reservoir: batch and learning rate on a TPU",
        ("*The document:* twice the batch, 1.2 times the learning rate, 2-4x the speed of a GPU.",),
        body + _decided(chosen, [gpu, tpu]),
    )


def _classifier(asked) -> str:
    chosen = job("hardware_tuning", "phobert")
    padded = compare(chosen, ("T4",), examples=24_048, epochs=3, batch_size=16, **asked)
    short = compare(chosen, ("T4",), examples=24_048, epochs=3, batch_size=16, length=32, **asked)
    body = (
        f"PhoBERT's sizes, {chosen.parameters:,} parameters. Padded to 192 tokens, and to 32, where 95 % of that data's rows end:\n\n"
        f"{table(padded + short, markdown=True)}\n\n"
        "Padding decides more than any switch of the document: bf16 and TF32 do not exist on a T4, checkpointing costs a third more "
        "arithmetic, and fp16 was on before. `hardware_tuning` measures each on your machine."
    )
    return _question(
        "A classifier on a T4: 24,048 rows, 3 epochs",
        ("*The document:* 30 min before, 12-15 min after optimisation.",),
        body,
    )


def _graphmer(asked) -> str:
    chosen = job("graphmer_se")
    long = compare(chosen, ("RTX 3050", "v2-8", "v5e-1"), length=768, steps=10_000, batch_size=32, **asked)
    short = compare(chosen, ("RTX 3050", "v2-8", "v5e-1"), steps=10_000, batch_size=32, **asked)
    held = long[0].memory
    one = compare(chosen, ("RTX 3050",), length=768, batch_size=1, **asked)[0].memory
    body = (
        f"{chosen.parameters:,} parameters (12 layers of 768, SwiGLU of 832), 10,000 steps of 32 sequences on each, MLM and MNM. At 768 tokens:\n\n{table(long, markdown=True)}\n\n"
        f"At the notebook's {chosen.length} positions (128 roots, 70 leaf slots):\n\n{table(short, markdown=True)}\n\n"
        f"**What fits in 8 GB at 768 tokens: {long[0].largest_batch} sequences**, {short[0].largest_batch} at {chosen.length}; "
        f"the effective batch of {long[0].batch_size} comes by accumulation. Weights, gradients and optimizer are "
        f"{(held.weights + held.gradients + held.optimizer) / GB:.2f} GB, and one sequence of 768 tokens keeps "
        f"{one.activations / GB:.2f} GB, not 0.09: graph distance multiplies the attention logits, so that every head's 768 x 768 matrix "
        "is kept, several times."
    )
    return _question(
        "GraphMER-SE: RTX 3050 with 8 GB or TPU v2-8",
        (
            "*The document:* 1.1 GB for the model, 90 MB a sample, batch 32-48 fits; RTX 3050 5-8 steps/s and 20-30 min for 10,000 steps,",
            "v2-8 1-2 steps/s and 2-3 h.",
        ),
        body + _decided(chosen, [long[0], long[1]]),
    )


def _accuracy(results: Path) -> str:
    lines = [
        "## How far off",
        "",
        "`benchmarks/planner.py` calibrates each job at three sizes and predicts two others (targets: time 20 %, memory 15 %).",
        "",
        "| device | job | sequences x length | time predicted / measured | memory predicted / measured | counted / measured |",
        "|---|---|---|---|---|---|",
    ]
    for file in sorted(results.glob("planner_benchmark_*.json")):
        found = json.loads(file.read_text(encoding="utf-8"))
        lines += [
            f"| {found['machine']['device']} | {each['job']} ({each['model']}) | {each['sequences']} x {each['length']} | "
            f"{1 + each['time_error']:.3f} | {1 + each['memory_error']:.3f} | {1 + each['counted_memory_error']:.3f} |"
            for each in found["comparisons"]
        ]
    return "\n".join(lines) if len(lines) > 6 else "\n".join([*lines[:3], "", "No benchmark has been run."])


def _calibrations(calibrations: Sequence[Calibration]) -> str:
    lines = ["## Calibrations", ""]
    for each in calibrations:
        lines += [
            f"{each.device}, {each.count} device(s), {each.threads} thread(s), torch {each.versions['torch']}, {each.date}: square products at "
            f"{each.matmul_flops_per_second / 1e12:.3g} TFLOP/s, copies at {each.copy_bytes_per_second / GB:.4g} GB/s.",
            "",
            *(
                f"- {one.job} ({one.model}, {one.precision}): {one.flops_per_second / 1e12:.3g} TFLOP/s; {describe(one.time)}"
                for one in each.jobs
            ),
            "",
        ]
    return "\n".join(lines).rstrip() if calibrations else "## Calibrations\n\nNone was given."


def _catalogue() -> str:
    lines = [
        "## Catalogue",
        "",
        "Dense peaks; of a TPU a chip, of v2 and v3 a core. GeForce rates are those with fp32 accumulation.",
        "",
        "| device | compute capability | memory GB | GB/s | TFLOP/s | source |",
        "|---|---|---|---|---|---|",
    ]
    for each in CATALOGUE:
        capability = "-" if each.compute_capability is None else "{}.{}".format(*each.compute_capability)
        peaks = ", ".join(f"{dtype} {value / 1e12:g}" for dtype, value in each.peak.items())
        source = each.source + (f". {each.note}" if each.note else "")
        lines.append(
            f"| {each.name} | {capability} | {each.memory / GB:g} | {each.bandwidth / GB:g} | {peaks} | {source} |"
        )
    return "\n".join(lines)


def _prices(prices: dict) -> str:
    lines = [
        "## Prices",
        "",
        "Approximate, in US dollars; your own with `--prices my.json`.",
        "",
        "| device | $ an hour | source | as of |",
        "|---|---|---|---|",
    ]
    for name, price in prices.items():
        usd = "unknown" if price.usd_per_hour is None else f"{price.usd_per_hour:.2f}"
        source = ", ".join(filter(None, (price.source, price.remark)))
        lines.append(f"| {name} | {usd} | {source} | {price.as_of or '-'} |")
    return "\n".join(lines)
