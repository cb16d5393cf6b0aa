"""What hardware tuning gave on a CPU: time to the quality of the stock Trainer, a small file, and the script that is carried away."""

from __future__ import annotations

from build import result
from evidence import declarations

from helpers.show import tables
from helpers.tuning.parameters import TuningParameters

FILE, OWN, SCRIPT = "hardware_tuning_cpu.json", "tuning_own_csv.json", "tuned_script_cpu.json"
BATCH, RATE = "per_device_train_batch_size", "learning_rate"


def headline() -> str:
    """In a few words, for README.md."""
    results = result(FILE)
    if results["race"]["outcome"] != "kept":
        return f"MiniLM on banking77: {results['race']['detail']}"
    quality, tuned = results["race"]["quality"], results["settings"]["tuned"]
    words = results["eval"]["baselines"]["a linear model on words"]["f1"]
    return (
        f"MiniLM on banking77 reaches the stock `Trainer`'s dev loss in **{1 / quality['speed']:.0%} of its processor time** on one CPU thread "
        f"(batch {tuned[BATCH]}, {tuned[RATE] / results['settings']['start'][RATE]:g} times the rate, {_sampling(tuned)}; {len(quality['by_seed'])} seeds). "
        f"{_f1(results)} A linear model on words, in seconds, has F1 {words:.3f}: for short texts with many labels take that first."
    )


def beats() -> str:
    """Whether the settings are better than the stock ones, in a few words."""
    results = result(FILE)
    if results["race"]["outcome"] != "kept":
        return "not decided on the example; the notebook says so"
    share = f"the stock quality in {1 / results['race']['quality']['speed']:.0%} of the time"
    return f"{share}, but a lower F1" if results["f1_over_stock"][2] < 0 else f"yes: {share}"


def _sampling(settings: dict) -> str:
    return "batches grouped by length" if settings["train_sampling_strategy"] == "group_by_length" else "random order"


def _f1(results: dict) -> str:
    mean, low, high = results["f1_over_stock"]
    word = (
        "**lower than the stock Trainer's**, which the dev loss does not show" if high < 0 else "not shown to be lower"
    )
    word = "higher" if low > 0 else word
    return f"Test F1 {mean:+.3f} ({low:+.3f} to {high:+.3f}, {results['data']['test_examples']:,} questions): {word}."


def ladder() -> str:
    """What was faster, one change at a time, on top of what was kept."""
    results = result(FILE)
    data, parameters = results["data"], results["parameters"]
    return (
        f"MiniLM ({results['model']['trainable']:,} weights) on {data['train_examples']:,} of banking77's questions with {data['labels']} labels, "
        f"at most {parameters['max_length']} tokens, `learning_rate={parameters['learning_rate']:g}`; {results['clock']} of one thread on a busy "
        f"{results['runtime']['device_name']}. A ratio is the median of its pairs, with the interval of the sign test.\n\n{_rungs(results)}"
    )


def _rungs(results: dict) -> str:
    return tables.markdown([{"change": rung["name"], "verdict": rung["verdict"]} for rung in results["ladder"]])


def quality() -> str:
    """Whole runs of the stock Trainer and of the candidates on the same examples."""
    results = result(FILE)
    return f"{_race(results)}\n\n{_f1(results) if results['f1_over_stock'] else ''}"


def _race(results: dict) -> str:
    race = results["race"]
    rows = []
    for trial in race["trials"]:
        losses = trial["dev_losses"]
        row = {
            "batch": trial["settings"][BATCH],
            "learning rate": f"{trial['settings'][RATE]:.2g}",
            "seed": trial["seed"],
        }
        rows.append(row | {"training, s": f"{trial['seconds']:.0f}", "dev loss": f"{sum(losses) / len(losses):.3f}"})
    table = f"\n\n{tables.markdown(rows)}" if rows else ""
    return f"Each run sees {race['examples']:,} examples. Outcome: **{race['outcome']}**. {_sentence(race)}{table}"


def _sentence(race: dict) -> str:
    found = race["quality"]
    if not found:
        return race["detail"]
    return (
        f"The chosen settings took 1/{found['speed']:.2f} of the time; their dev loss is {found['difference']:+.3f} ({found['low']:+.3f} to "
        f"{found['high']:+.3f}) beside the stock Trainer's, over dev texts; at most {found['margin']:+.3f} counts as equally good. By seed: "
        f"{', '.join(f'{difference:+.3f}' for difference in found['by_seed'])}."
    )


def own_csv() -> str:
    """A small file of one's own, with little time. notebook_seconds: of `helpers.batch`'s results.csv, added to the results."""
    results = result(OWN)
    data, baselines = results["data"], results["eval"]["baselines"]
    rows = data["train_examples"] + data["eval_examples"] + data["test_examples"]
    return (
        f"A CSV of {rows} short messages with {data['labels']} labels, MiniLM, `tuning_minutes={results['parameters']['tuning_minutes']:g}`, on one "
        f"thread of a machine that others kept busy: the whole notebook, from its first cell to its last, ended after "
        f"{tables.seconds(results['notebook_seconds'])}. {_race(results)}\n\nTest F1 on its {data['test_examples']} test messages is "
        f"{results['eval']['after']['f1']:.3f}, and {baselines['a linear model on words']['f1']:.3f} for a linear model on words."
    )


def script() -> str:
    """The exported script beside the notebook."""
    (comparison,) = result(SCRIPT)["comparisons"]
    return (
        f"Alone in an empty folder, in an isolated interpreter, the script trained on the notebook's rows to a test F1 of "
        f"{comparison['script_f1']:.3f}, the notebook to {comparison['notebook_f1']:.3f} ({comparison['test_texts']:,} texts)."
    )


def parameters() -> str:
    """Of what is tuned, and of the runs that compare, from the declarations."""
    names = ("batch_size", "max_length", "num_rows", "tuning_minutes", "try_compile", "paired_seeds")
    return declarations.table(TuningParameters, names=names)
