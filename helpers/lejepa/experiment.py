"""The steps of a LeJEPA run: views of texts, a model with its closed-form head, trainer, measures, and what it is held against."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Dense

from helpers.plan import Plan
from helpers.planning import architectures, model_sizes
from helpers.planning import forecast as forecasts
from helpers.planning.forecast import Forecast
from helpers.planning.jobs import Job
from helpers.runtime import Runtime

from .beir import Benchmark, from_pairs, read_beir
from .crops import in_order, make_views
from .data import TextData, load_texts
from .encoding import encode, on_cpu
from .evaluation import evaluate_retrieval, evaluate_similarity, retrieval_evaluator
from .head import HeadFit, fit_head
from .isotropy import Isotropy, isotropy
from .loss import LeJEPALoss
from .model import GaussianEmbeddingGemma, freeze, parameter_groups
from .parameters import HELD_OUT, EmbeddingParameters
from .sigreg import SIGReg
from .training import EmbeddingTrainer, new_trainer

HEAD_ROWS = 4000  # for the closed-form head
WORDS_A_TOKEN = 0.75
ISOTROPY_TEXTS = 4096  # at most
HEAD_RATE = 100.0  # the head's learning rate, times the backbone's
CONTRASTIVE_RATE = 2e-5  # the usual one of MultipleNegativesRankingLoss, ten times the recipe's
BEST = "eval_held-out_cosine_ndcg@10"
LEJEPA, CONTRASTIVE = "LeJEPA", "MultipleNegativesRankingLoss"
UNTRAINED, HEAD_ONLY = "backbone, untrained", "backbone + closed-form head, untrained"


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
    held_out = from_pairs(rows, name=HELD_OUT)
    test = held_out if params.benchmark == HELD_OUT else read_beir(params.benchmark)
    return Corpus(texts=texts, held_out=held_out, test=test)


def views(params: EmbeddingParameters, corpus: Corpus, rows: int, folder: Path | None = None) -> Dataset:
    """At least so many rows, pass after pass over the training texts, each with its own order and crops."""
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


def training_job(model: SentenceTransformer, corpus: Corpus, params: EmbeddingParameters) -> Job | None:
    """What a training step of this model is made of; None for a backbone that no builder describes."""
    found = model_sizes.encoder_sizes(model.transformers_model.config)
    if found is None:
        return None
    sizes, settings = found
    dense = [module.linear for module in list(model)[:-1] if isinstance(module, Dense)]
    return architectures.lejepa_training(
        sizes,
        "",
        freeze_layers=params.freeze_layers,
        output_dim=params.output_dim,
        num_slices=params.num_slices,
        past_texts=params.past_texts,
        views=params.views(corpus.documents),
        dense=tuple((layer.in_features, layer.out_features, layer.bias is not None) for layer in dense),
        **settings,
    )


def forecast(
    model: SentenceTransformer, corpus: Corpus, params: EmbeddingParameters, plan: Plan, runtime: Runtime
) -> Forecast:
    """Time, memory and cost that the run is expected to take, were every view as long as `view_length`."""
    return forecasts.make(
        training_job(model, corpus, params),
        plan,
        runtime,
        architecture=model.transformers_model.config.model_type,
        parameters=sum(weight.numel() for weight in model.parameters()),
    )


def new_loss(model: SentenceTransformer, params: EmbeddingParameters) -> LeJEPALoss:
    """The loss of the parameters; its slices follow from the seed."""
    sigreg = SIGReg(t_max=params.t_max, n_points=params.n_points, num_slices=params.num_slices, seed=params.seed)
    return LeJEPALoss(
        model,
        sigreg,
        sigreg_weight=params.sigreg_weight,
        convention=params.convention,
        past_texts=params.past_texts,
        contrastive_weight=params.contrastive_weight,
        contrastive_scale=params.contrastive_scale,
    )


def lejepa_trainer(
    model: SentenceTransformer,
    corpus: Corpus,
    params: EmbeddingParameters,
    plan: Plan,
    runtime: Runtime,
    output_dir: Path,
) -> EmbeddingTrainer:
    """The trainer of the run: `LeJEPALoss` on all views, backbone and head at their rates."""
    groups = parameter_groups(
        model, plan.learning_rate, params.head_learning_rate or HEAD_RATE * plan.learning_rate, plan.weight_decay
    )
    return _trainer(
        model,
        new_loss(model, params),
        views(params, corpus, plan.max_steps * plan.batch_size, output_dir / "views"),
        corpus,
        params,
        plan,
        runtime,
        output_dir,
        groups,
    )


def contrastive_trainer(
    backbone: SentenceTransformer,
    corpus: Corpus,
    params: EmbeddingParameters,
    plan: Plan,
    runtime: Runtime,
    output_dir: Path,
) -> EmbeddingTrainer:
    """The baseline: the backbone as it came with `MultipleNegativesRankingLoss` on the first two views of the same rows.

    At its own usual learning rate, unless the user asked for one.
    """
    plan = dataclasses.replace(plan, learning_rate=params.learning_rate or CONTRASTIVE_RATE)
    rows = views(params, corpus, plan.max_steps * plan.batch_size, output_dir / "views")
    rows = rows.select_columns(rows.column_names[:2])
    loss = MultipleNegativesRankingLoss(backbone)
    return _trainer(backbone, loss, rows, corpus, params, plan, runtime, output_dir, None)


def _trainer(model, loss, rows, corpus, params, plan, runtime, output_dir, groups) -> EmbeddingTrainer:
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
        parameter_groups=groups,
        patience=params.patience,
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
    model, options = on_cpu(model), {"max_seq_length": params.max_seq_length, "precision": precision}
    embeddings: dict[str, np.ndarray] = {}
    found = evaluate_retrieval(model, corpus.test, embeddings=embeddings, **options)
    values = {name.removeprefix("cosine_"): value for name, value in found.items() if name.startswith("cosine_")}
    values["dot_ndcg@10"] = found["dot_ndcg@10"]
    if params.similarity:
        values["similarity"] = evaluate_similarity(model, params.similarity, **options)["spearman_cosine"]
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
        seeded, folder = dataclasses.replace(params, seed=seed), output_dir / f"seed-{seed}"
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
    """Trains the baseline and measures it."""
    trainer = contrastive_trainer(backbone, corpus, params, plan, runtime, output_dir)
    trainer.train(resume_from_checkpoint=params.resume)
    return row(trainer, corpus, params, runtime)[0]


def by_model(
    untrained: Mapping[str, Mapping[str, float]], rows: Mapping[int, Mapping[str, Mapping[str, float]]]
) -> dict[str, dict[str, list[float]]]:
    """Model -> metric -> a value a seed, for `evaluation.table`."""
    shown = ("ndcg@10", "recall@10", "mrr@10", "similarity", "effective_rank", "participation_ratio", "sigreg_excess")
    gathered: dict[str, dict[str, list[float]]] = {}
    for models in ({name: dict(values) for name, values in untrained.items()}, *rows.values()):
        for name, values in models.items():
            for metric in shown:
                if metric in values:
                    gathered.setdefault(name, {}).setdefault(metric, []).append(values[metric])
    return gathered


def same_embeddings(model: SentenceTransformer, reloaded: SentenceTransformer, texts: list[str]) -> float:
    """Largest difference between two models' embeddings of the texts, relative to the largest float of an embedding."""
    ours, theirs = (encode(each, texts, task="document") for each in (model, reloaded))
    return float(np.abs(ours - theirs).max() / np.abs(ours).max())
