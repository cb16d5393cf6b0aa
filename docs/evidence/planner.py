"""What the planner says of each notebook on each machine at each size, what its times rest on, and what an hour costs."""

from build import result

from helpers.show import tables

I_HAVE = {  # the machines of the first screen
    "T4": "a free T4 (Colab)",
    "2xT4": "Kaggle's two T4",
    "RTX 3050": "an RTX 3050 with 8 GB",
    "A100 40GB": "an A100 with 40 GB",
    "v5e-1": "a TPU v5e-1 (Colab)",
    "v5e-8": "Kaggle's TPU v5e-8",
}


def choices() -> str:
    """One line a machine, one column a notebook, of the default runs: fits, time, money."""
    rows = []
    for name, described in I_HAVE.items():
        row = {"I have": described}
        for notebook, runs in result("grid.json")["notebooks"].items():
            run = next(run for run in runs if run["hardware"] == name)
            row[notebook] = _short(run)
        rows.append(row)
    return tables.markdown(rows)


def _short(run: dict) -> str:
    """`fits; 19 min to 65 min; $0`."""
    if "problem" in run:
        return "no"
    fits = {"yes": "fits", "tight": "**tight**"}.get(run["fits"], run["fits"])
    fits += ", with checkpointing" if run["checkpointing"] else ""
    return "; ".join(filter(None, (fits, _time(run), _money(run))))


def _time(run: dict) -> str:
    """Of a reservoir alone nothing is known: see the page."""
    if not run["run_seconds"]:
        return "time not known"
    return " to ".join(map(tables.seconds, run["run_seconds"])) + (" (a guess)" if run["guess"] else "")


def _money(run: dict) -> str:
    if run["free"]:
        return "$0"
    return " to ".join(f"${end:.2g}" for end in run["usd"]) if run["usd"] else ""


def own_steps() -> str:
    """How many of the project's own measured steps lie inside the forecast: of then, and of the present planner."""
    steps = [step for step in result("own_steps.json")["steps"] if step["interval"]]
    before = sum(step["before"]["low"] <= step["measured"] <= step["before"]["high"] for step in steps)
    outside = []
    for step in steps:
        low, high = map(tables.seconds, step["interval"])
        if not step["inside"]:
            outside.append(f"{step['part']} ({tables.seconds(step['measured'])}, forecast {low} to {high})")
    return (
        f"We measured {len(steps)} steps on an {steps[0]['hardware']}. {before} of them were inside the forecast that was made before they ran. "
        f"{len(steps) - len(outside)} are inside the forecast of the present planner, whose limits for starting an operation were set after these "
        f"measurements. In a step of a small model the GPU waits for its host, which starts each operation; the upper end is too low for that. "
        f"Outside: {'; '.join(outside) or 'none'}. A measured step of your own gives a better forecast."
    )


def an_hour() -> str:
    """What an hour costs, with source and month."""
    from helpers.plan.machines import FREE, PRICES

    free = ", ".join(f"{name} ({where})" for name, where in FREE.items())
    paid = "; ".join(
        f"{name} ${each['usd_per_hour']:.2f} ({each['source']}; {each['as_of']})" for name, each in PRICES.items()
    )
    return f"Free of charge within a quota: {free}. Prices of an hour elsewhere: {paid}. For others we know no dated price."


def tested() -> str:
    """How published runs and pairs fared that chose nothing."""
    found = result("public_runs_fit.json")
    test = found["tested"]
    inside, of = (sum(test[name].values()) for name in ("inside", "of"))
    return (
        f"The constants of the forecast were chosen on {found['chose']} published training runs, and tested on {of} runs from other sources: "
        f"{inside} of {of} are inside their interval ({test['inside']['xla']} of {test['of']['xla']} on TPUs). The upper end of an interval is "
        f"{test['width']:g} times its lower end, before the limits for starting operations and for steps smaller than any published one. "
        f"{_centre(test)} The planner was also tested on {test['pairs']} published pairs of machines that were not used for any choice: it "
        f"named the faster machine for {test['decided']} pairs and was right for {test['right']} of these. All pairs come from one source "
        f"({', '.join(test['sources_of_pairs'])}: V100 and A100, one and eight of them). These runs are outside: "
        f"{'; '.join(dict.fromkeys(test['outside']))}."
    )


def _centre(test: dict) -> str:
    held = test["choosing_sources_left_out"]
    rules = ", ".join(f"{rule} {share:.0%}" for rule, share in held.items())
    return (
        "The rule for the centre of an interval was first chosen after test results had been seen. Therefore it was chosen again without the "
        f"test sources, by leaving out each of the other sources in turn ({rules} of their runs were inside). The choice was the same "
        f"({max(held, key=held.get)}), so the test was not repeated."
    )


def accuracy() -> str:
    """Counted against allocated bytes."""
    found = result("planner_benchmark_cpu.json")["memory"]
    worst = max(found, key=lambda each: abs(each["error"]))
    return (
        f"On a CPU, the counted bytes of a step of each notebook's model, in fp32 and in bf16, differ by at most {abs(worst['error']):.1%} from "
        f"the bytes that were allocated."
    )
