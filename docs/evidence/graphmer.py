"""What was measured of GraphMER-SE."""

from collections import Counter
from collections.abc import Mapping

from evidence import declarations
from evidence.seeds import Difference

from helpers.graphmer.parameters import GraphParameters
from helpers.graphmer.search_training import BATCH, STEPS
from helpers.show import tables
from tools.pages import result, spread

TUNED = f"tuned, {STEPS} steps of {BATCH}, batches of one package"  # the notebook's recipe
SEARCH = "graphmer_code_search_cpu.json"
KINDS = {"docstrings": "docstrings", "tests": "names of tests"}

STUDIES = {
    "open_calls": "which function is meant by a call that the former resolver left open",
    "impact": "which functions reach a function by one to three calls",
    "code_search": "which function a docstring describes",
    "embeddings": "open calls, by embeddings of the graph alone",
}


def beats() -> str:
    """Whether the answers and the search are better than the strongest simple method, in a few words."""
    parts = []
    for kind, measured in result(SEARCH)["kinds"].items():
        tuned = _difference(measured, f"{TUNED}, in `search`")
        parts.append(
            f"{tuned.answer} for a code search by {KINDS[kind]}: {tuned.numbers()} reciprocal rank over "
            + measured["strongest"].replace(", fused", " with BM25")
        )
    return f"{'; '.join(parts)}; who calls what needs no training (pyrefly's index: {_shares(_pooled()['index'])[0]} of the calls)"


def _difference(kind: dict, name: str) -> Difference:
    """Of a row and the strongest one without training."""
    row, strongest = kind["rows"][name], kind["rows"][kind["strongest"]]
    return Difference.between(row["mrr_by_seed"], strongest["mrr_by_seed"], *row["interval"])


def former_studies() -> str:
    """What the graph-trained encoder adds where the truth came from outside of the graph."""
    found = result("graphmer_former_studies.json")
    rows = []
    for study, question in STUDIES.items():
        *_, (scorer, row) = found[study].items()
        rows.append(
            {"question": question, "method": f"simple methods {scorer}", "MRR above simple methods (95 %)": _above(row)}
        )
    return tables.markdown(rows)


def code_search() -> str:
    """Search in packages that no stage saw, by questions of two kinds."""
    found = result(SEARCH)
    rows: dict[str, dict] = {}
    for kind, measured in found["kinds"].items():
        count = sum(found["packages"][name].get(kind, 0) for name in found["test"])
        for name, row in measured["rows"].items():
            cells = rows.setdefault(name, {"scorer": name})
            cells[f"MRR, {count:,} {KINDS[kind]}"] = spread(row["mrr_by_seed"])
            cells[f"above {measured['strongest']} (95 %)"] = _cell(measured, name)
    return f"{tables.markdown([*rows.values()])}\n\n{len(found['test'])} packages; {found['training_pairs']:,} training pairs at most, as in the notebook."


def _cell(kind: dict, name: str) -> str:
    """Over packages alone where a row has no seeds."""
    if name == kind["strongest"]:
        return ""
    difference = _difference(kind, name)
    if len(difference.by_seed) > 1:
        return difference.text()
    return "{:+.3f} ({:+.3f} to {:+.3f})".format(difference.value, *difference.items)


def _above(row: dict) -> str:
    return "{:+.3f}, {:+.3f} to {:+.3f}".format(row["above"]["mrr"], *row["above"]["interval"])


TOOLS = {
    "index": "pyrefly's index",
    "index and inferred": "pyrefly's index, and inferred",
    "basedpyright": "basedpyright",
    "ty": "ty",
    "former resolver": "the former resolver",
    "former resolver and inferred": "the former resolver, and inferred (with jedi)",
    "jedi on a sample": "jedi, on a sample",
    "index and inferred on the sample": "pyrefly's index, and inferred, on the sample",
}


def _pooled() -> dict[str, Counter]:
    """Counts of each tool over the packages that were used for no choice."""
    pooled = {tool: Counter() for tool in TOOLS}
    for found in result("graphmer_graph.json")["packages"].values():
        if found["role"] == "report":
            for tool, counter in pooled.items():
                counter.update({key: value for key, value in found[tool].items() if isinstance(value, int | float)})
    return pooled


def _shares(counter: Mapping[str, float]) -> tuple[str, str]:
    """Recall and precision."""
    return f"{counter['right'] / counter['reached']:.1%}", f"{counter['right'] / counter['answered']:.1%}"


def calls() -> str:
    """Calls that ran in tests of packages: which of them each tool answers, and how rightly."""
    pooled = _pooled()
    return tables.markdown([_row(name, pooled[tool]) for tool, name in TOOLS.items()])


def _row(tool: str, counter: Mapping[str, float]) -> dict:
    recall, precision = _shares(counter)
    seconds = f"{counter['seconds']:,.1f} s" if counter.get("seconds") else ""
    row = {"tool": tool, "calls": f"{counter['reached']:,}", "recall": recall}
    return row | {"precision": precision, "processor time": seconds}


def asking() -> str:
    """What reading costs."""
    reading = result("graphmer_graph.json")["reading"]
    ask, sample = reading["ask"], reading["sample"]
    return (
        f"`ask` takes {ask['from nothing']:.1f} s of processor time on {ask['lines']:,} lines, and {ask['kept']:.1f} s once the index is kept. "
        f"The graph of the sample, the standard library, takes {sample['from nothing']:.0f} s, and {sample['kept']:.0f} s from a kept index."
    )


def parameters() -> str:
    """What is asked, how the search is tuned and which configuration the encoder has, from the declarations."""
    names = ("query", "question", "base_model", "search_steps", "config", "changes")
    return declarations.table(GraphParameters, names=names)
