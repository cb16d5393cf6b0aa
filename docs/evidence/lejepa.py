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
NAMES = {"man-fr": "French", "man-es": "Spanish"}


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
    """The strongest row that costs no training, as dev questions have it."""
    rows = [row for row in _rows(name) if not row.startswith("LeJEPA")]
    return max(rows, key=lambda row: _means(name, row, "dev")[0])


def _difference(name: str, row: str = TRAINED) -> Difference:
    """Of a trained row and the rival on the test questions."""
    rival = _rival(name)
    items = bootstrap(np.mean, np.mean(_seeds(name, row), axis=0) - _seeds(name, rival)[0])
    return Difference.between(_means(name, row), _means(name, rival), items.low, items.high)


def _past_questions() -> str:
    """Of banking77, whose results are of an earlier version and have no ranks of every question."""
    rows = _rows("banking77")
    (stock,) = rows["search, chosen weights"]["test"]
    return ", ".join(f"{trained - stock:+.3f}" for trained in rows["LeJEPA, chosen weights"]["test"])


def documents() -> str:
    """Man pages: what training on titles and texts adds for pages that did not train."""
    table = []
    for row in _rows("man-fr"):
        values = {"nDCG@10": row}
        for name, language in NAMES.items():
            values[language] = spread(_means(name, row))
            values[f"{language}, over {_rival(name)}"] = _difference(name, row).numbers() if "LeJEPA" in row else ""
        table.append(values)
    return tables.markdown(table)


def choice() -> str:
    """The rule that keeps a model by its dev questions beside always the same one: nDCG@10 on the test questions, means over the seeds."""
    table = []
    for name, language in NAMES.items():
        (dev_Q,), (test_Q,) = _seeds(name, UNTRAINED, "dev"), _seeds(name, UNTRAINED)
        kept, chosen = [], 0
        for trained_dev_Q, trained_Q in zip(_seeds(name, TRAINED, "dev"), _seeds(name, TRAINED), strict=True):
            difference_Q = trained_dev_Q - dev_Q
            is_trained = difference_Q.mean() >= -stats.sem(difference_Q)
            kept.append(float((trained_Q if is_trained else test_Q).mean()))
            chosen += is_trained
        row = {"pages": language, "always untrained": spread([float(test_Q.mean())])}
        row |= {"always trained": spread(_means(name, TRAINED)), "by the rule": spread(kept)}
        table.append(row | {"trained model kept": f"{chosen} of {len(kept)}"})
    return tables.markdown(table)


def headline() -> str:
    """In a few words, for the page."""
    parts = []
    for name, language in NAMES.items():
        parts.append(f"{language} pages: **{_difference(name).text()}** nDCG@10 over {_rival(name)}.")
    return (
        f"A search was trained on the titles of 250 manual pages, and asked for others. {' '.join(parts)}\n\n"
        "In English, with ten past questions for each of 77 answers, an earlier version with three seeds differed by "
        f"{_past_questions()} from the same search without training: not shown."
    )


def draw() -> None:
    """The differences of the headline."""
    rows = [pictures.difference(f"{NAMES[name]} manual pages", _difference(name), ours=True) for name in NAMES]
    unit = "nDCG@10 above the best method without this training"
    pictures.dots("lejepa_search", "What training adds to the search", unit, rows, digits=3)


def beats() -> str:
    """Whether the trained search is better than the strongest simple method, in a few words."""
    parts = []
    for name, language in NAMES.items():
        difference = _difference(name)
        parts.append(f"{difference.answer} for {language} pages: {difference.numbers()} nDCG@10 over {_rival(name)}")
    return f"{'; '.join(parts)}; not shown for past questions"


def parameters() -> str:
    """Of the texts and the loss, from the declarations."""
    names = ("data_source", "num_samples", "output_dim", "train_length", "sigreg_weight", "contrastive_weight")
    return declarations.table(EmbeddingParameters, names=names)
