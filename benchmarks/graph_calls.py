"""Calls that static resolution leaves open: which of the functions of that name is meant?

    PYTHONPATH=site python benchmarks/graph_calls.py --seeds 0 1 2        # about an hour on two cores

The packages below ship their tests; `pip install --target site` those that are not installed. Their tests run under Python's
profiler, which says for each call in a package which of its functions it reached: the truth, from outside of any resolver.
Asked is every call outside of tests that our resolver leaves open and that several functions or methods of that name could
answer; a package with fewer than ten such questions is left out.

Rows rank these candidates. `lexical` is a conditional logit of features that read names, imports and sources, fitted on the other
packages: each package is a test that chose nothing. `jedi, then lexical` puts jedi's answers first. The encoder is trained on the
standard library; its row is the same logit of the parts of its score, and once more together with the lexical features, trained
and untrained. Figures are means over packages, and over the seeds; intervals are of 95 %, from bootstrap samples of the callers'
modules within each package, paired with `lexical`.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import re
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from helpers import runtime
from helpers.graphmer import experiment
from helpers.graphmer.configuration import override, read_configuration
from helpers.graphmer.graph.extraction import load_graph
from helpers.graphmer.graph.ontology import read_ontology
from helpers.graphmer.links.predictor import LinkPredictor
from helpers.graphmer.text.documents import Documents
from helpers.graphmer.text.negatives import Relations
from helpers.graphmer.text.windows import EncodedDocuments, Windows

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {  # what pytest collects, below the package's folder
    "networkx": "classes readwrite algorithms/tests generators",
    "sympy": "polys/tests core/tests sets/tests physics/units stats/tests",
    "tornado": "test",
    "mpmath": "tests",
    "sklearn": "linear_model/tests tests tree/tests preprocessing/tests",
    "xarray": "tests",
    "trio": "_core/_tests _tests",
    "passlib": "tests",
    "twisted": "test internet/test web/test python/test",
    "astropy": "units/tests time/tests modeling/tests",
}
FUNCTIONS = ("function", "method")
SECONDS = 120  # for the tests of one package
BOOTSTRAP = 1_000
FEWEST = 10  # questions of a package
LEXICAL, TRAINED, UNTRAINED = "lexical", "encoder", "encoder before training"
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


# ---- what was called


def traced(package: str, folder: Path) -> list[list]:
    """The rows of call_trace.py, which are kept in `folder`."""
    path = folder / f"{package}.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        root = package_folder(package)
        tests = [str(root / each) for each in PACKAGES[package].split()]
        script = ROOT / "benchmarks/call_trace.py"
        command = [sys.executable, str(script), f"{root}/", str(path.resolve()), str(SECONDS), *tests]
        subprocess.run(command, cwd=folder, check=False, timeout=3 * SECONDS, stdout=subprocess.DEVNULL)
    return json.loads(path.read_text())


def package_folder(package: str) -> Path:
    return Path(find_spec(package).origin).parent


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

    def rank(self, scores_X: np.ndarray) -> float:
        """Of the best right candidate; those of equal score share theirs."""
        right = max(scores_X[place] for place, name in enumerate(self.candidates) if name in self.true)
        return float((scores_X > right).sum() + ((scores_X == right).sum() + 1) / 2)


def is_test(module: str) -> bool:
    return any(part in ("test", "tests", "conftest") or part.startswith("test_") for part in module.split("."))


def questions(package: str, graph, calls: list[list]) -> list[Question]:
    root = package_folder(package)
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
        definitions = jedi.Script(path=file, project=jedi.Project(root.parent, smart_sys_path=False)).goto(
            line, column, follow_imports=True
        )
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


# ---- the logit


def standardised(value_X: np.ndarray) -> np.ndarray:
    """Among the candidates of one question."""
    spread = value_X.std()
    return (value_X - value_X.mean()) / spread if spread > 1e-9 else np.zeros_like(value_X)


def fitted(asked: list[Question], names: list[str], ridge: float = 1.0) -> np.ndarray:
    """Weights of a conditional logit: the right candidates' share of exp(score)."""
    tables = [table(question, names) for question in asked]
    right = [np.array([name in question.true for name in question.candidates]) for question in asked]
    packages = Counter(question.package for question in asked)
    share = np.array([1 / packages[question.package] for question in asked])
    share *= len(asked) / share.sum()

    def loss(weight_F: np.ndarray) -> tuple[float, np.ndarray]:
        total, gradient = ridge * weight_F @ weight_F / 2, ridge * weight_F.copy()
        for table_XF, right_X, one in zip(tables, right, share, strict=True):
            score_X = table_XF @ weight_F
            score_X -= score_X.max()
            all_X = np.exp(score_X)
            p_X = all_X / all_X.sum()
            inside_X = np.where(right_X, all_X, 0)
            q_X = inside_X / inside_X.sum()
            total -= one * math.log(p_X[right_X].sum())
            gradient += one * table_XF.T @ (p_X - q_X)
        return total, gradient

    return minimize(loss, np.zeros(len(names)), jac=True, method="L-BFGS-B").x


def table(question: Question, names: list[str]) -> np.ndarray:
    return np.stack([standardised(question.features[name]) for name in names], axis=1)


def left_out(asked: list[Question], names: list[str]) -> list[np.ndarray]:
    """Scores of each question's candidates by a logit that was fitted on the other packages."""
    weights = {
        package: fitted([question for question in asked if question.package != package], names)
        for package in dict.fromkeys(question.package for question in asked)
    }
    return [table(question, names) @ weights[question.package] for question in asked]


# ---- the encoder


def encoder_scores(
    model, tokenizer, configuration, asked: list[Question], graph, documents
) -> list[dict[str, np.ndarray]]:
    """The parts of the score at either end, as in the notebook's table; of each question's candidates."""
    encoding = configuration.encoding
    roots, _ = configuration.shape(configuration.stages()[0][1])
    encoded = EncodedDocuments(
        documents,
        tokenizer,
        roots=roots,
        leaf_tokens=encoding.leaf_tokens,
        head_tokens=encoding.max_head_tokens,
        entity_tokens=encoding.entity_tokens,
        windows=encoding.windows_per_document,
    )
    relations = Relations(read_ontology())
    predictor = LinkPredictor(model, Windows(encoded, relations, roots))
    calls = relations.id("calls")
    predictor.query_features(sorted({question.caller for question in asked}), calls)
    candidates = {name for question in asked for name in question.candidates}
    predictor.query_features(sorted(candidates), relations.inverse(calls))
    ends = predictor.ends()
    return [
        {name: end.tails([question.caller], "calls", question.candidates)[0] for name, end in ends.items()}
        for question in asked
    ]


# ---- rows


def over_packages(asked: list[Question], value_Q: np.ndarray, weight_Q: np.ndarray) -> float:
    """Mean over packages of the weighted mean over their questions."""
    packages = np.array([question.package for question in asked])
    return float(
        np.mean(
            [np.average(value_Q[own], weights=weight_Q[own]) for own in map(packages.__eq__, dict.fromkeys(packages))]
        )
    )


def resamples(asked: list[Question]) -> list[np.ndarray]:
    """How often each question is there when the callers' modules are drawn again within each package."""
    draw, by_package = np.random.default_rng(0), defaultdict(list)
    for module, package in dict.fromkeys((question.module, question.package) for question in asked):
        by_package[package].append(module)
    drawn = []
    for _ in range(BOOTSTRAP):
        count = Counter(one for modules in by_package.values() for one in draw.choice(modules, len(modules)))
        drawn.append(np.array([count[question.module] for question in asked], float))
    return drawn


def row(asked: list[Question], ranks: list[np.ndarray], base_Q: np.ndarray, drawn: list[np.ndarray]) -> dict:
    """MRR, first answers that are right, and MRR above the lexical row's; `ranks` of each seed."""
    once_Q = np.ones(len(asked))
    reciprocal_Q = np.mean([1 / rank_Q for rank_Q in ranks], axis=0)
    first_Q = np.mean([rank_Q <= 1 for rank_Q in ranks], axis=0)
    above = [over_packages(asked, reciprocal_Q - 1 / base_Q, weight_Q) for weight_Q in drawn]
    return {
        "mrr": over_packages(asked, reciprocal_Q, once_Q),
        "mrr_by_seed": [over_packages(asked, 1 / rank_Q, once_Q) for rank_Q in ranks],
        "first": over_packages(asked, first_Q, once_Q),
        "above_lexical": over_packages(asked, reciprocal_Q - 1 / base_Q, once_Q),
        "interval": np.percentile(above, (2.5, 97.5)).tolist(),
        "mrr_by_package": {
            package: float(
                np.mean([value for value, one in zip(reciprocal_Q, asked, strict=True) if one.package == package])
            )
            for package in dict.fromkeys(question.package for question in asked)
        },
    }


def ranks_of(asked: list[Question], scores: list[np.ndarray]) -> np.ndarray:
    return np.array([question.rank(score_X) for question, score_X in zip(asked, scores, strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", nargs="*", default=[*PACKAGES], choices=PACKAGES)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--folder", type=Path, default=Path("outputs/graph_calls"), help="traces and checkpoints")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/results/graphmer_open_calls_cpu.json")
    given = parser.parse_args()
    about = report.machine("cpu", ("torch", "transformers", "jedi"))

    asked: list[Question] = []
    read: dict[str, tuple] = {}
    counts = {}
    for package in given.packages:
        calls = traced(package, given.folder / "traces")
        folder = package_folder(package)
        graph = load_graph(folder)
        found = questions(package, graph, calls)
        counts[package] = {
            "version": version(package if package != "sklearn" else "scikit-learn"),
            "calls_traced": len(calls),
            "calls_open": sum(triple.relation == "calls" and triple.tail.startswith("?.") for triple in graph.triples),
            "questions": len(found),
        }
        print(package, counts[package], flush=True)
        if len(found) < FEWEST:
            continue
        documents = Documents.read(graph, folder)
        lexical = Lexical(graph, documents)
        for question in found:
            question.features = lexical.features(question)
            question.jedi = jedi_answers(question, graph, folder)
        read[package] = graph, documents
        asked += found

    names = [*asked[0].features]
    chance = [np.zeros(len(question.candidates)) for question in asked]
    lexical = left_out(asked, names)
    of_jedi = [np.array([name in question.jedi for name in question.candidates], float) for question in asked]
    base_Q, drawn = ranks_of(asked, lexical), resamples(asked)
    ranks = {"chance": [ranks_of(asked, chance)]}
    ranks |= {f"one feature: {name}": [ranks_of(asked, [one.features[name] for one in asked])] for name in names}
    ranks["jedi"] = [ranks_of(asked, of_jedi)]
    ranks[LEXICAL] = [base_Q]
    ranks["jedi, then lexical"] = [ranks_of(asked, [x + 1000 * y for x, y in zip(lexical, of_jedi, strict=True)])]

    def write() -> None:
        report.write(
            given.output,
            about,
            steps=given.steps,
            seeds=given.seeds,  # asked for; `mrr_by_seed` has those that are done
            packages=counts,
            jedi={
                "answers": float(np.mean([bool(one.jedi) for one in asked])),
                "right": float(np.mean([bool(one.true & set(one.jedi)) for one in asked])),
            },
            rows={name: row(asked, found, base_Q, drawn) for name, found in ranks.items()},
        )

    write()
    machine = runtime.detect(False, "fp32")
    configuration = override(read_configuration("cpu"), {"run.seed": 0, "run.max_steps": given.steps})
    corpus = experiment.load_corpus("sample", configuration)
    for seed in given.seeds:
        own = override(configuration, {"run.seed": seed})
        seen = experiment.with_options(corpus, own)
        models = {
            UNTRAINED: lambda own=own, seen=seen: experiment.new_model(own, seen),
            TRAINED: lambda own=own, seen=seen, seed=seed: (
                experiment.train(own, seen, machine, given.folder / f"seed{seed}").model
            ),
        }
        for name, make in models.items():
            model = make()
            for package, (graph, documents) in read.items():
                inside = [question for question in asked if question.package == package]
                scores = encoder_scores(model, corpus.tokenizer, own, inside, graph, documents)
                for question, found in zip(inside, scores, strict=True):
                    question.features = {each: question.features[each] for each in names} | found
            parts = [each for each in asked[0].features if each not in names]
            ranks.setdefault(name, []).append(ranks_of(asked, left_out(asked, parts)))
            both = left_out(asked, [*names, *parts])
            ranks.setdefault(f"{LEXICAL} and {name}", []).append(ranks_of(asked, both))
            write()
            print(f"{name}, seed {seed}", flush=True)


if __name__ == "__main__":
    main()
