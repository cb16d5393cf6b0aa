"""What hardware tuning gave on a CPU, and the speed of the script that it carries away."""

import math
import statistics

from build import ratio, result, spread
from evidence import declarations
from scipy.stats import t

from helpers.show import tables
from helpers.tuning.parameters import TuningParameters

FILE, SCRIPT = "hardware_tuning_cpu.json", "tuned_script_cpu.json"


def optimisations() -> str:
    """One at a time, on top of what was kept."""
    found = result(FILE)
    tried = [each for each in found["optimisations"] if each["gains"] or each["name"] == "loader workers"]
    rows = [{"on top of what was kept": each["name"], "": each["verdict"]} for each in tried]
    over, data, asked = found["over_start"], found["data"], found["parameters"]
    rows.append({"on top of what was kept": "**tuned over the stock start, timed again**", "": f"**{_ratio(over)}**"})
    return (
        f"MiniLM ({found['model']['trainable']:,} weights) on {data['train_examples']:,} of banking77's questions with {data['labels']} "
        f"labels, at most {asked['max_length']} tokens, from a stock `Trainer`; {found['clock']} of one thread on a busy "
        f"{found['runtime']['device_name']} with bf16 instructions, {asked['repetitions']} turns, 95 % intervals. "
        f"Start: {found['start']['verdict']}. Measured at commit {found['code']['commit'][:7]}, whose ladder timed the same trainer in the "
        f"same pairs and judged them with a noise model in the place of the present rule.\n\n{tables.markdown(rows)}"
    )


def _ratio(over: dict) -> str:
    return f"{over['value']:.2f} x ({over['low']:.2f} to {over['high']:.2f})"


def whole_runs() -> str:
    """Start, all that was kept, and what was chosen where that is something else, over seeds."""
    found = result(FILE)
    runs = list(found["comparison"].values())
    names = {found["chosen"]: f"chosen: {found['chosen']}"} | {"tuned": "tuned: all that was kept"}
    rows = [
        {
            "": "stock start",
            "times as fast": "1",
            "test F1": spread([run["start"]["f1"] for run in _both(runs, "start")]),
        }
    ]
    for name, shown in names.items():
        both = _both(runs, name)
        rows.append(
            {
                "": shown,
                "times as fast": spread(_speed_ups(both, name), 1),
                "test F1": spread([run[name]["f1"] for run in both]),
                "test F1 against the start": _quality(both, name),
            }
        )
    steps = found["parameters"]["max_steps"]
    return (
        f"{len(_both(runs, 'tuned'))} pairs of runs over as many examples as {steps} steps of 8, one pair for each seed; mean ± sample standard "
        f"deviation. After so few steps the model is half trained, and with so few seeds the interval is wide:\n\n{tables.markdown(rows)}"
    )


def script() -> str:
    """The exported script's speed beside the notebook's."""
    found = result(SCRIPT)
    (each,) = found["comparisons"]
    low, target = each["ratio_range"][0], each["target_ratio"]
    within = (
        "not within"
        if each["ratio"] < target
        else "within"
        if low >= target
        else "in the median, but not in each turn, within"
    )
    return (
        f"Alone in an empty folder, in an isolated interpreter, the script with the settings above trained {ratio(each, 2)} times as many "
        f"examples a second as the notebook's own trainer ({each['clock']}, {each['steps']} steps, median and range of "
        f"{found['repetitions']} turns): {within} a tenth."
    )


def headline() -> str:
    """In a few words, for README.md."""
    found = result(FILE)
    chosen, runs = found["chosen"], _both(found["comparison"].values(), found["chosen"])
    ours, start = (spread([run[name]["f1"] for run in runs]) for name in (chosen, "start"))
    settings = found["settings"]["chosen"]
    over = found["over_start"]  # of all that was kept
    faster = f"{spread(_speed_ups(runs, chosen), 1)} times as fast"
    if over and chosen == "tuned":
        faster = f"{over['value']:.1f} times as fast ({over['low']:.1f} to {over['high']:.1f})"
    return (
        f"MiniLM on banking77 trains **{faster}** on one CPU thread with bf16 instructions as with a stock `Trainer` "
        f"({found['clock']}, 95 % interval; {settings['precision']}, {settings['padding']} batches of {settings['batch_size']}). After a "
        f"short training its test F1 is {ours} against {start}: {_quality(runs, chosen)}"
    )


def _both(runs, name: str) -> list[dict]:
    """Seeds with a run of these settings and of the start."""
    return [run for run in runs if name in run and "start" in run]


def _speed_ups(runs: list[dict], name: str) -> list[float]:
    """Times as fast as the start of the same seed."""
    return [run["start"]["training_seconds"] / run[name]["training_seconds"] for run in runs]


def _quality(runs: list[dict], name: str) -> str:
    """The mean difference from the start of the same seed with its interval over seeds, and what that says."""
    differences = [run[name]["f1"] - run["start"]["f1"] for run in runs]
    mean = statistics.fmean(differences)
    if len(differences) < 3:
        return f"{mean:+.3f}, not checked ({len(differences)} seed{'s' * (len(differences) > 1)})"
    half = float(t.ppf(0.975, len(differences) - 1)) * statistics.stdev(differences) / math.sqrt(len(differences))
    said = "not told apart" if abs(mean) <= half else "better" if mean > 0 else "**worse**"
    return f"{said}, {mean:+.3f} ({mean - half:+.3f} to {mean + half:+.3f})"


def parameters() -> str:
    """Of what is tuned, and of the runs that compare, from the declarations."""
    names = ("batch_size", "max_length", "num_rows", "tuning_minutes", "try_compile", "paired_seeds")
    return declarations.table(TuningParameters, names=names)
