"""What a model makes of held-out questions, before and after training: form, steps, citations, stopping, and the loss.

# B batch · T tokens · K tokens with a prediction · V vocabulary
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from helpers import tables, xla

from .generation import Generated, evaluating, generate
from .layout import IGNORED, STEP, Layout, Response, parse_response, round_up
from .records import Record
from .validation import STEPS, citations

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def rate(count: int, of: int) -> dict[str, float | int | None]:
    """`count` of `of`, with the 95 % interval of Wilson (1927), which stays inside 0 and 1 and holds for few trials."""
    from scipy.stats import binomtest

    low, high = binomtest(count, of).proportion_ci(0.95, method="wilson") if of else (0.0, 1.0)
    return {"rate": count / of if of else None, "count": count, "of": of, "low": float(low), "high": float(high)}


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

    @property
    def verdict(self) -> str:
        """Form, steps, length and end in words."""
        form = "well-formed" if self.response.well_formed else self.response.problems[0]
        end = "stopped by itself" if self.generated.stopped else "cut off"
        return f"{form}; {self.response.steps} steps; {len(self.generated.tokens)} tokens, {end}"


def evaluate_answers(
    model: PreTrainedModel, layout: Layout, records: Sequence[Record], *, max_new_tokens: int, batch_size: int = 8
) -> tuple[dict[str, Any], list[Sample]]:
    """Metrics of what `model` writes for each record's question, and the texts; arguments as of `generate`.

    Metrics, rates as `rate` gives them:
        format: all sections parse (`Response.well_formed`).
        steps: reasoning steps numbered in order, at least as many as the record's difficulty asks for.
        citation: a citation is there and has the shape of one; of the records that have one.
        stops: the model ends by itself.
        tokens: mean of new tokens, with the 95 % interval of a mean.
        mean_steps: by the record's difficulty, beside what is asked for; a model that only adds steps shows here.
    """
    generated = generate(
        model,
        layout.tokenizer,
        layout.prompt_ids([record.question for record in records]),
        max_new_tokens=max_new_tokens,
        stop_token_ids=layout.stop_token_ids,
        batch_size=batch_size,
    )
    samples = [
        Sample(record, written, parse_response(written.text))
        for record, written in zip(records, generated, strict=True)
    ]
    return answer_metrics(samples), samples


def answer_metrics(samples: Sequence[Sample]) -> dict[str, Any]:
    """The metrics of `evaluate_answers`, of texts that are there."""

    def share(hits: list[bool]) -> dict[str, Any]:
        return rate(sum(hits), len(hits))

    steps: dict[str, list[int]] = {}
    for sample in samples:
        steps.setdefault(sample.record.difficulty, []).append(sample.response.steps)
    return {
        "format": share([sample.response.well_formed for sample in samples]),
        "steps": share([sample.steps_as_asked for sample in samples]),
        "citation": share([sample.cites_well for sample in samples if sample.record.case_citation]),
        "stops": share([sample.generated.stopped for sample in samples]),
        "tokens": _mean([len(sample.generated.tokens) for sample in samples]),
        "mean_steps": {
            name: {"asked": STEPS.get(name), "mean": fmean(steps[name]), "of": len(steps[name])}
            for name in sorted(steps, key=lambda name: (STEPS.get(name, 0), name))
        },
    }


def _mean(values: Sequence[int]) -> dict[str, float | int | None]:
    found = {"mean": fmean(values), "of": len(values), "low": None, "high": None}
    if len(values) == 1:
        return found
    error = stdev(values) / math.sqrt(len(values))
    return found | {"low": found["mean"] - 1.96 * error, "high": found["mean"] + 1.96 * error}


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
        batch_size = round_up(batch_size, xla.device_count())
    for start in range(0, len(scored), batch_size):
        batch = scored[start : start + batch_size]
        labelled = [next(t for t, label in enumerate(rows[row]["labels"]) if t and label != IGNORED) for row in batch]
        filled, first, length = batch, min(labelled) - 1, len(rows[batch[0]]["input_ids"])
        if on_xla:  # one shape for all batches
            filled, first = batch + [batch[-1]] * (batch_size - len(batch)), 0
            length = round_up(len(rows[scored[0]]["input_ids"]))
        padded = []
        for name, filler in (("input_ids", 0), ("labels", IGNORED)):
            together_BT = pad_sequence([torch.tensor(rows[row][name]) for row in filled], True, filler)
            padded.append(functional.pad(together_BT, (0, length - together_BT.shape[1]), value=filler))
        yield batch, *padded, length - first


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


def table(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, str | None]]:
    """A row for each metric that `before` or `after` has, rates in per cent with their intervals, for `tables.show`."""
    first, second = _flat(before), _flat(after)
    return [
        {"metric": name, "before": first.get(name), "after": second.get(name)}
        for name in dict.fromkeys([*first, *second])
    ]


def _flat(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Every rate, mean and number under its name, written out."""
    cells: dict[str, str] = {}
    for name, value in metrics.items():
        name = prefix + name.replace("_", " ")
        if not isinstance(value, Mapping):
            cells[name] = tables.cell(value)
        elif "rate" in value:
            share = f"{value['rate']:.1%} ({value['count']}/{value['of']})" if value["of"] else "none to count"
            cells[name] = share + (f" [{100 * value['low']:.1f}, {100 * value['high']:.1f}]" if value["of"] else "")
        elif "mean" in value:
            interval = f" [{value['low']:.1f}, {value['high']:.1f}]" if value.get("low") is not None else ""
            asked = f" (asked: {value['asked']})" if value.get("asked") else ""
            cells[name] = f"{value['mean']:.1f}{interval}{asked}"
        else:
            cells |= _flat(value, f"{name}, ")
    return cells


def beside(before: Sequence[Sample], after: Sequence[Sample], count: int) -> str:
    """The first `count` questions, each with the texts before and after training and the reference's answer."""
    lines = []
    for first, second in itertools.islice(zip(before, after, strict=True), count):
        record = first.record
        lines += [f"=== {record.id} ({record.difficulty}): {record.question}"]
        for title, sample in (("before", first), ("after", second)):
            lines += [f"\n--- {title} training: {sample.verdict}", str(sample.generated)]
        lines += ["\n--- the reference", record.answer, ""]
    return "\n".join(lines)
