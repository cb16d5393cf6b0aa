"""What was measured of legal fine-tuning: reasoning that carries the answer, beside a linear probe, words and answers alone."""

from evidence import declarations, pictures
from evidence.seeds import Difference

from helpers.legal.evaluation import TRAINED
from helpers.legal.parameters import LegalParameters
from helpers.show import tables
from helpers.show.intervals import wilson
from tools.pages import result

FILE, FORMER = "legal_cpu.json", "legal_former_studies.json"
TASKS = {"jurisdiction": "Diversity jurisdiction", "ownership": "Who owns a house"}
TITLES = {
    "overruling": ("whether a sentence overrules a case", "accuracy"),
    "unfair_tos": ("which kind of unfair term a clause is", "macro_f1"),
    "contract_nli": ("what an agreement says about a statement (ContractNLI)", "accuracy"),
}


def _shares(values: list[float]) -> str:
    return ", ".join(f"{100 * value:.1f}" for value in values)


def _study(task: str) -> dict:
    return result(FILE)["studies"][task]


def _simple(task: str) -> dict[str, float]:
    """The share of right answers of each system that trains no language model."""
    systems = _study(task)["scores"]["systems"]
    return {name: system["value"] for name, system in systems.items() if name != TRAINED}


def _strongest(task: str) -> tuple[str, float]:
    return max(_simple(task).items(), key=lambda item: item[1])


def _less(task: str, system: str) -> Difference:
    """The right answers of the trained model less those of another system, by seed."""
    study = _study(task)
    items = study["scores"]["trained less"][system]
    return Difference.between(study["right"]["chains"], [_simple(task)[system]], items["low"], items["high"])


def headline() -> str:
    """The model that was trained with its reasoning, beside the strongest simple method."""
    parts = [
        f"SmolLM2-135M was fine-tuned on {result(FILE)['sizes']['train']} records with their reasoning, by the notebook's recipe. Of "
        f"{_study('jurisdiction')['scores']['questions']} unseen questions it answers rightly, by seed:\n"
    ]
    for task, title in TASKS.items():
        strongest, share = _strongest(task)
        parts.append(
            f"- {title}: **{_shares(_study(task)['right']['chains'])} %**. The strongest simple method, {strongest}: {100 * share:.1f} %. Difference "
            f"{_less(task, strongest).text(1, 100)} points."
        )
    return "\n".join(parts)


def draw() -> None:
    """Right answers of the methods that the headline compares."""
    rows, kinds = [], {"answers": "trained on answers alone", "chains": "trained with reasoning"}
    for task, title in TASKS.items():
        study, (strongest, share) = _study(task), _strongest(task)
        rows.append(pictures.percent(f"{title}: {strongest}", wilson(share, study["scores"]["questions"])))
        for kind in sorted(study["right"]):
            rows.append(pictures.seeds(f"{title}: {kinds[kind]}", study["right"][kind], kind == "chains"))
    unit = "right answers, % (95 % interval, or range of seeds)"
    pictures.dots("legal_reasoning", "Unseen questions after few records", unit, rows)


def beats() -> str:
    """Whether fine-tuning is better than the strongest simple method, in a few words."""
    strongest, _ = _strongest("jurisdiction")
    less = _less("jurisdiction", strongest)
    return f"{less.answer} with {result(FILE)['sizes']['train']} records: {less.numbers(1, 100)} points over a {strongest}; no where words give the label away"


def steps() -> str:
    """A row a task: words, answers alone and reasoning, by seed."""
    rows = []
    for task, title in TASKS.items():
        study, simple = _study(task), sorted(_simple(task).items(), key=lambda item: -item[1])
        rows.append(
            {
                "task": title,
                "strongest simple methods, %": "; ".join(f"{name} {100 * share:.1f}" for name, share in simple[:2]),
                "answers alone, % by seed": _shares(study["right"].get("answers", [])) or "not run",
                "with reasoning, % by seed": _shares(study["right"]["chains"]),
                "every step right, % by seed": _shares(study["every step right"]),
            }
        )
    passes = " and ".join(str(_study(task)["passes"]["chains"]) for task in TASKS)
    return (
        f"{tables.markdown(rows)}\n\nThe notebook's recipe: LoRA of rank {result(FILE)['rank']}, learning rate "
        f"{_study('jurisdiction')['rate']:.0e}, {passes} passes; {result(FILE)['sizes']['validation']} records choose the checkpoint."
    )


def former() -> str:
    """Three tasks whose label the words of a text carry, of a former study."""
    parts = []
    for task, (title, measure) in TITLES.items():
        study = result(FORMER)["tasks"][task]
        words = [name for name in study["systems"] if name.startswith("words")]
        best = max(words, key=lambda name, study=study, measure=measure: study["systems"][name][measure]["value"])
        less = study["trained less"][best][measure]["value"]
        parts.append(f"{title} ({measure.replace('_', ' ')}) {100 * less:+.1f}")
    unstated = result(FORMER)["who inherits"]
    return (
        "In three tasks of an earlier study single words reveal the label. There fine-tuning, less the best method that counts words, gave in points: "
        f"{'; '.join(parts)}. The first has three seeds, the others one.\n\nIn an earlier task (who inherits) the reasoning stopped before the answer. "
        f"Every step was right in {_shares(unstated['every step right'])} %, the answer in {_shares(unstated['right'])} %, by seed."
    )


def parameters() -> str:
    """Of data, model and training, from the declarations."""
    names = ("max_length", "lora_rank", "gradient_checkpointing", "num_processes", "save_steps")
    return declarations.table(LegalParameters, names=names)
