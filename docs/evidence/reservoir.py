"""What was measured of the reservoir language model."""

from pathlib import Path

from build import result, spread
from evidence import declarations

from helpers.reservoir.parameters import READOUT, RESERVOIRS, ReservoirParameters
from helpers.show import tables

STUDY, LONGER = "reservoir_study_cpu.json", "reservoir_study_long_cpu.json"


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %"


BESIDE = ("reservoirs", "RWKV", "Llama", "GRU", "Kneser-Ney with a cache")


def beside() -> str:
    """The reservoirs and what is no reservoir."""
    return _study(BESIDE)


def cost() -> str:
    """Processor time of a training token."""
    found = result(STUDY)
    tokens = found["steps"] * found["step_tokens"]
    rows = [
        {
            "model": name,
            "before training": f"{found['rows'][name]['preparing_cpu_seconds']:.0f} s",
            "a training token": f"{1e6 * found['rows'][name]['training_cpu_seconds'] / tokens:.0f} µs",
        }
        for name in ("reservoirs", "RWKV", "Llama", "GRU")
    ]
    return "Processor time on one core, evaluation included:\n\n" + tables.markdown(rows)


def _within(found: list[float]) -> str:
    share, low, high = found
    return f"{_signed(share)} ({_signed(low)} to {_signed(high)})"


def _study(names: tuple[str, ...], file: str = STUDY) -> str:
    found = result(file)
    rows = []
    for name in names:
        row = found["rows"][name]
        low, high = row["interval"]
        rows.append(
            {
                "model": name,
                "trained": row.get("trainable", "counts"),
                "rate": f"{row['rate']:g}" if row["rate"] else "",
                "dev": spread(row["dev"]),
                "test": spread(row["test"]),
                "above the first (95 %)": ""
                if name == names[0]
                else f"{_signed(row['above_first'])} ({_signed(low)} to {_signed(high)})",
                "seeds": len(row["test"]),
            }
        )
    stories, tokens = found["stories"], found["tokens"]
    return (
        f"{stories['train']:,} stories ({tokens['train']:,} tokens, vocabulary of {found['vocab_size']:,}), {found['steps']} steps of "
        f"{found['step_tokens']:,} tokens; dev and test of {stories['dev']} stories each. Bits per byte of {tokens['test_predicted']:,} "
        "test tokens, mean ± sample standard deviation over the seeds; intervals over the test stories:\n\n"
        + tables.markdown(rows)
    )


def parameters() -> str:
    """What is declared of the reservoirs and the readout."""
    return declarations.table(ReservoirParameters, groups=(RESERVOIRS, READOUT))


def headline() -> str:
    """The study in a few words, for README.md, and the longer one."""
    found = result(STUDY)
    rows = found["rows"]
    names = ("reservoirs", "RWKV", "Llama", "Kneser-Ney with a cache")
    ours, rwkv, llama, counts = (spread(rows[name]["test"]) for name in names)
    against = " to ".join(map(_signed, rows["RWKV"]["interval"]))
    long = result(LONGER)
    distances = " and ".join(
        f"{name} {_signed(row['above_first'])} ({' to '.join(map(_signed, row['interval']))})"
        for name, row in long["rows"].items()
        if row["above_first"]
    )
    return (
        f"**{ours} bits per byte** of TinyStories after {found['steps']} steps on {found['tokens']['train']:,} tokens. With as many "
        f"trained weights and trials RWKV, which is trained through time, has {rwkv} ({against}), a Llama {llama}; counting (Kneser-Ney "
        f"with a cache) {counts}. After {long['steps']} steps on {long['tokens']['train']:,} tokens ({_seeds(long)}) the Llama has come near "
        f"and RWKV is further ahead: {distances}"
    )


def _seeds(study: dict) -> str:
    """For how many seeds the rows were run: 1 seed, or 1 to 2 seeds."""
    counts = sorted({len(row["test"]) for row in study["rows"].values()})
    return f"{' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} seed{'s' if counts[-1] > 1 else ''}"


DRAWN = {
    "reservoirs": "reservoirs",
    "each block from nothing": "reservoirs, each block from nothing",
    "RWKV": "RWKV",
    "Llama": "Llama",
    "GRU": "GRU",
}


def draw(folder: Path) -> None:
    """Loss on the dev stories against tokens and against processor time, of the study's first seed."""
    import matplotlib.pyplot as plt

    found = result(STUDY)
    figure, panels = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained", sharey=True)
    for name, label in DRAWN.items():
        row = found["rows"][name]
        steps = [point["step"] for point in row["curve"]]
        per_step = row["training_cpu_seconds"] / found["steps"]
        places = (
            [step * found["step_tokens"] for step in steps],
            [row["preparing_cpu_seconds"] + step * per_step for step in steps],
        )
        for axes, place in zip(panels, places, strict=True):
            axes.plot(place, [point["loss"] for point in row["curve"]], marker="o", markersize=3, label=label)
    panels[0].set(xlabel="training tokens", ylabel="loss on dev stories (nats per token)")
    panels[1].set(xlabel="processor seconds, preparation included")
    panels[0].xaxis.set_major_formatter("{x:,.0f}")
    panels[1].legend()
    figure.savefig(folder / "reservoir_first_steps.png", dpi=110)
    plt.close(figure)
