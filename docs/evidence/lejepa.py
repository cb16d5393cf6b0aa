"""What was measured of the search and of LeJEPA's training."""

from typing import Any

from build import result, spread
from evidence import declarations, pictures

from helpers.lejepa.parameters import EmbeddingParameters
from helpers.show import tables

FILE = "lejepa_search_cpu.json"
SEARCH, CLASSIFIER = "search, chosen weights", "linear classifier"
LEJEPA = "LeJEPA, chosen weights"
FIGURE = "docs/figures/lejepa_search.png"


def _interval(difference: dict[str, Any]) -> str:
    return f"{difference['difference']:+.3f} ({difference['low']:+.3f} to {difference['high']:+.3f})"


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
            difference = _compared(name, row, CLASSIFIER)
            over_search = _compared(name, row, SEARCH)
            table.append(
                {
                    "row": row,
                    "nDCG@10": spread(measured[row][part]),
                    "over the linear classifier": _interval(difference) if difference else "",
                    "over the untrained search": _interval(over_search) if over_search else "",
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
    trained, search = _compared("banking77", LEJEPA, CLASSIFIER), _compared("banking77", LEJEPA, SEARCH)
    free = _compared("banking77", SEARCH, CLASSIFIER)
    head = _compared("banking77", "LeJEPA, head, chosen weights", SEARCH)
    return (
        f"On {trained['questions']:,} test questions ({len(minutes)} seeds), the search with the whole trained model differs from the linear classifier by "
        f"**{_interval(trained)}**, and from the search with the untrained model by {_interval(search)} (each search has its own weights). With the trained "
        f"head alone it differs from the untrained search by {_interval(head)}. The untrained search differs from the classifier by {_interval(free)}. "
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
                "over the linear classifier": _interval(attempt["linear classifier"]),
                "over the untrained search": _interval(attempt[SEARCH]),
                "processor minutes": f"{attempt['minutes']:.1f}",
            }
        )
    return tables.markdown(rows)


def terms() -> str:
    """What each term of the loss adds to a head on frozen embeddings, for past questions."""
    table = []
    for row, values in _collections()["banking77"]["terms"].items():
        difference = _interval(values) if "low" in values else ""
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
    french, spanish = (_compared(name, LEJEPA, SEARCH) for name in ("man-fr", "man-es"))
    bank = _compared("banking77", LEJEPA, CLASSIFIER)
    return (
        f"On French manual pages, a search that was trained on the titles of 250 other pages differs from the best untrained search (MiniLM and BM25) by "
        f"**{_interval(french)} nDCG@10** ({french['questions']} pages), on Spanish pages by {_interval(spanish)}; no multilingual model was tried. "
        f"In English, with ten past questions for each of 77 answers, it differs from a linear classifier on MiniLM's embeddings by {_interval(bank)}"
    )


def draw() -> None:
    """The differences of the headline."""
    compared = {
        "French manual pages": _compared("man-fr", LEJEPA, SEARCH),
        "Spanish manual pages": _compared("man-es", LEJEPA, SEARCH),
        "English past questions": _compared("banking77", LEJEPA, CLASSIFIER),
    }
    rows = []
    for questions, gain in compared.items():
        rows.append(pictures.Dot(questions, gain["difference"], gain["low"], gain["high"], ours=True))
    unit = "nDCG@10 above the best method without this training"
    pictures.dots("lejepa_search", "What training adds to the search", unit, rows, digits=3)


def beats() -> str:
    """Whether the trained search is better than what costs nothing, in a few words."""
    gain = _compared("man-fr", LEJEPA, SEARCH)
    if gain["low"] <= 0:
        return "no: what costs nothing is as good"
    return (
        f"yes, for documents in a language that MiniLM does not know: {gain['difference']:+.3f} nDCG@10 over the best untrained search (French); for "
        "past questions a linear classifier is as good"
    )


def parameters() -> str:
    """Of the texts and the loss, from the declarations."""
    names = ("data_source", "num_samples", "output_dim", "train_length", "sigreg_weight", "contrastive_weight")
    return declarations.table(EmbeddingParameters, names=names)
