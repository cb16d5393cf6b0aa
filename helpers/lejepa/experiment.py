"""The steps of a LeJEPA run: views of texts, a model with its closed-form head, trainer, measures, and what it is held against."""

from __future__ import annotations

import copy
import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from helpers.machine import ranks
from helpers.machine.runtime import Runtime
from helpers.parameters import UPLOAD, source_path
from helpers.plan.settings import Plan
from helpers.plan.workloads import Workload
from helpers.show import tables

from .beir import Benchmark, from_pairs, read_beir
from .crops import make_views
from .data import TextData, load_texts
from .encoding import encode, on_cpu
from .evaluation import BY_DIMENSION, evaluate_retrieval, table
from .evidence import Verdict, compare, ndcg_by_query
from .gradient_cache import embed
from .head import HeadFit, fit_head
from .loss import new_loss
from .loss import workload as training_step
from .model import GaussianEmbeddingGemma, freeze
from .parameters import HELD_OUT, SHORTER, EmbeddingParameters
from .retrieval import TextIndex
from .training import EmbeddingTrainer, new_trainer

HEAD_ROWS = 4000  # for the closed-form head
WORDS_A_TOKEN = 0.75
HEAD_RATE = 100.0  # the head's learning rate, times the backbone's
CONTRASTIVE_RATE = 5e-5  # of MultipleNegativesRankingLoss: the study of docs/lejepa.md chose it for MiniLM
DEV = "validation"
SEARCHED = 1000  # documents at least that queries held out are searched among, where there are as many
INDEXED = 2000  # documents of a hub set or the sample in the search index; of one's own all
LEJEPA, CONTRASTIVE = "LeJEPA", "MultipleNegativesRankingLoss"
UNTRAINED, HEAD_ONLY = "backbone, untrained", "backbone + closed-form head, untrained"


class RankingLoss(MultipleNegativesRankingLoss):
    """Stock's, with gradient caching: it ranks among the whole batch, as LeJEPA's contrastive term does."""

    chunk = 0

    def forward(self, sentence_features, labels=None):
        views = [embed(self.model, column, self.chunk) for column in sentence_features]
        return self.compute_loss_from_embeddings(views, labels)


@dataclass(frozen=True)
class Corpus:
    """What a run trains on, chooses its best checkpoint by, and is tested on."""

    texts: TextData
    validation: Benchmark  # from the validation rows: which checkpoint is the best, and which model is exported
    test: Benchmark  # a benchmark of its own, or from the test rows; it chooses nothing


def load_corpus(params: EmbeddingParameters) -> Corpus:
    """Texts of `data_source`, split; the validation rows as a benchmark; and the one to test on."""
    texts = load_texts(params.data_source, num_samples=params.num_samples, seed=params.seed, documents=params.documents)
    own = params.benchmark == HELD_OUT
    test = _held_out(texts, "test", params, HELD_OUT) if own else read_beir(params.benchmark)
    return Corpus(texts, _held_out(texts, "validation", params, DEV), test)


def _held_out(texts: TextData, split: str, params: EmbeddingParameters, name: str) -> Benchmark:
    """Rows of a split as queries and their answers, of documents two crops; the answers of training stand beside them."""

    def pairs(split: str) -> list[tuple[str, str]]:
        rows = getattr(texts, split)
        if texts.kind == "documents":
            rows = make_views(texts, split=split, seed=0, crops=2, **crop_limits(params))
            rows = rows.rename_columns({"view_1": "anchor", "view_2": "positive"})
        return list(zip(rows["anchor"], rows["positive"], strict=True))

    asked = pairs(split)
    missing = SEARCHED - len(asked)
    return from_pairs(asked, name, [answer for _, answer in pairs("train")[:missing]] if missing > 0 else ())


def searchable(params: EmbeddingParameters, corpus: Corpus) -> list[str]:
    """Every document or positive of the data, once: what a search is for. Of a hub set and of the sample the first 2,000."""
    column = "text" if corpus.texts.kind == "documents" else "positive"
    parts = (corpus.texts.test, corpus.texts.validation, corpus.texts.train)
    found = list(dict.fromkeys(text for part in parts for text in part[column]))
    ours = params.data_source == UPLOAD or source_path("data_source", params.data_source) is not None
    return found if ours else found[:INDEXED]


def views(params: EmbeddingParameters, corpus: Corpus, rows: int, folder: Path | None = None) -> Dataset:
    """At least so many rows, pass after pass over the training texts, each with its own order and crops."""
    folder = folder and ranks.broadcast(folder.absolute())
    crops = params.columns(corpus.texts.kind) - {"documents": 0, "pairs": 2, "triplets": 3}[corpus.texts.kind]
    with ranks.main_process_first():
        return make_views(
            corpus.texts,
            seed=params.seed,
            passes=math.ceil(rows / len(corpus.texts.train)),
            crops=crops,
            folder=folder,
            **crop_limits(params),
        )


def crop_limits(params: EmbeddingParameters) -> dict[str, float | int]:
    """Of `make_views`: no crop is so long that its end would be cut off."""
    return {
        "min_share": params.crop_min_share,
        "max_share": params.crop_max_share,
        "max_words": int(WORDS_A_TOKEN * params.view_length),
    }


def new_backbone(params: EmbeddingParameters, corpus: Corpus) -> SentenceTransformer:
    """The pretrained model with a head of `output_dim` not yet set."""
    texts = [text for column in corpus.texts.train.column_names for text in corpus.texts.train[column]]
    return GaussianEmbeddingGemma(
        params.base_model,
        params.output_dim,
        max_seq_length=params.max_seq_length,
        seed=params.seed,
        texts=texts if params.base_model == "sample" else (),
    )


def set_head(model: SentenceTransformer, params: EmbeddingParameters, corpus: Corpus) -> HeadFit:
    """The closed-form head from views of training texts; then freezes what is to stay."""
    rows = views(params, corpus, HEAD_ROWS)
    rows = rows.select(range(min(HEAD_ROWS, len(rows))))
    fitted = fit_head(
        model,
        {name: rows[name][:] for name in rows.column_names if name != "negative"},
        within=params.head_within,
        power=params.head_power,
        shrinkage=params.head_shrinkage,
    )
    freeze(model, params.freeze_layers)
    return fitted


def without_head(model: SentenceTransformer) -> SentenceTransformer:
    """A copy of the backbone alone, prompts and length included."""
    backbone = SentenceTransformer(modules=list(model)[:-1], prompts=model.prompts, device=str(model.device))
    return copy.deepcopy(backbone).requires_grad_(True)


def parameter_counts(model: SentenceTransformer) -> dict[str, int]:
    """Numbers of all weights and of the trained ones."""
    weights = list(model.parameters())
    return {
        "parameters": sum(w.numel() for w in weights),
        "trained": sum(w.numel() for w in weights if w.requires_grad),
    }


def workload(model: SentenceTransformer, corpus: Corpus, params: EmbeddingParameters) -> Workload:
    """The training step of this run, for the planner."""
    kind = corpus.texts.kind
    return training_step(new_loss(model, params, kind), params.base_model, params.view_length, params.columns(kind))


def lejepa_trainer(
    model: SentenceTransformer,
    corpus: Corpus,
    params: EmbeddingParameters,
    plan: Plan,
    runtime: Runtime,
    output_dir: Path,
) -> EmbeddingTrainer:
    """The trainer of the run: `LeJEPALoss` on all views, backbone and head at their rates."""
    rate = params.head_learning_rate or HEAD_RATE * plan.learning_rate
    loss = new_loss(model, params, corpus.texts.kind)
    rows = views(params, corpus, plan.max_steps * plan.batch_size, output_dir / "views")
    rates = {rf"^model\.(module\.)?{len(model) - 1}\.": rate}
    run = (corpus.validation, params, plan, runtime, output_dir)
    return new_trainer(model, loss, rows, *run, learning_rate_mapping=rates)


@dataclass(frozen=True)
class Measured:
    """What a model is worth on the test."""

    values: dict[str, float]  # for tables and results.json
    ndcg_Q: np.ndarray  # nDCG@10 of each query


def measure(model: SentenceTransformer, corpus: Corpus, params: EmbeddingParameters, runtime: Runtime) -> Measured:
    """Retrieval on the test, of shorter embeddings too."""
    precision, embeddings = _precision(runtime), {}
    model = on_cpu(model)
    values = evaluate_retrieval(model, corpus.test, precision=precision, embeddings=embeddings)
    queries_QK, documents_NK = embeddings["query"], embeddings["document"]
    for size in (size for size in SHORTER if size < documents_NK.shape[1]):
        cut_Q = ndcg_by_query(queries_QK[:, :size], documents_NK[:, :size], corpus.test)
        values[f"ndcg@10 of {size}"] = float(cut_Q.mean())
    return Measured(values, ndcg_by_query(queries_QK, documents_NK, corpus.test))


def measure_trained(
    trainer: EmbeddingTrainer, corpus: Corpus, params: EmbeddingParameters, runtime: Runtime
) -> Measured:
    """`measure` of a trained model, with what its training took."""
    found = measure(trainer.model, corpus, params, runtime)
    cost = {
        "steps": trainer.state.global_step,
        "training_seconds": round(trainer.meter.training_seconds(), 1),
        "examples_per_second": trainer.meter.results()["examples_per_second"],
    }
    return dataclasses.replace(found, values=found.values | cost)


def _precision(runtime: Runtime) -> str:
    return "fp32" if runtime.kind == "xla" else runtime.precision  # there a copy on the CPU encodes


def choose(models: dict[str, SentenceTransformer], corpus: Corpus, runtime: Runtime) -> tuple[str, dict[str, float]]:
    """The model to export: nDCG@10 of each on the validation queries, and the best one, of equals the first."""
    scores = {
        name: evaluate_retrieval(model, corpus.validation, precision=_precision(runtime))["ndcg@10"]
        for name, model in models.items()
    }
    return max(scores, key=scores.__getitem__), scores


def verdicts(measured: dict[str, Measured]) -> list[Verdict]:
    """LeJEPA against each other model on the test queries, and the others against the start."""
    ndcg = {name: found.ndcg_Q for name, found in measured.items()}
    others = [name for name in measured if name != LEJEPA]
    pairs = [(LEJEPA, other) for other in others] + [(other, UNTRAINED) for other in others if other != UNTRAINED]
    return [compare(*pair, ndcg) for pair in pairs]


def export(
    model: SentenceTransformer, folder: Path, said: str, measured: dict[str, Measured], corpus: Corpus, base: str
) -> None:
    """Saves a model for `SentenceTransformer(folder)`, what was measured on its card."""
    model = on_cpu(model)
    model.model_card_data.local_files_only = True
    model.model_card_data.generate_widget_examples = False
    model.save_pretrained(str(folder))
    values = {name: found.values for name, found in measured.items()}
    base = Path(base).name if Path(base).exists() else base  # a card is shared
    parts = (
        "## Evidence",
        f"From `{base}` and {corpus.texts.source}; tested on {corpus.test.name}. {said}",
        tables.markdown(table(values, {})),
        "With the first numbers of an embedding alone, as `SentenceTransformer(..., truncate_dim=256)` gives them, nDCG@10:",
        tables.markdown(table(values, {}, BY_DIMENSION)),
    )
    card = folder / "README.md"
    card.write_text("\n\n".join((card.read_text(encoding="utf-8").rstrip(), *parts)) + "\n", encoding="utf-8")


def index(model: SentenceTransformer, texts: list[str], runtime: Runtime) -> TextIndex:
    """Texts to search, embedded on the GPU where there is one; on the CPU beside a TPU."""
    return TextIndex(model.to("cuda") if runtime.kind == "cuda" else model, texts)


def train_contrastive(
    backbone: SentenceTransformer,
    corpus: Corpus,
    params: EmbeddingParameters,
    plan: Plan,
    runtime: Runtime,
    output_dir: Path,
) -> EmbeddingTrainer:
    """The baseline, trained: a copy of the backbone, with `MultipleNegativesRankingLoss` on the first two views and the hard negatives
    of the same rows, at `CONTRASTIVE_RATE` unless the user asked for a rate.
    """
    plan = dataclasses.replace(plan, learning_rate=params.learning_rate or CONTRASTIVE_RATE)
    rows = views(params, corpus, plan.max_steps * plan.batch_size, output_dir / "views")
    negatives = [name for name in rows.column_names[2:] if name == "negative"]
    rows, backbone = rows.select_columns([*rows.column_names[:2], *negatives]), copy.deepcopy(backbone)
    loss = RankingLoss(backbone, gather_across_devices=ranks.count() > 1)
    trainer = new_trainer(backbone, loss, rows, corpus.validation, params, plan, runtime, output_dir)
    trainer.train(resume_from_checkpoint=params.resume)
    return trainer


def same_embeddings(model: SentenceTransformer, reloaded: SentenceTransformer, texts: list[str]) -> float:
    """Largest difference between two models' embeddings of the texts, relative to the largest float of an embedding."""
    ours, theirs = (encode(each, texts, task="document") for each in (model, reloaded))
    return float(np.abs(ours - theirs).max() / np.abs(ours).max())
