"""What was measured of the search and of LeJEPA's training."""

from typing import Any

from build import ratio, result, spread
from evidence import declarations

from helpers.lejepa.parameters import EmbeddingParameters
from helpers.show import tables

SEARCH = "lejepa_search_cpu.json"


def _value(found: float | list[float]) -> str:
    return spread(found) if isinstance(found, list) else f"{found:.3f}"


def _interval(found: dict[str, Any]) -> str:
    return f"{found['difference']:+.3f} ({found['low']:+.3f} to {found['high']:+.3f})"


def comparison() -> str:
    """nDCG@10 of every row on every collection, and the pooled difference on the collections of the report."""
    found = result(SEARCH)
    pooled = {(each["row"], each["against"]): each["pooled"] for each in found["comparisons"]}
    rows = []
    for name in next(iter(found["rows"].values())):
        against = "MiniLM" if (name, "MiniLM") in pooled else "hybrid"
        verdict = pooled.get((name, against))
        rows.append(
            {"row": name}
            | {collection: _value(values[name]) for collection, values in found["rows"].items()}
            | {"pooled on npl and lisa": f"{_interval(verdict)} over {against}" if verdict else ""}
        )
    return tables.markdown(rows)


def says() -> str:
    """The two verdicts in words."""
    found = result(SEARCH)
    by = {(each["row"], each["against"]): each for each in found["comparisons"]}
    whole, trained, setting = by["hybrid", "MiniLM"], by["LeJEPA", "hybrid"], found["training"]
    apart = ", ".join(
        f"{name} {_interval(each)}, {each['won']} won and {each['lost']} lost of {each['questions']}"
        for name, each in whole.items()
        if name not in ("row", "against", "pooled")
    )
    return (
        f"**The whole search over MiniLM as it came: {_interval(whole['pooled'])}** pooled ({apart}). Training {setting['what']} with LeJEPA on "
        f"titles, or crops where there are none, adds {_interval(trained['pooled'])} to the same search ({len(setting['seeds'])} seeds, "
        f"{setting['steps']} steps of {setting['batch']}). Values are nDCG@10; intervals are over questions, and with seeds over their mean."
    )


def headline() -> str:
    """In a few words, for README.md."""
    return "Hybrid search beside the stock model on real questions: being measured"


def step() -> str:
    """What SIGReg costs alone."""
    sigreg = result("sigreg_benchmark_cpu.json")["comparisons"][0]
    sizes = sigreg["sizes"]
    return (
        f"SIGReg, forward and backward over {sizes['N']:,} texts, {sizes['K']} dimensions and {sizes['M']} slices on a CPU, is "
        f"{ratio(sigreg)} times as fast as plain autograd and takes 1/{sigreg['memory_ratio']:.0f} of its extra memory."
    )


def parameters() -> str:
    """Of the texts and the loss, from the declarations."""
    names = ("data_source", "num_samples", "output_dim", "train_length", "sigreg_weight", "contrastive_weight")
    return declarations.table(EmbeddingParameters, names=names)
