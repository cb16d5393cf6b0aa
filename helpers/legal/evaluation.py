"""What a model makes of held-out questions, before and after training: its answers, and the loss on the records' own.

# B batch · T tokens · K tokens with a prediction · V vocabulary
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from helpers import xla

from .correctness import Sample, measure, read
from .generation import evaluating, generate
from .layout import IGNORED, Layout, round_up
from .records import Record

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def evaluate_answers(
    model: PreTrainedModel, layout: Layout, records: Sequence[Record], *, max_new_tokens: int, batch_size: int = 8
) -> tuple[dict[str, Any], list[Sample]]:
    """`correctness.measure` of what `model` writes for each record's question, and the texts; arguments as of `generate`."""
    generated = generate(
        model,
        layout.tokenizer,
        layout.prompt_ids(records),
        max_new_tokens=max_new_tokens,
        stop_token_ids=layout.stop_token_ids,
        batch_size=batch_size,
    )
    samples = [read(*each) for each in zip(records, generated, strict=True)]
    return measure(samples), samples


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
