"""What was measured of the reservoir language model."""

import statistics

from evidence import declarations
from evidence.seeds import Difference

from helpers.reservoir.parameters import MODEL, ReservoirParameters
from helpers.show import tables
from tools.pages import ROOT, result, spread

STUDY = "reservoir_cpu.json"
TEXTS = {"plays": "plays", "python": "Python code", "tinystories": "TinyStories"}
FIRST, MODEL_NAME, MINUTE = "tinystories", "reservoir", 60


def _below_counting(row: dict, counting: float) -> Difference:
    """By what share a model needs fewer bits than counting."""
    return Difference([1 - bits / counting for bits in row["test"]], tuple(row["below_counting"][1:]))


def _reservoir_below(row: dict, reservoir: dict) -> Difference:
    """By what share the reservoir needs fewer bits than a rival, over the seeds that both have."""
    rival = dict(zip(row["seed"], row["test"], strict=True))
    own = dict(zip(reservoir["seed"], reservoir["test"], strict=True))
    shares = [1 - own[seed] / rival[seed] for seed in rival if seed in own]
    return Difference(shares, tuple(row["reservoir_below"][1:]))


def _minute(data: dict) -> dict[str, dict]:
    return {row["model"]: row for row in data["rows"] if row["seconds"] == MINUTE}


def comparison() -> str:
    """Every text after a minute: counting, xz, the reservoir and a trained memory in its place."""
    lines = []
    for name, data in result(STUDY)["data"].items():
        rows, counting = _minute(data), data["counting"]["test"]
        for row in rows.values():
            against = ""
            if row["model"] != MODEL_NAME:
                against = _reservoir_below(row, rows[MODEL_NAME]).text(1, 100)
            lines.append(
                {
                    "text": name,
                    "model": row["model"],
                    "bits per byte": spread(row["test"]),
                    "counting": f"{counting:.3f}",
                    "xz": f"{data['xz']:.3f}",
                    "% fewer bits than counting": _below_counting(row, counting).text(1, 100),
                    "reservoir: % fewer bits than this model": against,
                    "seeds": len(row["seed"]),
                }
            )
    return tables.markdown(lines)


def headline() -> str:
    """The first text after a minute, in a few words."""
    data = result(STUDY)["data"][FIRST]
    rows = _minute(data)
    own, rival, counting = rows[MODEL_NAME], rows["GRU"], data["counting"]["test"]
    return (
        f"On TinyStories, after {MINUTE} processor seconds of one thread (2,000 stories, all preparation included), the model needs "
        f"**{spread(own['test'])} bits per byte** (fewer is better; {len(own['seed'])} seeds). Counting alone needs {counting:.3f}, `xz` {data['xz']:.3f}. "
        f"With a trained recurrent network (a GRU) in its place it needs {spread(rival['test'])}, and after five minutes the GRU is better (one seed)."
    )


def beats() -> str:
    """Whether the model is better than counting and than a trained network, in a few words."""
    data = result(STUDY)["data"]
    own = _minute(data[FIRST])[MODEL_NAME]
    counting = data[FIRST]["counting"]["test"]
    answers = []
    for name, texts in data.items():
        rows = _minute(texts)
        answers.append(f"{_reservoir_below(rows['GRU'], rows[MODEL_NAME]).answer} on {TEXTS[name]}")
    return (
        f"{_below_counting(own, counting).answer}: {statistics.fmean(own['test']):.3f} bits per byte, counting {counting:.3f}. Better than a trained network after a "
        f"minute? {', '.join(answers)}; after five minutes no"
    )


def draw() -> None:
    """Bits per byte of the first text against processor seconds, with preparation, from the measurement of three budgets."""
    import matplotlib.pyplot as plt

    data = result(STUDY)["earlier"]["data"][FIRST]
    rows = data["rows"]
    figure, axes = plt.subplots(figsize=(8, 3.8), layout="constrained")
    for name in (MODEL_NAME, "GRU"):
        own = [row for row in rows if row["model"] == name]
        seconds = [row["seconds"] for row in own]
        label = "this notebook's model" if name == MODEL_NAME else f"the same with a trained {name}"
        axes.plot(seconds, [statistics.mean(row["test"]) for row in own], marker="o", label=label)
    axes.axhline(data["counting"]["test"], linestyle="--", color="0.4", label="counting alone")
    axes.set(
        xlabel="processor seconds of one thread, preparation included", ylabel="bits per byte of test", xscale="log"
    )
    axes.set_xticks(seconds := sorted({row["seconds"] for row in rows}), seconds)
    axes.minorticks_off()
    axes.set_title("TinyStories: ahead of a trained GRU for a minute, behind it after five")
    axes.legend()
    figure.savefig(ROOT / "docs/figures/reservoir_budget.png", dpi=80)
    plt.close(figure)


def parameters() -> str:
    """What is declared of the model."""
    return declarations.table(ReservoirParameters, groups=(MODEL,), names=("num_texts", "prompt"))
