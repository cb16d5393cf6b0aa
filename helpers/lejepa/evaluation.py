"""What a search is worth: nDCG@10 over documents, question by question, and the difference of two searches with its interval."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

from helpers.data.words import RUNS
from helpers.lejepa.data import Collection, Question
from helpers.lejepa.documents import Spans
from helpers.lejepa.search import Mix, lexical_index, lexical_scores
from helpers.lejepa.standalone import combine, unit
from helpers.show.intervals import FEWEST, bootstrap

# Q questions · N passages · D documents · K dimensions

SAMPLED = 200  # texts whose language decides
MANY_PIECES = 1.8  # tokens a word
STOCK, TRAINED = "stock model", "LeJEPA"
BY_RANK, CLASSIFIER = "stock model and BM25 by rank", "linear classifier on the stock model"  # rivals of the search
MEANING, WORDS = Mix(meaning=1), Mix(words=1)
MIXES = (MEANING, WORDS, *(Mix(meaning=1, words=weight) for weight in (0.1, 0.2, 0.5, 1.0, 2.0)))
DISCOUNTS = 1 / np.log2(np.arange(2, 12))  # of the first ten ranks
Table = Mapping[Mix, np.ndarray]  # nDCG@10 of every question, by the weights of the search


class Judge:
    """The questions of a split, ready to score searches over all passages and past questions of the collection.

    Headings are looked for in the bodies alone, since a passage's text begins with its heading.
    """

    def __init__(self, collection: Collection, questions: Sequence[Question]):
        self.passages = collection.searched(collection.past)
        field = "body" if collection.kind == "headings" else "text"
        self.texts = [getattr(passage, field) for passage in self.passages]
        self.asked = [question.text for question in questions]
        numbers = {name: number for number, name in enumerate(collection.documents)}
        self.document_N = np.array([numbers[passage.document] for passage in self.passages])
        self.answers = [sorted(numbers[name] for name in question.answers) for question in questions]
        self.words_QN = lexical_scores(lexical_index(self.texts), self.asked)

    def ndcg(self, scores_QN: np.ndarray) -> np.ndarray:
        """nDCG@10 [Q] with binary judgements; a document is as good as its best passage, and the first of equal ones comes first."""
        values_Q = []
        for scores_N, answers in zip(scores_QN, self.answers, strict=True):
            scores_D = np.full(self.document_N.max() + 1, -np.inf)
            np.maximum.at(scores_D, self.document_N, scores_N)
            best = np.argsort(-scores_D, kind="stable")[:10]
            gain = DISCOUNTS[: len(best)] @ np.isin(best, answers)
            values_Q.append(gain / DISCOUNTS[: len(answers)].sum())
        return np.array(values_Q)

    def measure(self, questions_QK: np.ndarray, passages_NK: np.ndarray) -> dict[Mix, np.ndarray]:
        """nDCG@10 [Q] of these embeddings in every search of `MIXES`."""
        cosines_QN = unit(questions_QK) @ unit(passages_NK).T
        return {mix: self.ndcg(combine(cosines_QN, self.words_QN, **mix._asdict())) for mix in MIXES}

    def by_rank(self, questions_QK: np.ndarray, passages_NK: np.ndarray) -> np.ndarray:
        """nDCG@10 [Q] of embeddings and BM25 fused by rank (Cormack et al. 2009: the sum of 1 / (60 + rank)), which needs no weights."""
        meaning_QN, words_QN = (
            1 / (60 + rankdata(-scores_QN, "ordinal", axis=1))
            for scores_QN in (unit(questions_QK) @ unit(passages_NK).T, self.words_QN)
        )
        return self.ndcg(meaning_QN + words_QN)


def compare(description: str, ours_Q: np.ndarray, theirs_Q: np.ndarray) -> dict[str, str]:
    """A row of the verdict: the mean difference of two searches, with its 95 % interval over questions, drawn together for both."""
    interval = bootstrap(np.mean, ours_Q - theirs_Q)
    return {"what": description, "nDCG@10": str(interval), "verdict": interval.outcome}


# ---- choosing


class Choice(NamedTuple):
    """What dev questions chose: the model, why, and the weights of each model's search."""

    model: str
    reason: str
    mixes: dict[str, Mix]

    def search(self, model: str) -> str:
        return f"{model}, {self.mixes[model]}"


def choose(dev: Mapping[str, Table], default: Mix, kind: str) -> Choice:
    """The weights of every model's search, then the model: the trained one, unless its search is worse by more than a standard error.

    dev: model -> `Judge.measure`; empty where no question can choose.
    """
    mixes = dict.fromkeys((STOCK, TRAINED), default)
    questions = len(dev[STOCK][MEANING]) if dev else 0
    if questions < FEWEST:
        return Choice(STOCK, f"fewer than {FEWEST} dev questions, so the default", mixes)
    values = {}
    for name, table in dev.items():
        best = max(table, key=lambda mix: table[mix].mean())
        if _clearly_ahead(table[best], table[default]):
            mixes[name] = best
        values[name] = table[mixes[name]]
    model = STOCK
    if TRAINED in dev and not _clearly_ahead(values[STOCK], values[TRAINED]):
        model = TRAINED
    means = ", ".join(f"{name} {values_Q.mean():.3f}" for name, values_Q in values.items())
    return Choice(model, f"nDCG@10 on {questions} dev {kind}: {means}", mixes)


def _clearly_ahead(ours_Q: np.ndarray, theirs_Q: np.ndarray) -> bool:
    """By more than the standard error of the difference."""
    difference_Q = ours_Q - theirs_Q
    return difference_Q.mean() > difference_Q.std(ddof=1) / len(difference_Q) ** 0.5


def simple(stock: Table, rivals: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """nDCG@10 [Q] of what costs nothing: BM25, the stock model, and rivals that have no weights."""
    return {"BM25 alone": stock[WORDS], f"{STOCK} alone": stock[MEANING], **rivals}


def searches(tables: Mapping[str, Table], choice: Choice) -> dict[str, np.ndarray]:
    """nDCG@10 [Q] of each model in the search that dev questions chose for it."""
    return {choice.search(name): table[choice.mixes[name]] for name, table in tables.items()}


def verdicts(simple: Mapping[str, np.ndarray], searches: Mapping[str, np.ndarray], choice: Choice) -> list[dict]:
    """What training adds with the same helper, and the search that is kept beside the strongest simple method."""
    trained, stock = (searches[choice.search(name)] for name in (TRAINED, STOCK))
    strongest = max(simple, key=lambda name: simple[name].mean())
    kept = f"the search that is kept, over the strongest simple method: {strongest}"
    return [
        compare("what training adds (the whole model, each with BM25 as dev chose)", trained, stock),
        compare(kept, searches[choice.search(choice.model)], simple[strongest]),
    ]


def default_mix(texts: Sequence[str], spans: Spans) -> Mix:
    """The weights where no question can choose; docs/lejepa.md has the table that they are from.

    spans: the tokens of the model. One that cuts the words of a language into many pieces was not trained on it.
    """
    pieces = words = 0
    for text in texts[:: max(1, len(texts) // SAMPLED)]:
        pieces += len(spans(text))
        words += len(RUNS.findall(text))
    return Mix(meaning=1, words=2.0 if pieces > MANY_PIECES * words else 0.5)
