"""What the planner says of each notebook's default run, and how far it was off where it was measured."""

from build import result

from helpers import tables

OPEN = float("inf")


def forecasts() -> str:
    """Machines beside each other, for each notebook."""
    parts = []
    for notebook, found in result("forecasts.json")["forecasts"].items():
        first = next(each["plan"] for each in found if each["plan"])
        parts.append(f"### {notebook}: {found[0]['model']}")
        parts.append(
            f"{first['memory']['parameters']:,} weights, {first['memory']['trained']:,} of them trained, "
            f"{first['sequence_length']:,} tokens a sequence, {first['max_steps']:,} steps of {first['batch_size']} on a GPU."
        )
        parts.append(tables.markdown([_row(each) for each in found]))
    return "\n\n".join(parts)


def _row(forecast: dict) -> dict:
    plan = forecast["plan"]
    if plan is None:
        return {"hardware": forecast["hardware"], "fits": forecast["problem"]}
    memory = plan["memory"]
    checkpointing = ", with checkpointing" if plan["gradient_checkpointing"] else ""
    return {
        "hardware": forecast["hardware"],
        "fits": memory["fits"] + checkpointing,
        "precision": plan["precision"],
        "a device x devices x accumulation": f"{plan['per_device_batch_size']} x {plan['device_count']} x "
        f"{plan['gradient_accumulation_steps']} = {plan['batch_size']}",
        "memory of a device": _between(memory["peak"], tables.size),
        "run": _between(forecast["run_seconds"], tables.seconds),
        "cost": _between(forecast["usd"], "${:.2g}".format),
    }


def _between(span: dict | None, form) -> str:
    if span is None:
        return "not known"
    return f"at least {form(span['low'])}" if span["high"] is None else f"{form(span['low'])} to {form(span['high'])}"


def prices() -> str:
    """What an hour costs, with source and date."""
    from helpers.planning.prices import table

    rows = [
        {"device": name, "an hour": "" if price.usd_per_hour is None else f"${price.usd_per_hour:.2f}"}
        | {"source": price.source, "as of": price.as_of, "remark": price.remark}
        for name, price in table().items()
    ]
    return tables.markdown(rows)


def accuracy() -> str:
    """Counted against allocated bytes, and predicted against measured time."""
    found = result("planner_benchmark_cpu.json")
    memory = [
        {
            "notebook": each["notebook"],
            "precision": each["precision"],
            "examples x tokens": f"{each['examples']} x {each['length']:,}",
            "counted": tables.size(each["counted_bytes"]),
            "allocated": tables.size(each["measured_bytes"]),
            "off by": f"{each['error']:+.1%}",
        }
        for each in found["memory"]
    ]
    time = [
        {
            "notebook": each["notebook"],
            "examples x tokens": f"{each['examples']} x {each['length']:,}",
            "predicted": tables.seconds(each["predicted_seconds"]),
            "measured": tables.seconds(each["measured_seconds"]),
            "off by": f"{each['error']:+.1%}",
        }
        for each in found["time"]
    ]
    return (
        f"On {found['machine']['device']}, {found['machine']['threads']} thread. Bytes of an optimizer step, counted on fake tensors "
        f"and as the allocator gave them out:\n\n{tables.markdown(memory)}\n\n"
        f"Seconds of a step at sizes that the calibration did not see:\n\n{tables.markdown(time)}"
    )
