"""Reservoir beside transformer: curves, spread, table and picture by hand; and both trained by the real trainer."""

import json
import math
import statistics

import pytest

from helpers.reservoir import comparison

from .test_experiment import answers_of, planned

pytestmark = pytest.mark.once

BASELINES = {"unigram": 6.0, "Kneser-Ney trigram": 4.5}


def log(step: int, **values) -> dict:
    return {"step": step, "epoch": step / 10, **values}


HISTORY = [
    log(1, loss=6.1, training_seconds=0.4),
    log(10, loss=5.0, training_seconds=4.0),
    log(10, eval_loss=5.2, training_seconds=4.1),
    log(20, loss=4.0, training_seconds=8.0),
    log(20, eval_loss=4.4, training_seconds=8.1),
    log(30, eval_loss=4.6, training_seconds=12.2),
    log(30, train_loss=4.9),
]


def row(loss: float, perplexity: float, bits: float, **changes) -> dict:
    points = [{"tokens": 1280 * k, "seconds": 4.1 * k, "loss": loss + 1 / k} for k in (1, 2, 3)]
    costs = {
        "steps": 30,
        "tokens": 3840,
        "trainable": 5_420_032,
        "training_seconds": 123.4,
        "tokens_per_second": 4567.8,
        "curve": points,
    }
    return {"loss": loss, "perplexity": perplexity, "bits_per_byte": bits, **costs, **changes}


def rows(seeds: int = 3) -> dict[int, dict[str, dict]]:
    return {
        seed: {
            "reservoir": row(3.4, 30.0 + seed, 1.2 + 0.01 * seed),
            "transformer": row(3.3, 27.0 + 2 * seed, 1.17, training_seconds=660.0, tokens_per_second=789.0),
        }
        for seed in range(seeds)
    }


# -- the curve --


def test_the_curve_has_tokens_seconds_and_loss_of_every_evaluation():
    points = comparison.curve(HISTORY, planned(batch_size=8, length=16))
    assert points == [
        {"tokens": 1280, "seconds": 4.1, "loss": 5.2},
        {"tokens": 2560, "seconds": 8.1, "loss": 4.4},
        {"tokens": 3840, "seconds": 12.2, "loss": 4.6},
    ]


def test_an_evaluation_of_the_best_weights_after_the_run_is_no_point_of_the_curve():
    after = [*HISTORY, log(30, eval_loss=4.4, training_seconds=12.3)]
    assert comparison.curve(after, planned()) == comparison.curve(HISTORY, planned())


# -- spread and table --


def test_spread_is_mean_and_sample_standard_deviation():
    assert comparison.spread(rows(3), "reservoir", "perplexity") == "31.000 ± 1.000 (3 seeds)"
    expected = statistics.stdev([27.0, 29.0])
    assert comparison.spread(rows(2), "transformer", "perplexity") == f"28.000 ± {expected:.3f} (2 seeds)"


def test_one_seed_has_no_spread():
    assert comparison.spread(rows(1), "reservoir", "bits_per_byte") == "1.200 (1 seed)"


def test_the_table_has_a_row_a_model():
    reference = {"untrained": row(9.0, 8103.08, 3.2), "Kneser-Ney trigram": row(3.75, 42.7, 1.361)}
    cost = {"trained parameters": 5_420_032, "seconds": 123, "tokens/s": 4568}
    assert comparison.table(reference, rows(3)) == [
        {"model": "untrained", "perplexity": "8103.08", "bits per byte": "3.200"},
        {"model": "Kneser-Ney trigram", "perplexity": "42.70", "bits per byte": "1.361"},
        {
            "model": "reservoir",
            "perplexity": "31.000 ± 1.000 (3 seeds)",
            "bits per byte": "1.210 ± 0.010 (3 seeds)",
            **cost,
        },
        {
            "model": "transformer",
            "perplexity": "29.000 ± 2.000 (3 seeds)",
            "bits per byte": "1.170 ± 0.000 (3 seeds)",
            **cost | {"seconds": 660, "tokens/s": 789},
        },
    ]


def test_a_table_of_the_reservoir_alone_needs_no_transformer():
    alone = {seed: {"reservoir": models["reservoir"]} for seed, models in rows(2).items()}
    assert [line["model"] for line in comparison.table({}, alone)] == ["reservoir"]


# -- the picture --


@pytest.fixture
def figure(tmp_path):
    import matplotlib.pyplot as plt

    made = comparison.plot(rows(1)[0], BASELINES, tmp_path / "new" / "loss.png", title="300 stories")
    yield made
    plt.close(made)


def test_the_picture_is_written_as_png_with_its_folder(figure, tmp_path):
    assert (tmp_path / "new" / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_both_panels_show_both_models_and_every_baseline(figure):
    for axes, key in zip(figure.axes, ("tokens", "seconds"), strict=True):
        lines = {line.get_label(): line for line in axes.get_lines()}
        assert list(lines) == ["reservoir", "transformer", "unigram (6.00)", "Kneser-Ney trigram (4.50)"]
        for name in ("reservoir", "transformer"):
            points = rows(1)[0][name]["curve"]
            assert list(lines[name].get_xdata()) == [point[key] for point in points]
            assert list(lines[name].get_ydata()) == [point["loss"] for point in points]
        assert set(lines["unigram (6.00)"].get_ydata()) == {6.0}


def test_axes_say_what_they_show_and_in_which_unit(figure):
    left, right = figure.axes
    assert (left.get_xlabel(), right.get_xlabel()) == ("training tokens", "seconds of training")
    assert left.get_ylabel() == "validation loss (nats per token)"
    assert left.get_ylim() == right.get_ylim()
    assert figure.get_suptitle() == "300 stories" and right.get_legend() is not None


# -- both models through the real trainer, in a process of its own --


TRAINED = """
import json, sys
given = json.loads(sys.argv[1])
from helpers import runtime
machine = runtime.detect(use_tpu=False, precision="fp32")
import torch
torch.set_num_threads(1)
from helpers.plan import plan
from helpers.reservoir import comparison, experiment
from helpers.reservoir.parameters import TRANSFORMER_RATE, ReservoirParameters, recipe
from helpers.reservoir.stories import load_stories
from helpers.reservoir.tokens import load_tokenizer
from helpers.reservoir.workload import workload

larger = {"embedding_size": 32, "readout_size": 64, "eval_steps": 2, "save_steps": 2, "max_new_tokens": 8, "patience": 9}
params = ReservoirParameters(**given["params"] | larger | {"compare_transformer": True, "further_seeds": 1})
folder = experiment.Path(given["folder"])
splits = load_stories("sample", num_stories=given["stories"], seed=0)
tokenizer, _ = load_tokenizer("train", splits.train, params.vocab_size)
corpus = experiment.tokenise(splits, tokenizer)
model = experiment.new_model(params, corpus)
made = plan(recipe(16, len(corpus.train)), workload(model, "small", 16), machine, batch_size=8, max_steps=6)

seen = {}  # what each run is trained on, by the folder of its checkpoints
step = experiment.LanguageModelTrainer.training_step

def watched(self, model, inputs, *args, **kwargs):
    seen.setdefault(str(experiment.Path(self.args.output_dir).relative_to(folder)), []).append(inputs["input_ids"].tolist())
    return step(self, model, inputs, *args, **kwargs)

experiment.LanguageModelTrainer.training_step = watched
trainer = experiment.new_trainer(model, corpus, params, made, machine, folder / "reservoir")
trainer.train()

def transformer(name, params=params):
    return comparison.train_transformer(trainer, corpus, params, folder / name)

def further(params):
    found = comparison.over_seeds(trainer, corpus, params, folder)
    own = found.pop(params.seed)
    assert own["reservoir"]["loss"] == rows["reservoir"]["loss"]
    if params.compare_transformer:
        assert own["transformer"]["loss"] == rows["transformer"]["loss"]
    return found

beside = transformer("transformer")
rows = {name: comparison.row(run, corpus, params) for name, run in (("reservoir", trainer), ("transformer", beside))}
answers = {
    "rows": rows,
    "again": comparison.row(trainer, corpus, params),
    "blocks": [len(run.eval_dataset) for run in (trainer, beside)],
    "rates": [run.plan.learning_rate for run in (trainer, beside)],
    "rates of the recipes": [recipe(16, len(corpus.train)).learning_rate, TRANSFORMER_RATE],
    "asked rate": transformer("asked", params.model_copy(update={"learning_rate": 0.02, "max_steps": 1})).plan.learning_rate,
    "patience": [run.patience for run in (trainer, beside)],
    "losses": [[entry["eval_loss"] for entry in run.state.log_history if "eval_loss" in entry][:3] for run in (trainer, beside)],
    "further": further(params),
}
answers["seen"] = dict(seen)
seen.clear()
answers["further again"] = further(params)
answers["trained again"] = list(seen)
next_seed = params.model_copy(update={"seed": params.seed + 1})
alone = experiment.new_trainer(experiment.new_model(next_seed, corpus), corpus, next_seed, made, machine, folder / "alone")
alone.train()
answers["alone"] = comparison.row(alone, corpus, next_seed)
without = params.model_copy(update={"compare_transformer": False})
answers["without"] = {seed: list(row) for seed, row in further(without).items()}
print("ANSWERS " + json.dumps(answers))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict:
    return answers_of(TRAINED, tmp_path_factory.mktemp("compared"))[0]


def test_the_transformer_is_trained_on_the_same_batches_in_the_same_order(trained):
    seen = trained["seen"]
    assert len(seen["reservoir"]) == 6 and len({json.dumps(batch) for batch in seen["reservoir"]}) == 6
    assert seen["transformer"] == seen["reservoir"]
    assert seen["seed-4/transformer"] == seen["seed-4/reservoir"] != seen["reservoir"]


def test_both_have_as_many_parameters_steps_and_tokens_and_the_same_validation_blocks(trained):
    reservoir, transformer = (trained["rows"][name] for name in ("reservoir", "transformer"))
    assert transformer["trainable"] == pytest.approx(reservoir["trainable"], rel=0.01)
    assert transformer["steps"] == reservoir["steps"] == 6
    assert transformer["tokens"] == reservoir["tokens"] == 6 * 8 * 16
    assert trained["blocks"][0] == trained["blocks"][1] and trained["patience"] == [9, 9]


def test_each_has_the_learning_rate_of_its_recipe_unless_one_is_asked_for(trained):
    assert trained["rates"] == trained["rates of the recipes"]
    assert trained["rates"][0] > trained["rates"][1]
    assert trained["asked rate"] == 0.02


def test_a_row_has_the_measures_of_the_best_weights_and_the_whole_curve(trained):
    for losses, found in zip(trained["losses"], trained["rows"].values(), strict=True):
        assert [point["loss"] for point in found["curve"]] == losses
        assert [point["tokens"] for point in found["curve"]] == [2 * 8 * 16, 4 * 8 * 16, 6 * 8 * 16]
        assert found["loss"] == pytest.approx(min(losses), abs=1e-6)
        seconds = [point["seconds"] for point in found["curve"]]
        assert seconds == sorted(seconds) and 0 < seconds[-1] <= found["training_seconds"] + 0.1
        assert found["story"].startswith("Once upon a time")


def test_a_row_asked_for_twice_is_the_same(trained):
    for name in ("loss", "perplexity", "bits_per_byte", "curve", "story", "tokens", "steps"):
        assert trained["again"][name] == trained["rows"]["reservoir"][name]


def test_a_further_seed_is_the_run_of_that_seed(trained):
    assert list(trained["further"]) == ["4"] and list(trained["further"]["4"]) == ["reservoir", "transformer"]
    assert trained["further"]["4"]["reservoir"]["loss"] == trained["alone"]["loss"]
    assert trained["alone"]["loss"] != trained["rows"]["reservoir"]["loss"]
    assert trained["without"] == {"4": ["reservoir"]}


def test_further_seeds_that_are_finished_are_not_trained_again(trained):
    assert trained["trained again"] == []
    for name, first in trained["further"]["4"].items():
        again = trained["further again"]["4"][name]
        assert {key: again[key] for key in ("loss", "tokens", "steps", "curve", "story")} == {
            key: first[key] for key in ("loss", "tokens", "steps", "curve", "story")
        }


def test_what_was_seen_is_said_in_three_sentences_with_the_means_of_the_seeds():
    found = comparison.seen(rows(3))
    assert "the reservoir has 1.210 bits per byte and the transformer 1.170, 3.4% more for the reservoir." in found
    assert "is of 3 seeds" in found and found.count(". ") == 2
    assert comparison.seen({0: {"reservoir": rows(1)[0]["reservoir"]}}) == ""


@pytest.mark.parametrize(
    ("source", "losses", "said"),
    [
        ("sample", {"reservoir": 1.0, "transformer": 1.1}, "small grammar"),
        ("mine.txt", {"reservoir": 1.0, "transformer": 4.2}, "transformer (66.7) not yet below"),
        ("mine.txt", {"reservoir": 2.0, "transformer": 2.0}, "reservoir (7.4) and transformer (7.4) not yet below"),
        ("mine.txt", {"reservoir": 1.0, "transformer": 1.1}, None),
    ],
)
def test_a_comparison_says_what_it_does_not_show(source, losses, said):
    rows = {name: {"loss": loss, "perplexity": math.exp(loss)} for name, loss in losses.items()}
    found = comparison.caveats(source, {"Kneser-Ney trigram": {"loss": 1.5, "perplexity": math.exp(1.5)}}, rows)
    assert (said in found) if said else (found == "")
