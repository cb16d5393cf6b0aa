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
CODE_SEARCH = "graphmer_code_search_cpu.json"
FEWEST_QUESTIONS = 10  # of a package that is asked
IMPACT = "graphmer_impact_cpu.json"
ASKING = "graphmer_asking_cpu.json"
PROFILES = "graphmer_profiles_cpu.json"
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
    best, simple = rows[f"{SIMPLE} and encoder trained"], rows[SIMPLE]
    return (
        f"No gain over simple methods: which function is meant by a call that the resolver leaves open, features of names and sources "
        f"answer with an MRR of {rows['lexical']['mrr']:.3f}, these with regular expressions and character n-grams with {simple['mrr']:.3f}, and all of them with the "
        f"encoder with {best['mrr']:.3f} (difference {'{:+.3f}, {:+.3f} to {:+.3f}'.format(*_above(best, SIMPLE))})"
    )


SIMPLE = "all simple methods"
AT_SITES = "tuned on call sites"
OPEN = {
    "regular expressions": "regex",
    "lexical: all features": "lexical",
    f"**{SIMPLE}**": SIMPLE,
    "encoder before training": "encoder before training",
    "encoder, trained": "encoder trained",
    "all and encoder before training": f"{SIMPLE} and encoder before training",
    "all and encoder, trained": f"{SIMPLE} and encoder trained",
    "all and encoder before training, at call sites": f"{SIMPLE} and encoder before training, at call sites",
    f"all and encoder, {AT_SITES}": f"{SIMPLE} and encoder before training, {AT_SITES}",
    f"all and encoder, trained and {AT_SITES}": f"{SIMPLE} and encoder trained, {AT_SITES}",
    "all and MiniLM, pretrained elsewhere": f"{SIMPLE} and MiniLM",
}
FIRST_OPEN = {  # as the benchmark's first form named them
    "**lexical**: all features": "lexical",
    "jedi, then lexical": "jedi, then lexical",
    "encoder before training": "encoder before training",
    "encoder, trained": "encoder",
    "lexical and encoder before training": "lexical and encoder before training",
    "lexical and encoder, trained": "lexical and encoder",
}


def open_calls() -> str:
    """Which function is meant by a call that the resolver leaves open."""
    found = result(OPEN_CALLS)
    rows, answers = found["rows"], found["resolvers"]
    asked = [each["asked"] for each in found["packages"].values() if each["questions"] >= FEWEST_QUESTIONS]
    resolvers = ", ".join(
        f"{title} {answers[name]['answers']:.0%} ({answers[name]['right']:.0%} rightly)"
        for title, name in (("regular expressions answer", "regex"), ("jedi", "jedi"))
    )
    return (
        f"{sum(asked)} questions of {len(asked)} packages; {resolvers}. Training of {found['steps']:,} steps, {len(found['seeds'])} seeds.\n\n"
        f"{_table(rows, _single(rows) | OPEN, {SIMPLE: 'above all simple methods (95 %)'}, first=False)}"
    )


def open_calls_parts() -> str:
    """The encoder with a part left out, and the rows that the page leaves out."""
    found = result(OPEN_CALLS)
    rows = found["rows"]
    counted = {name: len(row["mrr_by_seed"]) for name, row in rows.items()}
    shown = {
        f"{name} ({counted[name]} {'seed' if counted[name] == 1 else 'seeds'})" if "encoder" in name else name: name
        for name in rows
        if "copies left out" not in name and not name.startswith("one feature")
    }
    bases = {"lexical": "MRR above lexical (95 %)", SIMPLE: "MRR above all simple methods (95 %)"}
    return _table(rows, shown, bases)


def first_open_calls() -> str:
    """By the benchmark's first form."""
    found = result(FIRST_OPEN_CALLS)
    rows, jedi = found["rows"], found["jedi"]
    return (
        f"{_asked(found)}. jedi answers {jedi['answers']:.0%} of them, {jedi['right']:.0%} rightly. Training of {found['steps']:,} steps, "
        f"1 seed.\n\n{_table(rows, _single(rows) | FIRST_OPEN, {'lexical': 'MRR above lexical (95 % interval)'})}"
    )


def _single(rows: dict) -> dict[str, str]:
    """Titles of chance and of the best feature by itself."""
    best = max((name for name in rows if name.startswith("one feature")), key=lambda name: rows[name]["mrr"])
    return {"chance": "chance", f"best single feature: {best.partition(': ')[2]}": best}


def _asked(found: dict) -> str:
    """Questions of each package that has enough."""
    asked = {
        name: each.get("asked", each["questions"])
        for name, each in found["packages"].items()
        if each["questions"] >= FEWEST_QUESTIONS
    }
    counts = ", ".join(f"{name} ({count})" for name, count in asked.items())
    return f"{sum(asked.values())} questions of {len(asked)} packages: {counts}"


def _above(row: dict, base: str) -> tuple[float, float, float]:
    """MRR above that of another row, and its 95 % interval; the first form of open calls has those above lexical alone."""
    found = row["above"][base] if "above" in row else {"mrr": row["above_lexical"], "interval": row["interval"]}
    return found["mrr"], *found["interval"]


def _difference(row: dict, base: str) -> str:
    value, *interval = _above(row, base)
    return _spanned(value, interval)


def _table(
    rows: dict,
    shown: dict[str, str],
    bases: dict[str, str],
    skipped: dict[str, str] | None = None,
    *,
    first: bool = True,
) -> str:
    """shown: title -> name of a row, those that the file lacks left out; bases: row -> title of the column of what is above it.

    skipped: name of a row that was not measured -> what is shown instead.
    first: with the share of first answers that are right.
    """
    skipped = skipped or {}
    return tables.markdown(
        [
            {
                "scorer": title,
                "MRR": spread(rows[name]["mrr_by_seed"]),
            }
            | ({"first answer right": f"{rows[name]['first']:.3f}"} if first else {})
            | {column: "" if name == base else _difference(rows[name], base) for base, column in bases.items()}
            if name in rows
            else {"scorer": title, "MRR": skipped[name]}
            for title, name in shown.items()
            if name in rows or name in skipped
        ]
    )


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
    "BM25 and UniXcoder, pretrained on code": "BM25 and unixcoder-base",
    "encoder, trained": "encoder trained",
    "BM25 and encoder before training": "BM25 and encoder before training",
    "BM25 and encoder, trained": "BM25 and encoder trained",
    "BM25 and encoder, also tuned on docstrings": "BM25 and encoder trained, tuned",
}
SEARCH_IN_JAVA = SEARCH | {
    "BM25, TF-IDF and encoder, trained": "BM25 and TF-IDF and encoder trained",
    "BM25, TF-IDF and encoder, also tuned": "BM25 and TF-IDF and encoder trained, tuned",
}
BASES = {"BM25": "above BM25 (95 %)", "BM25 and TF-IDF": "above BM25 and TF-IDF (95 %)"}


def code_search() -> str:
    """Functions found by the first sentence of their docstring."""
    found = result(CODE_SEARCH)
    packages = _searched(found, "python")
    return (
        f"{sum(each['functions'] for each in packages.values()):,} functions of {len(packages)} Python packages; {found['steps']} steps of "
        f"training, {found['tuning']['steps']} of tuning; {len(found['seeds'])} seeds, one before training.\n\n"
        + _table(found["rows"], SEARCH, {"BM25": BASES["BM25"]}, {_with_code_encoder(found): "skipped"})
    )


def _searched(found: dict, language: str) -> dict[str, dict]:
    """The packages of a language that have enough functions, as the rows name them."""
    rows = found["rows_all"]["chance"]["mrr_by_package"]
    return {name: each for name, each in found["packages"].items() if name in rows and each["language"] == language}


def _with_code_encoder(found: dict) -> str:
    """The row of BM25 with the encoder that was pretrained on code, whether it was measured or not."""
    return f"BM25 and {found['code_encoder']['row']}"


def _versions(packages: dict[str, dict]) -> str:
    return ", ".join(f"{name} {each['version']} ({each['functions']})" for name, each in packages.items())


def all_code_search() -> str:
    """Every row of the Python packages, beside both lexical ones."""
    found = result(CODE_SEARCH)
    encoder = found["code_encoder"]
    shown, skipped = {name: name for name in found["rows"]}, {}
    if "skipped" in encoder:
        skipped = {name: f"skipped: {encoder['skipped']}" for name in (encoder["row"], _with_code_encoder(found))}
        shown |= {name: name for name in skipped}
    return (
        f"Means over {_versions(_searched(found, 'python'))}. `{encoder['row']}` is `{encoder['id']}` of the Hugging Face hub at revision "
        f"`{encoder['revision'][:12]}`:\n\n{_table(found['rows'], shown, BASES, skipped)}"
    )


def code_search_in_java() -> str:
    """The main rows on the Java packages, and how far they are above BM25 on those of both languages."""
    found = result(CODE_SEARCH)
    packages, both = _searched(found, "java"), found["rows_all"]
    rows = {name: found["rows_java"][name] for name in SEARCH_IN_JAVA.values() if name in both}
    of_each = [
        {"scorer": title}
        | {f"MRR in {package}": f"{rows[name]['mrr_by_package'][package]:.3f}" for package in packages}
        | {
            f"all {len(both[name]['mrr_by_package'])} packages, {above}": ""
            if name == base
            else _difference(both[name], base)
            for base, above in BASES.items()
        }
        for title, name in SEARCH_IN_JAVA.items()
        if name in rows
    ]
    main = _table(rows, SEARCH_IN_JAVA, BASES, {_with_code_encoder(found): "skipped"})
    return (
        f"Means over {_versions(packages)}; the encoders were trained on Python alone:\n\n{main}\n\n"
        f"Each of the two, and the differences over the packages of both languages:\n\n{tables.markdown(of_each)}"
    )


IMPACT_ROWS = {
    "chance": "chance",
    "resolved calls": "one feature: resolved calls",
    "resolved calls, overriding methods": "one feature: resolved calls, overriding methods",
    "the same, and any function of a name that is left open": "one feature: resolved calls, overriding methods, open names",
    "the same, by how certain each call is": "one feature: calls by how certain they are",
    "names in sources, over three steps": "one feature: names in sources, over three steps",
    "mentions the name": "one feature: mentions the name",
    "BM25 of the name": "one feature: BM25 of the name",
    "BM25 of the source": "one feature: BM25 of the source",
    "same module": "one feature: same module",
    "common path": "one feature: common path",
    "**lexical**: all features": "lexical",
    "encoder before training": "encoder before training",
    "encoder, trained": "encoder trained",
    "lexical and encoder before training": "lexical and encoder before training",
    "lexical and encoder, trained": "lexical and encoder trained",
}
UNTRAINED = "lexical and encoder before training"
IMPACT_TABLES = {"all": "All callers", "missed": "Callers that resolved calls do not reach"}


def impact() -> str:
    """Which functions reach this one by one to three calls."""
    found = result(IMPACT)
    asked = {name: each for name, each in found["packages"].items() if each["asked"]}
    recall, precision = (fmean(each["resolver"][name] for each in asked.values()) for name in ("recall", "precision"))
    about = (
        f"{sum(each['asked'] for each in asked.values())} queries of {len(asked)} packages: {', '.join(asked)}. Resolved calls "
        f"reach {recall:.0%} of the callers that tests saw, and tests saw {precision:.0%} of what they reach among the candidates. "
        f"Training of {found['steps']:,} steps, {len(found['seeds'])} seeds, one before training."
    )
    return "\n\n".join((about, *(_impact_table(title, **found[name]) for name, title in IMPACT_TABLES.items())))


def _impact_table(title: str, packages: dict, rows: dict) -> str:
    right, candidates = (fmean(each[name] for each in packages.values()) for name in ("right", "candidates"))
    lines = []
    for shown, name in IMPACT_ROWS.items():
        row = rows.get(name)
        if not row or (name != "chance" and row["mrr"] == rows["chance"]["mrr"]):  # nothing is reached
            continue
        precision, of_seeds = row["average_precision"], "encoder" in name  # others have orders of equal candidates
        above = precision["above"]["lexical"]
        lines.append(
            {
                "scorer": shown,
                "MRR": spread(row["mrr_by_seed"]) if of_seeds else f"{row['mrr']:.3f}",
                "MRR above lexical (95 %)": "" if name == "lexical" else _difference(row, "lexical"),
                "average precision": spread(precision["by_seed"]) if of_seeds else f"{precision['mean']:.3f}",
                "precision above lexical (95 %)": ""
                if name == "lexical"
                else _spanned(above["mean"], above["interval"]),
            }
        )
    trained = rows.get("lexical and encoder trained")
    gain = f"\n\nTraining changes the last row's MRR by {_difference(trained, UNTRAINED)}." if trained else ""
    return (
        f"{title}, {sum(each['asked'] for each in packages.values())} queries with {right:.0f} right ones among {candidates:.0f} "
        f"candidates on average:\n\n{tables.markdown(lines)}{gain}"
    )


def _spanned(value: float, interval: list[float]) -> str:
    return "{:+.3f} ({:+.3f} to {:+.3f})".format(value, *interval)


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


def profiles() -> str:
    """The first steps of each profile at its real size: what its sequences hold, and questions for as many products."""
    found = result(PROFILES)
    rows, steps = found["profiles"], found["steps"]
    published = rows["published recipe"]

    def questions_a_product(row: dict) -> float:
        return row["questions"] / row["flops"]

    table = tables.markdown(
        [
            {
                "profile": name if name == "published recipe" else f"`{name}`",
                "weights": f"{row['weights'] / 1e6:.1f}M",
                "sequences a step": row["sequences_a_step"],
                "tokens": " then ".join(map(str, row["lengths"])),
                "roots filled": f"{row['roots_filled']:.0%}",
                "leaves filled": f"{row['leaves_filled']:.0%}",
                "link questions": f"{row['questions']:,}",
                "TFLOP": f"{row['flops'] / 1e12:,.0f}",
                "questions for as many products": f"{questions_a_product(row) / questions_a_product(published):.1f}"
                if row["weights"] > 0.9 * published["weights"]  # of a model as large
                else "",
            }
            for name, row in rows.items()
        ]
    )
    shown = f"{steps} optimizer steps of each profile, each shape that they have traced at its real size:\n\n{table}"
    trained = found["trained"]
    if not trained:  # the run was stopped before its end
        return shown
    first, last = (fmean(trained["losses"][part]) for part in (slice(0, 10), slice(-10, None)))
    return (
        f"{shown}\n\nThe model of `{trained['profile']}` on the CPU, {trained['sequences_a_step']} sequences a step, {len(trained['losses'])} steps, "
        f"all of them in the warm-up: the mean loss is {first:.1f} in the first ten and {last:.1f} in the last ten."
    )
