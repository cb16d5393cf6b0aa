"""Impact of a change: which functions of a package depend on this one, that is, reach it by one to three calls?

    python benchmarks/graph_impact.py        # about 15 minutes on one core, with the packages traced and three encoders trained

The tests of each package of held_out_packages.py ran under Python's profiler, which says which function of the package called which
(call_trace.py). What is asked is a function or method outside of tests that something else called. The truth are all functions,
methods and constructors outside of tests that reach it by one to three of these calls. What a lambda or a comprehension calls, the
function calls in whose source it stands. At most 30 queries of a package are drawn, and a package with fewer than ten is left out, as are
queries that more than a hundred functions reach: there nearly any answer is right.

Candidates are functions, methods and constructors that the trace saw running; of others the truth is not known. A query has all true
ones and as many others, in one drawn order for its package, as make 200 in all. In `all` these are
ranked. In `missed`, what the resolver reaches by at most three resolved calls is neither a candidate nor an answer: there stands what
tests saw and static resolution does not show. Making an object is a call of its class's constructor for the resolver, too.

Rows: chance; each feature alone, among them the depth of resolved calls, the same with overriding methods, and with all functions
of the name where a call is left open, which is what grep does; `lexical`, a conditional logit of all of them, fitted on the other packages. The
encoder is trained on the standard library; its row is the same logit of the parts of its score for `calls`, asked for at both ends from the
callee's side, and once more with the lexical features, trained and (first seed) before training. Figures are means over packages and seeds: MRR of the
best right candidate, and average precision over all right ones, each by weights that are fitted for it. Where candidates have the same value of a single
feature, their order is drawn, ten times. Intervals are of 95 %, from bootstrap samples of the queries' modules within
each package and of the seeds, paired with `lexical` and with that and the encoder before training.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from benchmarks.graph_calls import is_test
from benchmarks.graph_encoders import BEFORE, FOLDER, STEPS, Encoders, windows
from benchmarks.held_out_packages import PACKAGES, Environment
from benchmarks.held_out_rows import Rankings
from helpers.graphmer.graph.extraction import load_graph
from helpers.graphmer.links.predictor import LinkPredictor
from helpers.graphmer.links.ranking import HEAD
from helpers.graphmer.searching import bm25, words
from helpers.graphmer.text.documents import Documents
from helpers.graphmer.text.windows import Windows

ROOT = Path(__file__).resolve().parents[1]
ASKED = ("function", "method")
FUNCTIONS = (*ASKED, "constructor")
DEPTH = 3  # calls
FEWEST, MOST = 10, 30  # queries of a package
CANDIDATES, MOST_TRUE = 200, 100  # of a query
DRAWS = 10  # orders of candidates of equal score
INNER = re.compile(r"(\.<locals>)?\.<(lambda|listcomp|genexpr|dictcomp|setcomp)>.*")
RAREST = 1e-4  # certainty of what nothing leads to, and less
LEXICAL = "lexical"
UNTRAINED = f"lexical and encoder {BEFORE}"
TABLES = ALL, MISSED = "all", "missed"

Callers = Mapping[str, Collection[str]]  # callee -> those that call it


# ---- what is asked


@dataclass
class Query:
    package: str
    entity: str
    module: str
    true: dict[str, int]  # callers by the trace -> depth
    resolved: dict[str, int]  # callers by resolved calls -> depth
    candidates: list[str]
    features: dict[str, np.ndarray] = field(default_factory=dict)

    def chosen(self, table: str) -> np.ndarray:
        """Which of the candidates are those of this table."""
        return np.array([table == ALL or name not in self.resolved for name in self.candidates], bool)

    def right(self, table: str) -> list[bool]:
        chosen = self.chosen(table)
        return [name in self.true for name, one in zip(self.candidates, chosen, strict=True) if one]


def functions(graph) -> dict:
    """Functions, methods and constructors that are defined outside of tests."""
    return {
        name: one
        for name, one in graph.entities.items()
        if one.type in FUNCTIONS and one.status == "defined" and not is_test(one.module)
    }


def traced_calls(root: Path, graph, rows: list[list]) -> tuple[Callers, list[str]]:
    """Callers among the package's functions by the rows of call_trace.py, and all functions that were seen running, sorted."""
    module_of, ours = {str(root / file["path"]): file["module"] for file in graph.manifest["files"]}, functions(graph)
    callers, running = defaultdict(set), set()
    for file, caller, _, other_file, callee in rows:
        if file not in module_of or other_file not in module_of:
            continue
        caller, callee = f"{module_of[file]}.{INNER.sub('', caller)}", f"{module_of[other_file]}.{callee}"
        running |= {caller, callee} & ours.keys()
        if caller in ours and callee in ours and caller != callee:
            callers[callee].add(caller)
    return dict(callers), sorted(running)


def reaching(callers: Callers, entity: str, depth: int = DEPTH) -> dict[str, int]:
    """What reaches an entity by at most so many calls -> by how many; itself left out."""
    found, last = {entity: 0}, [entity]
    for number in range(1, depth + 1):
        last = [
            each
            for callee in last
            for each in sorted(callers.get(callee, ()))
            if found.setdefault(each, number) == number
        ]
        last = list(dict.fromkeys(last))
    del found[entity]
    return found


def drawn_candidates(running: list[str], true: Collection[str], entity: str) -> list[str]:
    """running: in the order in which those that are not true are taken."""
    others = [name for name in running if name not in true and name != entity]
    return sorted([*true, *others[: CANDIDATES - len(true)]])


def queries(package: str, root: Path, graph, rows: list[list]) -> tuple[list[Query], dict]:
    """Those that are drawn, and counts."""
    callers, running = traced_calls(root, graph, rows)
    resolved, draw = StaticCalls(graph).resolved, random.Random(0)
    called = sorted(name for name in callers if graph.entities[name].type in ASKED)
    possible = [name for name in called if len(reaching(callers, name)) <= MOST_TRUE]
    order = draw.sample(running, len(running))
    found = []
    for name in draw.sample(possible, min(MOST, len(possible))):
        true = reaching(callers, name)
        candidates = drawn_candidates(order, true, name)
        found.append(Query(package, name, graph.entities[name].module, true, reaching(resolved, name), candidates))
    counts = {
        "version": PACKAGES[package].version if package in PACKAGES else "",
        "functions": len(functions(graph)),
        "running": len(running),
        "pairs_traced": sum(map(len, callers.values())),
        "called": len(called),
        "queries": len(possible),
    }
    return found, counts


# ---- callers that the sources show


class StaticCalls:
    """Callers of each function, by three readings of the sources, each with all that the one before has.

    resolved: what the resolver proves. overriding: a call of a method may be one of a method that overrides it. open: a call that
        is left open may be one of any function of that name.
    certainty: of each pair, one through the number of functions that its call may mean.
    """

    def __init__(self, graph):
        ours, bases = functions(graph), defaultdict(list)
        overriding, by_name = defaultdict(set), defaultdict(list)
        for head, relation, tail in graph.triples:
            if relation == "inherits_from":
                bases[head].append(tail)
            elif relation == "overrides":
                overriding[tail].add(head)
        for name, one in ours.items():
            by_name[one.name].append(name)

        def constructor(owner: str, depth: int = 6) -> str | None:
            own = f"{owner}.__init__"
            inherited = (constructor(base, depth - 1) for base in bases[owner] if depth)
            return own if own in graph.entities else next((each for each in inherited if each), None)

        self.resolved, self.certainty = defaultdict(set), defaultdict(dict)
        overridden, left_open = defaultdict(set), defaultdict(set)
        for head, relation, tail in graph.triples:
            if head not in ours or relation not in ("calls", "instantiates"):
                continue
            target = tail if relation == "calls" else constructor(tail)
            if target and target.startswith("?."):
                meant = by_name[target.removeprefix("?.")]
                for each in meant:
                    left_open[each].add(head)
                    self._may_be(each, head, 1 / len(meant))
            elif target in ours:
                self.resolved[target].add(head)
                self._may_be(target, head, 1.0)
                above = [each for each in reaching(overriding, target, 6) if each in ours]
                for each in above:
                    overridden[each].add(head)
                    self._may_be(each, head, 1 / (1 + len(above)))
        self.overriding = _union(self.resolved, overridden)
        self.open = _union(self.overriding, left_open)

    def _may_be(self, callee: str, caller: str, certainty: float) -> None:
        self.certainty[callee][caller] = max(certainty, self.certainty[callee].get(caller, 0.0))


def _union(one: Callers, other: Callers) -> Callers:
    return {name: {*one.get(name, ()), *other.get(name, ())} for name in one.keys() | other.keys()}


def likely_callers(certainty: Mapping[str, Mapping[str, float]], entity: str, depth: int = DEPTH) -> dict[str, float]:
    """What reaches an entity by at most so many calls -> the most certain way: the product of its pairs, halved for each call."""
    best, last = {entity: 1.0}, {entity: 1.0}
    for _ in range(depth):
        reached: dict[str, float] = {}
        for callee, sure in last.items():
            for caller, certain in certainty.get(callee, {}).items():
                reached[caller] = max(reached.get(caller, 0.0), sure * certain / 2)
        last = {name: sure for name, sure in reached.items() if sure > best.get(name, 0.0)}
        best |= last
    del best[entity]
    return best


# ---- features of calls, names and sources


class Lexical:
    """What the strongest simple methods read."""

    def __init__(self, graph, documents):
        self.calls, self.documents, ours = StaticCalls(graph), documents, functions(graph)
        self.names = {  # that a source has where it uses the function
            name: name.rpartition(".")[0].rpartition(".")[2] if one.type == "constructor" else one.name
            for name, one in ours.items()
        }
        self.modules = {name: one.module for name, one in ours.items()}
        self.mentions = {name: Counter(re.findall(r"\w+", documents.text(name).partition("\n")[2])) for name in ours}
        for name, one in ours.items():
            self.mentions[name][one.name] -= 1  # where it is defined
        by_name = defaultdict(list)
        for name, short in self.names.items():
            by_name[short].append(name)
        self.mentioned, self.used = defaultdict(dict), Counter()
        for name, found in self.mentions.items():
            for short in [each for each, count in found.items() if count > 0 and each in by_name]:
                self.used[name] += 1
                for each in by_name[short]:
                    if each != name:
                        self.mentioned[each][name] = 1 / len(by_name[short])

    def features(self, query: Query) -> dict[str, np.ndarray]:
        """[candidates] of each."""
        entity, candidates, own = query.entity, query.candidates, query.entity.split(".")
        depths = {
            "resolved calls": reaching(self.calls.resolved, entity),
            "resolved calls, overriding methods": reaching(self.calls.overriding, entity),
            "resolved calls, overriding methods, open names": reaching(self.calls.open, entity),
        }
        sure = {
            "calls by how certain they are": likely_callers(self.calls.certainty, entity),
            "names in sources, over three steps": likely_callers(self.mentioned, entity),
        }
        texts = [self.documents.text(name) for name in candidates]
        asked = [entity.replace(".<locals>", ""), self.documents.text(entity)]
        of_name, of_source = bm25(asked, texts, words)
        rows = {name: [DEPTH + 1 - found.get(each, DEPTH + 1) for each in candidates] for name, found in depths.items()}
        rows |= {
            name: [math.log(max(found.get(each, 0.0), RAREST)) for each in candidates] for name, found in sure.items()
        }
        rows |= {
            "mentions the name": [math.log1p(self.mentions[each][self.names[entity]]) for each in candidates],
            "BM25 of the name": of_name,
            "BM25 of the source": of_source,
            "same module": [self.modules[each] == query.module for each in candidates],
            "same owner": [each.split(".")[:-1] == own[:-1] for each in candidates],
            "common path": [_common(own, each.split(".")) / len(own) for each in candidates],
            "length of the source": [math.log1p(len(text)) for text in texts],
            "functions that it names": [math.log1p(self.used[each]) for each in candidates],
        }
        return {name: np.array(values, float) for name, values in rows.items()}


def _common(one: list[str], other: list[str]) -> int:
    """Parts at the beginning that are the same."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


# ---- the encoder


def encoder_scores(model, chains: Windows, asked: list[Query]) -> list[dict[str, np.ndarray]]:
    """The parts of the score of `candidate calls query` at either end, of each query's candidates."""
    predictor, calls = LinkPredictor(model, chains), chains.relations.id("calls")
    predictor.query_features(sorted({query.entity for query in asked}), chains.relations.inverse(calls))
    predictor.query_features(sorted({name for query in asked for name in query.candidates}), calls)
    ends, found = predictor.ends(), []
    for query in asked:
        given = [query.entity]
        found.append({name: end(given, "calls", query.candidates, HEAD)[0] for name, end in ends.items()})
    return found


# ---- rows


class Table:
    """The rows of one of `TABLES`."""

    def __init__(self, table: str, asked: list[Query]):
        enough = Counter(query.package for query in asked if any(query.right(table)))
        self.table = table
        self.asked = [one for one in asked if any(one.right(table)) and enough[one.package] >= FEWEST]
        self.names = [*self.asked[0].features]
        right = [one.right(table) for one in self.asked]
        self.found = Rankings([one.package for one in self.asked], [one.module for one in self.asked], right)
        self.drawn = self.found.resamples()
        self.ranks, self.precisions = defaultdict(list), defaultdict(list)
        for name in self.names:
            self.found.add(name, [one.features[name][one.chosen(table)] for one in self.asked])
        for name in (None, *self.names):
            for score_R in self.in_drawn_order(self.found[name] if name else np.zeros(sum(map(len, right)))):
                self.add_row(f"one feature: {name}" if name else "chance", score_R, score_R)
        self.add_fitted(LEXICAL, self.names)

    def in_drawn_order(self, score_R: np.ndarray) -> list[np.ndarray]:
        """The scores with equal ones in an order that is drawn, several times: a depth has few values."""
        place_R, draw = np.unique(score_R, return_inverse=True)[1], np.random.default_rng(0)
        return [place_R + draw.random(len(score_R)) for _ in range(DRAWS)]

    def add_row(self, name: str, first_R: np.ndarray, every_R: np.ndarray) -> None:
        """Scores for the best right candidate and for all of them."""
        self.ranks[name].append(self.found.ranks(first_R))
        self.precisions[name].append(self.found.average_precision(every_R))

    def add_fitted(self, name: str, features: list[str]) -> None:
        self.add_row(name, self.found.left_out(features), self.found.left_out(features, every=True))

    def add(self, state: str, parts: dict[str, dict[str, np.ndarray]]) -> None:
        """Rows of one encoder. parts: entity -> the parts of its candidates' scores."""
        names = [*parts[self.asked[0].entity]]
        for name in names:
            self.found.add(name, [parts[one.entity][name][one.chosen(self.table)] for one in self.asked])
        self.add_fitted(f"encoder {state}", names)
        self.add_fitted(f"lexical and encoder {state}", [*self.names, *names])

    def result(self) -> dict:
        found, rows = self.found, {}
        bases = [name for name in (LEXICAL, UNTRAINED) if name in self.ranks]
        ranks, precisions = ({name: of[name][0] for name in bases} for of in (self.ranks, self.precisions))
        for name in self.ranks:
            rows[name] = found.row(self.ranks[name], ranks, self.drawn)
            rows[name]["average_precision"] = found.precision_row(self.precisions[name], precisions, self.drawn)
        return {"packages": self.counts(), "rows": rows}

    def counts(self) -> dict:
        found = {}
        for package in dict.fromkeys(one.package for one in self.asked):
            own = [one for one in self.asked if one.package == package]
            right = [sum(one.right(self.table)) for one in own]
            candidates = [int(one.chosen(self.table).sum()) for one in own]
            found[package] = {
                "asked": len(own),
                "candidates": float(np.mean(candidates)),
                "right": float(np.mean(right)),
            }
        return found


def resolver(asked: list[Query]) -> dict:
    """How much of the truth resolved calls reach, and how much of what they reach among the candidates is true; over all queries."""
    true = sum(len(one.true) for one in asked)
    reached = sum(name in one.resolved for one in asked for name in one.candidates)
    both = sum(name in one.resolved for one in asked for name in one.true)
    return {"recall": both / true, "precision": both / reached if reached else None}


def read(package: str, environment: Environment) -> tuple[list[Query], dict, object, Documents]:
    """Queries with their lexical features, counts, and what the encoder reads."""
    folder = environment.package(package)
    graph = load_graph(folder)
    found, counts = queries(package, folder, graph, environment.traced(package))
    documents = Documents.read(graph, folder)
    if len(found) < FEWEST:
        return [], counts | {"asked": 0}, graph, documents
    lexical = Lexical(graph, documents)
    for query in found:
        query.features = lexical.features(query)
    counts |= {"asked": len(found), "documents": len({name for one in found for name in one.candidates})}
    return found, counts | {"resolver": resolver(found)}, graph, documents


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", nargs="*", default=[*PACKAGES], choices=PACKAGES)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--folder", type=Path, default=Path("outputs/held_out_packages"))
    parser.add_argument("--encoders", type=Path, default=FOLDER, help="folder of the trained encoders")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/results/graphmer_impact_cpu.json")
    given = parser.parse_args()
    about = report.machine("cpu", ("torch", "transformers"))

    environment, asked, counts, sources = Environment(given.folder), [], {}, {}
    for package in given.packages:
        found, counts[package], *sources[package] = read(package, environment)
        asked += found
        print(package, counts[package], flush=True)
    tables, done = [Table(name, asked) for name in TABLES], []

    def write() -> None:
        found = {each.table: each.result() for each in tables}
        report.write(given.output, about, steps=given.steps, seeds=done, packages=counts, **found)

    write()
    encoders, chains = None, {}
    for seed in given.seeds:
        encoders = encoders or Encoders(given.steps, given.encoders)
        for state, make in encoders.of(seed, before=seed == given.seeds[0]):
            model, scores = make(), {}
            for package, (_, documents) in sources.items():
                inside = [query for query in asked if query.package == package]
                if inside and package not in chains:
                    chains[package] = windows(encoders.corpus.tokenizer, encoders.configured(seed), documents)
                if inside:
                    own = encoder_scores(model, chains[package], inside)
                    scores |= {query.entity: each for query, each in zip(inside, own, strict=True)}
            for each in tables:
                each.add(state, scores)
            print(f"{state}, seed {seed}", flush=True)
        done.append(seed)
        write()


if __name__ == "__main__":
    main()
