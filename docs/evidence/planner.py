"""What the planner says of each notebook's default run, what its times rest on, and how far it was off where it was measured."""

from build import result

from helpers.show import tables

CHOICES = {  # the machines of the first screen
    "T4": "a free T4 (Colab)",
    "2xT4": "Kaggle's two T4",
    "RTX 3050": "an RTX 3050 with 8 GB",
    "A100 40GB": "an A100 with 40 GB",
    "v5e-1": "a TPU v5e-1 (Colab)",
    "v5e-8": "Kaggle's TPU v5e-8",
}
FREE = ("T4", "2xT4", "v5e-1", "v5e-8")


def choices() -> str:
    """One line a machine, one column a notebook: fits, time, money."""
    found = result("forecasts.json")["forecasts"]
    rows = []
    for name, said in CHOICES.items():
        row = {"I have": said}
        for notebook, machines in found.items():
            row[notebook] = _choice(next(each for each in machines if each["hardware"] == name))
        rows.append(row)
    return tables.markdown(rows)


def _choice(forecast: dict) -> str:
    plan = forecast["plan"]
    if plan is None:
        return "no"
    fits = {"yes": "fits", "tight": "**tight**"}.get(plan["memory"]["fits"], plan["memory"]["fits"])
    fits += " with checkpointing" if plan["gradient_checkpointing"] else ""
    money = "$0" if forecast["hardware"] in FREE else _between(forecast["usd"], "${:.2g}".format)
    return f"{fits}; {_between(forecast['run_seconds'], tables.seconds)}" + (
        "" if money == "not known" else f"; {money}"
    )


def an_hour() -> str:
    """What an hour of the first screen's machines costs where it costs anything, with source and month."""
    from helpers.plan.prices import table

    wanted = {"T4": "T4", "A100 40GB": "A100 40GB", "v5e-1": "TPU v5e"}
    found = table()
    said = (
        f"{machine} ${found[name].usd_per_hour:.2f} ({found[name].source}; {found[name].as_of})"
        if found[name].usd_per_hour
        else f"{machine} not known ({found[name].remark})"
        for machine, name in wanted.items()
    )
    return f"An hour, where it is paid: {'; '.join(said)}."


def held_out() -> str:
    """How published runs fared that the intervals had not seen."""
    found = result("public_runs_fit.json")
    runs, sources = found["held_out"]["runs"], found["held_out"]["sources"]
    total = sum(runs["of"].values())
    return (
        f"Time rests on {total} training runs that others published, in {len(found['sources'])} sources. With each run left "
        f"out in turn, {sum(runs['inside'].values())} of {total} lay inside their interval ({runs['inside']['xla']} of "
        f"{runs['of']['xla']} on TPUs); with each source left out, {sum(sources['inside'].values())} ({sources['inside']['xla']} "
        f"on TPUs). From its lower to its upper end an interval grows by a factor of {runs['width']['cuda']:.1f} on a GPU "
        f"and {runs['width']['xla']:.1f} on a TPU."
    )


def _between(span: dict | None, form) -> str:
    if span is None:
        return "not known"
    return f"at least {form(span['low'])}" if span["high"] is None else f"{form(span['low'])} to {form(span['high'])}"
