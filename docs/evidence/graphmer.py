"""What was measured of GraphMER-SE."""

from collections import Counter
from collections.abc import Mapping

from build import result, spread
from evidence import declarations

from helpers.graphmer.parameters import GraphParameters
from helpers.graphmer.search_training import BATCH, STEPS
from helpers.show import tables

TUNED = f"tuned, {STEPS} steps of {BATCH}, batches of one package"  # the notebook's recipe
SHOWN = ("BM25", "TF-IDF", "MiniLM", TUNED)

STUDIES = {
    "open_calls": "which function a call means that the resolver leaves open",
    "impact": "which functions reach a function by one to three calls",
    "code_search": "which function a docstring describes",
    "embeddings": "open calls, by embeddings of the graph alone",
}


def headline() -> str:
    """For README.md: what is proved, beside the strongest of the other tools on the same calls."""
    packages = result("graphmer_graph.json")["packages"].values()
    pooled = {tool: Counter() for tool in TOOLS}
    for found in packages:
        for tool in TOOLS.keys() & found.keys():
            pooled[tool].update({key: found[tool][key] for key in ("reached", "answered", "right")})
    recall = {tool: each["right"] / each["reached"] for tool, each in pooled.items()}
    precision = {tool: each["right"] / each["answered"] for tool, each in pooled.items()}
    name, asked = "only definition of the name", "resolver on jedi's calls"
    rows = result("graphmer_former_studies.json")["code_search"]
    words, trained = rows["BM25 and TF-IDF"], rows["and encoder, trained"]
    return (
        f"**Of {pooled['resolver']['reached']:,} calls that the tests of {len(packages)} packages made, the resolver answers "
        f"{recall['resolver']:.1%} rightly, and {precision['resolver']:.1%} of its answers are right**; taking the only definition of a name "
        f"gives {recall[name]:.1%} and {precision[name]:.1%}. On {pooled['jedi']['reached']} of these calls jedi has {recall['jedi']:.1%} and "
        f"{precision['jedi']:.1%}, the resolver {recall[asked]:.1%} and {precision[asked]:.1%}. In code search the encoder adds nothing to words "
        f"(a mean reciprocal rank of {spread(words['mrr_by_seed'])} without it and {spread(trained['mrr_by_seed'])} with it). {_tuned()}"
    )


def _tuned() -> str:
    found = result("graphmer_code_search_cpu.json")["rows"]["docstrings"]
    row, before = found[f"{TUNED}, in `search`"], found["MiniLM, fused"]
    return (
        f"The tuned search reaches {spread(row['mrr_by_seed'])} on other packages, and MiniLM with at least the same help "
        f"{spread(before['mrr_by_seed'])} (difference {_above(row, 'MiniLM, fused')})"
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
                "above MiniLM, fused (95 %)": _above(row, "MiniLM, fused"),
                f"MRR, {count['tests']:,} names of tests": spread(tests[name]["mrr_by_seed"]),
                "above MiniLM, fused (95 %) ": _above(tests[name], "MiniLM, fused"),
            }
            for name, row in docstrings.items()
            if name.startswith(SHOWN)
        ]
    )
    candidates = [found["packages"][name]["definitions"] for name in found["test"]]
    return (
        f"{table}\n\n{len(found['test'])} packages, {min(candidates)} to {max(candidates)} definitions in each; "
        f"{found['training_pairs']:,} training pairs, where the notebook takes the first 6,000."
    )


def _above(row: dict, base: str = "") -> str:
    if base:
        row = {"above": row["above"].get(base)}
    if row["above"] is None:
        return ""
    return "{:+.3f}, {:+.3f} to {:+.3f}".format(row["above"]["mrr"], *row["above"]["interval"])


TOOLS = {"resolver": "resolver", "resolver on jedi's calls": "resolver, on the calls that jedi was asked", "jedi": "jedi, on these",
         "only definition of the name": "the only definition of the name"}  # fmt: skip


def proved() -> str:
    """Calls that ran in tests of packages: which of them each tool answers, and how rightly."""
    packages = result("graphmer_graph.json")["packages"]
    pooled = {tool: Counter() for tool in TOOLS}
    rows = []
    for name, found in packages.items():
        for tool in TOOLS.keys() & found.keys():
            pooled[tool].update({key: found[tool][key] for key in ("reached", "answered", "right")})
            pooled[tool].update({"packages": 1, "seconds": found[tool].get("seconds_for_all", found[tool]["seconds"])})
        title = f"{name} ({found['lines']:,} lines)"
        rows.append(_proved(title, TOOLS["resolver"], found["resolver"], found["resolver"]["seconds"]))
    for tool in ("only definition of the name", "resolver on jedi's calls"):
        pooled[tool]["seconds"] = 0
    all_of_them = [
        _proved(f"{each['packages']} packages", TOOLS[tool], each, each["seconds"]) for tool, each in pooled.items()
    ]
    return tables.markdown([*all_of_them, *rows])


def _proved(package: str, tool: str, found: Mapping[str, float], seconds: float) -> dict:
    return {
        "package": package,
        "tool": tool,
        "calls": f"{found['reached']:,}",
        "recall": f"{found['right'] / found['reached']:.3f}",
        "precision": f"{found['right'] / found['answered']:.3f}",
        "processor time, all calls": f"{seconds:,.1f} s" if seconds else "",
    }


def asking() -> str:
    """What an answer costs."""
    found = result("graphmer_graph.json")["asking"]
    return (
        f"The shell's answer about {found['package']} ({found['lines']:,} lines) takes {found['new']:.1f} s of processor time, and "
        f"{found['cached']:.1f} s once its graph is kept."
    )


def parameters() -> str:
    """What is asked, how the search is tuned and which configuration the encoder has, from the declarations."""
    names = ("query", "question", "base_model", "search_steps", "config", "changes")
    return declarations.table(GraphParameters, names=names)
