"""What was measured of the search and of LeJEPA's training."""

from typing import Any

from evidence import declarations, pictures
from evidence.seeds import Difference

from helpers.lejepa.parameters import EmbeddingParameters
from helpers.show import tables
from tools.pages import result, spread

FILE = "lejepa_search_cpu.json"
SEARCH, CLASSIFIER = "search, chosen weights", "linear classifier"
LEJEPA = "LeJEPA, chosen weights"
FIGURE = "docs/figures/lejepa_search.png"


def _interval(difference: dict[str, Any]) -> str:
    return f"{difference['difference']:+.3f} ({difference['low']:+.3f} to {difference['high']:+.3f})"


def _difference(name: str, row: str, against: str) -> Difference:
    """Of two rows on the test questions of a collection."""
    rows, items = _collections()[name]["rows"], _compared(name, row, against)
    assert items
    return Difference.between(rows[row]["test"], rows[against]["test"], items["low"], items["high"])


def _over(name: str, row: str, against: str) -> str:
    """The difference of two rows in words; "" where they were not compared. Methods without a seed have an interval over items."""
    items = _compared(name, row, against)
    if not items:
        return ""
    difference = _difference(name, row, against)
    return _interval(items) if len(difference.by_seed) == 1 else difference.text()


def _collections() -> dict[str, dict]:
    return result(FILE)["collections"]


def _compared(name: str, row: str, against: str) -> dict[str, Any] | None:
    """The comparison of two rows on the test questions of a collection, which were not used for any choice."""
    for difference in _collections()[name]["comparisons"]:
        if (difference["part"], difference["row"], difference["against"]) == ("test", row, against):
            return difference
    return None


def _table(name: str, rows: list[str], part: str = "test") -> list[dict[str, Any]]:
    measured = _collections()[name]["rows"]
    table = []
    for row in rows:
        if part in measured.get(row, {}):
            table.append(
                {
                    "row": row,
                    "nDCG@10": spread(measured[row][part]),
                    "over the linear classifier": _over(name, row, CLASSIFIER),
                    "over the untrained search": _over(name, row, SEARCH),
                }
            )
    return table


def past_questions() -> str:
    """Banking77: what training adds where past questions with the same answers are at hand."""
    return tables.markdown(_table("banking77", [*_collections()["banking77"]["rows"]]))


def past_questions_say() -> str:
    """The same in words, with what the training took."""
    bank = _collections()["banking77"]
    minutes = [cost["minutes"] for cost in bank["costs"] if "LeJEPA" in cost["run"]]
    trained, search = _over("banking77", LEJEPA, CLASSIFIER), _over("banking77", LEJEPA, SEARCH)
    head = _over("banking77", "LeJEPA, head, chosen weights", SEARCH)
    return (
        f"On {bank['questions']['test']:,} test questions, the search with the whole trained model differs from the linear classifier by **{trained}**, and "
        f"from the search with the untrained model by {search} (each search has its own weights). With the trained head alone it differs from the untrained "
        f"search by {head}. The untrained search differs from the classifier by {_over('banking77', SEARCH, CLASSIFIER)}. "
        f"Training the whole model took at most {max(minutes):.1f} processor minutes, the head some seconds."
    )


def attempts() -> str:
    """Other trainings on banking77, each in the search that dev questions chose for it."""
    rows = []
    for attempt in _collections()["banking77"].get("attempts", []):
        rows.append(
            {
                "training": attempt["attempt"],
                "seeds": len(attempt["test"]),
                "nDCG@10": spread(attempt["test"]),
                "over the linear classifier": _attempt(attempt, CLASSIFIER),
                "over the untrained search": _attempt(attempt, SEARCH),
                "processor minutes": f"{attempt['minutes']:.1f}",
            }
        )
    return tables.markdown(rows)


def _attempt(attempt: dict[str, Any], against: str) -> str:
    theirs = _collections()["banking77"]["rows"][against]["test"]
    return Difference.between(attempt["test"], theirs, attempt[against]["low"], attempt[against]["high"]).text()


def terms() -> str:
    """What each term of the loss adds to a head on frozen embeddings, for past questions."""
    table, measured = [], _collections()["banking77"]["terms"]
    for row, values in measured.items():
        difference = ""
        if "low" in values:
            whole = measured["all three terms"]["test"]
            difference = Difference.between(values["test"], whole, values["low"], values["high"]).text()
        table.append({"terms": row, "nDCG@10": spread(values["test"]), "over all three": difference})
    return tables.markdown(table)


def documents() -> str:
    """Man pages: what training on titles and texts adds for pages that did not train."""
    table = []
    for name in ("man-es", "man-fr"):
        table += [{"collection": name, **row} for row in _table(name, [*_collections()[name]["rows"]])]
    return tables.markdown(table)


def comparison() -> str:
    """nDCG@10 of what costs nothing on every judged collection, on the questions that report."""
    table = []
    for name, collection in _collections().items():
        if name == "banking77":
            continue
        rows = {"collection": name, "questions": collection["questions"].get("test") or collection["questions"]["dev"]}
        part = "test" if "test" in collection["questions"] else "dev"
        for row in ("MiniLM", "BM25", "MiniLM and BM25 by rank", "search, default weights", SEARCH):
            rows[row] = spread(collection["rows"][row][part])
        rows["questions were used to choose"] = "no" if part == "test" else "yes"
        table.append(rows)
    return tables.markdown(table)


def parts_say() -> str:
    """The search beside its own parts."""
    sentences = []
    for name, collection in _collections().items():
        if "test" in collection["questions"] and name != "banking77":
            against = [_compared(name, SEARCH, row) for row in ("MiniLM", "BM25")]
            sentences.append(
                f"{name} {_interval(against[0])} over MiniLM alone and {_interval(against[1])} over BM25 alone"
            )
    return (
        f"The search compared with its parts, on questions that were not used for any choice: {'; '.join(sentences)}."
    )


def defaults() -> str:
    """nDCG@10 of the stock model by the weight of BM25, on the questions that choose."""
    table = []
    for name, collection in _collections().items():
        if collection["defaults"]:
            values = {
                mix: f"{value:.3f}" if isinstance(value, float) else value
                for mix, value in collection["defaults"].items()
            }
            shown = {mix: value for mix, value in values.items() if "classifier" not in mix}
            table.append({"collection": name, **shown})
    return tables.markdown(table)


def headline() -> str:
    """In a few words, for README.md."""
    pages = _compared("man-fr", LEJEPA, SEARCH)["questions"]
    return (
        f"On French manual pages, a search that was trained on the titles of 250 other pages (`train_length=64`, bf16; the default is 128, fp32) differs from the best untrained search (MiniLM and BM25) by "
        f"**{_over('man-fr', LEJEPA, SEARCH)} nDCG@10** ({pages} pages), on Spanish pages by {_over('man-es', LEJEPA, SEARCH)}; no multilingual model was "
        f"tried. In English, with ten past questions for each of 77 answers, it differs from a linear classifier on MiniLM's embeddings by "
        f"{_over('banking77', LEJEPA, CLASSIFIER)}"
    )


def draw() -> None:
    """The differences of the headline."""
    rows = [
        pictures.difference("French manual pages", _difference("man-fr", LEJEPA, SEARCH), ours=True),
        pictures.difference("Spanish manual pages", _difference("man-es", LEJEPA, SEARCH), ours=True),
        pictures.difference("English past questions", _difference("banking77", LEJEPA, CLASSIFIER), ours=True),
    ]
    unit = "nDCG@10 above the best method without this training"
    pictures.dots("lejepa_search", "What training adds to the search", unit, rows, digits=3)


def beats() -> str:
    """Whether the trained search is better than the strongest simple method, in a few words."""
    french, bank = _difference("man-fr", LEJEPA, SEARCH), _difference("banking77", LEJEPA, CLASSIFIER)
    return (
        f"{french.answer} for documents in a language that MiniLM does not know: {french.numbers()} nDCG@10 over the best untrained search "
        f"(French pages); {bank.answer} for past questions: {bank.numbers()} over a linear classifier"
    )


def parameters() -> str:
    """Of the texts and the loss, from the declarations."""
    names = ("data_source", "num_samples", "output_dim", "train_length", "sigreg_weight", "contrastive_weight")
    return declarations.table(EmbeddingParameters, names=names)
