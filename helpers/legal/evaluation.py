"""What a model makes of held-out questions, before and after training: form, steps, citations, stopping, and the loss.

# B batch · T tokens · K tokens with a prediction · V vocabulary
"""

from __future__ import annotations

import inspect
import itertools
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from helpers import xla

from .generation import MULTIPLE, Generated, evaluating, generate
from .layout import IGNORED, STEP, Layout, Response, parse_response
from .records import Record
from .validation import STEPS, citations

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Rate:
    """`count` of `of`, with the 95 % interval of Wilson (1927), which stays inside 0 and 1 and holds for few trials."""

    count: int
    of: int

    @property
    def rate(self) -> float | None:
        return self.count / self.of if self.of else None

    @property
    def interval(self) -> tuple[float, float]:
        from scipy.stats import binomtest

        if not self.of:
            return 0.0, 1.0
        low, high = binomtest(self.count, self.of).proportion_ci(0.95, method="wilson")
        return float(low), float(high)

    def as_dict(self) -> dict[str, float | int | None]:
        low, high = self.interval
        return {"rate": self.rate, "count": self.count, "of": self.of, "low": low, "high": high}


# ---- what is written


@dataclass(frozen=True)
class Sample:
    """One held-out record and what the model wrote for it."""

    record: Record
    generated: Generated
    response: Response

    @property
    def steps_as_asked(self) -> bool:
        """Numbered from 1 without a gap, and at least as many as the record's difficulty asks for."""
        numbers = [int(number) for number in STEP.findall(self.response.reasoning)]
        enough = len(numbers) >= STEPS.get(self.record.difficulty, 1)
        return enough and numbers == list(range(1, len(numbers) + 1))

    @property
    def cites_well(self) -> bool:
        """There is a citation, and each entry of it has the shape of one; whether the source exists is not checked."""
        kinds = [kind for _, kind in citations(self.response.case_citation)]
        return bool(kinds) and None not in kinds


def evaluate_answers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    layout: Layout,
    records: Sequence[Record],
    *,
    max_new_tokens: int,
    batch_size: int = 8,
    greedy: bool = True,
    temperature: float = 1.0,
    seed: int = 0,
) -> tuple[dict[str, Any], list[Sample]]:
    """Metrics of what `model` writes for each record's question, and the texts; arguments as of `generate`.

    Metrics, rates as `Rate.as_dict` gives them:
        format: all sections parse (`Response.well_formed`).
        steps: reasoning steps numbered in order, at least as many as the record's difficulty asks for.
        citation: a citation is there and has the shape of one; of the records that have one.
        stops: the model ends by itself.
        tokens: mean of new tokens, with the 95 % interval of a mean.
        mean_steps: by the record's difficulty, beside what is asked for; a model that only adds steps shows here.

    Raises ValueError for no records, and as `generate`.
    """
    if not records:
        raise ValueError("records: none to evaluate; hold out at least one")
    generated = generate(
        model,
        tokenizer,
        layout.prompt_ids([record.question for record in records]),
        max_new_tokens=max_new_tokens,
        stop_token_ids=layout.stop_token_ids,
        batch_size=batch_size,
        greedy=greedy,
        temperature=temperature,
        seed=seed,
    )
    samples = [
        Sample(record, written, parse_response(written.text))
        for record, written in zip(records, generated, strict=True)
    ]
    return answer_metrics(samples), samples


def answer_metrics(samples: Sequence[Sample]) -> dict[str, Any]:
    """The metrics of `evaluate_answers`, of texts that are there."""

    def rate(hits: list[bool]) -> dict[str, Any]:
        return Rate(sum(hits), len(hits)).as_dict()

    steps: dict[str, list[int]] = {}
    for sample in samples:
        steps.setdefault(sample.record.difficulty, []).append(sample.response.steps)
    return {
        "format": rate([sample.response.well_formed for sample in samples]),
        "steps": rate([sample.steps_as_asked for sample in samples]),
        "citation": rate([sample.cites_well for sample in samples if sample.record.case_citation]),
        "stops": rate([sample.generated.stopped for sample in samples]),
        "tokens": _mean([len(sample.generated.tokens) for sample in samples]),
        "mean_steps": {
            name: {"asked": STEPS.get(name), "mean": sum(steps[name]) / len(steps[name]), "of": len(steps[name])}
            for name in sorted(steps, key=lambda name: (STEPS.get(name, 0), name))
        },
    }


def _mean(values: Sequence[int]) -> dict[str, float | int | None]:
    mean = sum(values) / len(values)
    if len(values) == 1:
        return {"mean": mean, "of": 1, "low": None, "high": None}
    error = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
    return {"mean": mean, "of": len(values), "low": mean - 1.96 * error, "high": mean + 1.96 * error}


# ---- loss


def loss_and_perplexity(
    model: PreTrainedModel, rows: Sequence[Mapping[str, Sequence[int]]], *, batch_size: int = 4
) -> dict[str, float | int]:
    """Mean nats a label token over `rows` of `Layout.encode`, its exponential, and how many tokens and rows count.

    A token weighs the same in a long row as in a short one. Raises ValueError where no token carries a label.
    """
    nats = row_nats(model, rows, batch_size=batch_size)
    tokens = sum(count for _, count in nats)
    if not tokens:
        raise ValueError("rows: no token carries a label, so there is no loss; encode records that have an answer")
    loss = math.fsum(total for total, _ in nats) / tokens
    return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "tokens": tokens, "rows": len(rows)}


def row_nats(
    model: PreTrainedModel, rows: Sequence[Mapping[str, Sequence[int]]], *, batch_size: int
) -> list[tuple[float, int]]:
    """Summed negative log-likelihood (nats) of each row's label tokens, and their number.

    rows: `input_ids` [T] and `labels` [T], -100 where nothing counts; the first token has no prediction.

    Padding is on the right, where no token before it can see it. Logits are asked for from the first label on, and
    normalised in fp32 one row at a time: a batch of them over a vocabulary of 150,000 would not fit. On XLA all batches
    have one shape, so that one graph is compiled.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}: must be at least 1")
    counts = [sum(label != IGNORED for label in row["labels"][1:]) for row in rows]
    nats = [0.0] * len(rows)
    with evaluating(model), torch.no_grad():
        for batch, ids_BT, labels_BT, kept in _batches(model, rows, counts, batch_size):
            summed_B = _nats(model, ids_BT.to(model.device), labels_BT.to(model.device), kept)
            for row, value in zip(batch, summed_B.tolist(), strict=False):  # XLA: the batch was filled up
                nats[row] = value
    return list(zip(nats, counts, strict=True))


def _batches(
    model, rows, counts: Sequence[int], batch_size: int
) -> Iterator[tuple[list[int], torch.Tensor, torch.Tensor, int]]:
    """Row numbers, padded ids and labels [B, T], and how many of the last places to ask logits for."""
    on_xla = model.device.type == "xla"
    scored = sorted((row for row, count in enumerate(counts) if count), key=lambda row: -len(rows[row]["input_ids"]))
    if on_xla:
        batch_size = -(-batch_size // xla.device_count()) * xla.device_count()
    batches = [scored[start : start + batch_size] for start in range(0, len(scored), batch_size)]
    shapes = [_shape([rows[row] for row in batch]) for batch in batches]
    if on_xla and shapes:
        length = -(-max(length for length, _ in shapes) // MULTIPLE) * MULTIPLE
        shapes = [(length, 0)] * len(shapes)
    for batch, (length, first) in zip(batches, shapes, strict=True):
        filled = batch + [batch[-1]] * (batch_size - len(batch)) if on_xla else batch
        ids_BT = torch.zeros(len(filled), length, dtype=torch.long)
        labels_BT = torch.full((len(filled), length), IGNORED)
        for place, row in enumerate(filled):
            tokens = rows[row]["input_ids"]
            ids_BT[place, : len(tokens)] = torch.tensor(tokens)
            labels_BT[place, : len(tokens)] = torch.tensor(rows[row]["labels"])
        yield batch, ids_BT, labels_BT, length - first


def _shape(batch: Sequence[Mapping[str, Sequence[int]]]) -> tuple[int, int]:
    """The longest length, and the first place whose prediction any row needs."""
    first = min(next(t for t, label in enumerate(row["labels"]) if t and label != IGNORED) - 1 for row in batch)
    return max(len(row["input_ids"]) for row in batch), first


def _nats(model, ids_BT: torch.Tensor, labels_BT: torch.Tensor, kept: int) -> torch.Tensor:
    if model.device.type == "xla":
        ids_BT, labels_BT = xla.shard_batch(ids_BT), xla.shard_batch(labels_BT)
    forward = (model.get_base_model() if hasattr(model, "get_base_model") else model).forward
    some = {"logits_to_keep": kept} if "logits_to_keep" in inspect.signature(forward).parameters else {}
    logits_BKV = model(input_ids=ids_BT, use_cache=False, **some).logits[:, -kept:][:, :-1]
    labels_BK = labels_BT[:, -kept:][:, 1:]
    return torch.stack(
        [
            functional.cross_entropy(logits_KV.float(), labels_K, ignore_index=IGNORED, reduction="sum")
            for logits_KV, labels_K in zip(logits_BKV, labels_BK, strict=True)
        ]
    )


# ---- to read


def table(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Fixed-width text: a row for each metric that `before` or `after` has, rates in per cent with their intervals."""
    cells = [("", "before", "after")]
    first, second = _flat(before), _flat(after)
    cells += [(name, first.get(name, "-"), second.get(name, "-")) for name in dict.fromkeys([*first, *second])]
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([lines[0], "-" * (sum(widths) + 4), *lines[1:]])


def _flat(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Every rate, mean and number under its dotted name, written out."""
    cells: dict[str, str] = {}
    for name, value in metrics.items():
        name = f"{prefix}{name}"
        if isinstance(value, Mapping) and "rate" in value:
            if value["of"]:
                share = f"{100 * value['rate']:5.1f} % ({value['count']}/{value['of']})"
                cells[name] = f"{share} [{100 * value['low']:.1f}, {100 * value['high']:.1f}]"
            else:
                cells[name] = "none to count"
        elif isinstance(value, Mapping) and "mean" in value:
            interval = f" [{value['low']:.1f}, {value['high']:.1f}]" if value.get("low") is not None else ""
            cells[name] = f"{value['mean']:.1f}{interval}"
            if value.get("asked"):
                cells[name] += f" (asked: {value['asked']})"
        elif isinstance(value, Mapping):
            cells |= _flat(value, f"{name}.")
        elif isinstance(value, float):
            cells[name] = f"{value:.4f}"
        elif isinstance(value, str | int):
            cells[name] = f"{value:,}" if isinstance(value, int) else value
    return cells


def side_by_side(
    before: Sequence[Sample], after: Sequence[Sample], records: Sequence[Record] | int = 3, *, width: int = 56
) -> str:
    """Both texts of some records in two columns, under the question and above the reference's answer.

    records: which ones, or how many of the first. Raises ValueError where one was not answered in both.
    """
    texts = ({s.record.id: s for s in before}, {s.record.id: s for s in after})
    chosen = [sample.record for sample in before[:records]] if isinstance(records, int) else records
    blocks = []
    for record in chosen:
        if missing := [name for name, of in zip(("before", "after"), texts, strict=True) if record.id not in of]:
            raise ValueError(
                f"records: {record.id!r} has no sample {missing[0]} training; evaluate the same records twice"
            )
        columns = [
            [title, *_wrapped(of[record.id].generated.text, width), "", *_wrapped(_verdict(of[record.id]), width)]
            for title, of in zip(("BEFORE", "AFTER"), texts, strict=True)
        ]
        blocks.append(
            "\n".join(
                [
                    *_wrapped(f"{record.id} ({record.difficulty}): {record.question}", 2 * width + 3),
                    "",
                    *(
                        f"{left:<{width}} | {right}".rstrip()
                        for left, right in itertools.zip_longest(*columns, fillvalue="")
                    ),
                    "",
                    *_wrapped(f"REFERENCE: {record.answer}", 2 * width + 3),
                ]
            )
        )
    return f"\n{'=' * (2 * width + 3)}\n".join(blocks)


def _wrapped(text: str, width: int) -> list[str]:
    return [part for line in text.splitlines() for part in (textwrap.wrap(line, width) or [""])]


def _verdict(sample: Sample) -> str:
    form = "well-formed" if sample.response.well_formed else sample.response.problems[0]
    end = "stopped by itself" if sample.generated.stopped else "cut off"
    return f"[{form}; {sample.response.steps} steps; {len(sample.generated.tokens)} tokens, {end}]"
