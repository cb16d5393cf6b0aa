"""Whether a model is better than another for these texts, and how sure that is: paired over the queries of a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from sentence_transformers.util import semantic_search

from helpers.lejepa.beir import Benchmark

# Q queries · N documents · K embedding

RESAMPLES = 5_000
LEAST_QUERIES = 20  # an interval over fewer is too narrow: their resamples hardly differ


@dataclass(frozen=True)
class Verdict:
    """The mean difference in nDCG@10 of two models over the same queries, with its 95 % interval."""

    model: str
    against: str
    difference: float
    low: float
    high: float
    queries: int
    outcome: str  # "better than" or "worse than" where the interval has no 0 in it, else "not told apart from"

    def __str__(self) -> str:
        interval = f"nDCG@10 {self.difference:+.3f}, 95 % interval {self.low:+.3f} to {self.high:+.3f}"
        few = f"; fewer than {LEAST_QUERIES} queries tell nothing" if self.queries < LEAST_QUERIES else ""
        return f"{self.model} is {self.outcome} {self.against} ({interval}{few})"


def ndcg_by_query(queries_QK: np.ndarray, documents_NK: np.ndarray, benchmark: Benchmark, k: int = 10) -> np.ndarray:
    """nDCG@k [Q] by cosine, judgements binary, all in the benchmark's order; its mean is what the evaluator reports."""
    found = semantic_search(torch.from_numpy(queries_QK), torch.from_numpy(documents_NK), top_k=k)
    ids, discounts = list(benchmark.corpus), 1 / np.log2(np.arange(2, k + 2))
    relevant = [benchmark.relevant[query] for query in benchmark.queries]
    gains = [
        sum(discount for hit, discount in zip(hits, discounts, strict=False) if ids[hit["corpus_id"]] in answers)
        for hits, answers in zip(found, relevant, strict=True)
    ]
    return np.array(gains) / [discounts[: len(answers)].sum() for answers in relevant]


def compare(model: str, against: str, ndcg: Mapping[str, np.ndarray], *, seed: int = 0) -> Verdict:
    """Percentile bootstrap of the mean difference over queries, drawn together for both models (model -> [Q])."""
    difference_Q = ndcg[model] - ndcg[against]
    Q = len(difference_Q)
    drawn = np.random.default_rng(seed).multinomial(Q, np.full(Q, 1 / Q), RESAMPLES)
    low, high = np.quantile(drawn @ difference_Q / Q, (0.025, 0.975))
    told = Q >= LEAST_QUERIES and (low > 0 or high < 0)
    outcome = ("better than" if low > 0 else "worse than") if told else "not told apart from"
    return Verdict(model, against, float(difference_Q.mean()), float(low), float(high), Q, outcome)


def paragraph(
    exported: str, start: str, trained: Sequence[str], chosen_by: Mapping[str, float], verdicts: list[Verdict]
) -> str:
    """What came out of a run, in one paragraph.

    trained: the models that were trained, the method's own first; all others but the start were fitted in closed form.
    chosen_by: model -> its nDCG@10 on the validation queries; the exported one has the highest.
    verdicts: on the test queries; (trained[0], start) and (exported, start) among them.
    """
    of = {(verdict.model, verdict.against): verdict for verdict in verdicts}
    scores = ", ".join(f"{name} {value:.3f}" for name, value in chosen_by.items())
    if exported == start:
        said = "The exported model is what you started with: nothing that was trained or fitted here was better"
    elif exported in trained:
        said = f"The exported model, {exported}, is {of[exported, start].outcome} what you started with, {start}, and was the best"
    else:
        said = f"The exported model is {exported}, which was not trained any further: training was not better"
    names = dict.fromkeys((exported, trained[0]))
    told = "; ".join(str(of[name, start]) for name in names if name != start)
    queries = of[trained[0], start].queries
    return (
        f"{said} on the validation queries (nDCG@10: {scores}). On {queries} test queries, which chose nothing, {told}."
    )
