"""What was measured of the reservoir language model."""

import itertools
from pathlib import Path

from build import ratio, result, spread
from evidence import declarations

from helpers import tables
from helpers.reservoir.parameters import READOUT, RESERVOIRS, ReservoirParameters


def speed() -> str:
    """Against the strongest form of each peer, in one run."""
    found = result("reservoir_benchmark_cpu.json")
    rows = []
    for each in found["comparisons"]:
        sizes = ", ".join(f"{name}={value:,}" for name, value in each["sizes"].items() if name != "V")
        rows.append(
            {
                "what": f"{each['comparison']} ({sizes})",
                "against": each["peer"].partition(" in complex64")[0].removesuffix(", same batch and optimizer"),
                "tokens/s": each["ours_tokens_per_second"],
                "ratio (middle half of turns)": ratio(each, 2),
                "aim": each.get("target_ratio") or "",
            }
        )
    machine = found["machine"]
    return (
        f"{machine['device']}, {machine['threads']} threads, medians of turns taken in one process, in processor time:\n\n"
        + tables.markdown(rows)
    )


STUDY, LONGER = "reservoir_study_cpu.json", "reservoir_study_long_cpu.json"
FULL = "reservoir_study_full_cpu.json"


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %"


BESIDE = ("reservoirs", "RWKV", "Llama", "GRU", "ridge readout, all tokens", "Kneser-Ney with a cache")


def beside() -> str:
    """The reservoirs and what is no reservoir."""
    return _study(BESIDE)


def study() -> str:
    """Every row of the study beside the first."""
    return _study(tuple(result(STUDY)["rows"]))


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


def full_size() -> str:
    """The carried state at the notebook's own size."""
    return _study(tuple(result(FULL)["rows"]), FULL)


def longer() -> str:
    """More steps on more stories, and how the distances from the first row change with that."""
    found, shorter = result(LONGER), result(STUDY)["rows"]
    distances = [
        f"{name} {_signed(shorter[name]['above_first'])} before and {_signed(row['above_first'])} here"
        for name, row in found["rows"].items()
        if row["above_first"]
    ]
    return f"{_study(tuple(found['rows']), LONGER)}\n\nThe distance from the reservoirs: {'; '.join(distances)}."


def context() -> str:
    """Bits per byte against the tokens read before, in a stream of stories."""
    found = result("reservoir_context_cpu.json")
    contexts = list(max((row["bits_per_byte"] for row in found["rows"].values()), key=len))
    rows = []
    for name, row in found["rows"].items():
        longest = list(row["bits_per_byte"])[-1]
        low_high = row["above_a_block"].get(longest)
        rows.append(
            {"model": name}
            | {f"{int(c):,}": f"{row['bits_per_byte'][c]:.3f}" if c in row["bits_per_byte"] else "" for c in contexts}
            | {"the last against 128": _within(low_high) if low_high else "", "seeds": row["seeds"]}
        )
    study = found["study"]
    return (
        f"Bits per byte of the same {found['predicted_tokens']:,} test tokens by the number of tokens read before them; models of "
        f"{study['steps']} steps on {study['stories']:,} stories; 95 % over the pieces:\n\n{tables.markdown(rows)}"
    )


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


def aims() -> str:
    """What the model was to reach, and what was found."""
    rows, long, full = result(STUDY)["rows"], result(LONGER), result(FULL)
    speeds = result("reservoir_benchmark_cpu.json")["comparisons"]

    def above(row: dict) -> str:
        return _within([row["above_first"], *row["interval"]])

    def of(comparison: str, **sizes: int) -> str:
        asked = (each for each in speeds if each["comparison"] == comparison and sizes.items() <= each["sizes"].items())
        each = next(each for each in asked if each["target_ratio"])
        return ratio(each, 2) + (": missed" if each["ratio"] < each["target_ratio"] else "")

    ridge = rows["ridge readout, all tokens"]["training_cpu_seconds"]
    found = {
        "the state over the border of a block is worth 2.5 % at full size": "without it "
        f"{above(full['rows']['each block from nothing'])} at the notebook's size ({full['steps']} steps, {_seeds(full)}), "
        f"{above(rows['each block from nothing'])} at the small size ({_seeds({'rows': {'': rows['each block from nothing']}})})",
        "ahead of a Llama with the same context, or by how much not": f"the Llama: {above(rows['Llama'])} with blocks of 128 tokens, "
        f"{above(rows['Llama, blocks of 512'])} with blocks of 512; after {long['steps']} steps {above(long['rows']['Llama'])}. "
        f"RWKV is ahead: {above(rows['RWKV'])}, then {above(long['rows']['RWKV'])}. A Llama trained to its end was not run",
        "the export is loaded without this package": "yes (`tests/test_reservoir_export.py`)",
        "recalled tokens are the same in 16 bits": "yes, all (`tests/test_recall.py`)",
        "ridge regression on all tokens in minutes": f"{ridge / 60:.1f} minutes of processor time",
        "no compilation after the first steps, and the same numbers after an interruption, with the state carried, on a CPU and on "
        "eight XLA devices": "yes (`tests/test_experiment.py`, `tests/test_notebooks.py`)",
        "dense states at least 3 times as fast as reservoirpy": of("tanh states, dense", N=1024),
        "the linear scan at least 5 times as fast as a loop": f"with 256 units {of('diagonal scan', N=256, B=1)}, "
        f"with 512 {of('diagonal scan', N=512, B=1)}",
        "a training step takes no more processor time than the Llama's": "tokens a second beside the Llama's: in fp32 "
        f"{of('training step, fp32')}, in bf16 {of('training step, bf16 autocast')}",
    }
    return "Higher bits per byte than the first row of the study are +.\n\n" + tables.markdown(
        [{"aim": aim, "found (95 %, or the middle half of turns)": what} for aim, what in found.items()]
    )


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


def carrying() -> str:
    """What the state over the border of a block is worth, in a sentence."""
    rows, full = result(STUDY)["rows"], result(FULL)["rows"]["each block from nothing"]
    row = rows["each block from nothing"]
    low, high = row["interval"]
    return (
        f"Without the state each block costs **{100 * row['above_first']:.1f} % more bits per byte** ({100 * low:.1f} to "
        f"{100 * high:.1f} %; {spread(row['test'])} against {spread(rows['reservoirs']['test'])}, {len(row['test'])} seeds); at the "
        f"notebook's own size {_within([full['above_first'], *full['interval']])} ({len(full['test'])} seeds)."
    )


def positions() -> str:
    """Bits per byte by how much of the story was seen."""
    found = result(STUDY)
    places = list(next(iter(found["rows"].values()))["positions"])
    heads = [f"{a} to {int(b) - 1}" for a, b in itertools.pairwise(places)] + [f"from {places[-1]}"]
    shown = (
        "reservoirs",
        "each block from nothing",
        "RWKV",
        "Llama",
        "Kneser-Ney with a cache",
    )
    rows = [
        {"model": name}
        | {head: f"{found['rows'][name]['positions'][place]:.3f}" for head, place in zip(heads, places, strict=True)}
        for name in shown
        if name in found["rows"]
    ]
    return "Bits per byte by the number of tokens of the story seen before:\n\n" + tables.markdown(rows)


def generation() -> str:
    """What a token costs after many."""
    found = result("reservoir_generation_cpu.json")
    rows = [
        {
            "model": row["model"],
            "tokens read": f"{row['read']:,}",
            "processor time a token": f"{1000 * row['cpu_seconds_a_token']:.2f} ms",
            "carried": f"{row['carried_bytes'] / 1024:,.0f} KiB",
        }
        for row in sorted(found["rows"], key=lambda row: (row["model"], row["read"]))
        if row["read"] in (128, 100_000)
    ]
    machine = found["machine"]
    return f"{machine['device']}, {machine['threads']} threads, one text at a time:\n\n" + tables.markdown(rows)
