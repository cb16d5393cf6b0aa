"""The steps of a tuning run: data and model, the climb, a whole run, and what is shown of them."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from helpers import run_folder, tracking
from helpers.batch_search import BatchSearch, Trial
from helpers.plan import Plan
from helpers.planning import architectures, model_sizes
from helpers.planning import calibration as calibrations
from helpers.planning import forecast as forecasts
from helpers.planning.catalogue import job
from helpers.planning.choosing import duration
from helpers.planning.estimate import outlook
from helpers.planning.forecast import Forecast
from helpers.planning.jobs import Job
from helpers.runtime import Runtime

from .classifier import load_classifier, longest
from .data import LabelledTexts, load_labelled
from .evaluation import choose_threshold, class_weights, predict, probabilities, scores
from .measurement import STARTED, Bench, Rung, climb
from .optimisations import optimisations
from .parameters import TuningParameters, model_size, recipe
from .settings import Settings, make_plan
from .training import MULTIPLE, ClassifierTrainer, encode, new_trainer

LADDER_FILE = "ladder.json"
ENOUGH = 0.99  # share of the texts that a shorter padding length must hold
SAME_LOGITS = 1e-4  # of the largest, between a model and its reloaded copy


@dataclass(frozen=True)
class Task:
    """What is trained: texts, and a model with its tokeniser."""

    texts: LabelledTexts
    model: object
    tokenizer: object
    weights: np.ndarray | None  # of the labels

    def start(self, params: TuningParameters, runtime: Runtime) -> Settings:
        """Nothing switched on; at least one example a device."""
        devices = runtime.device_count
        batch = -(-params.start_batch_size // devices) * devices
        return Settings(batch_size=batch, length=params.max_length, start_batch_size=batch)


def load_texts(params: TuningParameters) -> LabelledTexts:
    """Texts of `data_source` as the parameters ask."""
    return load_labelled(
        params.data_source,
        num_rows=params.num_rows,
        eval_rows=params.eval_rows,
        positive_label=params.positive_label,
        seed=params.seed,
    )


def load_task(params: TuningParameters, texts: LabelledTexts) -> Task:
    """The model for these labels.

    Raises:
        ValueError: more tokens than the model has positions for, or a label without a training row.
    """
    model, tokenizer = load_classifier(
        params.base_model, texts.labels, texts=(text for text, _ in texts.train), seed=params.seed
    )
    if params.max_length > longest(model, tokenizer):
        raise ValueError(
            f"max_length={params.max_length}: {params.base_model!r} reads {longest(model, tokenizer)} tokens at most"
        )
    labels = [label for _, label in texts.train]
    return Task(texts, model, tokenizer, class_weights(labels, len(texts.labels)) if params.class_weights else None)


def lengths(task: Task, params: TuningParameters) -> dict[str, int]:
    """Tokens of the training texts, cut to `max_length`: median, 95th and 99th percentile, longest."""
    found = [len(row["input_ids"]) for row in encode(task.texts.train, task.tokenizer, params.max_length)]
    percentiles = np.percentile(found, (50, 95, 100 * ENOUGH, 100)).astype(int).tolist()
    return dict(zip(("median", "95 %", "99 %", "longest"), percentiles, strict=True))


def bench(task: Task, params: TuningParameters, runtime: Runtime) -> Bench:
    """What settings are timed on."""
    start = task.start(params, runtime)
    return Bench(
        task.model,
        task.tokenizer,
        task.texts.train,
        task.texts.validation,
        recipe(len(task.texts.train), start.batch_size, params.max_length, params.max_steps),
        model_size(task.model),
        runtime,
        window_examples=params.window_examples,
        seed=params.seed,
        class_weights=task.weights,
        learning_rate=params.learning_rate,
    )


@dataclass(frozen=True)
class Climb:
    """The batch search and every rung; the settings of the last one that was kept are the tuned ones."""

    search: BatchSearch | None  # None where batch_size was given
    rungs: tuple[Rung, ...]

    @property
    def tuned(self) -> Settings:
        return Settings(**next(rung.settings for rung in reversed(self.rungs) if rung.kept))


def tune(task: Task, params: TuningParameters, runtime: Runtime, folder: Path) -> Climb:
    """Finds the largest batch, tries every optimisation, and writes what was found; a second run reads it."""
    file = folder / LADDER_FILE
    if params.resume and file.is_file():
        tracking.say(f"measured before: {file.name}")
        return _read_climb(file)
    on, start = bench(task, params, runtime), task.start(params, runtime)
    search = None if params.batch_size else on.largest_batch(start, params.largest_batch_size)
    if search:
        tracking.say(str(search))
    enough = lengths(task, params)["99 %"]
    ladder = optimisations(
        runtime,
        start,
        largest_batch=search.batch_size if search else params.batch_size,
        batch_size=params.batch_size,
        precision=params.precision,
        enough_length=min(params.max_length, -(-enough // MULTIPLE) * MULTIPLE),
        supports_sdpa=bool(getattr(task.model, "_supports_sdpa", False)),
        supports_checkpointing=bool(getattr(task.model, "supports_gradient_checkpointing", False)),
        try_compile=params.try_compile,
    )
    rungs = []
    for rung in climb(on, start, ladder, repetitions=params.repetitions):
        tracking.say(f"{rung.name:<30}{rung.verdict}")
        rungs.append(rung)
    found = Climb(search, tuple(rungs))
    run_folder.write_json(file, dataclasses.asdict(found))
    return found


def calibrate(params: TuningParameters, runtime: Runtime, folder: Path) -> str:
    """Measures a few steps of each notebook's job for the planner, writes them, and says how long each takes here.

    A second run reads the file.
    """
    file = folder / calibrations.FILE
    if params.resume and file.is_file():
        tracking.say(f"measured before: {file.name}")
        (found,) = calibrations.load([file])
    else:
        found = calibrations.calibrate(runtime=runtime)
        calibrations.save(found, file)
    lines = [f"{'time of the default run here':<30}{'':<28}rests on"]
    for each in found.jobs:
        expected = outlook(
            job(each.job),
            forecasts.machine_of(runtime),
            precision=runtime.precision,
            memory_bytes=runtime.memory,
            calibrations=[found],
        )
        time = expected.run_seconds
        shown = "does not fit" if expected.fits is False else duration(time)
        lines.append(f"{each.job:<30}{shown:<28}{time.basis if time else ''}")
    lines.append(
        f"Put {file.resolve()} into the working directory of the other notebooks: their plans then rest on it."
    )
    return "\n".join(lines)


def _read_climb(file: Path) -> Climb:
    read = json.loads(file.read_text(encoding="utf-8"))
    search = read["search"] and BatchSearch(
        **{**read["search"], "trials": tuple(Trial(**trial) for trial in read["search"]["trials"])}
    )
    return Climb(search, tuple(Rung(**{**rung, "gains": tuple(rung["gains"])}) for rung in read["rungs"]))


# ---- a whole run


def run_plan(task: Task, settings: Settings, params: TuningParameters, runtime: Runtime) -> Plan:
    """The plan of a whole run with these settings: as many examples whatever the batch."""
    start = task.start(params, runtime)
    return make_plan(
        settings,
        recipe(len(task.texts.train), start.batch_size, params.max_length, params.max_steps),
        model_size(task.model),
        runtime,
        learning_rate=params.learning_rate,
    )


def training_job(task: Task, settings: Settings) -> Job | None:
    """What a training step of this model is made of; None for one that no builder describes."""
    found = model_sizes.encoder_sizes(task.model.config)
    if found is None or found[0].family != "bert":
        return None
    sizes, options = found
    fused = settings.attention != "eager" and options["attention"] != "eager"
    options |= {"attention": "sdpa" if fused else "eager", "labels": len(task.texts.labels)}
    return architectures.hardware_tuning(sizes, "", **options)


def forecast(climb: Climb, plan: Plan, task: Task, runtime: Runtime) -> Forecast:
    """Time, memory and cost that the tuned run is expected to take, by the timings of its settings in the climb."""
    rung = next(rung for rung in reversed(climb.rungs) if rung.kept)
    spread = max(rung.speed_up_high / rung.speed_up, rung.speed_up / rung.speed_up_low)
    return forecasts.make(
        training_job(task, climb.tuned),
        plan,
        runtime,
        architecture=task.model.config.model_type,
        parameters=sum(weight.numel() for weight in task.model.parameters()),
        step=forecasts.timed(1 / rung.steps_per_second, spread),
        peak=rung.peak_memory_bytes and forecasts.held(rung.peak_memory_bytes),
        tokens=round(rung.tokens_per_second / rung.steps_per_second),
    )


def new_run(
    task: Task, settings: Settings, params: TuningParameters, runtime: Runtime, folder: Path, seed: int
) -> ClassifierTrainer:
    """The trainer of one run, from the first weights."""
    encoded = {
        name: encode(getattr(task.texts, name), task.tokenizer, settings.length) for name in ("train", "validation")
    }
    return new_trainer(
        copy.deepcopy(task.model) if seed == params.seed else _reseeded(task, params, seed),
        task.tokenizer,
        encoded["train"],
        encoded["validation"],
        settings,
        run_plan(task, settings, params, runtime),
        runtime,
        folder,
        class_weights=task.weights,
        seed=seed,
        evaluations=params.evaluations,
        logging_steps=params.logging_steps,
        patience=params.patience,
        report_to=params.report_to,
    )


def _reseeded(task: Task, params: TuningParameters, seed: int):
    """Another random head; a sample model is random as a whole."""
    texts = (text for text, _ in task.texts.train)
    return load_classifier(params.base_model, task.texts.labels, texts=texts, seed=seed)[0]


def examine(trainer: ClassifierTrainer, task: Task) -> dict:
    """Test scores of a trained model; of two labels the threshold is the best one of the validation rows."""
    logits = {
        name: trainer.logits(encode(getattr(task.texts, name), task.tokenizer, trainer.settings.length))
        for name in ("validation", "test")
    }
    labels = {name: [label for _, label in getattr(task.texts, name)] for name in logits}
    threshold = choose_threshold(logits["validation"], labels["validation"])
    found = scores(logits["test"], labels["test"], threshold)
    validation = scores(logits["validation"], labels["validation"], threshold)
    return {**found, "threshold": threshold, "validation_f1": validation["f1"]}


def row(trainer: ClassifierTrainer, task: Task) -> dict:
    """`examine` of a trained model, and what its training took."""
    measured = trainer.results()["train"]
    training = measured["seconds"] - measured["compile_seconds"] - measured["evaluate_and_save_seconds"]
    return {
        **examine(trainer, task),
        "steps": trainer.state.global_step,
        "training_seconds": round(training, 2),
        "total_seconds": measured["seconds"],
        "examples_per_second": measured["examples_per_second"],
        "loss_last": measured["loss_last"],
    }


# ---- what is shown


def table(rungs: Sequence[Rung]) -> str:
    """Every optimisation with its speed-up over the start, rates, memory, utilisation, loss and F1 of its window."""
    columns = ("speed-up", "steps/s", "examples/s", "memory GiB", "busy %", "compile s", "loss", "F1", "")
    lines = [f"{'on top of what was kept':<30}" + "".join(f"{name:>12}" for name in columns[:-1])]
    for rung in rungs:
        values = (
            _shown(rung.speed_up, ".2f"),
            _shown(rung.steps_per_second, ".2f"),
            _shown(rung.examples_per_second, ".1f"),
            _shown(rung.peak_memory_bytes and rung.peak_memory_bytes / 2**30, ".2f"),
            _shown(rung.utilisation and 100 * rung.utilisation, ".0f"),
            _shown(rung.compile_seconds, ".1f"),
            _shown(rung.loss, ".4f"),
            _shown(rung.f1, ".3f"),
        )
        lines.append(f"{rung.name:<30}" + "".join(f"{value:>12}" for value in values) + f"  {rung.verdict}")
    return "\n".join(lines)


def _shown(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def plot_climb(rungs: Sequence[Rung], path: Path, *, title: str):
    """Bars of the speed-up over the start with the range of the repetitions; what was not kept is pale."""
    import matplotlib.pyplot as plt

    tried = [rung for rung in rungs if rung.speed_up is not None]
    figure, axes = plt.subplots(figsize=(8, 0.45 * len(tried) + 1.6), layout="constrained")
    middle = [rung.speed_up for rung in tried]
    ranges = [
        [rung.speed_up - rung.speed_up_low for rung in tried],
        [rung.speed_up_high - rung.speed_up for rung in tried],
    ]
    colours = ["tab:blue" if rung.kept else "lightsteelblue" for rung in tried]
    places = range(len(tried))
    axes.barh(places, middle, xerr=ranges, color=colours, ecolor="0.3", capsize=3)
    axes.set_yticks(places, [rung.name if rung.kept else f"{rung.name} (not kept)" for rung in tried])
    axes.invert_yaxis()
    axes.axvline(1, color="0.4", linestyle="--", label="the start")
    axes.set(title=title, xlabel="examples/s, times the start's (bar: median, whisker: all repetitions)")
    axes.legend(loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return figure


# ---- the model elsewhere


def classify(model, tokenizer, text: str, max_length: int, threshold: float | None = None) -> tuple[str, float]:
    """(label, its probability) of a text, on the CPU."""
    import torch

    encoded = tokenizer(text, truncation=True, max_length=max_length, return_tensors="pt")
    with torch.no_grad():
        logits = model.eval()(**encoded).logits.float().numpy()
    position = int(predict(logits, threshold)[0])
    return model.config.id2label[position], float(probabilities(logits)[0, position])


def save_and_reload(trainer: ClassifierTrainer, task: Task, folder: Path, texts: Sequence[str]):
    """Saves model and tokeniser, loads them as anybody would, and compares logits in fp32 on the CPU.

    Raises:
        RuntimeError: the reloaded model differs.
    """
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    ours = copy.deepcopy(task.model)  # the trained one is wrapped by what its precision needs
    ours.load_state_dict({name: tensor.cpu() for name, tensor in trainer.model.state_dict().items()})
    ours.save_pretrained(folder)  # not the trainer's way, which leaves a pickle of its arguments
    task.tokenizer.save_pretrained(folder)
    reloaded = AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer(
        list(texts), padding=True, truncation=True, max_length=trainer.settings.length, return_tensors="pt"
    )
    with torch.no_grad():
        a, b = (model.eval()(**encoded).logits for model in (ours, reloaded))
    difference = float((a - b).abs().max() / a.abs().max())
    if difference > SAME_LOGITS:
        raise RuntimeError(f"the model saved in {folder} differs from the trained one by {difference:.1e}")
    return reloaded, tokenizer, difference


def start_results(rungs: Sequence[Rung]) -> dict:
    """The `start` part of results.json: its timing."""
    return dataclasses.asdict(next(rung for rung in rungs if rung.name == STARTED))


def optimisation_results(rungs: Sequence[Rung]) -> list[dict]:
    """The `optimisations` part of results.json."""
    return [dataclasses.asdict(rung) for rung in rungs if rung.name != STARTED]
