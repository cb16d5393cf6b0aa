"""What LeJEPA is worth beside other ways to train an embedding, from three starting points, on corpora that chose nothing.

    python benchmarks/lejepa_study.py --data FOLDER                        # the tables of docs/lejepa.md
    python benchmarks/lejepa_study.py --data FOLDER --backbone MINILM --starts retrieval      # from a trained retrieval model

FOLDER holds the public sets that `lejepa_corpora.py` names. The starting points: an encoder from nothing with a tokenizer of its
own; word vectors from nothing; the encoder after some minutes of masked-language modelling on the same texts; a retrieval model on disk, its first layers kept.

Every method that trains has as many steps on as many crops of the same documents, and as many trials (`TRIALS`). A trial is chosen by nDCG@10 on
SciTLDR's titles; what was chosen is trained with other seeds and tested once on corpora that chose nothing. Each row is written
when it is known, and a later call goes on from there. A row keeps what every query scored (`scores`), so that differences
are paired over queries and seeds.
"""

from __future__ import annotations

import argparse
import base64
import copy
import json
import random
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report  # before torch, which it gives huge pages

# isort: split
import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import (
    EmbeddingSimilarityEvaluator,
    InformationRetrievalEvaluator,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, StaticEmbedding, Transformer
from sentence_transformers.util import cos_sim
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    DataCollatorForLanguageModeling,
    get_linear_schedule_with_warmup,
)

from benchmarks.lejepa_corpora import Corpora, load
from helpers.lejepa.beir import Benchmark
from helpers.lejepa.crops import crop
from helpers.lejepa.evidence import ndcg_by_query
from helpers.lejepa.head import fit_head
from helpers.lejepa.isotropy import isotropy
from helpers.lejepa.loss import LeJEPALoss
from helpers.lejepa.model import _train_tokenizer, freeze
from helpers.lejepa.sigreg import SIGReg

# N texts · K embedding

SIZES = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}
VOCABULARY, LENGTH = 4096, 64  # tokens read in a test
CROP = {"min_share": 0.1, "max_share": 0.5, "max_words": 24}
CROP_LENGTH = 40  # tokens
STEPS = {"scratch": 150, "words": 600, "mlm": 150, "retrieval": 60}
MLM_STEPS, MLM_RATE = 500, 1e-3
HEAD_TEXTS = 1000
LEXICAL_WORDS = 8192  # the most frequent of the texts
SEEDS = (1, 2, 3)  # tested with; trials have another
SCRATCH, WORDS, MLM, RETRIEVAL, LEXICAL = "scratch", "words", "mlm", "retrieval", "lexical"


@dataclass(frozen=True)
class Trial:
    """One way to train."""

    method: str
    learning_rate: float = 0.0
    head: tuple[float, float] | None = None  # within and power of the closed-form head that training starts from
    dimensions: int = SIZES["hidden_size"]  # of that head
    weight: float = 0.0  # of SIGReg, or of VICReg's covariance term
    contrastive: float = 0.0
    batch: int = 16


LEJEPA, BOTH, RANKING, RANKING_HEAD = "LeJEPA", "LeJEPA + contrastive", "MNRL", "MNRL from the head"
SIMCSE, VICREG, HEAD, START, WHITENED = "SimCSE", "VICReg", "head alone", "start", "start, whitened"
TWINS, PREDICTOR = (
    "LeJEPA, dropout twins",
    "LeJEPA with a predictor",
)  # the same crop twice; one view predicts the other
WHITE, PARTLY = (0.0, 1.0), (1.0, 0.5)
TRIALS = {
    START: [Trial(START)],
    WHITENED: [Trial(WHITENED, head=WHITE)],
    HEAD: [Trial(HEAD, head=head) for head in ((0.5, 0.2), (0.5, 0.6), PARTLY)],
    LEJEPA: [
        *(Trial(LEJEPA, rate, WHITE, weight=weight) for rate, weight in ((1e-4, 0.3), (3e-4, 0.3), (3e-4, 0.1))),
        Trial(LEJEPA, 3e-4, PARTLY, weight=0.1),
    ],
    RANKING: [Trial(RANKING, rate) for rate in (3e-5, 1e-4, 3e-4, 1e-3)],
    RANKING_HEAD: [
        *(Trial(RANKING_HEAD, rate, WHITE) for rate in (1e-5, 1e-4, 3e-4)),
        Trial(RANKING_HEAD, 1e-5, PARTLY),
    ],
    BOTH: [
        Trial(BOTH, rate, WHITE, weight=weight, contrastive=1.0)
        for rate, weight in ((1e-5, 0.1), (1e-4, 0.1), (3e-4, 0.1), (3e-4, 0.02))
    ],
    SIMCSE: [Trial(SIMCSE, rate) for rate in (1e-5, 3e-5, 1e-4, 3e-4)],
    VICREG: [
        Trial(VICREG, rate, WHITE, weight=weight)
        for rate, weight in ((1e-5, 1.0), (1e-4, 1.0), (3e-4, 1.0), (3e-4, 4.0))
    ],
}
TRIALS |= {name: [replace(trial, method=name) for trial in TRIALS[LEJEPA]] for name in (TWINS, PREDICTOR)}
STARTS = (START, WHITENED, HEAD)
AGAINST = (*STARTS, RANKING, RANKING_HEAD, SIMCSE, VICREG, BOTH)
WORDS_TRIALS = {
    **{method: TRIALS[method] for method in STARTS},
    LEJEPA: [
        *(Trial(LEJEPA, rate, WHITE, weight=weight) for rate, weight in ((3e-4, 0.1), (1e-3, 0.1), (3e-3, 0.1))),
        Trial(LEJEPA, 1e-3, WHITE, weight=0.3),
    ],
    RANKING: [Trial(RANKING, rate) for rate in (3e-4, 1e-3, 3e-3, 1e-2)],
    RANKING_HEAD: [
        *(Trial(RANKING_HEAD, rate, WHITE) for rate in (3e-5, 1e-4, 3e-4)),
        Trial(RANKING_HEAD, 1e-4, PARTLY),
    ],
    VICREG: [
        Trial(VICREG, rate, WHITE, weight=weight)
        for rate, weight in ((3e-4, 1.0), (1e-3, 1.0), (3e-3, 1.0), (1e-3, 4.0))
    ],
}
WORDS_TRIALS[PREDICTOR] = [replace(trial, method=PREDICTOR) for trial in WORDS_TRIALS[LEJEPA]]
FROZEN = 3  # layers of the retrieval model
GENTLE = (0.5, 0.2)  # the notebook's head
RETRIEVAL_TRIALS = {
    START: [Trial(START)],
    WHITENED: [Trial(WHITENED, head=WHITE)],
    HEAD: [Trial(HEAD, head=head) for head in ((0.5, 0.0), GENTLE, (0.5, 0.6), PARTLY)],
    RANKING: [Trial(RANKING, rate) for rate in (2e-6, 1e-5, 5e-5)],
    LEJEPA: [
        *(Trial(LEJEPA, rate, GENTLE, weight=weight) for rate, weight in ((1e-5, 0.02), (1e-5, 0.1), (5e-5, 0.02))),
        Trial(LEJEPA, 1e-5, WHITE, weight=0.1),
    ],
    RANKING_HEAD: [Trial(RANKING_HEAD, rate, GENTLE) for rate in (2e-6, 1e-5, 5e-5)],
    BOTH: [Trial(BOTH, rate, GENTLE, weight=0.02, contrastive=1.0) for rate in (2e-6, 1e-5, 5e-5)],
}
RETRIEVAL_TRIALS = {
    method: [replace(trial, dimensions=384) for trial in trials] for method, trials in RETRIEVAL_TRIALS.items()
}


# ---- starting points


def scratch(corpora: Corpora, seed: int) -> SentenceTransformer:
    """Random weights, mean pooling; the tokenizer is the same for every seed."""
    torch.manual_seed(seed)
    tokenizer = _train_tokenizer(corpora.train, VOCABULARY)
    config = BertConfig(
        vocab_size=len(tokenizer), max_position_embeddings=LENGTH, pad_token_id=tokenizer.pad_token_id, **SIZES
    )
    return _pooled(BertModel(config, add_pooling_layer=False), tokenizer)


def words(corpora: Corpora, seed: int) -> SentenceTransformer:
    """The mean of random word vectors, with `scratch`'s tokenizer: an encoder whose lengths of vectors can weigh the words."""
    tokenizer = _train_tokenizer(corpora.train, VOCABULARY)
    drawn = torch.randn(len(tokenizer), SIZES["hidden_size"], generator=torch.Generator().manual_seed(seed))
    vectors = StaticEmbedding(tokenizer.backend_tokenizer, embedding_weights=0.02 * drawn)
    return SentenceTransformer(modules=[vectors], device="cpu")


class Lexical(SentenceTransformer):
    """TF-IDF of the words: what costs nothing. Its `encode` gives unit rows as wide as the vocabulary."""

    def __init__(self, corpora: Corpora) -> None:
        super().__init__(modules=[nn.Identity()], device="cpu")
        self.weights = TfidfVectorizer(sublinear_tf=True, max_features=LEXICAL_WORDS).fit(corpora.train)

    def encode(self, texts: list[str], **ignored) -> np.ndarray:
        return self.weights.transform(texts).toarray().astype(np.float32)


def masked(corpora: Corpora, folder: Path) -> SentenceTransformer:
    """`scratch` after masked-language modelling on the same texts, kept in a folder."""
    model = scratch(corpora, 0)
    if not (folder / "config.json").is_file():
        texts, tokenizer, config = corpora.train, model.tokenizer, model[0].auto_model.config
        learner = BertForMaskedLM(config)
        learner.bert = model[0].auto_model
        learner.tie_weights()
        collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15, seed=0)
        drawn = random.Random(0)

        def batches():
            for _ in range(MLM_STEPS):
                spans = [crop(text, drawn, **CROP) for text in drawn.sample(texts, 16)]
                yield collate([tokenizer(span, truncation=True, max_length=CROP_LENGTH) for span in spans])

        _train(learner, batches(), lambda batch: learner(**batch).loss, MLM_STEPS, MLM_RATE)
        _pooled(learner.bert, tokenizer).save_pretrained(str(folder))
    return SentenceTransformer(str(folder), device="cpu")


def retrieval(path: Path) -> SentenceTransformer:
    """A retrieval model on disk without its normalisation; it and its lower layers are kept by `freeze`."""
    found = SentenceTransformer(str(path), device="cpu", local_files_only=True)
    found.max_seq_length = LENGTH
    return SentenceTransformer(modules=[each for each in found if not isinstance(each, Normalize)], device="cpu")


def _pooled(encoder, tokenizer) -> SentenceTransformer:
    with tempfile.TemporaryDirectory() as folder:
        encoder.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        transformer = Transformer(folder)
    transformer.max_seq_length = LENGTH
    return SentenceTransformer(modules=[transformer, Pooling(SIZES["hidden_size"])], device="cpu")


# ---- training


class VICReg(nn.Module):
    """25 invariance + 25 hinge of standard deviations + weight x covariance (Bardes, Ponce and LeCun, arXiv 2105.04906)."""

    def __init__(self, model: SentenceTransformer, weight: float) -> None:
        super().__init__()
        self.model, self.weight = model, weight

    def forward(self, features, labels=None):
        views = [self.model(column)["sentence_embedding"] for column in features]
        loss = 25 * (views[0] - views[1]).square().mean()
        for z_NK in views:
            K = z_NK.shape[1]
            covariance_KK = torch.cov(z_NK.T)
            off = covariance_KK - torch.diag(covariance_KK.diagonal())
            loss = loss + 12.5 * (1 - (z_NK.var(0) + 1e-4).sqrt()).relu().mean() + self.weight * off.square().sum() / K
        return loss


class Predicted(nn.Module):
    """(1 - w) squared error of a predictor of each view from the other one + w SIGReg of both; the predictor begins as the identity."""

    def __init__(self, model: SentenceTransformer, sigreg: SIGReg, weight: float) -> None:
        super().__init__()
        K = model.get_embedding_dimension()
        self.model, self.sigreg, self.weight, self.step = model, sigreg, weight, 0
        self.predictor = nn.Sequential(nn.Linear(K, 2 * K), nn.GELU(), nn.Linear(2 * K, K))
        nn.init.zeros_(self.predictor[-1].weight)
        nn.init.zeros_(self.predictor[-1].bias)

    def forward(self, features, labels=None):
        z_VNK = torch.stack([self.model(column)["sentence_embedding"] for column in features])
        error = (z_VNK + self.predictor(z_VNK) - z_VNK.flip(0)).square().mean()
        self.step += 1
        return (1 - self.weight) * error + self.weight * self.sigreg(z_VNK, self.step - 1)


def new_loss(model: SentenceTransformer, trial: Trial, seed: int) -> nn.Module:
    if trial.method == PREDICTOR:
        return Predicted(model, SIGReg(t_max=3.0, n_points=17, num_slices=256, seed=seed), trial.weight)
    if trial.method in (LEJEPA, BOTH, TWINS):
        sigreg = SIGReg(t_max=3.0, n_points=17, num_slices=256, seed=seed)
        return LeJEPALoss(model, sigreg, sigreg_weight=trial.weight, contrastive_weight=trial.contrastive)
    return VICReg(model, trial.weight) if trial.method == VICREG else MultipleNegativesRankingLoss(model)


def trained(start: SentenceTransformer, trial: Trial, texts: list[str], steps: int, seed: int, frozen: int = 0):
    """A trained copy of the start, and what its training took."""
    torch.manual_seed(seed)
    model = with_head(start, trial.head, texts, trial.dimensions) if trial.head else copy.deepcopy(start)
    if frozen:
        freeze(model, frozen)
    model.train()
    loss, rows = new_loss(model, trial, seed), _batches(model, texts, trial, steps, seed)
    begin, first = time.process_time(), next(rows)
    shares = [gradient_shares(loss, first)] if isinstance(loss, LeJEPALoss) else []
    values = _train(
        loss, rows, lambda batch: loss([dict(column) for column in batch], None), steps, trial.learning_rate
    )
    if shares:
        shares.append(gradient_shares(loss, first))
    took = {"cpu_seconds": round(time.process_time() - begin, 1), "loss": [values[0], float(np.mean(values[-20:]))]}
    return model.eval(), took | ({"gradient_shares": shares} if shares else {})


def _batches(model, texts: list[str], trial: Trial, steps: int, seed: int) -> Iterator[list[dict]]:
    """Two crops of each text, the first one twice for dropout twins; one batch more than there are steps."""
    drawn = random.Random(seed)
    order: list[str] = []
    for _ in range(steps + 1):
        if len(order) < trial.batch:
            order = drawn.sample(texts, len(texts))
        batch, order = order[: trial.batch], order[trial.batch :]
        views = [[crop(text, drawn, **CROP) for text in batch] for _ in range(2)]
        if trial.method in (SIMCSE, TWINS):
            views[1] = views[0]
        yield [dict(model.preprocess(view, max_length=CROP_LENGTH)) for view in views]


def _train(module: nn.Module, batches, loss_of, steps: int, rate: float) -> list[float]:
    """AdamW with a tenth of the steps to warm up, then down to 0; the loss of each step."""
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=rate, weight_decay=0.01, fused=True)
    schedule = get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    values = []
    module.train()
    for batch in batches:
        loss = loss_of(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        values.append(float(loss.detach()))
    return values


def gradient_shares(loss: LeJEPALoss, batch: list[dict]) -> dict[str, float]:
    """Share of each term in the gradient with respect to the embeddings: its norm over the sum of the norms."""
    z_VNK = torch.stack([loss.model(dict(column))["sentence_embedding"] for column in batch]).detach().requires_grad_()
    terms = {
        "invariance": (1 - loss.sigreg_weight) * loss._invariance(z_VNK),
        "sigreg": loss.sigreg_weight * loss.sigreg(z_VNK, 0),
    }
    if loss.contrastive_weight:
        terms["contrastive"] = loss.contrastive_weight * loss._contrastive(z_VNK, batch)
    norms = {name: float(torch.autograd.grad(term, z_VNK)[0].norm()) for name, term in terms.items()}
    return {name: round(norm / sum(norms.values()), 3) for name, norm in norms.items()}


def with_head(
    model: SentenceTransformer, head: tuple[float, float], texts: list[str], dimensions: int
) -> SentenceTransformer:
    """A copy with a linear head in closed form, from two crops of the a sample of the texts."""
    drawn = random.Random(0)
    sample = drawn.sample(texts, HEAD_TEXTS)
    views = {f"view_{n}": [crop(text, drawn, **CROP) for text in sample] for n in (1, 2)}
    K = model.get_embedding_dimension()
    new = Dense(K, min(dimensions, K), activation_function=nn.Identity())
    model = SentenceTransformer(modules=[*copy.deepcopy(list(model)), new], device="cpu")
    fit_head(model.eval(), views, within=head[0], power=head[1], shrinkage=0.01 if head == WHITE else 0.1)
    return model


# ---- tests


def encoded(model: SentenceTransformer, texts: list[str]) -> dict[str, np.ndarray]:
    """Embeddings by text."""
    found = model.encode(texts, batch_size=64, show_progress_bar=False)
    return dict(zip(texts, found, strict=True))


def dev_score(model: SentenceTransformer, dev: Benchmark) -> float:
    known = encoded(model, [*dev.queries.values(), *dev.corpus.values()])
    return round(float(_ndcg(known, dev).mean()), 4)


def _ndcg(known: dict[str, np.ndarray], benchmark: Benchmark) -> np.ndarray:
    rows = (np.stack([known[text] for text in part.values()]) for part in (benchmark.queries, benchmark.corpus))
    return ndcg_by_query(*rows, benchmark)


class _Known:
    """An evaluator of sentence-transformers' whose embeddings were made before, by text."""

    known: dict[str, np.ndarray]

    def embed_inputs(self, model, sentences, **ignored):
        return torch.from_numpy(np.stack([self.known[text] for text in sentences]))

    def store_metrics_in_model_card_data(self, *args, **kwargs) -> None:
        pass


class _Retrieval(_Known, InformationRetrievalEvaluator):
    pass


class _Similarity(_Known, EmbeddingSimilarityEvaluator):
    pass


def tested(model: SentenceTransformer, corpora: Corpora) -> dict:
    """Metrics of each corpus, and what each query, pair or text scored."""
    known, metrics, scores = encoded(model, corpora.tested()), {}, {}
    for name, benchmark in corpora.retrieval.items():
        evaluator = _Retrieval(
            benchmark.queries, benchmark.corpus, benchmark.relevant, accuracy_at_k=[1], precision_recall_at_k=[100],
            mrr_at_k=[10], ndcg_at_k=[10], map_at_k=[100], score_functions={"cosine": cos_sim}, write_csv=False,
        )  # fmt: skip
        evaluator.known = known
        found = evaluator(model)
        metrics[name] = {"ndcg@10": found["cosine_ndcg@10"], "recall@100": found["cosine_recall@100"]}
        scores[name] = _ndcg(known, benchmark)
    first, second, gold = zip(*corpora.similar, strict=True)
    similar = _Similarity(list(first), list(second), list(gold), similarity_fn_names=["cosine"], write_csv=False)
    similar.known = known
    metrics["STS-B"] = {"spearman": float(similar(model)["spearman_cosine"])}
    rows = [np.stack([known[text] for text in texts]) for texts in (first, second)]
    unit = [part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-12) for part in rows]
    scores["STS-B"] = (unit[0] * unit[1]).sum(1)
    scores["banking77"] = _nearest(known, corpora)
    metrics["banking77"] = {"1-NN accuracy": float(scores["banking77"].mean())}
    shape = {}
    if not isinstance(model, Lexical):  # thousands of words, most of them in no text
        shape = isotropy(np.stack([known[text] for text in corpora.unseen])).results()
        shape = {name: shape[name] for name in ("effective_rank", "participation_ratio", "sigreg_excess")}
    metrics = {
        name: {metric: round(float(value), 4) for metric, value in found.items()} for name, found in metrics.items()
    }
    dev = round(float(_ndcg(known, corpora.dev).mean()), 4)
    return {
        "dev": dev,
        "metrics": metrics,
        "unseen": shape,
        "scores": {name: _packed(found) for name, found in scores.items()},
    }


def _nearest(known: dict[str, np.ndarray], corpora: Corpora) -> np.ndarray:
    """1 where the nearest known text has the text's class."""
    (texts, classes), (asked, wanted) = (list(zip(*part, strict=True)) for part in (corpora.known, corpora.classified))
    near = cos_sim(*(np.stack([known[text] for text in part]) for part in (asked, texts))).argmax(1).tolist()
    return np.array([classes[row] == right for row, right in zip(near, wanted, strict=True)], float)


def _packed(values: np.ndarray) -> str:
    """Numbers from -1 to 1 in steps of 1/10,000, as text."""
    return base64.b64encode(zlib.compress(np.round(values * 10_000).astype("<i2").tobytes(), 9)).decode()


def unpacked(packed: str) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(packed)), "<i2") / 10_000


# ---- intervals


def difference(ours: list[dict], theirs: list[dict], corpus: str, gold: np.ndarray, resamples: int = 2000) -> dict:
    """The mean over seeds of a corpus' main metric, ours less theirs, with its 95 % interval.

    Queries (pairs of STS-B, texts of banking77) and seeds are drawn again, both for the two sides together. Spearman's correlation is
    of ranks over all pairs, weighed by how often a pair was drawn.
    """
    sides = [np.stack([unpacked(row["scores"][corpus]) for row in rows]) for rows in (ours, theirs)]  # [seeds, Q]
    S, Q = sides[0].shape
    drawn = np.random.default_rng(0)
    weights = drawn.multinomial(Q, np.full(Q, 1 / Q), resamples) / Q
    weights_and_all = np.concatenate((np.full((1, Q), 1 / Q), weights))
    if corpus == "STS-B":
        values = [np.stack([_spearman(row, gold, weights_and_all) for row in side], 1) for side in sides]
    else:
        values = [weights_and_all @ side.T for side in sides]  # [resamples + 1, seeds]
    by_seed = values[0] - values[1]
    seeds = drawn.integers(0, S, (resamples, S))
    low, high = np.quantile(np.take_along_axis(by_seed[1:], seeds, 1).mean(1), (0.025, 0.975))
    return {
        "difference": round(float(by_seed[0].mean()), 4),
        "low": round(float(low), 4),
        "high": round(float(high), 4),
    }


def _spearman(values_Q: np.ndarray, gold_Q: np.ndarray, weights_RQ: np.ndarray) -> np.ndarray:
    from scipy.stats import rankdata

    a_Q, b_Q = (rankdata(part) / len(part) - 0.5 for part in (values_Q, gold_Q))
    mean_a, mean_b = weights_RQ @ a_Q, weights_RQ @ b_Q
    covariance = weights_RQ @ (a_Q * b_Q) - mean_a * mean_b
    return covariance / np.sqrt((weights_RQ @ a_Q**2 - mean_a**2) * (weights_RQ @ b_Q**2 - mean_b**2))


# ---- the study


class Study:
    """Rows of the file, each done once."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.corpora, self.arguments = load(arguments.data), arguments
        self.machine = report.machine("cpu", ("torch", "transformers", "sentence-transformers"))
        self.rows: list[dict] = []
        if arguments.output.is_file():
            self.rows = json.loads(arguments.output.read_text(encoding="utf-8"))["rows"]
        self.starts: dict[tuple[str, int], SentenceTransformer] = {}

    def start(self, name: str, seed: int) -> SentenceTransformer:
        """From nothing every seed has other weights; the others are what they are."""
        seed = seed if name in (SCRATCH, WORDS) else 0
        if (name, seed) not in self.starts:
            make = {
                SCRATCH: lambda: scratch(self.corpora, seed),
                WORDS: lambda: words(self.corpora, seed),
                MLM: lambda: masked(self.corpora, self.arguments.work / "mlm"),
                RETRIEVAL: lambda: retrieval(self.arguments.backbone),
                LEXICAL: lambda: Lexical(self.corpora),
            }
            self.starts[name, seed] = make[name]().eval()
        return self.starts[name, seed]

    def row(self, stage: str, start: str, trial: Trial, seed: int) -> dict:
        """The row of a trial ("dev") or a test, made where it is missing."""
        asked = {"stage": stage, "start": start, "trial": json.loads(json.dumps(asdict(trial))), "seed": seed}
        for row in self.rows:
            same = (row["stage"], row["start"], row["seed"]) == (stage, start, seed)
            if same and asked["trial"].items() <= row["trial"].items():
                return row
        with torch.autocast("cpu", torch.bfloat16, enabled=start == RETRIEVAL):
            row = asked | self._done(stage, start, trial, seed)
        self.rows.append(row)
        self.write()
        print(json.dumps({name: value for name, value in row.items() if name != "scores"}), flush=True)
        return row

    def _done(self, stage: str, start: str, trial: Trial, seed: int) -> dict:
        begin, texts = time.process_time(), self.corpora.train
        model, took = self.start(start, seed), {}
        if trial.learning_rate:
            frozen = FROZEN if start == RETRIEVAL else 0
            model, took = trained(model, trial, texts, STEPS[start], seed, frozen)
        elif trial.head:
            model = with_head(model, trial.head, texts, trial.dimensions)
        found = tested(model, self.corpora) if stage == "test" else {"dev": dev_score(model, self.corpora.dev)}
        return took | found | {"row_cpu_seconds": round(time.process_time() - begin, 1)}

    def chosen(self, start: str, trials: list[Trial], batch: int) -> Trial:
        """The trial with the best nDCG@10 on SciTLDR's titles, with as many texts a step as will be tested."""
        trials = [replace(trial, batch=batch) if trial.learning_rate else trial for trial in trials]
        if len(trials) == 1:
            return trials[0]
        return max(trials, key=lambda trial: self.row("dev", start, trial, 0)["dev"])

    def test(self, start: str, trial: Trial) -> None:
        """With three seeds, of the slow retrieval model with two, and once where no seed changes anything."""
        seeds = SEEDS[:2] if start == RETRIEVAL else SEEDS
        for seed in seeds if start in (SCRATCH, WORDS) or trial.learning_rate else seeds[:1]:
            self.row("test", start, trial, seed)

    def write(self, **parts) -> None:
        report.write(
            self.arguments.output,
            self.machine,
            data={"sha256": self.corpora.digest(), "documents": len(self.corpora.train)},
            settings={
                "sizes": SIZES,
                "vocabulary": VOCABULARY,
                "crop": CROP,
                "tokens": [CROP_LENGTH, LENGTH],
                "steps": STEPS,
                "mlm_steps": MLM_STEPS,
            },
            rows=self.rows,
            **parts,
        )

    def comparisons(self) -> list[dict]:
        """Every method that trains against each of `AGAINST`, from the same start, and closed forms against the start."""
        gold = np.array([score for *_, score in self.corpora.similar])
        sides: dict[tuple, list[dict]] = {}
        for row in self.rows:
            if row["stage"] == "test":
                sides.setdefault((row["start"], row["trial"]["method"], row["trial"]["batch"]), []).append(row)
        found = []
        for (start, method, batch), ours in sides.items():
            for (start_too, other, batch_too), theirs in sides.items():
                asked = method not in STARTS or other == START
                fits = asked and start == start_too and other in AGAINST and method != other
                if not fits or (other not in STARTS and batch != batch_too):
                    continue
                theirs = theirs * len(ours) if len(theirs) == 1 else theirs  # a start that no seed changes
                pairs = list(zip(ours, theirs, strict=False))
                both = [list(side) for side in zip(*pairs, strict=True)]
                by_corpus = {name: difference(*both, name, gold) for name in ours[0]["scores"]}
                found.append(
                    {
                        "start": start,
                        "method": method,
                        "batch": batch,
                        "against": other,
                        "seeds": len(pairs),
                        **by_corpus,
                    }
                )
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the public sets")
    parser.add_argument("--backbone", type=Path, help="folder of all-MiniLM-L6-v2, for the third starting point")
    parser.add_argument(
        "--work", type=Path, default=Path("outputs/lejepa_study"), help="where the masked-language model is kept"
    )
    parser.add_argument("--output", type=Path, default=report.ROOT / "docs/results/lejepa_study_cpu.json")
    parser.add_argument("--summarise", action="store_true", help="only the intervals of the rows that are there")
    parser.add_argument(
        "--starts", nargs="+", choices=(LEXICAL, SCRATCH, WORDS, MLM, RETRIEVAL), default=(LEXICAL, SCRATCH, WORDS, MLM)
    )
    parser.add_argument("--methods", nargs="+", choices=tuple(TRIALS), help="default: all of the start")
    parser.add_argument("--batches", nargs="+", type=int, default=(16,), help="texts of a step")
    study = Study(parser.parse_args())
    if not study.arguments.summarise:
        run(study)
    study.write(comparisons=study.comparisons())


def run(study: Study) -> None:
    """The rows that were asked for, all methods of a start one after the other."""
    for start in study.arguments.starts:
        trials = {RETRIEVAL: RETRIEVAL_TRIALS, WORDS: WORDS_TRIALS, LEXICAL: {START: TRIALS[START]}}.get(start, TRIALS)
        for method in study.arguments.methods or trials:
            trains = any(trial.learning_rate for trial in trials[method])
            for batch in study.arguments.batches if trains else (16,):
                study.test(start, study.chosen(start, trials[method], batch))


if __name__ == "__main__":
    main()
