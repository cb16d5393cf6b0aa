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

from helpers import ranks
from helpers.plan import Plan
from helpers.planning.workloads import Workload
from helpers.runtime import Runtime

from .beir import Benchmark, from_pairs, read_beir
from .crops import in_order, make_views
from .data import TextData, load_texts
from .encoding import encode, on_cpu
from .evaluation import evaluate_retrieval, evaluate_similarity, retrieval_evaluator
from .gradient_cache import embed
from .head import HeadFit, fit_head
from .isotropy import Isotropy, isotropy
from .loss import new_loss
from .model import GaussianEmbeddingGemma, freeze
from .parameters import HELD_OUT, EmbeddingParameters
from .step import workload as training_step
from .training import EmbeddingTrainer, new_trainer

HEAD_ROWS = 4000  # for the closed-form head
WORDS_A_TOKEN = 0.75
ISOTROPY_TEXTS = 4096  # at most
HEAD_RATE = 100.0  # the head's learning rate, times the backbone's
CONTRASTIVE_RATE = 2e-5  # the usual one of MultipleNegativesRankingLoss, ten times the recipe's
BEST = "eval_held-out_cosine_ndcg@10"
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
    held_out: Benchmark  # from the validation rows: which checkpoint is the best
    test: Benchmark  # a benchmark of its own, or the held-out one where none was given

    @property
    def documents(self) -> bool:
        return self.texts.kind == "documents"


def load_corpus(params: EmbeddingParameters) -> Corpus:
    """Texts of `data_source`, split; the held-out rows as a benchmark; and the one to test on."""
    texts = load_texts(params.data_source, num_samples=params.num_samples, seed=params.seed, documents=params.documents)
    rows = texts.validation
    if texts.kind == "documents":
        rows = make_views(texts, split="validation", seed=0, crops=2, **crop_limits(params))
        rows = rows.rename_columns({"view_1": "anchor", "view_2": "positive"})
    held_out = from_pairs(zip(rows["anchor"], rows["positive"], strict=True), HELD_OUT)
    test = held_out if params.benchmark == HELD_OUT else read_beir(params.benchmark)
    return Corpus(texts=texts, held_out=held_out, test=test)


def views(params: EmbeddingParameters, corpus: Corpus, rows: int, folder: Path | None = None) -> Dataset:
    """At least so many rows, pass after pass over the training texts, each with its own order and crops."""
    folder = folder and ranks.broadcast(folder.absolute())
    with ranks.main_process_first():
        return make_views(
            corpus.texts,
            seed=params.seed,
            passes=math.ceil(rows / len(corpus.texts.train)),
            crops=params.views(corpus.documents) - (0 if corpus.documents else 2),
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
        device="cpu",  # the trainer moves it
    )


def set_head(model: SentenceTransformer, params: EmbeddingParameters, corpus: Corpus) -> HeadFit:
    """The closed-form head from views of training texts; then freezes what is to stay."""
    rows = views(params, corpus, HEAD_ROWS)
    rows = rows.select(range(min(HEAD_ROWS, len(rows))))
    fitted = fit_head(
        model,
        {name: rows[name][:] for name in rows.column_names},
        within=params.head_within,
        power=params.head_power,
        shrinkage=params.head_shrinkage,
        seed=params.seed,
    )
    freeze(model, params.freeze_layers)
    return fitted


def without_head(model: SentenceTransformer) -> SentenceTransformer:
    """A copy of the backbone alone, prompts and length included."""
    backbone = SentenceTransformer(
        modules=[copy.deepcopy(module) for module in list(model)[:-1]], prompts=model.prompts, device=str(model.device)
    )
    for parameter in backbone.parameters():
        parameter.requires_grad_(True)
    return backbone


def parameter_counts(model: SentenceTransformer) -> dict[str, int]:
    """Numbers of all weights and of the trained ones."""
    weights = list(model.parameters())
    return {
        "parameters": sum(w.numel() for w in weights),
        "trained": sum(w.numel() for w in weights if w.requires_grad),
    }


def workload(model: SentenceTransformer, corpus: Corpus, params: EmbeddingParameters) -> Workload:
    """The training step of this run, for the planner."""
    views = params.views(corpus.documents)
    return training_step(new_loss(model, params), params.base_model, params.view_length, views)


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
    return _trainer(
        model,
        new_loss(model, params),
        views(params, corpus, plan.max_steps * plan.batch_size, output_dir / "views"),
        corpus,
        params,
        plan,
        runtime,
        output_dir,
        {rf"^model\.(module\.)?{len(model) - 1}\.": rate},
    )


def _trainer(model, loss, rows, corpus, params, plan, runtime, output_dir, rates) -> EmbeddingTrainer:
    return new_trainer(
        model,
        loss,
        rows,
        None,
        retrieval_evaluator(corpus.held_out),
        plan,
        runtime,
        output_dir,
        seed=params.seed,
        logging_steps=params.logging_steps,
        eval_steps=params.eval_steps,
        save_steps=params.save_steps,
        report_to=params.report_to,
        learning_rate_mapping=rates,
        patience=params.patience,
        max_hours=params.max_hours,
        max_seq_length=params.view_length,
        metric_for_best_model=BEST,
        greater_is_better=True,
        batch_sampler=in_order,
        eval_on_start=True,  # the best checkpoint may be the start: training never ends below it on the held-out rows
    )


def measure(
    model: SentenceTransformer, corpus: Corpus, params: EmbeddingParameters, runtime: Runtime
) -> tuple[dict[str, float], Isotropy]:
    """What a model is worth: retrieval on the test benchmark, similarity where a file was given, isotropy of documents."""
    precision = "fp32" if runtime.kind == "xla" else runtime.precision  # there a copy on the CPU encodes
    model, embeddings = on_cpu(model), {}
    found = evaluate_retrieval(model, corpus.test, precision=precision, embeddings=embeddings)
    values = {name.removeprefix("cosine_"): value for name, value in found.items() if name.startswith("cosine_")}
    values["dot_ndcg@10"] = found["dot_ndcg@10"]
    if params.similarity:
        values["similarity"] = evaluate_similarity(model, params.similarity, precision=precision)["spearman_cosine"]
    report = isotropy(embeddings["document"][:ISOTROPY_TEXTS], t_max=params.t_max, n_points=params.n_points)
    return values | {name: float(value) for name, value in report.results().items()}, report


def row(
    trainer: EmbeddingTrainer, corpus: Corpus, params: EmbeddingParameters, runtime: Runtime
) -> tuple[dict[str, float], Isotropy]:
    """`measure` of a trained model, with what its training took."""
    values, report = measure(trainer.model, corpus, params, runtime)
    cost = {
        "steps": trainer.state.global_step,
        "training_seconds": round(trainer.meter.training_seconds(), 1),
        "examples_per_second": trainer.meter.results()["examples_per_second"],
    }
    return values | cost, report


def further_seeds(
    params: EmbeddingParameters, corpus: Corpus, plan: Plan, runtime: Runtime, output_dir: Path
) -> dict[int, dict[str, dict[str, float]]]:
    """Rows of both models for the next `params.further_seeds` seeds: other order, crops, slices and dropout."""
    rows = {}
    for seed in range(params.seed + 1, params.seed + 1 + params.further_seeds):
        seeded, folder = params.model_copy(update={"seed": seed}), output_dir / f"seed-{seed}"
        model = new_backbone(seeded, corpus)
        set_head(model, seeded, corpus)
        backbone = without_head(model)
        trainer = lejepa_trainer(model, corpus, seeded, plan, runtime, folder / "lejepa")
        trainer.train(resume_from_checkpoint=params.resume)
        rows[seed] = {LEJEPA: row(trainer, corpus, seeded, runtime)[0]}
        if params.compare_contrastive:
            rows[seed][CONTRASTIVE] = train_contrastive(backbone, corpus, seeded, plan, runtime, folder / "contrastive")
    return rows


def train_contrastive(
    backbone: SentenceTransformer,
    corpus: Corpus,
    params: EmbeddingParameters,
    plan: Plan,
    runtime: Runtime,
    output_dir: Path,
) -> dict[str, float]:
    """The baseline: the backbone as it came, with `MultipleNegativesRankingLoss` on the first two views of the same rows.

    At its own usual learning rate, unless the user asked for one.
    """
    plan = dataclasses.replace(plan, learning_rate=params.learning_rate or CONTRASTIVE_RATE)
    rows = views(params, corpus, plan.max_steps * plan.batch_size, output_dir / "views")
    rows = rows.select_columns(rows.column_names[:2])
    loss = RankingLoss(backbone, gather_across_devices=ranks.count() > 1)
    trainer = _trainer(backbone, loss, rows, corpus, params, plan, runtime, output_dir, {})
    trainer.train(resume_from_checkpoint=params.resume)
    return row(trainer, corpus, params, runtime)[0]


def same_embeddings(model: SentenceTransformer, reloaded: SentenceTransformer, texts: list[str]) -> float:
    """Largest difference between two models' embeddings of the texts, relative to the largest float of an embedding."""
    ours, theirs = (encode(each, texts, task="document") for each in (model, reloaded))
    return float(np.abs(ours - theirs).max() / np.abs(ours).max())
