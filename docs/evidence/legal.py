"""What was measured of legal fine-tuning: real labelled law beside counting words, and reasoning that was not seen."""

from statistics import fmean

from build import RESULTS, result
from evidence import declarations

from helpers.legal.parameters import LegalParameters
from helpers.show import tables

FILE = "legal_cpu.json"
WORDS = "words (TF-IDF, logistic regression)"
PROBE = "linear probe on the frozen model"
TITLES = {
    "unfair_tos": "kinds of unfair terms of service",
    "contract_nli": "what an agreement says about a statement (ContractNLI)",
    "overruling": "whether a sentence overrules a case",
}
MEASURES = {"unfair_tos": "macro_f1", "contract_nli": "accuracy", "overruling": "accuracy"}


def _tasks() -> dict[str, dict]:
    return result(FILE)["tasks"] if (RESULTS / FILE).is_file() else {}


def _percent(each: dict, sign: str = "") -> str:
    return f"{100 * each['value']:{sign}.1f} ({100 * each['low']:{sign}.1f} to {100 * each['high']:{sign}.1f})"


def _strongest_words(task: str, found: dict) -> str:
    """The best row that counts words."""
    names = [name for name in found["systems"] if name.startswith("words")]
    return max(names, key=lambda name: found["systems"][name][MEASURES[task]]["value"])


def headline() -> str:
    """The task where the language model is ahead of counting words, or the sentence that it is not."""
    trained = {task: found for task, found in _tasks().items() if found["trained less"]}
    if not trained:
        return (
            f"{_untrained()}What a fine-tuned small language model adds to counting words on real labelled law has not been "
            "measured to its end"
        )
    ahead = {}
    for task, found in trained.items():
        words = _strongest_words(task, found)
        ahead[task] = found["trained less"][words][MEASURES[task]]
    best = max(ahead, key=lambda task: ahead[task]["low"])
    found, each = trained[best], ahead[best]
    said = "is ahead of" if each["low"] > 0 else "is behind" if each["high"] < 0 else "is not told apart from"
    own = found["systems"]["trained"][MEASURES[best]]
    return (
        f"On {TITLES[best]}, SmolLM2-135M, fine-tuned on {found['train_rows']} records, {said} the best method that counts words: it has "
        f"**{100 * own['value']:.1f} %** {MEASURES[best].replace('_', ' ')}, a difference of {_percent(each, '+')} points "
        f"({found['seeds']} seeds, {found['questions']} questions)"
    )


def beats() -> str:
    """Whether fine-tuning is better than counting words, in a few words."""
    differences = []
    for task, measured in _tasks().items():
        if measured["trained less"]:
            words = _strongest_words(task, measured)
            differences.append(measured["trained less"][words][MEASURES[task]])
    if any(difference["low"] > 0 for difference in differences):
        return "yes, where the answer needs reasoning; for plain labels counting words is as good or better"
    return "no, for plain labels: counting words is as good or better"


def _untrained() -> str:
    """What the frozen model's states tell a linear model, beside counting words, where that was measured."""
    found = _tasks().get("overruling", {"systems": {}})
    if PROBE not in found["systems"]:
        return ""
    probe, words = (_percent(found["systems"][name]["accuracy"]) for name in (PROBE, WORDS))
    return f"On {TITLES['overruling']} a linear probe on the frozen SmolLM2-135M is right in {probe} %, counting words in {words} %. "


def tasks() -> str:
    """A row a system and task."""
    rows = []
    for task, found in _tasks().items():
        for name, values in found["systems"].items():
            row = {"task": TITLES[task], "answers": "**trained**" if name == "trained" else name}
            row |= {measure.replace("_", " "): _percent(each) for measure, each in values.items()}
            less = found["trained less"].get(name, {}).get(MEASURES[task])
            rows.append(
                row | {"trained less this": f"{_percent(less, '+')} {MEASURES[task].replace('_', ' ')}" if less else ""}
            )
    return (
        f"Percent, with 95 % intervals:\n\n{tables.markdown(rows)}" if rows else "No piece of this study is finished."
    )


def recipes() -> str:
    """How many rows and seeds each task has, and what the recipes reached on development data."""
    lines = []
    for task, found in _tasks().items():
        tried = "; ".join(f"{name} {100 * value:.1f}" for name, value in found["dev_f1"].items())
        lines.append(
            f"- **{task}**: {found['train_rows']} training rows, {found['dev_rows']} development rows, {found['questions']} test questions in "
            f"{found['groups']} groups, {found['seeds']} seed{'s' * (found['seeds'] != 1)}. Macro F1 on development rows: {tried or 'nothing was trained'}."
        )
    return "\n".join(lines) or "Nothing was trained."


def reasoning() -> str:
    """The loss of gold reasoning and answers of unseen UK records."""
    runs = result(FILE)["uk_qa"] if (RESULTS / FILE).is_file() else []
    if not runs:
        return "The loss of gold reasoning on real UK records has not been measured with the present recipe."
    before, after = (fmean(run[when]["loss"] for run in runs) for when in ("before", "after"))
    return (
        f"Loss of the reasoning and answers of {runs[0]['after']['rows']} unseen UK records: {before:.3f} nats a token before, "
        f"{after:.3f} after one pass over {runs[0]['rows']} records ({len(runs)} seeds: "
        f"{', '.join(format(run['after']['loss'], '.3f') for run in runs)})."
    )


def systems() -> str:
    """What the name of the linear row means."""
    return f"`{WORDS}` is a logistic regression on TF-IDF features of words, word pairs and letters. Its regularisation and the weights of the labels are chosen on the development rows."


def parameters() -> str:
    """Of data, model and training, from the declarations."""
    names = (
        "learn",
        "max_length",
        "lora_rank",
        "gradient_checkpointing",
        "num_processes",
        "save_steps",
    )
    return declarations.table(LegalParameters, names=names)
