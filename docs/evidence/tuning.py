"""What hardware tuning gave on a CPU."""

from build import result, spread

from helpers import tables

FILE = "hardware_tuning_cpu.json"
FORMER = (
    "These figures are of the former order of trials, from fp32, one padding length, attention written out and plain AdamW; kept "
    "was what was faster in each of three turns. From a stock `Trainer` nothing has been measured yet."
)


def _speed_ups(found: dict, name: str) -> list[float]:
    """Times as fast as the start of the same seed."""
    rows = found["comparison"].values()
    return [row["start"]["training_seconds"] / row[name]["training_seconds"] for row in rows]


def optimisations() -> str:
    """One at a time, on top of what was kept."""
    found = result(FILE)
    kept, chosen, rows = found["settings"]["start"], found["settings"]["chosen"], []
    for each in (each for each in found["optimisations"] if each["gains"]):
        changed = [name for name, value in each["settings"].items() if value != kept[name]]
        back = each["kept"] and any(chosen[name] != each["settings"][name] for name in changed)
        rows.append(
            {"on top of what was kept": each["name"], "": each["verdict"] + (", and taken back" if back else "")}
        )
        kept = each["settings"] if each["kept"] else kept
    plan, data = found["plan"], found["data"]
    return (
        f"MiniLM ({found['model']['trainable']:,} weights) on {data['train_examples']:,} of banking77's questions with {data['labels']} "
        f"labels, padded to {plan['sequence_length']} tokens, {plan['max_steps']} steps of {plan['batch_size']}, one thread of a shared "
        f"machine; ratio of the median turn and its range:\n\n{tables.markdown(rows)}\n\n{FORMER}"
    )


def whole_runs() -> str:
    """Start, all that was kept, and what was chosen, over seeds."""
    found = result(FILE)
    chosen, runs = found["chosen"], found["comparison"].values()

    def against_start(name: str, metric: str) -> str:
        return spread([row[name][metric] - row["start"][metric] for row in runs], sign="+")

    rows = [
        {
            "": "start",
            "times as fast": "1",
            "validation F1 against the start": "",
            "test F1": spread([row["start"]["f1"] for row in runs]),
        }
    ]
    for name, shown in (("tuned", "tuned: all that was kept"), (chosen, f"**chosen: {chosen}**")):
        rows.append(
            {
                "": shown,
                "times as fast": spread(_speed_ups(found, name), 1),
                "validation F1 against the start": against_start(name, "validation_f1"),
                "test F1": spread([row[name]["f1"] for row in runs]),
                "test F1 against the start": against_start(name, "f1"),
            }
        )
    return f"{len(runs)} seeds, mean ± sample standard deviation; differences are of a seed's own start:\n\n{tables.markdown(rows)}"


def headline() -> str:
    """In a few words, for README.md."""
    found = result(FILE)
    chosen, runs = found["chosen"], found["comparison"].values()
    ours, start = (spread([row[name]["f1"] for row in runs]) for name in (chosen, "start"))
    return (
        f"MiniLM on banking77 trains **{spread(_speed_ups(found, chosen), 1)} times as fast** on one CPU thread as in fp32 with every "
        f"text padded to the same length and plain AdamW (not measured from a stock Trainer), at a test F1 of {ours} against {start}"
    )
