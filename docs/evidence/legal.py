"""What was measured of legal fine-tuning: reasoning that carries the answer, beside counting words and labels alone."""

from build import result
from evidence import declarations, pictures

from helpers.legal.evaluation import TRAINED, WORDS
from helpers.legal.parameters import LegalParameters
from helpers.show import tables

FILE, FORMER = "legal_cpu.json", "legal_former_studies.json"
ALONE = "trained on labels alone"
FIGURE = "docs/figures/legal_reasoning.png"
TITLES = {
    "overruling": ("whether a sentence overrules a case", "accuracy"),
    "unfair_tos": ("which kind of unfair term a clause is", "macro_f1"),
    "contract_nli": ("what an agreement says about a statement (ContractNLI)", "accuracy"),
}


def _percent(values: dict, sign: str = "") -> str:
    return f"{100 * values['value']:{sign}.1f} ({100 * values['low']:{sign}.1f} to {100 * values['high']:{sign}.1f})"


def _shares(values: list[float]) -> str:
    return ", ".join(f"{100 * value:.1f}" for value in values)


def _studies() -> dict[int, dict]:
    """Training records -> what was measured after as many; the most come first."""
    studies = result(FILE)["studies"]
    return {int(count): study for count, study in studies.items() if study["right"]["labels"]}


def headline() -> str:
    """The model that was trained with chains, beside words and the same model on labels alone."""
    parts = []
    for count, study in sorted(_studies().items()):
        scores = study["scores"]
        less, right = scores["trained less"], scores["systems"][TRAINED]["value"]
        parts.append(
            f"after {count} records **{100 * right:.1f} %**, {_percent(less[WORDS], '+')} points compared with counting words and "
            f"{_percent(less[ALONE], '+')} compared with the same model trained on the answers alone"
        )
    seeds = len(study["right"]["chains"])
    return (
        "The answer needs several steps (diversity jurisdiction). SmolLM2-135M, fine-tuned on records with their reasoning, answers "
        f"{scores['questions']} unseen questions. Right answers: {'; '.join(parts)} ({seeds} seeds, which differ widely). A written rule of three lines "
        "answers all of them. Where words give the label away, counting them is as good"
    )


def draw() -> None:
    """Right answers of the three methods that the headline compares."""
    methods = {"counting words": WORDS, "trained on answers alone": ALONE, "trained with reasoning": TRAINED}
    rows = []
    for count, study in sorted(_studies().items()):
        for title, system in methods.items():
            share = study["scores"]["systems"][system]
            rows.append(pictures.percent(f"{title}, {count} records", share, system == TRAINED))
    pictures.dots("legal_reasoning", "Diversity jurisdiction: 200 unseen questions", "right answers, %", rows)


def beats() -> str:
    """Whether fine-tuning is better than counting words, in a few words."""
    if any(study["scores"]["trained less"][WORDS]["low"] > 0 for study in _studies().values()):
        return "yes, where the answer needs reasoning; for plain labels counting words is as good or better"
    return "no, for plain labels: counting words is as good or better"


def dropout() -> str:
    """Adapters' dropout: the lowest loss on the development records, by seed."""
    losses, rows = result(FILE)["dev_losses"], []
    for seed in range(3):
        runs = {"no dropout": f"chains, 240 records, seed {seed}", "0.05": f"dropout, seed {seed}"}
        rows.append({"seed": seed} | {rate: f"{min(losses[run]):.4f}" for rate, run in runs.items() if run in losses})
    return tables.markdown(rows)


def chains() -> str:
    """A row a system, after the most training records."""
    scores, rows = _studies()[max(_studies())]["scores"], []
    systems = sorted(scores["systems"].items(), key=lambda system: system[1]["value"])
    for name, values in systems:
        less = scores["trained less"].get(name)
        label = "**trained with chains**" if name == TRAINED else name
        rows.append(
            {
                "answers": label,
                "right, %": _percent(values),
                "difference of the trained model, points": _percent(less, "+") if less else "",
            }
        )
    rows.append({"answers": "a written rule of three lines: the answer key", "right, %": "100, by construction"})
    return tables.markdown(rows)


def steps() -> str:
    """A row a number of training records: words, labels alone and chains, by seed."""
    rows = []
    for count, study in sorted(_studies().items()):
        scores, passes = study["scores"], study["passes"]
        rows.append(
            {
                "training records": count,
                "passes, chains / labels": f"{passes['chains']} / {passes['labels']}",
                "counting words, %": f"{100 * scores['systems'][WORDS]['value']:.1f}",
                "labels alone, % by seed": _shares(study["right"]["labels"]),
                "with chains, % by seed": _shares(study["right"]["chains"]),
                "chains minus labels, points": _percent(scores["trained less"][ALONE], "+"),
                "every step right, % by seed": _shares(study["every step right"]),
            }
        )
    sizes, recipe = result(FILE)["sizes"], result(FILE)["recipe"]
    return (
        f"{tables.markdown(rows)}\n\nThe pass is chosen on {sizes['validation']} records; the test has {sizes['test']} questions. LoRA of rank {recipe['rank']}, "
        f"learning rate {recipe['rate']}. A record with its chain has about twice the tokens of one with its label alone."
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
            f"- {title}: {100 * trained['value']:.1f} % {measure.replace('_', ' ')} after {found['train_rows']} records, {_percent(less, '+')} compared with "
            f"the best method that counts words ({seeds})"
        )
    return "\n".join(lines)


def parameters() -> str:
    """Of data, model and training, from the declarations."""
    names = ("learn", "max_length", "lora_rank", "gradient_checkpointing", "num_processes", "save_steps")
    return declarations.table(LegalParameters, names=names)
