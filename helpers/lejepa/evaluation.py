"""What a search is worth: nDCG@10 over documents, question by question, and the difference of two searches with its interval."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata, sem

from helpers.data.words import RUNS
from helpers.lejepa.data import Collection, Question
from helpers.lejepa.documents import Spans
from helpers.lejepa.search import Mix, lexical_index
from helpers.lejepa.standalone import combine, terms, unit
from helpers.show.intervals import FEWEST, bootstrap

# Q questions · N passages · D documents · K dimensions

SAMPLED = 200  # texts at most whose language decides
MANY_PIECES = 1.8  # tokens a word
STOCK, TRAINED = "stock model", "LeJEPA"
CLASSIFIER = "linear classifier on the stock model"  # a rival, which the notebook trains
MEANING, WORDS, BY_RANK = "meaning alone", "BM25 alone", "meaning and BM25 by rank"
MIXES = {MEANING: Mix(meaning=1), WORDS: Mix(words=1)}
for weight in (0.1, 0.2, 0.5, 1.0, 2.0):
    MIXES[f"meaning + {weight:g} BM25"] = Mix(meaning=1, words=weight)
DISCOUNTS = 1 / np.log2(np.arange(2, 12))  # of the first ten ranks
Table = dict[str, np.ndarray]  # nDCG@10 of every question, by the name of a search


class Judge:
    """The questions of a split, ready to score searches over all passages and past questions of the collection.

    Headings are looked for in the bodies alone, since a passage's text begins with its heading.
    """

    def __init__(self, collection: Collection, questions: Sequence[Question]):
        self.passages = collection.searched(collection.past)
        self.texts = [passage.text for passage in self.passages]
        if collection.kind == "headings":
            self.texts = [passage.body for passage in self.passages]
        self.asked = [question.text for question in questions]
        numbers = {name: number for number, name in enumerate(collection.documents)}
        self.document_N = np.array([numbers[passage.document] for passage in self.passages])
        self.answers = [[*map(numbers.__getitem__, question.answers)] for question in questions]
        index = lexical_index(self.texts)
        self.words_QN = np.array([index.scores(terms(question)) for question in self.asked])

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

    def measure(self, questions_QK: np.ndarray, passages_NK: np.ndarray) -> Table:
        """These embeddings in every search of `MIXES`, and fused with BM25 by rank, which needs no weights.

        By rank (Cormack et al. 2009): the sum of 1 / (60 + rank).
        """
        cosines_QN = unit(questions_QK) @ unit(passages_NK).T
        table = {}
        for name, mix in MIXES.items():
            table[name] = self.ndcg(combine(cosines_QN, self.words_QN, **mix._asdict()))
        ranks_2QN = rankdata([-cosines_QN, -self.words_QN], "ordinal", axis=2)
        table[BY_RANK] = self.ndcg((1 / (60 + ranks_2QN)).sum(0))
        return table


# ---- choosing


class Choice(NamedTuple):
    """What dev questions chose: the model, why, and for each model the name of its search, of `MIXES`."""

    model: str
    reason: str
    mixes: dict[str, str]


def choose(dev: Mapping[str, Table], default: str, kind: str) -> Choice:
    """The weights of every model's search, then the model: the trained one, unless its search is worse by more than a standard error.

    dev: model -> `Judge.measure`; empty where no question can choose.
    """
    mixes = dict.fromkeys((STOCK, TRAINED), default)
    if not dev or len(dev[STOCK][MEANING]) < FEWEST:
        return Choice(STOCK, f"fewer than {FEWEST} dev questions, so the default", mixes)
    values, means = {}, []
    for model, table in dev.items():
        best = max(MIXES, key=lambda name: table[name].mean())
        if _clearly_ahead(table[best], table[default]):
            mixes[model] = best
        values[model] = table[mixes[model]]
        means.append(f"{model} {values[model].mean():.3f}")
    kept = TRAINED
    if TRAINED not in dev or _clearly_ahead(values[STOCK], values[TRAINED]):
        kept = STOCK
    return Choice(kept, f"nDCG@10 on {len(values[STOCK])} dev {kind}: {', '.join(means)}", mixes)


def _clearly_ahead(ours_Q: np.ndarray, theirs_Q: np.ndarray) -> bool:
    """By more than the standard error of the difference."""
    difference_Q = ours_Q - theirs_Q
    return difference_Q.mean() > sem(difference_Q)


def searches(tables: Mapping[str, Table], choice: Choice) -> Table:
    """Each model in the search that dev questions chose for it."""
    return {f"{model}, {choice.mixes[model]}": table[choice.mixes[model]] for model, table in tables.items()}


def simple(stock: Table, rivals: Table) -> Table:
    """What costs nothing: the searches of the stock model without weights, and rivals."""
    return {WORDS: stock[WORDS], f"{STOCK}, {MEANING}": stock[MEANING], BY_RANK: stock[BY_RANK], **rivals}


def verdicts(tables: Mapping[str, Table], rivals: Table, choice: Choice) -> list[dict[str, str]]:
    """What training adds with the same helper, and the search that is kept beside the strongest simple method.

    Each is a mean difference with its 95 % interval over questions, drawn together for both.
    """
    chosen = {model: table[choice.mixes[model]] for model, table in tables.items()}
    methods = simple(tables[STOCK], rivals)
    strongest = max(methods, key=lambda name: methods[name].mean())
    differences = {
        "what training adds (the whole model, each with BM25 as dev chose)": chosen[TRAINED] - chosen[STOCK],
        f"the search that is kept, over the strongest simple method: {strongest}": chosen[choice.model]
        - methods[strongest],
    }
    rows = []
    for what, difference_Q in differences.items():
        interval = bootstrap(np.mean, difference_Q)
        rows.append({"what": what, "nDCG@10": str(interval), "verdict": interval.outcome})
    return rows


def default_mix(texts: Sequence[str], spans: Spans) -> str:
    """The search where no question can choose; docs/lejepa.md has the table that its weights are from.

    spans: the tokens of the model. One that cuts the words of a language into many pieces was not trained on it.
    """
    pieces = words = 0
    for text in texts[:: 1 + len(texts) // SAMPLED]:
        pieces += len(spans(text))
        words += len(RUNS.findall(text))
    if pieces > MANY_PIECES * words:
        return "meaning + 2 BM25"
    return "meaning + 0.5 BM25"
