"""What was measured of the reservoir language model."""

import statistics
from pathlib import Path

from build import result, spread
from evidence import declarations

from helpers.reservoir.parameters import MODEL, ReservoirParameters
from helpers.show import tables

STUDY = "reservoir_cpu.json"
FIRST, OURS, BUDGETS = "tinystories", "reservoir", (60, 300)
FIGURE = "docs/figures/reservoir_budget.png"


def _within(found: list[float]) -> str:
    share, low, high = (100 * each for each in found)
    return f"{share:+.1f} % ({low:+.1f} to {high:+.1f})"


def comparison() -> str:
    """Every text, budget and model, beside the reservoir with counts."""
    found, parts = result(STUDY), []
    for name, data in found["data"].items():
        lines = []
        for row in sorted(data["rows"], key=lambda row: (row["seconds"], statistics.mean(row["test"]["mixture"]))):
            lines.append(
                {
                    "budget": f"{row['seconds']} s",
                    "model": row["model"],
                    "steps": f"{statistics.mean(row['steps']):.0f}",
                    "with counts": spread(row["test"]["mixture"]),
                    "above the reservoir (95 %)": ""
                    if row["model"] == OURS
                    else _within(row["mixture_above_reservoir"]),
                    "without counts": spread(row["test"]["alone"]),
                    "seeds": len(row["seed"]),
                }
            )
        best = data["counting"]
        lines.append(
            {
                "budget": f"{best['spent_seconds']:.0f} s",
                "model": f"counting alone ({best['vocab_size']:,} entries, chosen on dev)",
                "with counts": f"{best['test']:.3f}",
                "above the reservoir (95 %)": _within(best["above_reservoir"]),
            }
        )
        texts, digest = data["texts"], ", ".join(f"{file} {sha[:12]}" for file, sha in data["files"].items())
        parts.append(
            f"**{name}**: {texts['train']:,} texts to train on, {texts['test']} to test ({digest}). Bits per byte of test:\n\n"
            + tables.markdown(lines)
        )
    return "\n\n".join(parts)


def headline() -> str:
    """The first text after a minute and at the longest budget, in a few words, for README.md."""
    data = result(STUDY)["data"][FIRST]
    short, long = ({row["model"]: row for row in data["rows"] if row["seconds"] == seconds} for seconds in BUDGETS)
    return (
        f"**{spread(short[OURS]['test']['mixture'])} bits per byte** (fewer is better) of TinyStories after {BUDGETS[0]} processor seconds in "
        f"all, preparation included ({_seeds(short)}). Counting alone has {data['counting']['test']:.3f}, "
        f"{_within(data['counting']['above_reservoir'])}. With the same helpers, trials and budget: {_beside(short)}. "
        f"After {BUDGETS[1]} s ({_seeds(long)}): {_beside(long)}"
    )


def _seeds(rows: dict[str, dict]) -> str:
    count = len(rows[OURS]["seed"])
    return f"{count} seed{'s' if count > 1 else ''}"


def _beside(rows: dict[str, dict]) -> str:
    """The other models, the best first."""
    others = sorted(
        (row for row in rows.values() if row["model"] != OURS), key=lambda row: row["mixture_above_reservoir"][0]
    )
    return "; ".join(
        f"{row['model']} {spread(row['test']['mixture'])}, {_within(row['mixture_above_reservoir'])}" for row in others
    )


def draw(folder: Path) -> None:
    """Bits per byte of the first text against processor seconds, with preparation."""
    import matplotlib.pyplot as plt

    data = result(STUDY)["data"][FIRST]
    figure, axes = plt.subplots(figsize=(8, 3.8), layout="constrained")
    for name in dict.fromkeys(row["model"] for row in data["rows"]):
        rows = sorted((row for row in data["rows"] if row["model"] == name), key=lambda row: row["seconds"])
        places = [statistics.mean(row["spent_seconds"]) for row in rows]
        axes.plot(
            places, [statistics.mean(row["test"]["mixture"]) for row in rows], marker="o", label=f"{name} with counts"
        )
    best = data["counting"]
    axes.axhline(
        best["test"], linestyle="--", color="0.4", label=f"counting alone (ready after {best['spent_seconds']:.0f} s)"
    )
    axes.set(xlabel="processor seconds of one thread, preparation included", ylabel="bits per byte of test")
    axes.set_title("TinyStories, 2,000 stories to train on")
    axes.legend(fontsize="small")
    figure.savefig(folder / "reservoir_budget.png", dpi=110)
    plt.close(figure)


def parameters() -> str:
    """What is declared of the model."""
    names = ("num_texts", "prompt", "compare_memories")
    return declarations.table(ReservoirParameters, groups=(MODEL,), names=names)
