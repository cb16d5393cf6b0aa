"""How good embeddings are: retrieval and sentence similarity of one model, and models beside each other.

The metrics are sentence-transformers' own; here is what stands around them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import (
    InformationRetrievalEvaluator,
)
from sentence_transformers.util import cos_sim

from helpers.lejepa.beir import Benchmark
from helpers.lejepa.encoding import encode, on_cpu
from helpers.lejepa.parameters import SHORTER

SCORES = ("ndcg@10", "recall@10", "recall@100", "mrr@10")
DIGITS = dict.fromkeys(SCORES, 3)  # in a table
BY_DIMENSION = dict.fromkeys(("ndcg@10", *(f"ndcg@10 of {size}" for size in SHORTER)), 3)


class _NoCard:
    """An evaluator that leaves the model card alone: that would keep the whole corpus alive."""

    def store_metrics_in_model_card_data(self, *args, **kwargs) -> None:
        pass


class _DuringTraining(_NoCard, InformationRetrievalEvaluator):
    """For a trainer, which has its own way to encode on XLA."""


class _Retrieval(_NoCard, InformationRetrievalEvaluator):
    """Encodes by `encode` in a `precision`, and keeps what it encoded."""

    def embed_inputs(self, model, sentences, encode_fn_name=None, **prompts) -> torch.Tensor:
        found = encode(model, sentences, task=encode_fn_name, precision=self.precision)
        self.encoded.setdefault(encode_fn_name, []).append(found)
        return torch.from_numpy(found).to(model.device)


def evaluate_retrieval(
    model: SentenceTransformer,
    benchmark: Benchmark,
    *,
    precision: str = "fp32",
    embeddings: dict[str, np.ndarray] | None = None,
) -> dict[str, float]:
    """Recall@1, 5, 10, 100, MRR@10, nDCG@10 and MAP@100 by cosine and `InformationRetrievalEvaluator`, from 0 to 1.

    Judgements are binary there: graded ones lose their grades. A model on an XLA device is evaluated by a copy on the CPU.

    precision: see `encode`.
    embeddings: filled with what was encoded, "query" and "document" -> [N, K] in the benchmark's order.
    """
    evaluator = _evaluator(_Retrieval, benchmark)
    evaluator.precision, evaluator.encoded = precision, {}
    metrics = evaluator(on_cpu(model))
    if embeddings is not None:
        embeddings |= {task: np.concatenate(parts) for task, parts in evaluator.encoded.items()}
    return {
        name.removeprefix("cosine_"): float(value)
        for name, value in metrics.items()
        if "accuracy" not in name and "precision" not in name
    }


def retrieval_evaluator(benchmark: Benchmark) -> InformationRetrievalEvaluator:
    """For a trainer: logs "eval_<benchmark>_cosine_ndcg@10" and others."""
    return _evaluator(_DuringTraining, benchmark, name=benchmark.name, write_csv=False)


def _evaluator(cls, benchmark: Benchmark, **options):
    return cls(
        benchmark.queries,
        benchmark.corpus,
        benchmark.relevant,
        accuracy_at_k=[1],
        precision_recall_at_k=[1, 5, 10, 100],
        mrr_at_k=[10],
        ndcg_at_k=[10],
        map_at_k=[100],
        score_functions={"cosine": cos_sim},
        **options,
    )


def spread(values: Sequence[float], digits: int = 3) -> str:
    """`0.401 ± 0.004`: mean and sample standard deviation, of one value without."""
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"


def table(
    untrained: Mapping[str, Mapping[str, float]],
    rows: Mapping[int, Mapping[str, Mapping[str, float]]],
    metrics: Mapping[str, int] = DIGITS,
) -> list[dict[str, Any]]:
    """A row a model: the untrained ones (model -> metric -> value), then the trained ones of each seed with their spread.

    metrics: the columns, each with its digits; `BY_DIMENSION` has embeddings that are cut to their first numbers.
    """
    models = {name: [values] for name, values in untrained.items()}
    for trained in rows.values():
        for name, values in trained.items():
            models.setdefault(name, []).append(values)
    return [
        {"model": name}
        | {
            metric.replace("_", " "): spread([values[metric] for values in seeds], digits)
            for metric, digits in metrics.items()
            if metric in seeds[0]
        }
        | {"seeds": len(seeds)}
        for name, seeds in models.items()
    ]
