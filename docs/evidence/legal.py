"""What was measured of legal fine-tuning: reasoning that carries the answer, beside counting words and labels alone."""

from build import RESULTS, result
from evidence import declarations

from helpers.legal.evaluation import TRAINED, WORDS
from helpers.legal.parameters import LegalParameters
from helpers.show import tables

FILE, FORMER = "legal_cpu.json", "legal_former_studies.json"
ALONE = "trained on labels alone"
TITLES = {
    "overruling": ("whether a sentence overrules a case", "accuracy"),
    "unfair_tos": ("which kind of unfair term a clause is", "macro_f1"),
    "contract_nli": ("what an agreement says about a statement (ContractNLI)", "accuracy"),
}


def _percent(values: dict, sign: str = "") -> str:
    return f"{100 * values['value']:{sign}.1f} ({100 * values['low']:{sign}.1f} to {100 * values['high']:{sign}.1f})"


def _shares(values: list[float]) -> str:
    return ", ".join(f"{100 * value:.1f}" for value in values)


def headline() -> str:
    """The model that was trained with chains, beside words and the same model on labels alone."""
    if not (RESULTS / FILE).is_file():
        return "What reasoning adds to counting words has not been measured to its end"
    found = result(FILE)
    scores, less, seeds = found["scores"], found["scores"]["trained less"], found["seeds"]["chains"]
    return (
        f"Where the answer needs steps (diversity jurisdiction), SmolLM2-135M, fine-tuned on the reasoning of {found['sizes']['train']} records, is "
        f"right in **{100 * scores['systems'][TRAINED]['value']:.1f} %** of {scores['questions']} unseen questions: {_percent(less[WORDS], '+')} "
        f"points over counting words and {_percent(less[ALONE], '+')} over the same model trained on the answers alone "
        f"({seeds} seed{'s' * (seeds != 1)}). A written rule of three lines answers all of them; where words carry the label, counting them is as good"
    )


def beats() -> str:
    """Whether fine-tuning is better than counting words, in a few words."""
    if (RESULTS / FILE).is_file() and result(FILE)["scores"]["trained less"][WORDS]["low"] > 0:
        return "yes, where the answer needs reasoning; for plain labels counting words is as good or better"
    return "no, for plain labels: counting words is as good or better"


def chains() -> str:
    """A row a system."""
    if not (RESULTS / FILE).is_file():
        return "Not measured yet."
    scores, rows = result(FILE)["scores"], []
    systems = sorted(scores["systems"].items(), key=lambda system: system[1]["value"])
    for name, values in systems:
        less = scores["trained less"].get(name)
        label = "**trained with chains**" if name == TRAINED else name
        rows.append(
            {
                "answers": label,
                "right, %": _percent(values),
                "trained less this, points": _percent(less, "+") if less else "",
            }
        )
    rows.append({"answers": "a written rule of three lines: the answer key", "right, %": "100, by construction"})
    return tables.markdown(rows)


def steps() -> str:
    """What each seed reached, and how many chains are right throughout."""
    if not (RESULTS / FILE).is_file():
        return "Not measured yet."
    found = result(FILE)
    sizes, recipe, passes = found["sizes"], found["recipe"], found["passes"]
    return (
        f"{sizes['train']} training records, {sizes['validation']} to choose, {sizes['test']} test questions; LoRA of rank {recipe['rank']}, rate "
        f"{recipe['rate']}, passes over the records: {passes['chains']} with chains, {passes['labels']} on labels alone (about as many steps). "
        f"Right by seed: with chains {_shares(found['right']['chains'])} %, on labels alone {_shares(found['right']['labels'])} %. Chains that are right in "
        f"every step, by seed: {_shares(found['every step right'])} %."
    )


def fewer() -> str:
    """A row a number of training records: words, labels alone and chains, and what the chains add."""
    if not (RESULTS / FILE).is_file():
        return "Not measured yet."
    results, rows = result(FILE), []
    studies = {str(results["sizes"]["train"]): results, **results["fewer records"]}
    for count, study in sorted(studies.items(), key=lambda pair: int(pair[0])):
        systems, less = study["scores"]["systems"], study["scores"].get("trained less", {})
        if ALONE not in less:
            continue
        rows.append(
            {
                "training records": count,
                "passes, chains and labels": f"{study['passes']['chains']}, {study['passes']['labels']}",
                "counting words, %": f"{100 * systems[WORDS]['value']:.1f}",
                "labels alone, % by seed": _shares(study["right"]["labels"]),
                "with chains, % by seed": _shares(study["right"]["chains"]),
                "chains less labels, points": _percent(less[ALONE], "+"),
                "every step right, % by seed": _shares(study["every step right"]),
            }
        )
    return tables.markdown(rows)


def dropout() -> str:
    """Development loss with and without dropout in the adapters, by seed."""
    if not (RESULTS / FILE).is_file():
        return "Not measured yet."
    losses = result(FILE)["dev_losses"]
    best = {name: min(values) for name, values in losses.items()}
    seeds = [name.removeprefix("dropout, ") for name in best if name.startswith("dropout, ")]
    pairs = [
        f"{best[f'chains, {seed}']:.4f} without and {best[f'dropout, {seed}']:.4f} with ({seed})" for seed in seeds
    ]
    return (
        f"Development loss of the chains by dropout of 0.05: {'; '.join(pairs)}."
        if pairs
        else "Dropout was not compared."
    )


def former() -> str:
    """Three tasks whose label the words of a text carry, of a former study: a line each."""
    lines = []
    for task, (title, measure) in TITLES.items():
        found = result(FORMER)["tasks"][task]
        words = [name for name in found["systems"] if name.startswith("words")]
        best = max(words, key=lambda name, found=found, measure=measure: found["systems"][name][measure]["value"])
        trained, less = found["systems"]["trained"][measure], found["trained less"][best][measure]
        seeds = f"{found['seeds']} seed{'s' * (found['seeds'] != 1)}"
        lines.append(
            f"- {title}: {100 * trained['value']:.1f} % {measure.replace('_', ' ')} after {found['train_rows']} records, {_percent(less, '+')} beside "
            f"the best method that counts words ({seeds})"
        )
    return "\n".join(lines)


def parameters() -> str:
    """Of data, model and training, from the declarations."""
    names = ("learn", "max_length", "lora_rank", "gradient_checkpointing", "num_processes", "save_steps")
    return declarations.table(LegalParameters, names=names)
