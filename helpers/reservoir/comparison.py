"""The reservoir beside a transformer of as many trained parameters on as many tokens, over seeds: table and picture."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from helpers import plan as planner
from helpers.plan import ModelSize, Plan
from helpers.runtime import Runtime

from .experiment import Corpus, LanguageModelTrainer, evaluate, new_model, new_trainer, tell
from .parameters import ReservoirParameters, transformer_recipe
from .transformer import equal_transformer

RESERVOIR, TRANSFORMER = "reservoir", "transformer"


def train_transformer(
    params: ReservoirParameters, corpus: Corpus, plan: Plan, runtime: Runtime, *, trainable: int, output_dir: Path
) -> LanguageModelTrainer:
    """A trained transformer of about `trainable` parameters: the reservoir's batches, steps and stopping rule.

    The learning rate is the transformer's own (`transformer_recipe`) unless the user asked for one.
    """
    model = equal_transformer(
        len(corpus.tokenizer),
        trainable,
        plan.sequence_length,
        seed=params.seed,
        eos_token_id=corpus.tokenizer.eos_token_id,
    )
    config = model.config
    H, D = config.intermediate_size, config.hidden_size
    own = planner.plan(
        transformer_recipe(plan.sequence_length, plan.batch_size, plan.max_steps),
        ModelSize(
            trainable=sum(parameter.numel() for parameter in model.parameters()),
            frozen=0,
            activations=(4 * H + 14 * D) * config.num_hidden_layers,
            vocab_size=config.vocab_size,
        ),
        runtime,
        batch_size=plan.batch_size,
        learning_rate=params.learning_rate,
        max_steps=plan.max_steps,
    )
    trainer = new_trainer(model, corpus, params, own, runtime, output_dir)
    trainer.train(resume_from_checkpoint=params.resume)
    return trainer


def row(trainer: LanguageModelTrainer, corpus: Corpus, params: ReservoirParameters) -> dict:
    """What a trained model reached and cost: metrics on the validation blocks, parameters, tokens, seconds, a story."""
    measured = trainer.meter.results()
    return {
        **evaluate(trainer, corpus),
        "trainable": sum(parameter.numel() for parameter in trainer.model.parameters() if parameter.requires_grad),
        "steps": trainer.state.global_step,
        "tokens": trainer.meter.tokens,
        "training_seconds": round(trainer.meter.training_seconds(), 1),
        "tokens_per_second": measured["tokens_per_second"],
        "curve": curve(trainer.state.log_history, trainer.plan),
        "story": tell(trainer.model, corpus.tokenizer, params),
    }


def curve(log_history: Iterable[Mapping], plan: Plan) -> list[dict[str, float]]:
    """Validation loss (nats a token) at each evaluation, with the tokens trained on and the seconds of training.

    The first of a step counts: one after the run is of the best weights, not of the last step.
    """
    tokens, points = plan.batch_size * plan.sequence_length, {}
    for entry in log_history:
        if "eval_loss" in entry:
            point = {"tokens": entry["step"] * tokens, "seconds": entry["training_seconds"], "loss": entry["eval_loss"]}
            points.setdefault(entry["step"], point)
    return list(points.values())


def further_seeds(
    params: ReservoirParameters, corpus: Corpus, plan: Plan, runtime: Runtime, output_dir: Path
) -> dict[int, dict[str, dict]]:
    """Rows of both models for the next `params.further_seeds` seeds, each run in its own folder under `output_dir`."""
    rows = {}
    for seed in range(params.seed + 1, params.seed + 1 + params.further_seeds):
        seeded = dataclasses.replace(params, seed=seed)
        model = new_model(seeded, corpus)
        trainer = new_trainer(model, corpus, seeded, plan, runtime, output_dir / f"seed-{seed}" / RESERVOIR)
        trainer.train(resume_from_checkpoint=params.resume)
        rows[seed] = {RESERVOIR: row(trainer, corpus, seeded)}
        if params.compare_transformer:
            trainable = model.parameter_counts()["trainable"]
            folder = output_dir / f"seed-{seed}" / TRANSFORMER
            other = train_transformer(seeded, corpus, plan, runtime, trainable=trainable, output_dir=folder)
            rows[seed][TRANSFORMER] = row(other, corpus, seeded)
    return rows


def spread(rows: Mapping[int, Mapping[str, Mapping]], name: str, metric: str) -> str:
    """`1.190 ± 0.004 (3 seeds)`: mean and sample standard deviation of one model's metric over seeds."""
    values = [models[name][metric] for models in rows.values()]
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{deviation} ({len(values)} seed{'s' if len(values) > 1 else ''})"


def table(reference: Mapping[str, Mapping], rows: Mapping[int, Mapping[str, Mapping]]) -> str:
    """One line a model: first what was only counted or is untrained, then the trained ones with their spread."""
    lines = [f"{'':<22}{'perplexity':<26}{'bits per byte':<26}{'trained parameters':>20}{'seconds':>9}{'tokens/s':>10}"]
    for name, values in reference.items():
        lines.append(f"{name:<22}{values['perplexity']:<26.2f}{values['bits_per_byte']:<26.3f}")
    first = next(iter(rows.values()))
    for name, values in first.items():
        lines.append(
            f"{name:<22}{spread(rows, name, 'perplexity'):<26}{spread(rows, name, 'bits_per_byte'):<26}"
            f"{values['trainable']:>20,}{values['training_seconds']:>9.0f}{values['tokens_per_second']:>10.0f}"
        )
    return "\n".join(lines)


def plot(rows: Mapping[str, Mapping], baselines: Mapping[str, float], path: Path, *, title: str):
    """Validation loss against tokens and against seconds, both models and the baselines (nats a token) in one picture.

    Returns the matplotlib figure; it is written to `path` as PNG.
    """
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained", sharey=True)
    for axes, key, label in zip(panels, ("tokens", "seconds"), ("training tokens", "seconds of training"), strict=True):
        for name, values in rows.items():
            points: Sequence[Mapping] = values["curve"]
            axes.plot([p[key] for p in points], [p["loss"] for p in points], marker="o", markersize=3, label=name)
        for index, (name, nats) in enumerate(baselines.items()):
            axes.axhline(nats, linestyle=("--", ":", "-.")[index % 3], color="0.4", label=f"{name} ({nats:.2f})")
        axes.set(xlabel=label)
    panels[0].set(ylabel="validation loss (nats per token)")
    panels[1].legend()
    figure.suptitle(title)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return figure
