"""What hardware tuning gave on a CPU, and the speed of the script that it carries away."""

import re

from build import ratio, result, spread
from evidence import declarations

from helpers.show import tables
from helpers.tuning import evaluation
from helpers.tuning.parameters import TuningParameters

OVER = "all that was kept, over the stock Trainer"  # the last entry of a ladder that kept something
FILE, OWN, SCRIPT = "hardware_tuning_cpu.json", "tuning_own_csv.json", "tuned_script_cpu.json"
FORMER = "hardware_tuning_bf16_cpu.json"  # by the ladder before the present one


def optimisations() -> str:
    """One at a time, on top of what was kept."""
    found = result(FILE)
    data, asked = found["data"], found["parameters"]
    return (
        f"MiniLM ({found['model']['trainable']:,} weights) on {data['train_examples']:,} of banking77's questions with {data['labels']} "
        f"labels, at most {asked['max_length']} tokens, `learning_rate={asked['learning_rate']:g}`, from a stock `Trainer`; {found['clock']} of one thread on a busy "
        f"{found['runtime']['device_name']} without bf16 instructions. A ratio is the median of its pairs, with the interval of the "
        f"sign test.\n\n{_ladder(found)}"
    )


def with_bf16() -> str:
    """Another CPU, which multiplies bf16."""
    found = result(FORMER)
    over, kept = found["over_start"], [each for each in found["optimisations"] if each["verdict"].startswith("kept")]
    said = ", ".join(f"{each['name']} {each['verdict'].removeprefix('kept: ').partition(',')[0]}" for each in kept)
    return (
        f"On a CPU with bf16 instructions the ladder before the present one (commit {found['code']['commit'][:7]}) kept {said}; together "
        f"{over['value']:.2f} times ({over['low']:.2f} to {over['high']:.2f}) the stock `Trainer` in {found['clock']}."
    )


def _ladder(found: dict) -> str:
    return tables.markdown([{"on top of what was kept": each["name"], "": each["verdict"]} for each in found["ladder"]])


def whole_runs() -> str:
    """The stock Trainer and what was kept, over seeds."""
    found = result(FILE)
    pairs, asked = _pairs(found), found["parameters"]
    rows = [
        {
            "": name,
            "training, seconds": spread([pair[side]["training_seconds"] for pair in pairs], 0),
            "test F1": spread([pair[side]["f1"] for pair in pairs]),
        }
        for name, side in (("stock `Trainer`", "stock"), ("what was kept", "tuned"))
    ]
    rows += [
        {"": f"{name}, first seed", "test F1": f"{scores['f1']:.3f}"}
        for name, scores in found["eval"]["baselines"].items()
    ]
    return (
        f"{len(pairs)} pairs of runs over as many examples as {asked['max_steps']} steps of 8, a pair a seed; mean ± sample standard "
        f"deviation. So few steps leave the model half trained, and so few seeds the interval wide. {_quality(found)}\n\n"
        f"{tables.markdown(rows)}"
    )


def _quality(found: dict) -> str:
    """What the runs of a results file say of quality, by the present rule."""
    return evaluation.verdict(found["verdict"]["runs"]).why


def _pairs(found: dict) -> list[dict]:
    return [pair for pair in found["verdict"]["runs"].values() if len(pair) == 2]


def own_csv() -> str:
    """A small file of one's own, with little time. notebook_seconds: of `helpers.batch`'s results.csv, added to the results."""
    found = result(OWN)
    data = found["data"]
    rows = data["train_examples"] + data["eval_examples"] + data["test_examples"]
    ours, words = found["eval"]["after"]["f1"], found["eval"]["baselines"]["a linear model on words"]["f1"]
    return (
        f"A CSV of {rows} short messages with {data['labels']} labels, MiniLM, `tuning_minutes={found['parameters']['tuning_minutes']:g}`, on one "
        f"thread of a machine that others kept busy: the whole notebook, from its first cell to its last, ended after "
        f"{tables.seconds(found['notebook_seconds'])}. {_quality(found)} Test F1 on its {data['test_examples']} test messages is {ours:.3f}, and "
        f"{words:.3f} for a linear model on words.\n\n{_ladder(found)}"
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
    lines = ", ".join(
        f"`{name}={value!r}`" for each in found["ladder"] if each["kept"] for name, value in each["change"].items()
    )
    if not lines:
        return f"MiniLM on banking77: no change was faster than a stock `Trainer` on one CPU thread ({found['clock']})."
    over = next(each["verdict"] for each in found["ladder"] if each["name"] == OVER)
    words = found["eval"]["baselines"]["a linear model on words"]["f1"]
    middle, low, high = re.search(r"([\d.]+) x \(([\d.]+) to ([\d.]+),", over).groups()
    return (
        f"MiniLM on banking77 trains **{middle} times as fast ({low} to {high})** on one CPU thread as with a stock `Trainer` "
        f"({found['clock']}; {lines}). {_quality(found)} After so few steps both stay below a linear model on words (F1 {words:.3f})."
    )


def parameters() -> str:
    """Of what is tuned, and of the runs that compare, from the declarations."""
    names = ("batch_size", "max_length", "num_rows", "tuning_minutes", "try_compile", "paired_seeds")
    return declarations.table(TuningParameters, names=names)
