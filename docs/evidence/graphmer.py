"""What was measured of GraphMER-SE."""

from build import ratio, result, spread
from evidence import declarations

from helpers.graphmer.parameters import GraphParameters
from helpers.show import tables

STUDIES = {
    "open_calls": "which function a call means that the resolver leaves open",
    "impact": "which functions reach a function by one to three calls",
    "code_search": "which function a docstring describes",
    "embeddings": "open calls, by embeddings of the graph alone",
}


def headline() -> str:
    """For README.md."""
    rows = result("graphmer_former_studies.json")["code_search"]
    words, trained = rows["BM25 and TF-IDF"], rows["and encoder, trained"]
    return (
        f"The encoder adds nothing to words in code search: BM25 and TF-IDF have an MRR of {spread(words['mrr_by_seed'])}, "
        f"with the encoder {spread(trained['mrr_by_seed'])} (difference {_above(trained)})"
    )


def former_studies() -> str:
    """What the graph-trained encoder adds where the truth came from outside of the graph."""
    found = result("graphmer_former_studies.json")
    return tables.markdown(
        [
            {
                "question": asked if place == 0 else "",
                "scorer": name,
                "MRR": spread(row["mrr_by_seed"]),
                "above the first row (95 %)": _above(row) if "above" in row else "",
            }
            for study, asked in STUDIES.items()
            for place, (name, row) in enumerate(found[study].items())
        ]
    )


def _above(row: dict) -> str:
    return "{:+.3f}, {:+.3f} to {:+.3f}".format(row["above"]["mrr"], *row["above"]["interval"])


def speed() -> str:
    """Extraction beside parsing alone."""
    parsing = result("graph_extraction_cpu.json")["comparisons"][0]
    return f"Extracting the standard library's graph takes {ratio(parsing, 2)} times as long as parsing it with `ast`."


def parameters() -> str:
    """What is asked, how the search is tuned and which configuration the encoder has, from the declarations."""
    names = ("query", "question", "base_model", "search_steps", "config", "changes")
    return declarations.table(GraphParameters, names=names)
