"""What GPUs were measured to reach (benchmarks/gpu.py), where any was."""

from collections.abc import Iterator
from typing import Any

from helpers.show import tables

Parts = dict[str, dict[str, Any]]


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
    """One GPU: its training steps, its kernels, and what holds or does not."""
    about, parts = found["machine"], found["parts"]
    head = (
        f"**{about['device']}**, torch {about['torch']}, transformers {about['transformers']}. Memory is what the driver says that "
        "the process holds, where it tells; forecast and plan were made before."
    )
    tabled = (list(rows(parts)) for rows in (_steps, _kernels, _checks, _missing))
    return "\n\n".join([head, *(tables.markdown(rows) for rows in tabled if rows)])


def _done(parts: Parts, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rest of the name and findings of the parts of a kind that came to their end."""
    for name, part in parts.items():
        if name.partition("/")[0] == kind and part["status"] == "done":
            yield name.partition("/")[2], part


def _steps(parts: Parts) -> Iterator[dict[str, str]]:
    for name, part in _done(parts, "steps"):
        forecast, span = part["forecast"]["step_seconds"], part["forecast"]["peak_memory_bytes"]
        held = next(
            (part[key] for key in ("driver_bytes", "reserved_peak_bytes", "process_peak_bytes") if part.get(key)), None
        )
        yield {
            "notebook": name.partition("/")[0],
            "precision": part["precision"],
            "batch": f"{part['batch_size']} in parts of {part['micro_batch_size_at_the_end']}",
            "a step": tables.seconds(part["step_seconds"]),
            "forecast": _between(forecast, tables.seconds),
            "tokens/s": f"{part['tokens_per_second']:,.0f}",
            "MFU": f"{part['mfu']:.1%}" if part["mfu"] else "",
            "memory": tables.size(held),
            "planned": _between(span, tables.size),
        }


def _between(span: dict[str, Any] | None, form) -> str:
    if span is None:
        return "not known"
    return f"{form(span['low'])} to {form(span['high'])}" if span["high"] else f"at least {form(span['low'])}"


def _kernels(parts: Parts) -> Iterator[dict[str, str]]:
    groups = [
        *(
            (f"attention, {level}", part[level])
            for _, part in _done(parts, "attention")
            for level in ("operator", "model")
        ),
        *(("SIGReg", part["sides"]) for _, part in _done(parts, "sigreg")),
        *((f"tanh, {size}", sides) for _, part in _done(parts, "recurrence") for size, sides in part["tanh"].items()),
    ]
    for what, sides in groups:
        for side, found in sides.items():
            if isinstance(found, dict):
                yield {
                    "what": what,
                    "form": side,
                    "time": f"{found['milliseconds']:.3g} ms" if "milliseconds" in found else "",
                    "equal": found.get("error", "").partition("\n")[0] or ("yes" if found["equal"] else "**no**"),
                }


def _checks(parts: Parts) -> Iterator[dict[str, str]]:
    for name, part in _done(parts, "adapters"):
        span = _between(part["forecast"]["peak_memory_bytes"], tables.size)
        held = part.get("driver_bytes") or part.get("reserved_peak_bytes")
        yield {"asked": f"memory with {name}", "found": f"{tables.size(held) or 'not told'}, planned {span}"}
    for _, part in _done(parts, "out_of_memory"):
        ended, good = part["ended_with"]["micro_batch_size"], part["halved"] and part["same_batch"]
        text = f"{'goes on' if good else '**does not go on**'} with {ended} of {part['asked']['micro_batch_size']}"
        yield {"asked": "a micro-batch that does not fit", "found": text}
    for name, part in _done(parts, "resume"):
        yield {"asked": f"killed and resumed, {name}", "found": "bit for bit" if part["equal"] else _differs(part)}
    for _, part in _done(parts, "two_processes"):
        same = "the same weights" if part["2"]["same_weights"] else "**other weights**"
        yield {"asked": "two processes", "found": f"{part['speedup']:.2f} times the examples a second, {same} in both"}
    for name, part in _done(parts, "notebook"):
        yield {"asked": f"all cells of {name}", "found": f"they run, in {tables.seconds(part['seconds'])}"}


def _differs(part: dict[str, Any]) -> str:
    agree = "two undisturbed runs agree" if part["undisturbed_runs_agree"] else "nor do two undisturbed runs agree"
    return f"not the same; {agree}; with deterministic kernels {'bit for bit' if part['deterministic']['equal'] else 'neither'}"


def _missing(parts: Parts) -> Iterator[dict[str, str]]:
    for name, part in parts.items():
        if part["status"] != "done":
            why = part.get("reason") or part.get("error") or ""
            because = f"{part['status']}: {why}" if why else part["status"]
            yield {"not measured": name, "because": because.replace("|", "/").partition("\n")[0]}
