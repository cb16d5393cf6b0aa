"""What was measured of GraphMER-SE."""

from collections import Counter
from collections.abc import Mapping

from build import result, spread
from evidence import declarations, pictures
from evidence.seeds import Difference

from helpers.graphmer.parameters import GraphParameters
from helpers.graphmer.search_training import BATCH, STEPS
from helpers.show import intervals, tables

TUNED = f"tuned, {STEPS} steps of {BATCH}, batches of one package"  # the notebook's recipe
NOTEBOOKS_PAIRS = 6_000
FIGURE = "docs/figures/graphmer_calls.png"
SHOWN = ("BM25", "TF-IDF", "MiniLM", TUNED)

STUDIES = {
    "open_calls": "which function is meant by a call that the resolver leaves open",
    "impact": "which functions reach a function by one to three calls",
    "code_search": "which function a docstring describes",
    "embeddings": "open calls, by embeddings of the graph alone",
}


def headline() -> str:
    """For README.md: what is proved, beside the strongest of the other tools on the same calls."""
    pooled, packages = _pooled("report")
    counts = {tool: _shares(pooled[tool]) for tool in TOOLS}
    rows = result("graphmer_former_studies.json")["code_search"]
    words, trained = rows["BM25 and TF-IDF"], rows["and encoder, trained"]
    return (
        f"**The tests of {packages} packages, which were not used for any choice, made {pooled['resolver']['reached']:,} calls. The resolver "
        f"finds {counts['resolver'][0]} of them, and {counts['resolver'][1]} of its answers are correct**. On "
        f"{pooled['jedi']['reached']} of these calls, the resolver finds {counts['resolver on these'][0]}, jedi {counts['jedi'][0]} and basedpyright "
        f"{counts['basedpyright'][0]} (with jedi's answers added, {counts['resolver and inferred on these'][0]}). In code search the encoder adds nothing to word search "
        f"(mean reciprocal rank {spread(words['mrr_by_seed'])} without, {spread(trained['mrr_by_seed'])} with it). {_tuned()}"
    )


def draw() -> None:
    """Calls that each tool finds, of those that were asked of all."""
    pooled, _ = _pooled("report")
    rows = []
    for tool, name in (
        ("basedpyright", "basedpyright"),
        ("jedi", "jedi"),
        ("resolver on these", "this notebook's resolver"),
    ):
        calls = pooled[tool]["reached"]
        share = intervals.wilson(pooled[tool]["right"] / calls, calls)
        rows.append(pictures.percent(name, share, tool == "resolver on these"))
    pictures.dots("graphmer_calls", f"{calls} calls in the tests of packages", "calls found, %", rows)


def beats() -> str:
    """Whether the answers and the search are better than the strongest simple method, in a few words."""
    pooled, _ = _pooled("report")
    resolver, best = (_shares(pooled[tool])[0] for tool in ("resolver on these", "basedpyright"))
    tuned = _tuned_difference()
    return (
        f"no for who calls what: basedpyright finds {best} of the calls, the resolver {resolver}; {tuned.answer} for the code search: "
        f"{tuned.numbers()} reciprocal rank over MiniLM with BM25"
    )


def _tuned_difference() -> Difference:
    """The tuned search over MiniLM with the same help, by docstrings."""
    return _difference(result("graphmer_code_search_cpu.json")["rows"]["docstrings"], f"{TUNED}, in `search`")


def _difference(rows: dict, name: str, base: str = "MiniLM, fused") -> Difference:
    """The mean reciprocal rank of a row above that of another one."""
    low, high = rows[name]["above"][base]["interval"]
    return Difference.between(rows[name]["mrr_by_seed"], rows[base]["mrr_by_seed"], low, high)


def _tuned() -> str:
    found = result("graphmer_code_search_cpu.json")["rows"]["docstrings"]
    row, before = found[f"{TUNED}, in `search`"], found["MiniLM, fused"]
    return (
        f"The tuned search reaches {spread(row['mrr_by_seed'])} on other packages, and MiniLM with at least the same help reaches "
        f"{spread(before['mrr_by_seed'])} (difference: {_tuned_difference().numbers()}, {_tuned_difference().answer})"
    )


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
            if name.startswith(SHOWN)
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
    if row["above"] is None:
        return ""
    return "{:+.3f}, {:+.3f} to {:+.3f}".format(row["above"]["mrr"], *row["above"]["interval"])


TOOLS = {
    "resolver": "resolver",
    "only definition of the name": "the only definition of the name",
    "resolver on these": "resolver, on the sample that jedi and basedpyright got",
    "resolver and inferred on these": "resolver with its inferred answers, on the sample",
    "jedi": "jedi",
    "basedpyright": "basedpyright",
}


ROLES = {"report": "were not used for any choice", "choice": "were used to write the resolver"}


def _pooled(role: str) -> tuple[dict[str, Counter], int]:
    """Counts of each tool over the packages of one role, and how many these are."""
    packages = [found for found in result("graphmer_graph.json")["packages"].values() if found["role"] == role]
    pooled = {tool: Counter() for tool in (*TOOLS, "references")}
    for found in packages:
        for tool, counter in pooled.items():
            counter.update({key: value for key, value in found[tool].items() if isinstance(value, int | float)})
    return pooled, len(packages)


def _shares(counter: Mapping[str, float]) -> tuple[str, str]:
    """Recall and precision."""
    return f"{counter['right'] / counter['reached']:.1%}", f"{counter['right'] / counter['answered']:.1%}"


def proved() -> str:
    """Calls that ran in tests of packages: which of them each tool answers, and how rightly."""
    rows = []
    for role, title in ROLES.items():
        pooled, packages = _pooled(role)
        for tool, name in TOOLS.items():
            rows.append(_proved(f"{packages} that {title}", name, pooled[tool]))
    for name, found in result("graphmer_graph.json")["packages"].items():
        rows.append(_proved(f"{name} ({found['lines']:,} lines)", TOOLS["resolver"], found["resolver"]))
    return tables.markdown(rows)


def _proved(package: str, tool: str, counter: Mapping[str, float]) -> dict:
    recall, precision = _shares(counter)
    seconds = f"{counter['seconds']:,.1f} s"
    calls = f"{counter['reached']:,}"
    return {
        "packages": package,
        "tool": tool,
        "calls": calls,
        "recall": recall,
        "precision": precision,
        "processor time": seconds,
    }


def rules() -> str:
    """What each rule is worth."""
    rows = []
    for rule, answers in result("graphmer_rules.json")["rules"].items():
        for kind, counter in answers.items():
            right = counter["right"]
            rows.append({"rules": rule, "answers": kind, "right": f"{right:,}", "wrong": counter["answered"] - right})
    return f"{tables.markdown(rows)}\n\nOf {counter['reached']:,} calls."


def references() -> str:
    """Lines that basedpyright names for definitions, and which of these an answer of ours has."""
    rows, missing = [], []
    for role, title in ROLES.items():
        pooled, packages = _pooled(role)
        counter = pooled["references"]
        shares = {key: f"{counter[key] / counter['references']:.1%}" for key in ("named", "tied", "proved")}
        rows.append(
            {
                "packages": f"{packages} that {title}",
                "definitions": counter["definitions"],
                "lines of basedpyright": counter["references"],
                "named by an answer": shares["named"],
                "named, and not only as open": shares["tied"],
                "known": shares["proved"],
            }
        )
    for found in result("graphmer_graph.json")["packages"].values():
        missing += found["references"]["missing"]
    listed = ", ".join(f"`{place}`" for place in missing) or "none"
    return f"{tables.markdown(rows)}\n\nNot named by an answer: {listed}."


def asking() -> str:
    """What reading costs."""
    reading = result("graphmer_graph.json")["reading"]
    return (
        f"Reading the {reading['lines']:,} lines of the standard library takes {reading['new']:.1f} s of processor time, "
        f"{reading['cached']:.1f} s from the cache, and {reading['one changed file']:.1f} s if one file has changed."
    )


def parameters() -> str:
    """What is asked, how the search is tuned and which configuration the encoder has, from the declarations."""
    names = ("query", "question", "base_model", "search_steps", "config", "changes")
    return declarations.table(GraphParameters, names=names)
