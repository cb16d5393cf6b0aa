"""What was measured of legal fine-tuning: reasoning that carries the answer, beside counting words and labels alone."""

from evidence import declarations, pictures
from evidence.seeds import Difference

from helpers.legal.evaluation import WORDS
from helpers.legal.parameters import STEPS, LegalParameters
from helpers.show import tables
from helpers.show.intervals import wilson
from tools.pages import result

FILE, FORMER = "legal_cpu.json", "legal_former_studies.json"
ALONE, PROBE = "trained on labels alone", "linear probe on the frozen model"
TITLES = {
    "overruling": ("whether a sentence overrules a case", "accuracy"),
    "unfair_tos": ("which kind of unfair term a clause is", "macro_f1"),
    "contract_nli": ("what an agreement says about a statement (ContractNLI)", "accuracy"),
}


def _shares(values: list[float]) -> str:
    return ", ".join(f"{100 * value:.1f}" for value in values)


def _studies() -> dict[int, dict]:
    """Training records -> what was measured after as many; the most come first."""
    studies = result(FILE)["studies"]
    return {int(count): study for count, study in studies.items() if study["right"]["labels"]}


def _less(study: dict, system: str) -> Difference:
    """The right answers of the trained model less those of another system, by seed."""
    items = study["scores"]["trained less"][system]
    rival = study["right"]["labels"] if system == ALONE else [study["scores"]["systems"][system]["value"]]
    return Difference.between(study["right"]["chains"], rival, items["low"], items["high"])


def headline() -> str:
    """The model that was trained with its reasoning, beside the strongest simple method and the same model on answers alone."""
    fewer, most = (study for _, study in sorted(_studies().items()))
    counts, questions = sorted(_studies()), most["scores"]["questions"]
    probe, words = (100 * most["scores"]["systems"][name]["value"] for name in (PROBE, WORDS))
    return (
        f"SmolLM2-135M, fine-tuned on {counts[1]} records with their reasoning, answers **{_shares(most['right']['chains'])} %** of {questions} unseen "
        f"questions rightly (three seeds), after {counts[0]} records {_shares(fewer['right']['chains'])} %. The strongest simple method, a linear probe on "
        f"the frozen model, has {probe:.1f} %, and counting words {words:.1f} %. The difference to the probe is {_less(most, PROBE).text(1, 100)} points. "
        f"A written rule of three lines answers every question. These runs had {most['passes']['chains']} and {fewer['passes']['chains']} passes; by "
        f"default the notebook trains at least {STEPS} steps."
    )


def draw() -> None:
    """Right answers of the methods that the headline compares."""
    rows = []
    for count, study in sorted(_studies().items()):
        scores = study["scores"]
        for title, system in (("counting words", WORDS), ("linear probe on the frozen model", PROBE)):
            if system in scores["systems"]:
                share = wilson(scores["systems"][system]["value"], scores["questions"])
                rows.append(pictures.percent(f"{title}, {count} records", share))
        for title, kind in (("trained on answers alone", "labels"), ("trained with reasoning", "chains")):
            rows.append(pictures.seeds(f"{title}, {count} records", study["right"][kind], kind == "chains"))
    unit = "right answers, % (line: 95 % interval, or lowest to highest of three seeds)"
    pictures.dots("legal_reasoning", "Diversity jurisdiction: 200 unseen questions", unit, rows)


def beats() -> str:
    """Whether fine-tuning is better than the strongest simple method, in a few words."""
    most = _studies()[max(_studies())]
    less = _less(most, PROBE)
    return f"{less.answer}: {less.numbers(1, 100)} points over a linear probe on the frozen model; no where words give the label away"


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
                "chains minus labels, points": _less(study, ALONE).text(1, 100),
                "every step right, % by seed": _shares(study["every step right"]),
            }
        )
    sizes, recipe = result(FILE)["sizes"], result(FILE)["recipe"]
    return (
        f"{tables.markdown(rows)}\n\nThe pass is chosen on {sizes['validation']} records; the test has {sizes['test']} questions. LoRA of rank {recipe['rank']}, "
        f"learning rate {recipe['rate']}. A record with its chain has about twice the tokens of one with its label alone."
    )


def _former() -> dict[str, dict]:
    """For each task of a former study the difference to the best method that counts words."""
    differences = {}
    for task, (_, measure) in TITLES.items():
        study = result(FORMER)["tasks"][task]
        words = [name for name in study["systems"] if name.startswith("words")]
        best = max(words, key=lambda name, study=study, measure=measure: study["systems"][name][measure]["value"])
        differences[task] = study["trained less"][best][measure]
    return differences


def former() -> str:
    """Three tasks whose label the words of a text carry, of a former study."""
    parts = []
    for task, less in _former().items():
        title, measure = TITLES[task]
        parts.append(f"{title} ({measure.replace('_', ' ')}) {100 * less['value']:+.1f}")
    return (
        "In three tasks of an earlier study single words reveal the label. There fine-tuning, less the best method that counts words, gave in points: "
        f"{'; '.join(parts)}. The first has three seeds, the others one."
    )


def parameters() -> str:
    """Of data, model and training, from the declarations."""
    names = ("max_length", "lora_rank", "gradient_checkpointing", "num_processes", "save_steps")
    return declarations.table(LegalParameters, names=names)
