"""What GPUs were measured to reach (benchmarks/gpu.py), where any was, and what the planner expects of the usual ones."""

from typing import Any

from helpers.show import tables

EXPECTED = ("T4", "L4", "A100 40GB", "H100")


def expected() -> str:
    """The planner's forecast of each notebook's default run on the usual GPUs: every number of it is an estimate."""
    from build import result

    runs = [
        _estimate(notebook, run)
        for notebook, forecasts in sorted(result("grid.json")["notebooks"].items())
        for run in forecasts
        if run["hardware"] in EXPECTED and "launches" in run  # a file of an older planner has none
    ]
    return tables.markdown(runs) if runs else "`python benchmarks/planner.py --grid` makes this table."


def _estimate(notebook: str, run: dict[str, Any]) -> dict[str, str]:
    """A row. Tokens a second are those of the interval's ends."""
    times = run["step_seconds"]
    step = " to ".join(map(tables.seconds, times)) if times else "not known"
    rates = " to ".join(f"{run['tokens'] / seconds:,.0f}" for seconds in reversed(times)) if times else ""
    low, high = run["peak_memory_bytes"]
    return {
        "notebook": notebook,
        "GPU": run["hardware"],
        "precision": run["precision"],
        "batch": f"{run['batch']} in parts of {run['micro_batch']}"
        + (", checkpointing" if run["checkpointing"] else ""),
        "operations of a step (counted)": f"{run['launches']:,}",
        "compiled": "yes" if run["compiled"] else "no",
        "a step (estimate)": step,
        "tokens/s (estimate)": rates,
        "memory (estimate)": f"{tables.size(low)} to {tables.size(high)}",
    }


def measured() -> str:
    """All that the files of GPUs hold, or that there are none."""
    from build import RESULTS, result

    names = sorted(path.name for path in RESULTS.glob("gpu_*.json"))
    if not names:
        return (
            "No GPU has been measured yet. `python benchmarks/gpu.py --minutes 25` on one writes `docs/results/gpu_<device>.json`, "
            "and `make docs` puts a table here ([how](../benchmarks/README.md#a-gpu-first-thing))."
        )
    return "\n\n".join(device(result(name)) for name in names)


def device(found: dict[str, Any]) -> str:
    """One GPU: its runs beside plan and forecast, its attention kernels, and what was not measured."""
    about, parts = found["machine"], found["parts"]
    head = f"**{about['device']}**, torch {about['torch']}, transformers {about['transformers']}. Forecast and plan were made before the runs."
    done = {name: part for name, part in parts.items() if part["status"] == "done"}
    runs = [_run(name, part) for name, part in done.items() if "step_seconds" in part]
    kernels = [_kernel(name, side) for name, side in done.get("attention", {}).get("sides", {}).items()]
    resumed = [{"resumed after half of the steps": _resumed(part)} for part in done.values() if "equal" in part]
    missing = [
        {
            "not measured": name,
            "because": f"{part['status']} {part.get('reason', '')}".replace("|", "/").partition("\n")[0],
        }
        for name, part in parts.items()
        if part["status"] != "done"
    ]
    return "\n\n".join(
        [head, *(tables.markdown(rows) for rows in (runs, kernels, resumed, found.get("seen"), missing) if rows)]
    )


def _run(name: str, part: dict[str, Any]) -> dict[str, str]:
    return {
        "notebook": name,
        "precision": part["precision"],
        "batch": f"{part['batch']} in parts of {part['micro_batch']}",
        "first step after": tables.seconds(part["first_step_seconds"]) if part.get("first_step_seconds") else "",
        "a step": tables.seconds(part["step_seconds"]),
        "a step, forecast": _between(part["forecast_step_seconds"], tables.seconds),
        "tokens/s": f"{part['tokens_per_second']:,.0f}",
        "MFU": f"{part['mfu']:.1%}" if part["mfu"] else "",
        "memory": tables.size(part["peak_memory_bytes"]),
        "memory, forecast": _between(part["forecast_memory_bytes"], tables.size),
    }


def _between(span: dict[str, Any] | None, form) -> str:
    return f"{form(span['low'])} to {form(span['high'])}" if span else "not known"


def _kernel(name: str, side: dict[str, Any]) -> dict[str, str]:
    time = f"{side['milliseconds']:.3g} ms" if "milliseconds" in side else side["error"].replace("|", "/")
    return {"attention of shared keys": name, "forward and backward": time}


def _resumed(part: dict[str, Any]) -> str:
    return (
        "the same weights, bit for bit"
        if part["equal"]
        else f"**other weights**, off by at most {part['farthest']:.1e}"
    )
