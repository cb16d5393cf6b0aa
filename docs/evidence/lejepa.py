"""What was measured of the search and of LeJEPA's training."""

import math

import numpy as np
from evidence import declarations, pictures
from evidence.seeds import Difference
from scipy import stats

from helpers.lejepa.parameters import EmbeddingParameters
from helpers.show import tables
from helpers.show.intervals import bootstrap
from tools.pages import result, spread

FILE = "lejepa_search_cpu.json"
TRAINED, UNTRAINED = "LeJEPA with BM25", "MiniLM with BM25"
NAMES = {"man-fr": "French pages", "man-es": "Spanish pages", "banking77": "past questions"}


def _rows(name: str) -> dict[str, dict]:
    return result(FILE)["collections"][name]["rows"]


def _seeds(name: str, row: str, part: str = "test") -> list[np.ndarray]:
    """nDCG@10 of every question by seed, from the rank of its answer."""
    values = []
    for ranks in _rows(name)[row][part]:
        values.append(np.array([0 if rank == "-" else 1 / math.log2(int(rank) + 2) for rank in ranks]))
    return values


def _means(name: str, row: str, part: str = "test") -> list[float]:
    return [float(seed_Q.mean()) for seed_Q in _seeds(name, row, part)]


def _rival(name: str) -> str:
    """The strongest row that costs no training, by the test questions themselves, which favours it."""
    rows = [row for row in _rows(name) if not row.startswith("LeJEPA")]
    return max(rows, key=lambda row: _means(name, row)[0])


def _difference(name: str) -> Difference:
    """Of the trained search and the rival on the test questions."""
    rival = _rival(name)
    items = bootstrap(np.mean, np.mean(_seeds(name, TRAINED), axis=0) - _seeds(name, rival)[0])
    return Difference.between(_means(name, TRAINED), _means(name, rival), items.low, items.high)


def documents() -> str:
    """Every search of every collection."""
    table: dict[str, dict[str, str]] = {}
    for name, title in NAMES.items():
        for row in _rows(name):
            table.setdefault(row, {"nDCG@10": row})[title] = spread(_means(name, row))
    columns = dict.fromkeys(["nDCG@10", *NAMES.values()], "")
    return tables.markdown([columns | values for values in table.values()])


def choice() -> str:
    """The rule that keeps a model by its dev questions beside always the same one: nDCG@10 on the test questions, means over the seeds."""
    table = []
    for name, title in NAMES.items():
        (dev_Q,), (test_Q,) = _seeds(name, UNTRAINED, "dev"), _seeds(name, UNTRAINED)
        kept, chosen = [], 0
        for trained_dev_Q, trained_Q in zip(_seeds(name, TRAINED, "dev"), _seeds(name, TRAINED), strict=True):
            difference_Q = trained_dev_Q - dev_Q
            is_trained = difference_Q.mean() >= -stats.sem(difference_Q)
            kept.append(float((trained_Q if is_trained else test_Q).mean()))
            chosen += is_trained
        row = {"search in": title, "always untrained": spread([float(test_Q.mean())])}
        row |= {"always trained": spread(_means(name, TRAINED)), "by the rule": spread(kept)}
        table.append(row | {"trained model kept": f"{chosen} of {len(kept)}"})
    return tables.markdown(table)


def headline() -> str:
    """In a few words, for the page."""
    return f"Is the trained search better than the strongest one that costs little? {beats()}."


def draw() -> None:
    """The differences of the headline."""
    rows = [pictures.difference(title, _difference(name), ours=True) for name, title in NAMES.items()]
    unit = "nDCG@10 above the best method without this training"
    pictures.dots("lejepa_search", "What training adds to the search", unit, rows, digits=3)


def beats() -> str:
    """Whether the trained search is better than the strongest simple method, in a few words."""
    parts = []
    for name, title in NAMES.items():
        difference = _difference(name)
        parts.append(f"{difference.answer} for {title}: {difference.numbers()} nDCG@10 over {_rival(name)}")
    return "; ".join(parts)


def parameters() -> str:
    """Of the texts and the loss, from the declarations."""
    names = ("data_source", "num_samples", "output_dim", "train_length", "sigreg_weight", "contrastive_weight")
    return declarations.table(EmbeddingParameters, names=names)
