"""What was measured of the reservoir language model."""

import statistics

from build import result, spread
from evidence import declarations, pictures

from helpers.reservoir.parameters import MODEL, ReservoirParameters
from helpers.show import tables

STUDY = "reservoir_cpu.json"
FIRST, MODEL_NAME, MINUTE = "tinystories", "reservoir", 60
TIME = "a minute and a half of one CPU core for 2 MB of text"
FIGURE = "docs/figures/reservoir_budget.png"


def _share(shares: list[float]) -> str:
    share, low, high = (100 * value for value in shares)
    return f"{share:.1f} % ({low:.1f} to {high:.1f})"


def comparison() -> str:
    """Every text, budget and model, beside counting and the reservoir."""
    parts = []
    for name, data in result(STUDY)["data"].items():
        lines = []
        for row in data["rows"]:
            lines.append(
                {
                    "budget": f"{row['seconds']} s",
                    "model": row["model"],
                    "bits per byte": spread(row["test"]),
                    "fewer bits than counting (95 %)": _share(row["below_counting"]),
                    "reservoir: fewer bits than this model (95 %)": _share(row["reservoir_below"])
                    if "reservoir_below" in row
                    else "",
                    "steps": f"{statistics.mean(row['steps']):.0f}",
                    "trained weights": f"{row['trained']:,}",
                    "seeds": len(row["seed"]),
                }
            )
        texts, counting = data["texts"], data["counting"]
        digests = ", ".join(f"{file} {digest[:12]}" for file, digest in data["files"].items())
        parts.append(
            f"**{name}**: {texts['train']:,} training texts, {texts['test']} test texts ({digests}). Counting alone needs "
            f"{counting['test']:.3f} bits per byte of the test texts, with the vocabulary that is best on dev ({counting['vocab_size']:,} entries):\n\n"
            + tables.markdown(lines)
        )
    return "\n\n".join(parts)


def headline() -> str:
    """The first text after a minute, in a few words, for README.md."""
    data = result(STUDY)["data"][FIRST]
    rows = {(row["model"], row["seconds"]): row for row in data["rows"]}
    minute, rival = rows[MODEL_NAME, MINUTE], rows["GRU", MINUTE]
    seeds = len(minute["seed"])
    return (
        f"**{spread(minute['test'])} bits per byte** (lower is better) on TinyStories after {MINUTE} processor seconds of one "
        f"thread, all included ({seeds} seed{'s' if seeds > 1 else ''}). Counting alone needs {data['counting']['test']:.3f}; "
        f"the model saves {_share(minute['below_counting'])} of that. With a GRU as its memory it has {spread(rival['test'])}"
    )


def beats() -> str:
    """Whether the model is better than counting, in a few words."""
    rows = result(STUDY)["data"][FIRST]["rows"]
    (minute,) = (row for row in rows if (row["model"], row["seconds"]) == (MODEL_NAME, MINUTE))
    return f"yes: {100 * minute['below_counting'][0]:.0f} % fewer bits than counting phrases"


def draw() -> None:
    """Bits per byte of the first text against processor seconds, with preparation."""
    import matplotlib.pyplot as plt

    data = result(STUDY)["data"][FIRST]
    rows = data["rows"]
    figure, axes = plt.subplots(figsize=(8, 3.8), layout="constrained")
    for name in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == name]
        seconds = [row["seconds"] for row in own]
        axes.plot(seconds, [statistics.mean(row["test"]) for row in own], marker="o", label=name)
    axes.axhline(data["counting"]["test"], linestyle="--", color="0.4", label="counting alone")
    axes.set(
        xlabel="processor seconds of one thread, preparation included", ylabel="bits per byte of test", xscale="log"
    )
    axes.set_xticks(seconds := sorted({row["seconds"] for row in rows}), seconds)
    axes.minorticks_off()
    axes.set_title("TinyStories, 2,000 stories to train on")
    axes.legend()
    figure.savefig(pictures.FOLDER / "reservoir_budget.png", dpi=110)
    plt.close(figure)


def parameters() -> str:
    """What is declared of the model."""
    names = ("num_texts", "prompt")
    return declarations.table(ReservoirParameters, groups=(MODEL,), names=names)
