"""The reservoir beside an equal transformer, over seeds: table and picture."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path

from helpers.parameters import SAMPLE
from helpers.plan import settings as planner
from helpers.plan.settings import Plan
from helpers.run.run_folder import saved

from .experiment import Corpus, LanguageModelTrainer, evaluate, new_model, new_trainer, tell
from .model import begin_at_codes
from .parameters import TRANSFORMER_RATE, ReservoirParameters, recipe
from .transformer import equal_transformer
from .workload import workload

RESERVOIR, TRANSFORMER = "reservoir", "transformer"
BAR = "Kneser-Ney trigram"  # a model that is not below it has learned no more than which token follows which two
STYLES = ("--", ":", "-.", (0, (6, 3, 1, 3, 1, 3)))  # of a baseline's line


def train_transformer(
    beside: LanguageModelTrainer, corpus: Corpus, params: ReservoirParameters, folder: Path
) -> LanguageModelTrainer:
    """A transformer of as many trained parameters, on the reservoir's batches, at its own rate unless one is asked for.

    Its embedding begins at the same codes, where there are any.
    """
    reservoir, plan, runtime = beside.model, beside.plan, beside.runtime
    end, length = corpus.tokenizer.eos_token_id, plan.sequence_length
    trainable, codes_VC = reservoir.num_parameters(), reservoir.reservoir.codes
    model = equal_transformer(len(corpus.tokenizer), trainable, length, seed=params.seed, eos_token_id=end)
    begin_at_codes(model.get_input_embeddings().weight, codes_VC.cpu().float())
    own = planner.plan(
        dataclasses.replace(recipe(length, 0), learning_rate=TRANSFORMER_RATE),
        workload(model, "llama", length),
        runtime,
        batch_size=plan.batch_size,
        learning_rate=params.learning_rate,
        max_steps=plan.max_steps,
    )
    trainer = new_trainer(model, corpus, params, own, runtime, folder)
    trainer.train(resume_from_checkpoint=params.resume)
    return trainer


def row(trainer: LanguageModelTrainer, corpus: Corpus, params: ReservoirParameters) -> dict:
    """What a trained model reached and cost: metrics on the validation blocks, parameters, tokens, seconds, a story."""
    measured = trainer.meter.results()
    return {
        **evaluate(trainer, corpus),
        "trainable": trainer.model.num_parameters(only_trainable=True),
        "steps": trainer.state.global_step,
        "tokens": trainer.meter.tokens,
        "training_seconds": round(trainer.meter.training_seconds(), 1),
        "tokens_per_second": measured["tokens_per_second"],
        "curve": curve(trainer.state.log_history, trainer.plan),
        "story": tell(trainer.model, corpus.tokenizer, params),
    }


def curve(log_history: Iterable[Mapping], plan: Plan) -> list[dict[str, float]]:
    """Validation loss (nats a token) at each evaluation, with the tokens trained on and the seconds of training."""
    tokens, points = plan.batch_size * plan.sequence_length, {}
    for entry in log_history:
        if "eval_loss" in entry:  # the first of a step: one after the run is of the best weights
            point = {"tokens": entry["step"] * tokens, "seconds": entry["training_seconds"], "loss": entry["eval_loss"]}
            points.setdefault(entry["step"], point)
    return list(points.values())


def over_seeds(
    trainer: LanguageModelTrainer, corpus: Corpus, params: ReservoirParameters, output_dir: Path
) -> dict[int, dict[str, dict]]:
    """A `row` for each model and seed: the trainer's, a transformer's of its size, and of `params.further_seeds` seeds more."""
    rows, folder, plan, runtime = {}, output_dir, trainer.plan, trainer.runtime
    for seed in range(params.seed, params.seed + 1 + params.further_seeds):
        params = params.model_copy(update={"seed": seed})
        if rows:
            folder = output_dir / f"seed-{seed}"
            trainer = new_trainer(new_model(params, corpus), corpus, params, plan, runtime, folder / RESERVOIR)
            trainer.train(resume_from_checkpoint=params.resume)
        rows[seed] = {RESERVOIR: row(trainer, corpus, params)}
        if params.compare_transformer:
            other = train_transformer(trainer, corpus, params, folder / TRANSFORMER)
            rows[seed][TRANSFORMER] = row(other, corpus, params)
    return rows


def spread(rows: Mapping[int, Mapping[str, Mapping]], name: str, metric: str) -> str:
    """`1.190 ± 0.004 (3 seeds)`: mean and sample standard deviation of one model's metric over seeds."""
    values = [models[name][metric] for models in rows.values()]
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{deviation} ({len(values)} seed{'s' if len(values) > 1 else ''})"


def table(reference: Mapping[str, Mapping], rows: Mapping[int, Mapping[str, Mapping]]) -> list[dict]:
    """A row a model: what was only counted or is untrained, then the trained ones with their spread."""
    lines = [
        {"model": name, "perplexity": f"{values['perplexity']:.2f}", "bits per byte": f"{values['bits_per_byte']:.3f}"}
        for name, values in reference.items()
    ]
    for name, values in next(iter(rows.values())).items():
        columns = {"perplexity": "perplexity", "bits per byte": "bits_per_byte"}
        measured = {column: spread(rows, name, metric) for column, metric in columns.items()}
        cost = {"trained parameters": values["trainable"], "seconds": round(values["training_seconds"])}
        lines.append({"model": name, **measured, **cost, "tokens/s": round(values["tokens_per_second"])})
    return lines


def seen(rows: Mapping[int, Mapping[str, Mapping]]) -> str:
    """What the run shows of the two models, in three sentences, or "" where there is one."""
    first = next(iter(rows.values()))
    if TRANSFORMER not in first:
        return ""
    losses = {name: statistics.mean(models[name]["bits_per_byte"] for models in rows.values()) for name in first}
    share = losses[RESERVOIR] / losses[TRANSFORMER] - 1
    cost = {name: 1e6 * values["training_seconds"] / max(1, values["tokens"]) for name, values in first.items()}
    return (
        f"After {first[RESERVOIR]['steps']:,} steps the reservoir has {losses[RESERVOIR]:.3f} bits per byte and the transformer "
        f"{losses[TRANSFORMER]:.3f}, {abs(share):.1%} {'fewer' if share < 0 else 'more'} for the reservoir. "
        f"A token of training took {cost[RESERVOIR]:.0f} and {cost[TRANSFORMER]:.0f} microseconds. "
        f"This is of {len(rows)} seed{'s' if len(rows) > 1 else ''} and of this many steps: a longer run may end otherwise."
    )


def caveats(data_source: str, baselines: Mapping[str, Mapping], rows: Mapping[str, Mapping]) -> str:
    """What this run does not show, or "": on which text, and which model has not yet learned more than counts give."""
    found = []
    if data_source == SAMPLE:
        found.append("The sample is made by a small grammar: figures on it say nothing about a language.")
    bar = baselines[BAR]["loss"]
    behind = [f"{name} ({values['perplexity']:.1f})" for name, values in rows.items() if values["loss"] >= bar]
    if behind:
        found.append(
            f"Not trained long enough to compare: {' and '.join(behind)} not yet below the {BAR}'s perplexity of "
            f"{baselines[BAR]['perplexity']:.1f}; raise max_steps."
        )
    return " ".join(found)


def plot(rows: Mapping[str, Mapping], baselines: Mapping[str, float], path: Path, *, title: str):
    """Validation loss (nats a token) against tokens and seconds, with the baselines: the figure, written to `path` too."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(12, 4.2), layout="constrained", sharey=True)
    for axes, key, label in zip(panels, ("tokens", "seconds"), ("training tokens", "seconds of training"), strict=True):
        for name, values in rows.items():
            points = values["curve"]
            axes.plot([p[key] for p in points], [p["loss"] for p in points], marker="o", markersize=3, label=name)
        for style, (name, nats) in zip(itertools.cycle(STYLES), baselines.items(), strict=False):
            axes.axhline(nats, linestyle=style, color="0.4", label=f"{name} ({nats:.2f})")
        axes.set(xlabel=label)
    panels[0].set(ylabel="validation loss (nats per token)")
    panels[1].legend(loc="upper left", bbox_to_anchor=(1, 1))
    figure.suptitle(title)
    return saved(figure, path)
