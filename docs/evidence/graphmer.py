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
NOTEBOOKS_PAIRS = 6_000
FORMER_SECONDS = 6.8  # of the former resolver on the standard library, at commit c8c9adc4

STUDIES = {
    "open_calls": "which function is meant by a call that the former resolver left open",
    "impact": "which functions reach a function by one to three calls",
    "code_search": "which function a docstring describes",
    "embeddings": "open calls, by embeddings of the graph alone",
}


def beats() -> str:
    """Whether the answers and the search are better than the strongest simple method, in a few words."""
    pooled, _ = _pooled("report")
    tuned = _tuned_difference()
    return (
        f"{tuned.answer} for the code search: {tuned.numbers()} reciprocal rank over MiniLM with BM25; who calls what needs no training "
        f"(pyrefly's index: {_shares(pooled['index'])[0]} of the calls)"
    )


def _tuned_difference() -> Difference:
    """The tuned search over MiniLM with the same help, by docstrings."""
    return _difference(result("graphmer_code_search_cpu.json")["rows"]["docstrings"], f"{TUNED}, in `search`")


def _difference(rows: dict, name: str, base: str = "MiniLM, fused") -> Difference:
    """The mean reciprocal rank of a row above that of another one."""
    low, high = rows[name]["above"][base]["interval"]
    return Difference.between(rows[name]["mrr_by_seed"], rows[base]["mrr_by_seed"], low, high)


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
    found = result("graphmer_code_search_cpu.json")
    docstrings, tests = found["rows"]["docstrings"], found["rows"]["tests"]
    count = Counter()
    for name in found["test"]:
        count.update({kind: found["packages"][name][kind] for kind in ("docstrings", "tests")})
    table = tables.markdown(
        [
            {
                "scorer": name,
                f"MRR, {count['docstrings']:,} docstrings": spread(row["mrr_by_seed"]),
                "above MiniLM, fused (95 %)": _above_fused(docstrings, name),
                f"MRR, {count['tests']:,} names of tests": spread(tests[name]["mrr_by_seed"]),
                "above MiniLM, fused (95 %) ": _above_fused(tests, name),
            }
            for name, row in docstrings.items()
        ]
    )
    candidates = [found["packages"][name]["definitions"] for name in found["test"]]
    as_there = "as in" if found["training_pairs"] <= NOTEBOOKS_PAIRS else f"where {NOTEBOOKS_PAIRS:,} are read in"
    return (
        f"{table}\n\n{len(found['test'])} packages, {min(candidates)} to {max(candidates)} definitions in each; "
        f"{found['training_pairs']:,} training pairs, {as_there} the notebook."
    )


def _above_fused(rows: dict, name: str) -> str:
    """By seed, or with an interval over items where there is no seed."""
    if "MiniLM, fused" not in rows[name]["above"]:
        return ""
    if len(rows[name]["mrr_by_seed"]) > 1:
        return _difference(rows, name).text()
    return _above({"above": rows[name]["above"]["MiniLM, fused"]})


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
ROLES = {"report": "that were used for no choice", "choice": "that the former resolver was written on"}


def _pooled(role: str) -> tuple[dict[str, Counter], int]:
    """Counts of each tool over the packages of one role, and how many these are."""
    packages = [found for found in result("graphmer_graph.json")["packages"].values() if found["role"] == role]
    pooled = {tool: Counter() for tool in TOOLS}
    for found in packages:
        for tool, counter in pooled.items():
            counter.update({key: value for key, value in found[tool].items() if isinstance(value, int | float)})
    return pooled, len(packages)


def _shares(counter: Mapping[str, float]) -> tuple[str, str]:
    """Recall and precision."""
    return f"{counter['right'] / counter['reached']:.1%}", f"{counter['right'] / counter['answered']:.1%}"


def calls() -> str:
    """Calls that ran in tests of packages: which of them each tool answers, and how rightly."""
    rows = []
    for role, title in ROLES.items():
        pooled, packages = _pooled(role)
        rows += [_row(f"{packages} {title}", name, pooled[tool]) for tool, name in TOOLS.items()]
    return tables.markdown(rows)


def _row(package: str, tool: str, counter: Mapping[str, float]) -> dict:
    recall, precision = _shares(counter)
    seconds = f"{counter['seconds']:,.1f} s" if counter.get("seconds") else ""
    calls = f"{counter['reached']:,}"
    row = {"packages": package, "tool": tool, "calls": calls, "recall": recall}
    return row | {"precision": precision, "processor time": seconds}


def asking() -> str:
    """What reading costs."""
    reading = result("graphmer_graph.json")["reading"]
    ask, sample = reading["ask"], reading["sample"]
    return (
        f"`ask` takes {ask['from nothing']:.1f} s of processor time on {ask['lines']:,} lines, and {ask['kept']:.1f} s once the index is kept. "
        f"The graph of the sample, the standard library, takes {sample['from nothing']:.0f} s, and {sample['kept']:.0f} s from a kept index; the "
        f"former resolver took {FORMER_SECONDS:.0f} s."
    )


def parameters() -> str:
    """What is asked, how the search is tuned and which configuration the encoder has, from the declarations."""
    names = ("query", "question", "base_model", "search_steps", "config", "changes")
    return declarations.table(GraphParameters, names=names)
