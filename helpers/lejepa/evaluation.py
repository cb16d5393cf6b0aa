"""What a search is worth: nDCG@10 over documents, question by question, and the difference of two searches with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from helpers.lejepa.data import Collection, Question
from helpers.lejepa.search import lexical_index, lexical_scores
from helpers.lejepa.standalone import hybrid, unit

# Q questions · N passages · M documents · K dimensions

RESAMPLES = 5_000
LEAST_QUESTIONS = 20  # an interval over fewer is too narrow: their resamples hardly differ
# The stock model is what is searched with where no question can choose: docs/results/lejepa_search_cpu.json.
STOCK, TRAINED = "as it came", "LeJEPA"


class Judge:
    """The questions of a split, ready to score searches over all passages of the collection.

    Headings are looked for in the bodies alone, since a passage's text begins with its heading.
    """

    def __init__(self, collection: Collection, questions: Sequence[Question]):
        headings = collection.kind == "headings"
        self.texts = [passage.body if headings else passage.text for passage in collection.passages]
        self.asked = [question.text for question in questions]
        self._documents_N = np.array([passage.document for passage in collection.passages])
        self._answers = [question.answers for question in questions]
        self.lexical_QN = lexical_scores(lexical_index(self.texts), self.asked) if questions else None

    def ndcg(self, scores_QN: np.ndarray) -> np.ndarray:
        """nDCG@10 [Q] with binary judgements; a document is as good as its best passage."""
        discounts_K = 1 / np.log2(np.arange(2, 12))
        found_Q = []
        for scores_N, answers in zip(scores_QN, self._answers, strict=True):
            ranked = self._documents_N[np.argsort(-scores_N, kind="stable")].tolist()
            best = dict.fromkeys(ranked)
            gain = sum(discount for document, discount in zip(best, discounts_K, strict=False) if document in answers)
            found_Q.append(gain / discounts_K[: len(answers)].sum())
        return np.array(found_Q)

    def measure(self, questions_QK: np.ndarray, passages_NK: np.ndarray) -> dict[str, np.ndarray]:
        """nDCG@10 [Q] of embeddings by themselves, and of the whole search around them."""
        return {
            "dense": self.ndcg(unit(questions_QK) @ unit(passages_NK).T),
            "hybrid": self.ndcg(hybrid(questions_QK, passages_NK, self.lexical_QN)),
        }


@dataclass(frozen=True)
class Verdict:
    """The mean difference in nDCG@10 of two searches over the same questions, with its 95 % interval."""

    says: str
    difference: float
    low: float
    high: float
    questions: int
    won: int
    lost: int

    @property
    def outcome(self) -> str:
        """ "better" or "worse" where the interval has no 0 in it, else "not told apart"."""
        if self.questions < LEAST_QUESTIONS or self.low <= 0 <= self.high:
            return "not told apart"
        return "better" if self.low > 0 else "worse"

    def row(self) -> dict[str, Any]:
        """A line of the verdict's table."""
        return {
            "what": self.says,
            "nDCG@10": f"{self.difference:+.3f} ({self.low:+.3f} to {self.high:+.3f})",
            "questions won / lost": f"{self.won} / {self.lost} of {self.questions}",
            "verdict": self.outcome,
        }


def compare(says: str, ours_Q: np.ndarray, theirs_Q: np.ndarray) -> Verdict:
    """Percentile bootstrap of the mean difference over questions, drawn together for both."""
    difference_Q = ours_Q - theirs_Q
    Q = len(difference_Q)
    drawn_RQ = np.random.default_rng(0).multinomial(Q, np.full(Q, 1 / Q), RESAMPLES)
    low, high = np.quantile(drawn_RQ @ difference_Q / Q, (0.025, 0.975))
    won, lost = int((difference_Q > 1e-9).sum()), int((difference_Q < -1e-9).sum())
    return Verdict(says, float(difference_Q.mean()), float(low), float(high), Q, won, lost)


def choose(dev: Mapping[str, Mapping[str, np.ndarray]], kind: str) -> tuple[str, str]:
    """The search that is kept, and why: the stock model's, unless dev questions show with an interval that another is better.

    dev: model -> `Judge.measure`. Where the questions are headings, the model that was trained on headings is no candidate:
    a model is not judged by the kind of question that it was trained on.
    """
    if not dev:
        return STOCK, "no questions to choose by: the default"
    stock_Q, better = dev[STOCK]["hybrid"], {}
    for name, rows in dev.items():
        barred = name == TRAINED and kind == "headings"
        if not barred and compare(name, rows["hybrid"], stock_Q).outcome == "better":
            better[name] = rows["hybrid"].mean()
    if not better:
        return STOCK, f"no other model is better on {len(stock_Q)} {kind} that chose"
    name = max(better, key=better.get)
    return name, f"nDCG@10 {better[name]:.3f} against {stock_Q.mean():.3f} on {len(stock_Q)} {kind} that chose"
