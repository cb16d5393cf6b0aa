"""What was measured of the search and of LeJEPA's training."""

from typing import Any

from build import result, spread
from evidence import declarations

from helpers.lejepa.parameters import EmbeddingParameters
from helpers.show import tables

SEARCH = "lejepa_search_cpu.json"
SIMPLE = {
    "BM25": "BM25",
    "MiniLM + mean": "MiniLM less the documents' mean",
    "reciprocal ranks (60)": "reciprocal rank fusion of BM25 and MiniLM",
}


def _interval(found: dict[str, Any]) -> str:
    return f"{found['difference']:+.3f} ({found['low']:+.3f} to {found['high']:+.3f})"


def _over(row: str, against: str) -> dict[str, Any]:
    """The comparison of a row on the collections of the report."""
    found = [each for each in result(SEARCH)["comparisons"] if (each["row"], each["against"]) == (row, against)]
    return next((each for each in found if each["on"] == ["npl", "lisa"]), {})


def comparison() -> str:
    """nDCG@10 of every row on every collection, and the pooled difference over the stock model on the two of the report."""
    rows = result(SEARCH)["rows"]
    table = []
    for name in next(iter(rows.values())):
        values = {collection: found.get(name, "") for collection, found in rows.items()}
        told = {c: v and spread(v if isinstance(v, list) else [v]) for c, v in values.items()}
        pooled = _over(name, "MiniLM").get("pooled")
        table.append({"row": name, **told, "npl and lisa, over MiniLM": (pooled and _interval(pooled)) or ""})
    return tables.markdown(table)


def says() -> str:
    """The two verdicts in words."""
    found = result(SEARCH)
    whole, setting = _over("hybrid", "MiniLM"), found["training"]
    apart = "; ".join(
        f"{name} {_interval(whole[name])}, {whole[name]['won']} questions won and {whole[name]['lost']} lost of {whole[name]['questions']}"
        for name in ("npl", "lisa")
    )
    head = _added(lambda each: each["row"] in setting["rates"])
    every = _added(lambda each: each["row"].endswith("whole model"))
    return (
        f"**The whole search over MiniLM as it came: {_interval(whole['pooled'])}** pooled ({apart}). Training {setting['what']} adds to the same search "
        f"({len(setting['seeds'])} seeds, {setting['steps']} steps of {setting['batch']}): {head}. Training all weights with the notebook's trainer "
        f"and its recipe for a CPU adds: {every or 'not measured yet'}. Values are nDCG@10; intervals are over questions."
    )


def _added(wanted) -> str:
    return "; ".join(
        f"{each['row']} {_interval(each['pooled'])} on {' and '.join(each['on'])}"
        + (f" (seeds: {each['seeds']})" if "whole" in each["row"] else "")
        for each in result(SEARCH)["comparisons"]
        if wanted(each)
    )


def headline() -> str:
    """In a few words, for README.md."""
    whole, *simple = ({"row": row} | _over(row, "MiniLM")["pooled"] for row in ("hybrid", *SIMPLE))
    best = max(simple, key=lambda each: each["difference"])
    return (
        f"On {whole['questions']} real questions about two collections that were used for no choice, the search is ahead of MiniLM alone by "
        f"**{_interval(whole)} nDCG@10**; it answers {whole['won']} questions better and {whole['lost']} worse. The strongest simple method, "
        f"{SIMPLE[best['row']]}, is ahead by {_interval(best)}. LeJEPA's training adds {_interval(_over('LeJEPA', 'hybrid')['pooled'])} to the search"
    )


def parameters() -> str:
    """Of the texts and the loss, from the declarations."""
    names = ("data_source", "num_samples", "output_dim", "train_length", "sigreg_weight", "contrastive_weight")
    return declarations.table(EmbeddingParameters, names=names)
