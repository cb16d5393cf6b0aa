"""How good embeddings are: retrieval, sentence similarity and isotropy of one model, and models beside each other.

The metrics are sentence-transformers' own; here is what stands around them.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer, SimilarityFunction
from sentence_transformers.sentence_transformer.evaluation import (
    EmbeddingSimilarityEvaluator,
    InformationRetrievalEvaluator,
)
from sentence_transformers.sentence_transformer.modules import Normalize

from helpers.lejepa.beir import Benchmark
from helpers.lejepa.encoding import encode, on_cpu
from helpers.lejepa.isotropy import Isotropy, isotropy
from helpers.lejepa.retrieval import TextIndex

RECALL_AT = (1, 5, 10, 100)
SIMILARITIES = ("cosine", "dot", "euclidean")


class _NoCard:
    """An evaluator that leaves the model card alone: that would keep the whole corpus alive."""

    def store_metrics_in_model_card_data(self, *args, **kwargs) -> None:
        pass


class _DuringTraining(_NoCard, InformationRetrievalEvaluator):
    pass


class _Encoding(_NoCard):
    """An evaluator that encodes by `encode`."""

    def encode_by(self, **options) -> None:
        self._options = options
        self.encoded: dict[str, list[np.ndarray]] = {}


class _Retrieval(_Encoding, InformationRetrievalEvaluator):
    def embed_inputs(self, model, sentences, encode_fn_name=None, **prompts) -> torch.Tensor:
        found = encode(model, sentences, task=encode_fn_name, **self._options)
        self.encoded.setdefault(encode_fn_name, []).append(found)
        return torch.from_numpy(found).to(model.device)


class _Similarity(_Encoding, EmbeddingSimilarityEvaluator):
    def embed_inputs(self, model, sentences, **ignored):
        return encode(model, sentences, **self._options)


def evaluate_retrieval(
    model: SentenceTransformer,
    benchmark: Benchmark,
    *,
    batch_size: int = 32,
    similarity: Sequence[str] = ("cosine", "dot"),
    max_seq_length: int | None = None,
    precision: str = "fp32",
    embeddings: dict[str, np.ndarray] | None = None,
) -> dict[str, float]:
    """Recall@1, 5, 10, 100, MRR@10, nDCG@10 and MAP@100 by `InformationRetrievalEvaluator`, all from 0 to 1.

    Judgements are binary there: a document is relevant or not, graded ones lose their grades. A model on an XLA device
    is evaluated by a copy on the CPU.

    Args:
        similarity: of "cosine", "dot", "euclidean"; the texts are encoded once for all.
        max_seq_length, precision: see `encode`.
        embeddings: filled with what was encoded, "query" and "document" -> [N, K] in the benchmark's order.

    Returns:
        {"cosine_ndcg@10": 0.40, "cosine_recall@1": ..., "dot_ndcg@10": ...}

    Raises:
        ValueError: an unknown similarity or precision.
    """
    _check_similarity(similarity)
    evaluator = _Retrieval(
        benchmark.queries,
        benchmark.corpus,
        benchmark.relevant,
        accuracy_at_k=[1],
        precision_recall_at_k=list(RECALL_AT),
        mrr_at_k=[10],
        ndcg_at_k=[10],
        map_at_k=[100],
        score_functions={name: SimilarityFunction.to_similarity_fn(name) for name in similarity},
    )
    evaluator.encode_by(batch_size=batch_size, max_seq_length=max_seq_length, precision=precision)
    metrics = evaluator(on_cpu(model))
    if embeddings is not None:
        embeddings |= {task: np.concatenate(parts) for task, parts in evaluator.encoded.items()}
    return {name: float(value) for name, value in metrics.items() if "accuracy" not in name and "precision" not in name}


def retrieval_evaluator(benchmark: Benchmark, *, batch_size: int = 32) -> InformationRetrievalEvaluator:
    """For a trainer, which has its own way to encode on XLA: logs "eval_<benchmark>_cosine_ndcg@10" and others."""
    return _DuringTraining(
        benchmark.queries,
        benchmark.corpus,
        benchmark.relevant,
        accuracy_at_k=[1],
        precision_recall_at_k=[10],
        mrr_at_k=[10],
        ndcg_at_k=[10],
        map_at_k=[100],
        score_functions={"cosine": SimilarityFunction.to_similarity_fn("cosine")},
        name=benchmark.name,
        batch_size=batch_size,
        write_csv=False,
    )


def evaluate_similarity(
    model: SentenceTransformer,
    pairs: str | Path | Iterable[Mapping | Sequence],
    *,
    batch_size: int = 32,
    similarity: Sequence[str] = ("cosine",),
    max_seq_length: int | None = None,
    precision: str = "fp32",
    prompt_name: str | None = None,
) -> dict[str, float]:
    """Spearman and Pearson correlation of similarities with people's scores, by `EmbeddingSimilarityEvaluator`.

    Args:
        pairs: a CSV file (sentence1, sentence2, score, with or without that header), or such rows.
        similarity, max_seq_length, precision: as for `evaluate_retrieval`.
        prompt_name: one of `model.prompts`, such as EmbeddingGemma's "STS".

    Returns:
        {"spearman_cosine": 0.82, "pearson_cosine": ...}

    Raises:
        FileNotFoundError: no such file.
        ValueError: a row that does not fit, scores that are all the same, or an unknown similarity.
    """
    _check_similarity(similarity)
    rows = _scored_pairs(pairs)
    evaluator = _Similarity(*map(list, zip(*rows, strict=True)), similarity_fn_names=list(similarity))
    evaluator.encode_by(
        batch_size=batch_size, max_seq_length=max_seq_length, precision=precision, prompt_name=prompt_name
    )
    metrics = evaluator(on_cpu(model))
    return {
        f"{kind}_{name}": float(metrics[f"{kind}_{name}"]) for name in similarity for kind in ("spearman", "pearson")
    }


def isotropy_of(
    model: SentenceTransformer,
    texts: Sequence[str],
    *,
    task: str | None = "document",
    batch_size: int = 32,
    max_seq_length: int | None = None,
    precision: str = "fp32",
    **sigreg,
) -> Isotropy:
    """`isotropy` of the texts' embeddings before any `Normalize` module: unit vectors look collapsed to SIGReg.

    Args:
        task, batch_size, max_seq_length, precision: see `encode`.
        sigreg: t_max, n_points, num_slices, seed of `isotropy`.

    Raises:
        ValueError: fewer than two texts, embeddings that are all the same, or a model that normalises in its middle.
    """
    model = _without_normalize(on_cpu(model))
    options = {"task": task, "batch_size": batch_size, "max_seq_length": max_seq_length, "precision": precision}
    return isotropy(encode(model, texts, **options), **sigreg)


def before_after(
    model_before: SentenceTransformer,
    model_after: SentenceTransformer,
    queries: Sequence[str],
    documents: Mapping[str, str],
    *,
    relevant: Sequence[Collection[str]] | None = None,
    k: int = 3,
    metric: str = "cosine",
    batch_size: int = 32,
    max_seq_length: int | None = None,
    width: int = 110,
) -> str:
    """The best k documents of the same queries under both models, as text to print.

    Args:
        documents: id -> text.
        relevant: ids that answer each query; marked with *.
        width: characters a line.

    Raises:
        ValueError: as `TextIndex.build` and `search`, or `relevant` of another length than the queries.
    """
    if relevant is not None and len(relevant) != len(queries):
        raise ValueError(f"relevant has {len(relevant)} entries for {len(queries)} queries: give one a query")
    found = {}
    for name, model in (("before", on_cpu(model_before)), ("after", on_cpu(model_after))):
        embeddings = {
            task: encode(model, texts, task=task, batch_size=batch_size, max_seq_length=max_seq_length)
            for task, texts in (("query", queries), ("document", list(documents.values())))
        }
        index = TextIndex(embeddings["document"].shape[1], metric=metric)
        index.add(list(documents), embeddings["document"])
        found[name] = index.search(embeddings["query"], k)
    lines = []
    for row, query in enumerate(queries):
        lines += ["", _cut(query, width)] if lines else [_cut(query, width)]
        for name, (ids, scores) in found.items():
            for rank, (document, score) in enumerate(zip(ids[row], scores[row], strict=True), 1):
                mark = "*" if relevant is not None and document in relevant[row] else " "
                head = f"  {name if rank == 1 else '':<7}{rank:>2}.{mark}{score:7.3f}  [{document}] "
                lines.append(_cut(head + " ".join(documents[document].split()), width))
    return "\n".join(lines)


def spread(values: Sequence[float]) -> str:
    """`0.401 ± 0.004`: mean and sample standard deviation, of one value without. Raises ValueError for none."""
    if not len(values):
        raise ValueError("values is empty: give the metric of one seed at least")
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{deviation}"


def table(rows: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """One line a model, one column a metric: mean ± sample standard deviation, and the number of seeds.

    Args:
        rows: name -> {metric -> a value a seed}. A metric that a row lacks stays blank.

    Raises:
        ValueError: no rows, or a row whose metrics have different numbers of seeds.
    """
    if not rows or not any(rows.values()):
        raise ValueError("rows is empty: give one model and one metric at least")
    metrics = list(dict.fromkeys(metric for values in rows.values() for metric in values))
    cells = [["", *metrics, "seeds"]]
    for name, values in rows.items():
        seeds = {len(per_seed) for per_seed in values.values()}
        if len(seeds) > 1:
            raise ValueError(f"rows[{name!r}] has {sorted(seeds)} values a metric: give every metric of every seed")
        cells.append(
            [name, *(spread(values[metric]) if metric in values else "" for metric in metrics), *map(str, seeds)]
        )
    widths = [max(len(line[column]) for line in cells if column < len(line)) + 2 for column in range(len(metrics) + 2)]
    return "\n".join("".join(f"{cell:<{widths[i]}}" for i, cell in enumerate(line)).rstrip() for line in cells)


# ---- input and output


def _check_similarity(similarity: Sequence[str]) -> None:
    if isinstance(similarity, str) or not similarity or not set(similarity) <= set(SIMILARITIES):
        raise ValueError(f"similarity={similarity!r}: must be a sequence of {', '.join(SIMILARITIES)}")


def _scored_pairs(pairs: str | Path | Iterable[Mapping | Sequence]) -> list[tuple[str, str, float]]:
    columns = ("sentence1", "sentence2", "score")
    named = pairs if isinstance(pairs, str | Path) else None
    source = "pairs" if named is None else f"pairs={str(named)!r}"
    scored = []
    for number, row in enumerate(_csv_rows(Path(named)) if named is not None else pairs, 1):
        if isinstance(row, Mapping):
            row = [row.get(column) for column in columns]
        if len(row) != 3 or not (isinstance(row[0], str) and isinstance(row[1], str)):
            raise ValueError(f"{source}: row {number} is {row!r}; must be {', '.join(columns)}")
        try:
            score = float(row[2])
        except (TypeError, ValueError):
            score = math.nan
        if not math.isfinite(score):
            raise ValueError(f"{source}: row {number} has the score {row[2]!r}; must be a number")
        scored.append((row[0], row[1], score))
    if len({score for _, _, score in scored}) < 2:
        raise ValueError(f"{source}: {len(scored)} rows, and no two different scores; a correlation needs them")
    return scored


def _csv_rows(path: Path) -> list[Sequence | Mapping]:
    if not path.is_file():
        raise FileNotFoundError(f"pairs={str(path)!r}: no such file; give a CSV of sentence1, sentence2, score")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [row for row in csv.reader(file, strict=True) if row]
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"pairs={str(path)!r}: not CSV in UTF-8 ({error}); save it as such") from error
    if rows and {"sentence1", "sentence2", "score"} <= set(rows[0]):
        return [dict(zip(rows[0], row, strict=False)) for row in rows[1:]]
    return rows


def _without_normalize(model: SentenceTransformer) -> SentenceTransformer:
    """The same modules without those that normalise; the weights are shared."""
    kept = [module for module in model if not isinstance(module, Normalize)]
    if any(isinstance(module, Normalize) for outer in kept for module in outer.modules()):
        raise ValueError("model normalises inside of another module: remove its Normalize before measuring isotropy")
    if len(kept) == len(model):
        return model
    options = {name: getattr(model, name) for name in ("prompts", "default_prompt_name", "truncate_dim")}
    return SentenceTransformer(modules=kept, device=str(model.device), **options)


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 1] + "…"
