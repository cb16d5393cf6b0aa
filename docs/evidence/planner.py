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
    found = result("grid.json")["notebooks"]
    rows = []
    for name, said in I_HAVE.items():
        runs = {notebook: _machine(sizes[0], name) for notebook, sizes in found.items()}
        rows.append({"I have": said} | {notebook: _short(run) for notebook, run in runs.items()})
    return tables.markdown(rows)


def _machine(size: dict, name: str) -> dict:
    return next(each for each in size["machines"] if each["hardware"] == name)


def _short(run: dict) -> str:
    """`fits; 19 min to 65 min; $0`."""
    if "problem" in run:
        return "no"
    fits = {"yes": "fits", "tight": "**tight**"}.get(run["fits"], run["fits"])
    fits += ", with checkpointing" if run["checkpointing"] else ""
    return "; ".join(filter(None, (fits, _time(run), _money(run))))


def _time(run: dict) -> str:
    """Of a reservoir alone nothing is known: see the page."""
    return " to ".join(map(tables.seconds, run["run_seconds"])) if run["run_seconds"] else "time: no such run published"


def _money(run: dict) -> str:
    if run["free"]:
        return "$0"
    return " to ".join(f"${end:.2g}" for end in run["usd"]) if run["usd"] else ""


def grid() -> str:
    """Every notebook at the sizes that the guides name, on every machine."""
    parts = []
    for notebook, sizes in result("grid.json")["notebooks"].items():
        rows = [
            {
                "samples or steps": _size(size),
                "batch": f"{_machine(size, 'T4').get('batch', '')}",
                **{
                    each["hardware"]: "; ".join(filter(None, (_fits(each), _time_of(each), _money(each))))
                    for each in size["machines"]
                },
            }
            for size in sizes
        ]
        parts.append(f"**{notebook}**. {_verdict(sizes[0])}\n\n{tables.markdown(rows)}")
    return "\n\n".join(parts)


def _size(size: dict) -> str:
    (kind, number), *_ = ((kind, size[kind]) for kind in ("samples", "steps") if kind in size)
    return f"{number:,} {kind}" if number else "the default run"


def _fits(run: dict) -> str:
    if "problem" in run:
        return "no"
    return {"yes": "", "tight": "**tight**"}.get(run["fits"], run["fits"])


def _time_of(run: dict) -> str:
    return "" if "problem" in run else _time(run)


def _verdict(size: dict) -> str:
    return ". ".join(f"{line[0].upper()}{line[1:]}" for line in size["verdict"]) + ("." if size["verdict"] else "")


def an_hour() -> str:
    """What an hour costs, with source and month."""
    from helpers.plan.machines import FREE, PRICES

    free = ", ".join(f"{name} ({where})" for name, where in FREE.items())
    paid = "; ".join(
        f"{name} ${each['usd_per_hour']:.2f} ({each['source']}; {each['as_of']})" for name, each in PRICES.items()
    )
    return f"Free of charge within a quota: {free}. Prices of an hour elsewhere: {paid}. For all other machines no price with its month is known."


def tested() -> str:
    """How published runs and pairs fared that chose nothing."""
    found = result("public_runs_fit.json")
    test = found["tested"]
    inside, of = (sum(test[name].values()) for name in ("inside", "of"))
    return (
        f"The constants of the forecast were chosen on {found['chose']} training runs that others published, and tested on {of} runs of other sources: "
        f"{inside} of {of} lay inside of their interval ({test['inside']['xla']} of {test['of']['xla']} on TPUs). The upper end of an interval is "
        f"{test['width']:g} times its lower end. {_centre(test)} Of {test['pairs']} published pairs of machines that were used for no choice, the planner "
        f"named the faster machine for {test['decided']} and was right for {test['right']} of these; all pairs are of one source "
        f"({', '.join(test['sources_of_pairs'])}: V100 and A100, one and eight of them). These runs lay outside of their interval: "
        f"{'; '.join(dict.fromkeys(test['outside']))}."
    )


def _centre(test: dict) -> str:
    held = test["choosing_sources_left_out"]
    rules = ", ".join(f"{rule} {share:.0%}" for rule, share in held.items())
    return (
        "The rule for the centre of an interval was first chosen when results of the test had been seen. It was then chosen again from the "
        f"choosing sources alone, each left out in turn ({rules} of their runs inside). That choice is {max(held, key=held.get)} again, so the "
        "test was not repeated."
    )


def accuracy() -> str:
    """Counted against allocated bytes."""
    found = result("planner_benchmark_cpu.json")["memory"]
    worst = max(found, key=lambda each: abs(each["error"]))
    return (
        f"On a CPU the bytes that were counted for a step of each notebook's model, in fp32 and in bf16, were off by at most "
        f"{abs(worst['error']):.1%} from those that the allocator gave out."
    )
