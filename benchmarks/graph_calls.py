"""Calls that static resolution leaves open: which of the functions of that name is meant?

    python benchmarks/graph_calls.py            # about two hours on a core, with the packages fetched and ten encoders trained

The tests of packages of held_out_packages.py run under Python's profiler, which says for each call in the package which of
its functions it reached: the truth, from outside of any resolver. Asked is every call outside of tests that our resolver leaves
open and that several functions or methods of that name could answer, at most 30 of a package, drawn; a package with fewer than
ten such questions is left out.

Rows rank these candidates. `lexical` is a conditional logit of features that read names, imports and sources, fitted on the other
packages: each package is a test that chose nothing. `all simple methods` puts the answers of a few regular expressions first
(regex_resolver.py), then a logit of the lexical features and of character n-grams of the lines around a call; jedi, and other ways to
put these together, have rows of their own. The encoder is trained on the standard library. Its row is the same logit of
the parts of its score, and once more together with the lexical features, and with all simple methods. At call sites
(graph_call_sites.py) it reads the lines around the call instead, untrained, trained, and tuned on calls that the resolver has proved.
Encoders with a part left out are of the first seed alone. MiniLM compares the words of receiver and class. Figures are means
over packages, and over the seeds; intervals are of 95 %, from bootstrap samples of the callers' modules within each package and of
the seeds, paired with `lexical` and with `all simple methods`.

What was traced and the trained encoders are kept in `outputs`, where a run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import ast
import math
import random
import re
import sys
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import graph_call_sites as call_sites
from benchmarks import report
from benchmarks.graph_encoders import BEFORE, FOLDER, STEPS, TRAINED, VARIANTS, Encoders, windows
from benchmarks.held_out_packages import PACKAGES, Environment
from benchmarks.held_out_rows import Rankings
from benchmarks.regex_resolver import RegexResolver
from helpers.graphmer.graph.extraction import load_graph
from helpers.graphmer.links.predictor import LinkPredictor
from helpers.graphmer.links.ranking import TAIL
from helpers.graphmer.text.documents import Documents
from helpers.graphmer.text.windows import Windows

ROOT = Path(__file__).resolve().parents[1]
FUNCTIONS = ("function", "method")
LEFT_OUT = ("networkx", "sqlglot", "werkzeug")  # two take long to read; the tests of the last end without a trace
FEWEST, MOST = 10, 30  # questions of a package
LEXICAL, SIMPLE = "lexical", "all simple methods"
RESOLVERS, NGRAMS = ("regex", "jedi"), "character n-grams"
COPIES_LEFT_OUT = ("given end: meaning", "other end: meaning", "other end: total")
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


# ---- what is asked


@dataclass
class Question:
    package: str
    caller: str  # entity that calls
    module: str
    name: str  # that is called
    receiver: str  # source before the last dot; "" where there is none
    arguments: int  # by position
    keywords: tuple[str, ...]
    attributes: frozenset[str]  # what else is asked of this receiver in the caller's module
    place: tuple[str, int, int]  # file, line and column of the name
    candidates: list[str]
    true: set[str]
    features: dict[str, np.ndarray] = field(default_factory=dict)
    jedi: list[str] = field(default_factory=list)  # candidates that it answers with
    regex: list[str] = field(default_factory=list)  # and those of regex_resolver.py

    def site(self) -> call_sites.Site:
        file, line, _ = self.place
        lines = Path(file).read_bytes().decode(errors="replace").splitlines()
        return call_sites.Site(self.caller, self.receiver, self.name, call_sites.around(lines, line))


def is_test(module: str) -> bool:
    return any(part in ("test", "tests", "conftest") or part.startswith("test_") for part in module.split("."))


def questions(package: str, root: Path, graph, calls: list[list]) -> list[Question]:
    """root: the folder that the graph was extracted from; calls: rows of call_trace.py."""
    module_of = {str(root / file["path"]): file["module"] for file in graph.manifest["files"]}
    by_name = defaultdict(list)
    for entity in graph.entities.values():
        if entity.type in FUNCTIONS and entity.status == "defined" and not is_test(entity.module):
            by_name[entity.name].append(entity.id)
    open_names = {
        (triple.head, triple.tail)
        for triple in graph.triples
        if triple.relation == "calls" and triple.tail.startswith("?.")
    }
    trees: dict[str, dict] = {}
    found: dict[tuple, Question] = {}
    for file, caller, where, other_file, callee in calls:
        if file not in module_of or other_file not in module_of:
            continue
        module, owner = (
            module_of[file],
            re.sub(r"(\.<locals>)?\.<(lambda|listcomp|genexpr|dictcomp|setcomp)>", "", caller),
        )
        owner = module if owner.startswith("<") else f"{module}.{owner}"
        target, name = f"{module_of[other_file]}.{callee}", callee.rpartition(".")[2]
        candidates = by_name.get(name, [])
        if is_test(module) or (owner, f"?.{name}") not in open_names or len(candidates) < 2 or target not in candidates:
            continue
        if file not in trees:
            trees[file] = read_calls(Path(file))
        node, attributes = trees[file].get(tuple(where), (None, None))
        if node is None or called_name(node) != name:
            continue
        receiver = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        question = found.setdefault(
            (owner, name, receiver),
            Question(
                package, owner, module, name, receiver,
                sum(not isinstance(each, ast.Starred) for each in node.args),
                tuple(each.arg for each in node.keywords if each.arg),
                frozenset(attributes.get(receiver, ())) - {name} if receiver else frozenset(),
                (file, node.func.end_lineno, node.func.end_col_offset - 1),
                candidates, set(),
            ),
        )  # fmt: skip
        question.true.add(target)
    return list(found.values())


def called_name(node: ast.Call) -> str | None:
    return getattr(node.func, "attr", None) or getattr(node.func, "id", None)


def read_calls(path: Path) -> dict:
    """Calls by their place, each with the attributes that its module asks of each expression."""
    tree = ast.parse(path.read_bytes())
    attributes = defaultdict(set)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            attributes[ast.unparse(node.value)].add(node.attr)
    return {
        (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset): (node, attributes)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    }


# ---- features of names, imports and sources


def words(text: str) -> set[str]:
    return {word.lower() for word in WORD.findall(text)}


class Lexical:
    """What the strongest simple methods read."""

    def __init__(self, graph, documents):
        self.graph, self.documents = graph, documents
        self.members, self.parameters, self.imports = defaultdict(set), defaultdict(list), defaultdict(set)
        self.bases, self.called = defaultdict(set), Counter()
        for head, relation, tail in graph.triples:
            if relation == "contains":
                self.members[head].add(graph.entities[tail].name)
            elif relation == "has_parameter":
                self.parameters[head].append(graph.entities[tail].name)
            elif relation in ("imports", "imports_name"):
                self.imports[head].add(tail)
            elif relation == "inherits_from":
                self.bases[head].add(tail)
            elif relation in ("calls", "tests") and not is_test(graph.entities[head].module):
                self.called[tail] += 1
        self._texts: dict[str, str] = {}
        self._bags: dict[str, Counter] = {}
        self._frequency = Counter()
        functions = [e.id for e in graph.entities.values() if e.type in FUNCTIONS and e.status == "defined"]
        for name in functions:
            self._frequency.update(set(self.bag(name)))
        self._count = max(1, len(functions))

    def text(self, entity: str) -> str:
        if entity not in self._texts:
            self._texts[entity] = self.documents.text(entity)
        return self._texts[entity]

    def bag(self, entity: str) -> Counter:
        if entity not in self._bags:
            self._bags[entity] = Counter(word.lower() for word in WORD.findall(self.text(entity)))
        return self._bags[entity]

    def bm25(self, query: str, candidate: str, k: float = 1.2, b: float = 0.75, average: float = 120.0) -> float:
        bag = self.bag(candidate)
        length, total = sum(bag.values()), 0.0
        for word in set(self.bag(query)):
            count = bag.get(word, 0)
            if count:
                rarity = math.log(1 + (self._count - self._frequency[word] + 0.5) / (self._frequency[word] + 0.5))
                total += rarity * count * (k + 1) / (count + k * (1 - b + b * length / average))
        return total

    def all_members(self, owner: str, depth: int = 6) -> set[str]:
        found = set(self.members[owner])
        if depth:
            for base in self.bases[owner]:
                found |= self.all_members(base, depth - 1)
        return found

    def features(self, question: Question) -> dict[str, np.ndarray]:
        rows = defaultdict(list)
        caller_text, module_imports = self.text(question.caller), self.imports[question.module]
        receiver = words(question.receiver.rpartition(".")[2] or question.receiver)
        mentioned = Counter(re.findall(r"\w+", caller_text))
        module_words = Counter(re.findall(r"\w+", self.text(question.module)))
        for candidate in question.candidates:
            entity = self.graph.entities[candidate]
            owner = candidate.rpartition(".")[0]
            is_method = self.graph.entities.get(owner) is not None and self.graph.entities[owner].type in (
                "class",
                "exception",
            )
            owner_name = owner.rpartition(".")[2]
            owner_words = words(owner_name) if is_method else words(entity.module.rpartition(".")[2])
            shared = len(receiver & owner_words)
            parameters = self.parameters[candidate]
            wanted = [each for each in parameters if each not in ("self", "cls")]
            open_ended = any(each in ("args", "kwargs", "kw", "kwds", "options") for each in wanted)
            ours, theirs = question.caller.split("."), candidate.split(".")
            common = next(
                (n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs))
            )
            members = self.all_members(owner) if is_method else self.members[owner]
            values = {
                "same module": entity.module == question.module,
                "same class": is_method and question.caller.startswith(f"{owner}."),
                "common path": common / max(1, len(ours)),
                "receiver's words": shared / max(1, len(receiver | owner_words)),
                "receiver is inside the owner's name": bool(receiver) and receiver <= owner_words,
                "owner is mentioned by the caller": min(3, mentioned[owner_name]),
                "owner is mentioned by the module": math.log1p(module_words[owner_name]),
                "module is imported": entity.module in module_imports or owner in module_imports or candidate in module_imports,
                "calls that are known": math.log1p(self.called[candidate]),
                "BM25": self.bm25(question.caller, candidate) / 20,
                "too many arguments": question.arguments > len(wanted) and not open_ended,
                "unknown keywords": sum(each not in wanted for each in question.keywords) * (not open_ended),
                "method where there is a receiver": is_method == bool(question.receiver),
                "attributes of the receiver": len(question.attributes & members) / max(1, len(question.attributes)),
                "all attributes of the receiver": bool(question.attributes) and question.attributes <= members,
            }  # fmt: skip
            for name, value in values.items():
                rows[name].append(float(value))
        return {name: np.array(values) for name, values in rows.items()}


# ---- jedi


def jedi_answers(question: Question, graph, root: Path) -> list[str]:
    import jedi

    file, line, column = question.place
    try:
        project = jedi.Project(root.parent, added_sys_path=[str(root.parent)], smart_sys_path=False)
        definitions = jedi.Script(path=file, project=project).goto(line, column, follow_imports=True)
    except Exception:  # jedi fails on some sources in ways of its own
        return []
    lines = {(graph.entities[name].module, graph.entities[name].line): name for name in question.candidates}
    found = []
    for each in definitions:
        for name in question.candidates:
            entity = graph.entities[name]
            if (
                each.line == entity.line
                and each.full_name
                and name.replace(".<locals>", "").endswith(each.full_name.rpartition(".")[2])
            ):
                module = (each.module_name or "").removesuffix(".__init__")
                if module == entity.module and (entity.module, each.line) in lines:
                    found.append(name)
    return list(dict.fromkeys(found))


# ---- the encoder


def encoder_scores(model, chains: Windows, asked: list[Question]) -> list[dict[str, np.ndarray]]:
    """The parts of the score at either end, as in the notebook's table; of each question's candidates."""
    predictor, relations = LinkPredictor(model, chains), chains.relations
    calls = relations.id("calls")
    predictor.query_features(sorted({question.caller for question in asked}), calls)
    candidates = {name for question in asked for name in question.candidates}
    predictor.query_features(sorted(candidates), relations.inverse(calls))
    ends = predictor.ends()
    return [
        {name: end([question.caller], "calls", question.candidates, TAIL)[0] for name, end in ends.items()}
        for question in asked
    ]


# ---- rows


def read(package: str, environment: Environment) -> tuple[list[Question], dict, object, Documents]:
    """Questions with their lexical features and jedi's answers, counts, and what the encoder reads."""
    folder = environment.package(package)
    calls, graph = environment.traced(package), load_graph(folder)
    found = questions(package, folder, graph, calls)
    counts = {
        "version": PACKAGES[package].version,
        "calls_traced": len(calls),
        "calls_open": sum(triple.relation == "calls" and triple.tail.startswith("?.") for triple in graph.triples),
        "questions": len(found),
    }
    documents = Documents.read(graph, folder)
    if len(found) < FEWEST:
        return [], counts | {"asked": 0}, graph, documents
    if len(found) > MOST:
        found = random.Random(0).sample(found, MOST)
    lexical = Lexical(graph, documents)
    resolver = RegexResolver({file["module"]: documents.text(file["module"]) for file in graph.manifest["files"]})
    for question in found:
        question.features = lexical.features(question)
        question.jedi = jedi_answers(question, graph, folder)
        question.regex = resolver.answers(
            question.module, question.caller, question.receiver, question.name, question.candidates
        )
    return found, counts | {"asked": len(found)}, graph, documents


def rankings(asked: list[Question]) -> Rankings:
    """With the lexical features, and what each of `RESOLVERS` answers."""
    right = [[name in question.true for name in question.candidates] for question in asked]
    found = Rankings([one.package for one in asked], [one.module for one in asked], right)
    for name in asked[0].features:
        found.add(name, [one.features[name] for one in asked])
    for method in RESOLVERS:
        found.add(method, [np.array([name in getattr(one, method) for name in one.candidates], float) for one in asked])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--packages", nargs="*", default=[each for each in PACKAGES if each not in LEFT_OUT], choices=PACKAGES
    )
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument(
        "--variants", nargs="*", default=[*VARIANTS], choices=VARIANTS, help="encoders with a part left out"
    )
    parser.add_argument(
        "--variant-seeds", type=int, nargs="*", default=[0], help="the seeds that these are trained with"
    )
    parser.add_argument("--folder", type=Path, default=Path("outputs/held_out_packages"))
    parser.add_argument("--encoders", type=Path, default=FOLDER, help="folder of the trained encoders")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/results/graphmer_open_calls_cpu.json")
    given = parser.parse_args()
    about = report.machine("cpu", ("torch", "transformers", "jedi"))

    environment = Environment(given.folder)
    asked: list[Question] = []
    counts, sources = {}, {}
    for package in given.packages:
        found, counts[package], *sources[package] = read(package, environment)
        asked += found
        print(package, counts[package], flush=True)

    found = rankings(asked)
    names, drawn = [*asked[0].features], found.resamples()
    sites, candidates = [one.site() for one in asked], [one.candidates for one in asked]
    found.add(NGRAMS, call_sites.character_ngrams(sites, candidates))
    first_R, simple = 1000 * found["regex"], [*names, NGRAMS]
    lexical_R, simple_R = found.left_out(names), first_R + found.left_out(simple)
    bases = {LEXICAL: found.ranks(lexical_R), SIMPLE: found.ranks(simple_R)}
    ranks = {"chance": [found.ranks(np.zeros(len(lexical_R)))]}
    ranks |= {f"one feature: {name}": [found.ranks(found[name])] for name in names}
    for method in RESOLVERS:
        ranks[method] = [found.ranks(found[method])]
        ranks[f"{method}, then lexical"] = [found.ranks(lexical_R + 1000 * found[method])]
    everything = [*names, *RESOLVERS, NGRAMS]
    ranks["lexical, regex, jedi and n-grams as features"] = [found.ranks(found.left_out(everything))]
    ranks[NGRAMS] = [found.ranks(found[NGRAMS])]
    ranks |= {name: [each] for name, each in bases.items()}
    if (weights := environment.encoder()) is not None:
        found.add("MiniLM", call_sites.of_sentence_encoder(weights, sites, candidates))
        ranks["MiniLM"] = [found.ranks(found["MiniLM"])]
        ranks[f"{SIMPLE} and MiniLM"] = [found.ranks(first_R + found.left_out([*simple, "MiniLM"]))]
    done: list[int] = []

    def write() -> None:
        report.write(
            given.output,
            about,
            steps=given.steps,
            seeds=done,
            packages=counts,
            resolvers={
                method: {
                    "answers": float(np.mean([bool(getattr(one, method)) for one in asked])),
                    "right": float(np.mean([bool(one.true & set(getattr(one, method))) for one in asked])),
                }
                for method in RESOLVERS
            },
            rows={name: found.row(each, bases, drawn) for name, each in ranks.items()},
        )

    write()
    encoders = Encoders(given.steps, given.encoders)
    corpus, tokenizer = encoders.corpus, encoders.corpus.tokenizer
    learned = call_sites.resolved_sites(corpus.graph, Path(sysconfig.get_path("stdlib")))
    texts = {package: call_sites.Candidates(graph) for package, (graph, _) in sources.items()}
    chains = {name: windows(tokenizer, encoders.configuration, documents) for name, (_, documents) in sources.items()}

    def rows(state: str, scores: list[dict[str, np.ndarray]]) -> None:
        """An encoder's features alone, and with the simple methods; `scores` stand in place of an earlier encoder's."""
        for part in scores[0]:
            found.add(part, [each[part] for each in scores])
        parts = [*scores[0]]
        ranks.setdefault(f"encoder {state}", []).append(found.ranks(found.left_out(parts)))
        if few := [part for part in parts if part in COPIES_LEFT_OUT]:
            ranks.setdefault(f"encoder {state}, copies left out", []).append(found.ranks(found.left_out(few)))
        both_R, all_R = found.left_out([*names, *parts]), first_R + found.left_out([*simple, *parts])
        ranks.setdefault(f"{LEXICAL} and encoder {state}", []).append(found.ranks(both_R))
        ranks.setdefault(f"{SIMPLE} and encoder {state}", []).append(found.ranks(all_R))
        print(f"{state}, seed {seed}", flush=True)

    def each_package(score: Callable) -> list[dict[str, np.ndarray]]:
        """score: the package and its questions -> their features; those of all questions, in their order."""
        packages = {package: [one for one in asked if one.package == package] for package in sources}
        return [each for package, inside in packages.items() if inside for each in score(package, inside)]

    for seed in given.seeds:
        variants = given.variants if seed in given.variant_seeds else ()
        for state, make in encoders.of(seed, variants=variants):
            model = make()

            def at_leaves(package: str, inside: list[Question], model=model) -> list[dict[str, np.ndarray]]:
                return encoder_scores(model, chains[package], inside)

            def at_sites(package: str, inside: list[Question], model=model) -> list[dict[str, np.ndarray]]:
                offered = [one.candidates for one in inside]
                return call_sites.cosines(model, tokenizer, [one.site() for one in inside], offered, texts[package])

            if state != BEFORE or seed == given.seeds[0]:
                rows(state, each_package(at_leaves))
            if state in (BEFORE, TRAINED):
                rows(f"{state}, at call sites", each_package(at_sites))
                call_sites.tuned(model, tokenizer, corpus.graph, learned, seed)
                rows(f"{state}, tuned on call sites", each_package(at_sites))
            write()
        done.append(seed)
        write()


if __name__ == "__main__":
    main()
