"""What hardware tuning gave on a CPU, beside the stock batch with a higher rate and nothing else."""

from statistics import fmean, median

from evidence import declarations
from evidence.seeds import Difference

from helpers.show import tables
from helpers.tuning.parameters import TuningParameters
from tools.pages import result, spread

FILE = "tuning_cpu.json"
BATCH, RATE, EXAMPLES = "per_device_train_batch_size", "learning_rate", "times_the_examples"
CHOICE = "the notebook's settings"


def _rows() -> dict[str, dict]:
    return result(FILE)["rows"]


def _reference() -> dict:
    """The stock batch at its best rate, which the race found on the dev texts."""
    reference = result(FILE)["reference"]
    return next(row for name, row in _rows().items() if name != CHOICE and row["settings"] == reference)


def _above(row: dict) -> Difference:
    """By how much the notebook's settings have a higher test F1, over the seeds that both have."""
    theirs = row["f1"]
    return Difference.between(_rows()[CHOICE]["f1"][: len(theirs)], theirs, *row["choice above"])


def _share() -> str:
    """Of the processor time of the reference."""
    return f"{median(_rows()[CHOICE]['seconds']) / median(_reference()['seconds']):.0%}"


def headline() -> str:
    found, rows, reference = result(FILE), _rows(), _reference()
    simple = " and ".join(f"{f1:.3f} on {name}" for name, f1 in found["simple"].items())
    return (
        f"MiniLM on banking77 (`max_steps={found['parameters']['max_steps']}`, `max_length={found['parameters']['max_length']}`): the notebook's settings reach a test F1 of "
        f"**{spread(rows[CHOICE]['f1'])}**. The stock batch at the best of its rates, with nothing else changed, reaches {spread(reference['f1'])}: a difference "
        f"of {_above(reference).text()} in {_share()} of its processor time. Linear models reach {simple}, in a minute."
    )


def beats() -> str:
    """Whether the tuned run is better than the strongest simple method, in a few words."""
    reference = _reference()
    simple, tuned, above = result(FILE)["simple"], fmean(_rows()[CHOICE]["f1"]), _above(reference)
    name = max(simple, key=simple.get)
    answer = "no" if simple[name] >= tuned else "yes"
    return (
        f"{answer}: a linear model on {name} has F1 {simple[name]:.3f}, the tuned run {tuned:.3f}; {above.answer} beside the stock batch at its best rate: "
        f"{above.numbers()} F1 in {_share()} of its time"
    )


def quality() -> str:
    """Each row beside the notebook's settings."""
    table = []
    for name, row in _rows().items():
        settings = row["settings"]
        shown = {"settings": name, "batch": settings[BATCH], "learning rate": f"{settings[RATE]:.2g}"}
        shown |= {"examples": f"x {settings[EXAMPLES]}", "processor seconds": f"{median(row['seconds']):.0f}"}
        shown["test F1"] = spread(row["f1"])
        compared = name != CHOICE and row["f1"][1:]
        shown["the notebook's settings above it"] = _above(row).text() if compared else ""
        table.append(shown)
    found = result(FILE)
    return f"{tables.markdown(table)}\n\nThe race on the dev texts, with seed 0: {found['race']} beside the reference."


def parameters() -> str:
    """Of what is tuned, and of the runs that compare, from the declarations."""
    names = ("batch_size", "max_length", "num_rows", "tuning_minutes", "try_compile")
    return declarations.table(TuningParameters, names=names)
