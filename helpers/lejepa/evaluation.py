"""What a search is worth: nDCG@10 over documents, question by question, and the difference of two searches with its interval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from helpers.data.words import RUNS
from helpers.lejepa.data import Collection, Question
from helpers.lejepa.documents import Passage, Spans
from helpers.lejepa.search import Mix, lexical_index, lexical_scores
from helpers.lejepa.standalone import classify, combine, unit
from helpers.show.intervals import FEWEST, Interval, bootstrap

# Q questions · N passages · D documents · K dimensions

SAMPLED = 200  # texts whose script and language decide
MANY_PIECES = 1.8  # tokens a word
SHORT = 25  # words of a text
STOCK, HEAD, TRAINED = "stock model", "LeJEPA, head", "LeJEPA"
MEANING, WORDS, FUSION, CLASSIFIER = (
    Mix(meaning=1),
    Mix(words=1),
    Mix(meaning=1, words=1, by_rank=True),
    Mix(classifier=1),
)
MIXES = (MEANING, WORDS, FUSION, *(Mix(meaning=1, words=weight) for weight in (0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 4.0)))
WITH_CLASSIFIER = tuple(Mix(*weights, classifier=1) for weights in product((0.0, 0.5, 1.0), (0.0, 0.1, 0.3)))
Table = Mapping[Mix, np.ndarray]  # nDCG@10 of every question, by the weights of the search


class Judge:
    """The questions of a split, ready to score searches over all passages and past questions of the collection.

    Headings are looked for in the bodies alone, since a passage's text begins with its heading.
    """

    def __init__(self, collection: Collection, questions: Sequence[Question]):
        self.passages: list[Passage] = collection.searched(collection.past)
        self.texts = [passage.text for passage in self.passages]
        if collection.kind == "headings":
            self.texts = [passage.body for passage in self.passages]
        self.asked = [question.text for question in questions]
        numbers = {name: number for number, name in enumerate(collection.documents)}
        self.document_N = np.array([numbers[passage.document] for passage in self.passages])
        self.answers = []
        for question in questions:
            answers = sorted(numbers[name] for name in question.answers)
            self.answers.append(np.array(answers))
        self.words_QN = None
        if questions:
            self.words_QN = lexical_scores(lexical_index(self.texts), self.asked)

    def ndcg(self, scores_QN: np.ndarray) -> np.ndarray:
        """nDCG@10 [Q] with binary judgements; a document is as good as its best passage, and the first of equal ones comes first."""
        discounts = 1 / np.log2(np.arange(2, 12))
        values_Q = []
        for scores_N, answers in zip(scores_QN, self.answers, strict=True):
            scores_D = np.full(self.document_N.max() + 1, -np.inf)
            np.maximum.at(scores_D, self.document_N, scores_N)
            gain = 0.0
            for answer in answers:
                score = scores_D[answer]
                rank = (scores_D > score).sum() + (scores_D[:answer] == score).sum()
                if rank < 10:
                    gain += discounts[rank]
            values_Q.append(gain / discounts[: len(answers)].sum())
        return np.array(values_Q)

    def measure(
        self, questions_QK: np.ndarray, passages_NK: np.ndarray, classifier_NK: np.ndarray | None = None
    ) -> dict[Mix, np.ndarray]:
        """nDCG@10 [Q] of these embeddings in every search of `MIXES`, and with a classifier `WITH_CLASSIFIER`."""
        questions_QK = unit(questions_QK)
        scores = {
            "meaning": questions_QK @ unit(passages_NK).T,
            "words": self.words_QN,
            "classifier": classify(classifier_NK, questions_QK),
        }
        mixes = MIXES
        if classifier_NK is not None:
            mixes += WITH_CLASSIFIER
        return {mix: self.ndcg(combine(scores, mix._asdict())) for mix in mixes}


class Verdict(NamedTuple):
    """The mean difference in nDCG@10 of two searches over the same questions, with its 95 % interval."""

    description: str
    interval: Interval
    won: int
    lost: int

    def row(self) -> dict[str, Any]:
        """A line of the verdict's table."""
        return {
            "what": self.description,
            "nDCG@10": str(self.interval),
            "questions won / lost": f"{self.won} / {self.lost} of {self.interval.items}",
            "verdict": self.interval.outcome,
        }


def compare(description: str, ours_Q: np.ndarray, theirs_Q: np.ndarray) -> Verdict:
    """The mean difference over questions, which are drawn together for both."""
    difference_Q = ours_Q - theirs_Q
    won = (difference_Q > 1e-9).sum()
    lost = (difference_Q < -1e-9).sum()
    return Verdict(description, bootstrap(np.mean, difference_Q), int(won), int(lost))


# ---- choosing


class Choice(NamedTuple):
    """What dev questions chose: the model, why, and the weights of each model's search, the better trained model first."""

    model: str
    reason: str
    mixes: dict[str, Mix]

    @property
    def trained(self) -> str:
        """The better one of the trained models."""
        return next(name for name in self.mixes if name != STOCK)


def choose(dev: Mapping[str, Table], default: Mix, kind: str) -> Choice:
    """The weights of every model's search, then the model. The default, and the stock model, stay within a standard error.

    dev: model -> `Judge.measure`; empty where no question can choose.
    """
    if not dev or len(dev[STOCK][MEANING]) < FEWEST:
        reason = f"fewer than {FEWEST} dev questions, so the default"
        return Choice(STOCK, reason, dict.fromkeys((TRAINED, HEAD, STOCK), default))
    mixes = {name: _best(table, default) for name, table in dev.items()}
    values = {name: dev[name][mix] for name, mix in mixes.items()}
    order = sorted(mixes, key=lambda name: -values[name].mean())
    best = next((name for name in order if name != STOCK), STOCK)
    model = STOCK
    if _clearly_ahead(values[best], values[STOCK]):
        model = best
    means = ", ".join(f"{name} {values[name].mean():.3f}" for name in order)
    reason = f"nDCG@10 on {len(values[STOCK])} dev {kind}: {means}"
    return Choice(model, reason, {name: mixes[name] for name in order})


def report(tables: Mapping[str, Table], choice: Choice) -> list[dict[str, Any]]:
    """Rows of nDCG@10: what costs nothing, and each model in the search that dev questions chose for it."""
    stock = tables[STOCK]
    rows = {"BM25 alone": stock[WORDS], f"{STOCK} alone": stock[MEANING], f"{STOCK}, {FUSION}": stock[FUSION]}
    if CLASSIFIER in stock:
        rows[f"{STOCK}, linear classifier"] = stock[CLASSIFIER]
    for name, table in tables.items():
        mix = choice.mixes[name]
        rows[f"{name}, chosen: {mix}"] = table[mix]
    return [{"search": name, "nDCG@10": float(values.mean())} for name, values in rows.items()]


def _best(table: Table, default: Mix) -> Mix:
    best = max(table, key=lambda mix: table[mix].mean())
    if _clearly_ahead(table[best], table[default]):
        return best
    return default


def _clearly_ahead(ours_Q: np.ndarray, theirs_Q: np.ndarray) -> bool:
    """By more than the standard error of the difference."""
    difference_Q = ours_Q - theirs_Q
    return difference_Q.mean() > difference_Q.std(ddof=1) / len(difference_Q) ** 0.5


def default_mix(texts: Sequence[str], spans: Spans, mixes: Iterable[Mix] = ()) -> Mix:
    """The weights where no question can choose; docs/lejepa.md has the table that they are from.

    spans: the tokens of the model. One that cuts the words of a language into many pieces was not trained on it. mixes: those that were
    measured; with a classifier among them it is in the default.
    """
    sample = texts[:: max(1, len(texts) // SAMPLED)]
    pieces = runs = letters = spaceless = 0
    for text in sample:
        pieces += len(spans(text))
        for run in RUNS.finditer(text):
            runs += 1
            letters += len(run[0])
            spaceless += len(run[1] or "")
    if 2 * spaceless > letters:
        return WORDS
    if CLASSIFIER in mixes:
        return Mix(meaning=1, words=0.1, classifier=1)
    if pieces > MANY_PIECES * runs:
        return Mix(meaning=1, words=2.0)
    if runs < SHORT * len(sample):
        return Mix(meaning=1, words=0.1)
    return Mix(meaning=1, words=0.5)
