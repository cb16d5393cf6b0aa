"""What GPUs were measured to reach (benchmarks/gpu.py), where any was."""

from typing import Any

from helpers.show import tables


def measured() -> str:
    """All that the files of GPUs hold, or that there are none."""
    from tools.pages import RESULTS, result

    names = sorted(path.name for path in RESULTS.glob("gpu_*.json"))
    if not names:
        return (
            "No GPU has been measured yet. `python benchmarks/gpu.py --minutes 25` on one writes `docs/results/gpu_<device>.json`, "
            "and `make docs` puts a table here ([how](../benchmarks/README.md#a-gpu-first-thing))."
        )
    return "\n\n".join(device(result(name)) for name in names)


def device(found: dict[str, Any]) -> str:
    """One GPU: its runs, its attention kernels, and what was not measured."""
    about, parts = found["machine"], found["parts"]
    head = f"**{about['device']}**, torch {about['torch']}, transformers {about['transformers']}."
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
        "tokens/s": f"{part['tokens_per_second']:,.0f}",
        "MFU": f"{part['mfu']:.1%}" if part["mfu"] else "",
        "memory": tables.size(part["peak_memory_bytes"]),
    }


def _kernel(name: str, side: dict[str, Any]) -> dict[str, str]:
    time = f"{side['milliseconds']:.3g} ms" if "milliseconds" in side else side["error"].replace("|", "/")
    return {"attention of shared keys": name, "forward and backward": time}


def _resumed(part: dict[str, Any]) -> str:
    return (
        "the same weights, bit for bit"
        if part["equal"]
        else f"**other weights**, off by at most {part['farthest']:.1e}"
    )
