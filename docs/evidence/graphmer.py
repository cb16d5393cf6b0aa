"""What was measured of GraphMER-SE."""

from collections.abc import Callable
from statistics import fmean

from build import ratio, result, spread
from evidence import declarations

from helpers import tables
from helpers.graphmer.parameters import GraphParameters

LINKS = "graphmer_se_links_second_split_cpu.json"
ABLATIONS = "graphmer_se_ablations_second_split_cpu.json"
TASKS = "graphmer_se_tasks_second_split_cpu.json"
FIRST_SPLIT = "graphmer_se_links_cpu.json"
OPEN_CALLS = "graphmer_open_calls_cpu.json"
FIRST_OPEN_CALLS = "graphmer_open_calls_first_study_cpu.json"
CODE_SEARCH, FEWEST_FUNCTIONS = "graphmer_code_search_cpu.json", 100  # of a package that is searched
FEWEST_QUESTIONS = 10  # of a package that is asked
ASKING = "graphmer_asking_cpu.json"
EMBEDDINGS = "graphmer_embeddings_cpu.json"
FORMER = "graphmer_se_cpu_seed0.json"  # the former recipe, on the first split
GRAPH = "graph_extraction_cpu.json"
ENCODER, TOGETHER, LEXICAL = "encoder", "encoder and strings", "strings"  # as the files name them
NAMES = {
    ENCODER: "**encoder**, with counts",
    TOGETHER: "**encoder and lexical baseline together**, with counts",
    LEXICAL: "lexical baseline: names, words of the sources, counts",
    "transe": "TransE",
    "rotate": "RotatE",
    "distmult": "DistMult",
}
METRICS: dict[str, Callable[[dict], float]] = {
    "MRR": lambda row: row["both"]["mrr"],
    "Hits@10": lambda row: row["both"]["hits@10"],
    "MRR beyond names": lambda row: row["beyond_names"]["both"]["mrr"],
    "Hits@10 beyond names": lambda row: row["beyond_names"]["both"]["hits@10"],
}
LEAST_ASKED = 20  # of a relation with a line of its own


def headline() -> str:
    """For README.md."""
    rows = result(OPEN_CALLS)["rows"]
    best, lexical = rows[_best_encoder(rows)], rows["lexical"]
    return (
        f"No gain over simple methods: which function is meant by a call that the resolver leaves open, features of names and sources "
        f"answer with an MRR of {lexical['mrr']:.3f}, jedi and these with {rows['jedi, then lexical']['mrr']:.3f}, and these with the "
        f"encoder with {best['mrr']:.3f} (difference {'{:+.3f}, {:+.3f} to {:+.3f}'.format(*_above(best, 'lexical'))})"
    )


def _best_encoder(rows: dict) -> str:
    """The trained encoder with the lexical features, once it was measured."""
    return next(
        name
        for name in ("lexical and encoder trained", "lexical and encoder", "lexical and encoder before training")
        if name in rows
    )


OPEN = {  # as files name them; the benchmark's first form had no "trained"
    "lexical": "**lexical**: all features",
    "jedi, then lexical": "jedi, then lexical",
    "encoder before training": "encoder before training",
    "encoder": "encoder, trained",
    "encoder trained": "encoder, trained",
    "lexical and encoder before training": "lexical and encoder before training",
    "lexical and encoder": "lexical and encoder, trained",
    "lexical and encoder trained": "lexical and encoder, trained",
    "jedi, then lexical and encoder trained": "jedi, then lexical and encoder, trained",
}


def open_calls(file: str = OPEN_CALLS) -> str:
    """Which function is meant by a call that the resolver leaves open."""
    found = result(file)
    rows, packages = found["rows"], found["packages"]
    single = max((name for name in rows if name.startswith("one feature")), key=lambda name: rows[name]["mrr"])
    shown = {"chance": "chance", f"best single feature: {single.partition(': ')[2]}": single}
    shown |= {title: name for name, title in OPEN.items() if name in rows}
    asked = {
        name: each.get("asked", each["questions"])
        for name, each in packages.items()
        if each["questions"] >= FEWEST_QUESTIONS
    }
    seeds = len(rows[_best_encoder(rows)]["mrr_by_seed"])
    last, ahead = rows.get("jedi, then lexical and encoder trained"), ""
    if last:
        ahead = f"\n\nThe last row differs from jedi, then lexical by {_difference(last, 'jedi, then lexical')}."
    return (
        f"{sum(asked.values())} questions of {len(asked)} packages: "
        f"{', '.join(f'{name} ({count})' for name, count in asked.items())}. jedi answers "
        f"{found['jedi']['answers']:.0%} of them, {found['jedi']['right']:.0%} rightly. Training of {found['steps']:,} steps, {seeds} "
        f"{'seed' if seeds == 1 else 'seeds'}.\n\n{_table(rows, shown, {'lexical': 'MRR above lexical (95 % interval)'})}{ahead}"
    )


def _above(row: dict, base: str) -> tuple[float, float, float]:
    """MRR above that of another row, and its 95 % interval; the first form of open calls has those above lexical alone."""
    found = row["above"][base] if "above" in row else {"mrr": row["above_lexical"], "interval": row["interval"]}
    return found["mrr"], *found["interval"]


def _difference(row: dict, base: str) -> str:
    return "{:+.3f} ({:+.3f} to {:+.3f})".format(*_above(row, base))


def _table(rows: dict, shown: dict[str, str], bases: dict[str, str]) -> str:
    """shown: title -> name of a row, those that the file lacks left out; bases: row -> title of the column of what is above it."""
    return tables.markdown(
        [
            {
                "scorer": title,
                "MRR": spread(rows[name]["mrr_by_seed"]),
                "first answer right": f"{rows[name]['first']:.3f}",
            }
            | {column: "" if name == base else _difference(rows[name], base) for base, column in bases.items()}
            for title, name in shown.items()
            if name in rows
        ]
    )


def first_open_calls() -> str:
    """By the benchmark's first form."""
    return open_calls(FIRST_OPEN_CALLS)


def embeddings() -> str:
    """PyKEEN's models on held-out triples of all packages, and asked for open calls."""
    found = result(EMBEDDINGS)
    graph, held_out, settings = found["graph"], found["held_out"], found["settings"]
    packages = {name: each["asked"] for name, each in found["packages"].items() if each["asked"]}
    bases = {"lexical": "above lexical (95 %)", "jedi, then lexical": "above jedi, then lexical (95 %)"}
    trained = [
        {"scorer": name, "MRR": spread([each["mrr"] for each in seeds]), "Hits@10": spread([each["hits@10"] for each in seeds])}
        for name, seeds in held_out.items()
    ]  # fmt: skip
    seeds = len(held_out["RotatE"])
    seconds = sum(
        each["processor_seconds"] for seeds in held_out.values() for each in seeds if "processor_seconds" in each
    )
    return (
        f"{graph['triples']:,} triples of {graph['entities']:,} entities, {settings['epochs']} epochs, {settings['width']} real numbers an "
        f"entity, {seeds} {'seed' if seeds == 1 else 'seeds'}, {seconds / 60:.0f} minutes of processor time for all of it. Held-out triples, "
        f"{settings['tested']} a seed, from both ends among all entities:\n\n{tables.markdown(trained)}\n\n"
        f"{sum(packages.values())} open calls of {len(packages)} packages: "
        f"{', '.join(f'{name} ({count})' for name, count in packages.items())}.\n\n"
        f"{_table(found['rows'], {name: name for name in found['rows']}, bases)}"
    )


SEARCH = {
    "chance": "chance",
    "**BM25** over source and names": "BM25",
    "BM25 and TF-IDF": "BM25 and TF-IDF",
    "BM25 and MiniLM, pretrained elsewhere": "BM25 and MiniLM",
    "encoder, trained": "encoder trained",
    "BM25 and encoder before training": "BM25 and encoder before training",
    "BM25 and encoder, trained": "BM25 and encoder trained",
    "BM25 and encoder, also tuned on docstrings": "BM25 and encoder trained, tuned",
}


def code_search() -> str:
    """Functions found by the first sentence of their docstring."""
    found = result(CODE_SEARCH)
    packages = {name: each for name, each in found["packages"].items() if each["functions"] >= FEWEST_FUNCTIONS}
    return (
        f"{sum(each['functions'] for each in packages.values()):,} functions of {len(packages)} packages; {found['steps']} steps of training, "
        f"{found['tuning']['steps']} of tuning; {len(found['seeds'])} seeds, one before training.\n\n"
        + _table(found["rows"], SEARCH, {"BM25": "above BM25 (95 %)"})
    )


def all_code_search() -> str:
    """Every row, beside both lexical ones."""
    found = result(CODE_SEARCH)
    packages = ", ".join(f"{name} {each['version']} ({each['functions']})" for name, each in found["packages"].items())
    bases = {"BM25": "above BM25 (95 %)", "BM25 and TF-IDF": "above BM25 and TF-IDF (95 %)"}
    return f"Functions of {packages}:\n\n{_table(found['rows'], {name: name for name in found['rows']}, bases)}"


def asking() -> str:
    """What an answer costs."""
    found = result(ASKING)
    about, new, again = found["repository"], found["new"], found["extracted"]

    def seconds(each: dict) -> str:
        return f"{each['processor']:.1f}"

    return (
        f"On {about['package'].replace('==', ' ')} ({about['lines']:,} lines, {about['entities']:,} entities), in seconds of processor time: "
        f"{seconds(new['load'])} to load the model, {seconds(new['answers'][0])} to the first answer, then "
        f"{' and '.join(map(seconds, new['answers'][1:]))}. In a new process, where the graph was extracted before: "
        f"{seconds(again['answers'][0])}, then {' and '.join(map(seconds, again['answers'][1:]))}."
    )


def _rows(file: str) -> dict[str, list[dict]]:
    """Scorer -> its results, in the order of seeds."""
    found: dict[str, list[dict]] = {}
    for name, row in sorted(result(file)["rows"].items()):
        found.setdefault(name.partition(", seed ")[0], []).append(row)
    return found


def _of(rows: list[dict], metric: str) -> str:
    return spread([METRICS[metric](row) for row in rows])


def _line(name: str, rows: list[dict]) -> dict:
    return {"scorer": name} | {metric: _of(rows, metric) for metric in METRICS}


def links() -> str:
    """Held-out links by encoder, lexical baseline, both and what costs nothing."""
    found, rows, graph = result(LINKS), _rows(LINKS), result(GRAPH)["graph"]
    ordered = sorted(rows, key=lambda name: -fmean(map(METRICS["MRR"], rows[name])))
    return (
        f"{graph['entities']:,} entities and {graph['triples']:,} triples in all; {rows[ENCODER][0]['triples']} of "
        f"{found['test_triples']:,} test triples asked for from both sides; {found['steps']:,} steps, {len(rows[ENCODER])} seeds of "
        f"weights, order and masks, mean ± sample standard deviation:\n\n"
        + tables.markdown([_line(NAMES.get(name, name), rows[name]) for name in ordered])
    )


def ahead() -> str:
    """By how much the encoder leads, beside what its seeds and the packages differ."""
    rows = _rows(LINKS)
    gains = {metric: fmean(map(of, rows[ENCODER])) - of(rows[LEXICAL][0]) for metric, of in METRICS.items()}
    ours, theirs = ("{:.2f} to {:.2f}".format(*rows[name][0]["both"]["mrr_interval"]) for name in (ENCODER, LEXICAL))
    return (
        f"- **The encoder alone is ahead of every baseline**: before the lexical one by {gains['MRR']:.3f} of MRR and {gains['Hits@10']:.3f} of "
        f"Hits@10, and by {gains['MRR beyond names']:.3f} and {gains['Hits@10 beyond names']:.3f} where names alone do not answer. What "
        f"its seeds differ stands in the table.\n"
        f"- **Which packages are held out matters more than seeds**: the 95 % interval of MRR over modules is {ours} for seed 0 and "
        f"{theirs} for the lexical baseline. The two overlap, and the difference was not tested in pairs of modules."
    )


def by_relation() -> str:
    """MRR of each relation that was asked for often enough."""
    rows = _rows(LINKS)
    asked = {name: each["both"]["ranks"] for name, each in rows[LEXICAL][0]["relations"].items()}
    return tables.markdown(
        [
            {"MRR": f"`{relation}`", "asked": asked[relation]}
            | {
                column: spread([row["relations"][relation]["both"]["mrr"] for row in rows[name]])
                for column, name in (("together", TOGETHER), ("encoder", ENCODER), ("lexical", LEXICAL))
            }
            for relation in sorted(asked, key=asked.get, reverse=True)
            if asked[relation] >= LEAST_ASKED
        ]
    )


def splits() -> str:
    """The split that the recipe was chosen on, and what both splits share."""
    rows = _rows(FIRST_SPLIT)
    packages, others = (result(f"graphmer_se_{name}_split.json")["test_packages"] for name in ("first", "second"))
    largest, shared = max(packages, key=packages.get), packages.keys() & others.keys()
    return (
        f"On the split that the recipe was chosen on, {packages[largest] / sum(packages.values()):.0%} of it `{largest}`, the encoder "
        f"reached {_of(rows[ENCODER], 'MRR')} against {_of(rows[LEXICAL], 'MRR')} for the lexical baseline (Hits@10 {_of(rows[ENCODER], 'Hits@10')} "
        f"against {_of(rows[LEXICAL], 'Hits@10')}), and both together {_of(rows[TOGETHER], 'MRR')}. {len(shared)} small packages with "
        f"{sum(packages[name] for name in shared)} test triples are in the tests of both splits."
    )


def ablations() -> str:
    """The same encoder with a part left out, and the difference seed by seed."""
    whole, without = _rows(LINKS)[ENCODER], _rows(ABLATIONS)
    names = {name: f"{name.partition(', ')[2]} ({len(rows)} seeds)" for name, rows in without.items()}
    lines = [_line(ENCODER, whole), *(_line(names[name], rows) for name, rows in sorted(without.items(), reverse=True))]

    def worth(part: str, metric: str) -> str:
        less = without[f"{ENCODER}, without {part}"]
        gains = [METRICS[metric](a) - METRICS[metric](b) for a, b in zip(whole, less, strict=True)]
        return f"{spread(gains)} of {metric} (better in {sum(gain > 0 for gain in gains)} of {len(gains)} seeds)"

    former = {name: row for name, row in result(FORMER)["eval"]["baselines"].items() if isinstance(row, dict)}
    hgat, decay = (
        METRICS["MRR"](former["GraphMER-SE"]) - METRICS["MRR"](former[f"without {part}"]) for part in ("H-GAT", "decay")
    )
    return (
        f"{tables.markdown(lines)}\n\n"
        f"Seed by seed, H-GAT is worth {worth('H-GAT', 'MRR')}, {worth('H-GAT', 'MRR beyond names')} and "
        f"{worth('H-GAT', 'Hits@10 beyond names')}; decay is worth {worth('decay', 'MRR')} and "
        f"{worth('decay', 'MRR beyond names')}. With the former recipe (first window alone, one field, "
        f"neither pairs nor paths; one seed on the other split) H-GAT was worth {hgat:.2f} and decay {decay:.2f}."
    )


def other_tasks() -> str:
    """What else the encoder is asked, one seed."""
    found = result(TASKS)["rows"]["encoder, seed 0"]
    masked, search = found["masked"], found["code_search"]

    def row(task: str, measure: str, value: float, interval: list[float], beside: str = "") -> dict:
        return {
            "task": task,
            "measure": measure,
            "encoder (95 % interval)": "{:.3f} ({:.3f} to {:.3f})".format(value, *interval),
            "costs nothing": beside,
        }

    return tables.markdown(
        [
            *(
                row(task, "first answer", each["rate"], each["interval"])
                for task, each in (
                    ("masked tokens", masked["mlm"]["top1"]),
                    ("tokens of masked leaves", masked["mnm"]["top1"]),
                    ("whole masked leaves", masked["mnm"]["leaf"]),
                )
            ),
            row(
                "functions by their docstring, never trained for",
                "MRR@10",
                search["mrr@10"],
                search["interval"],
                f"{search['chance']:.3f}, chance",
            ),
        ]
    )


def speed() -> str:
    """Compact layout, fusion and extraction."""
    layout, fusion = result("graphmer_benchmark_cpu.json")["comparisons"]
    parsing, without_collector = result(GRAPH)["comparisons"][:2]
    sizes = layout["sizes"]
    return (
        f"{sizes['layers']} layers of {sizes['D']}, {sizes['parameters']:,} weights, on one CPU thread: the compact layout of "
        f"{sizes['positions']} positions is {ratio(layout)} times as fast as {sizes['peer_positions']:,} slots with a Python loop over "
        f"triples, with the same loss; H-GAT is {fusion['share']:.1%} of a step. Extracting the standard library's graph takes "
        f"{ratio(parsing, 2)} times as long as parsing it with `ast`, {ratio(without_collector, 2)} times where Python's garbage collector "
        "is off for the parser."
    )


def parameters() -> str:
    """Which configuration, what of it is changed, and what is compared, from the declarations."""
    names = ("config", "changes", "compare_baselines", "ablations", "further_seeds", "query")
    return declarations.table(GraphParameters, names=names)
