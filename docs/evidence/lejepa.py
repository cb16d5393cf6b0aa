"""What was measured of the search and of LeJEPA's training."""

import math
from typing import Any

import numpy as np
from evidence import declarations, pictures
from evidence.seeds import Difference
from scipy import stats

from helpers.lejepa.parameters import EmbeddingParameters
from helpers.show import tables
from helpers.show.intervals import bootstrap
from tools.pages import result, spread

FILE = "lejepa_search_cpu.json"
# Rows of a collection; the second name is that of results which have no ranks of every question yet.
TRAINED = ("LeJEPA with BM25", "LeJEPA, chosen weights")
UNTRAINED = ("MiniLM with BM25", "search, chosen weights")
NAMES = {"man-fr": "French manual pages", "man-es": "Spanish manual pages", "banking77": "English past questions"}


def _rows(name: str) -> dict[str, dict[str, Any]]:
    return result(FILE)["collections"][name]["rows"]


def _row(name: str, names: tuple[str, ...]) -> str:
    return next(row for row in names if row in _rows(name))


def _seeds(name: str, row: str, part: str = "test") -> list[np.ndarray]:
    """nDCG@10 of every question by seed, from the rank of its answer; [] where the results have only the means."""
    values = []
    for ranks in _rows(name)[row][part]:
        if isinstance(ranks, str):
            values.append(np.array([0 if rank == "-" else 1 / math.log2(int(rank) + 2) for rank in ranks]))
    return values


def _means(name: str, row: str, part: str = "test") -> list[float]:
    return [float(seed_Q.mean()) for seed_Q in _seeds(name, row, part)] or _rows(name)[row][part]


def _rival(name: str) -> str:
    """The strongest row that costs no training, as dev questions have it."""
    if not _seeds(name, "BM25"):
        return _row(name, UNTRAINED)
    rows = [row for row in _rows(name) if not row.startswith("LeJEPA")]
    return max(rows, key=lambda row: np.mean(_means(name, row, "dev")))


def _rival_named(name: str) -> str:
    rival = _rival(name)
    return "the same search with MiniLM as it is" if rival in UNTRAINED else rival


def _difference(name: str, row: str) -> Difference | None:
    """Of a row and the rival on the test questions; None where they were not compared."""
    rival = _rival(name)
    ours, theirs = _seeds(name, row), _seeds(name, rival)
    if ours:
        items = bootstrap(np.mean, np.mean(ours, axis=0) - np.mean(theirs, axis=0))
        return Difference.between(_means(name, row), _means(name, rival), items.low, items.high)
    for compared in result(FILE)["collections"][name]["comparisons"]:
        if (compared["part"], compared["row"], compared["against"]) == ("test", row, rival):
            return Difference.between(_means(name, row), _means(name, rival), compared["low"], compared["high"])
    return None


def _trained(name: str) -> Difference:
    difference = _difference(name, _row(name, TRAINED))
    assert difference
    return difference


def _table(name: str) -> list[dict[str, Any]]:
    table = []
    for row in _rows(name):
        difference = _difference(name, row) if "LeJEPA" in row else None
        over = difference.text() if difference else ""
        means = spread(_means(name, row))
        table.append({"collection": name, "row": row, "nDCG@10": means, f"over {_rival_named(name)}": over})
    return table


def past_questions() -> str:
    """Banking77: what training adds where past questions with the same answers are at hand."""
    return tables.markdown(_table("banking77"))


def documents() -> str:
    """Man pages: what training on titles and texts adds for pages that did not train."""
    return "\n\n".join(tables.markdown(_table(name)) for name in ("man-es", "man-fr"))


def choice() -> str:
    """The rule that keeps a model by its dev questions beside always the same one: nDCG@10 on the test questions, means over the seeds."""
    table = []
    for name in NAMES:
        trained, stock = _row(name, TRAINED), _row(name, UNTRAINED)
        kept, chosen = [], 0
        (stock_dev_Q,) = _seeds(name, stock, "dev") or [None]
        for trained_dev_Q, trained_Q in zip(_seeds(name, trained, "dev"), _seeds(name, trained), strict=True):
            difference_Q = trained_dev_Q - stock_dev_Q
            is_trained = difference_Q.mean() >= -stats.sem(difference_Q)
            kept.append(float(trained_Q.mean()) if is_trained else _means(name, stock)[0])
            chosen += is_trained
        if kept:
            row = {"collection": name, "always untrained": spread(_means(name, stock))}
            row |= {"always trained": spread(_means(name, trained)), "by the rule": spread(kept)}
            table.append(row | {"trained model kept": f"{chosen} of {len(kept)}"})
    return (
        tables.markdown(table) if table else "The results below are from a version with another rule, and cannot tell."
    )


def headline() -> str:
    """In a few words, for README.md."""
    french, spanish, bank = (
        f"**{_trained(name).text()}** from the strongest row without training ({_rival_named(name)})" for name in NAMES
    )
    return (
        f"A search that was trained on the titles of 250 French manual pages differs in nDCG@10 on other pages by {french}, on Spanish pages "
        f"by {spanish}. In English, with ten past questions for each of 77 answers, it differs by {bank}."
    )


def draw() -> None:
    """The differences of the headline."""
    rows = [pictures.difference(label, _trained(name), ours=True) for name, label in NAMES.items()]
    unit = "nDCG@10 above the best method without this training"
    pictures.dots("lejepa_search", "What training adds to the search", unit, rows, digits=3)


def beats() -> str:
    """Whether the trained search is better than the strongest simple method, in a few words."""
    french, bank = _trained("man-fr"), _trained("banking77")
    return f"{french.answer} for French pages: {french.numbers()} nDCG@10 over {_rival_named('man-fr')}; {bank.answer} for past questions: {bank.numbers()}"


def parameters() -> str:
    """Of the texts and the loss, from the declarations."""
    names = ("data_source", "num_samples", "output_dim", "train_length", "sigreg_weight", "contrastive_weight")
    return declarations.table(EmbeddingParameters, names=names)
