"""What hardware tuning gave on a CPU: time to the quality of the stock Trainer."""

from __future__ import annotations

from evidence import declarations

from helpers.show import tables
from helpers.tuning.parameters import TuningParameters
from tools.pages import result

FILE = "hardware_tuning_cpu.json"
BATCH, RATE, EXAMPLES = "per_device_train_batch_size", "learning_rate", "times_the_examples"


def headline() -> str:
    results = result(FILE)
    race, parameters = results["race"], results["parameters"]
    last = race["judged"][-1]
    return (
        f"MiniLM on banking77 reached the dev loss and dev F1 of the stock `Trainer` in **{1 / last['quality']['speed']:.0%} of its processor time** on one "
        f"CPU thread ({_settings(last['settings'], results)}; {_seeds(race)} seeds; `max_steps={parameters['max_steps']}`, "
        f"`max_length={parameters['max_length']}`). How much of this a higher rate alone gives is not shown."
    )


def beats() -> str:
    """Whether the tuned run is better than the strongest simple method, and how soon it is as good as the stock one."""
    results = result(FILE)
    race, scores = results["race"], results["eval"]
    words, tuned = scores["baselines"]["a linear model on words"]["f1"], scores["after"]["f1"]
    answer = "no: a linear model on words" if words >= tuned else "yes: a linear model on words"
    compared = f"{answer} has F1 {words:.3f}, the tuned run {tuned:.3f}"
    if race["outcome"] != "kept":
        return f"{compared}; {race['outcome']} on the example"
    share = f"{1 / race['judged'][-1]['quality']['speed']:.0%}"
    return f"{compared}. The stock quality in {share} of the time, but whether a higher learning rate alone does as well is not shown"


def _settings(settings: dict, results: dict) -> str:
    times = settings[RATE] / results["settings"]["start"][RATE]
    sampling = "grouped by length" if settings["train_sampling_strategy"] == "group_by_length" else "in random order"
    examples = "twice the examples" if settings.get(EXAMPLES, 1) == 2 else "the same examples"
    return f"batch {settings[BATCH]}, {times:g} times the rate, {examples}, {sampling}"


def _seeds(race: dict) -> int:
    return len({trial["seed"] for trial in race["trials"]})


def _interval(difference: dict) -> str:
    return f"{difference['value']:+.3f} ({difference['low']:+.3f} to {difference['high']:+.3f})"


def _f1(difference: dict) -> str:
    verdict = "no significant difference"
    if difference["high"] < 0:
        verdict = "**lower**"
    elif difference["low"] > 0:
        verdict = "higher"
    return f"{_interval(difference)}, {verdict}"


def quality() -> str:
    """Each candidate beside the runs of the stock Trainer."""
    results, judged = result(FILE), []
    race, tests = results["race"], results["data"]["test_examples"]
    for candidate in race["judged"]:
        quality, settings = candidate["quality"], candidate["settings"]
        judged.append(
            {
                "batch": settings[BATCH],
                "learning rate": f"{settings[RATE]:.2g}",
                "examples": f"x {settings.get(EXAMPLES, 1)}",
                "times as fast": f"{quality['speed']:.2f}",
                "dev loss": _interval(quality["loss"]),
                "dev F1": _interval(quality["f1"]),
                "outcome": candidate["outcome"],
            }
        )
    return (
        f"A stock run trains on {race['examples']:,} examples. Outcome: **{race['outcome']}**. Each candidate is compared with the stock runs of its seeds, with "
        f"intervals over dev texts and seeds (a candidate that is kept after the first seed is judged again with all seeds):\n\n{tables.markdown(judged)}\n\n"
        f"Test F1 compared with the stock runs, on {tests:,} questions and all seeds: {_f1(results['f1_over_stock'])}."
    )


def parameters() -> str:
    """Of what is tuned, and of the runs that compare, from the declarations."""
    names = ("batch_size", "max_length", "num_rows", "tuning_minutes", "try_compile")
    return declarations.table(TuningParameters, names=names)
