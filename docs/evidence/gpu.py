"""What a GPU or a TPU was measured to reach (benchmarks/gpu.py); the report notebook shows it."""

from typing import Any

from helpers.show import tables


def device(found: dict[str, Any]) -> str:
    """One device: its runs, whether one resumed with the same weights, and what was not measured."""
    about, runs, resumed, missing = found["machine"], [], [], []
    for name, part in found["parts"].items():
        if part["status"] != "done":
            reason = f"{part['status']} {part.get('reason', '')}".replace("|", "/").partition("\n")[0]
            missing.append({"not measured": name, "because": reason})
        elif "step_seconds" in part:
            runs.append(_run(name, part))
        elif "equal" in part:
            other = f"**other weights**, off by at most {part['farthest']:.1e}"
            resumed.append(
                {"resumed after half of the steps": "the same weights, bit for bit" if part["equal"] else other}
            )
    head = f"**{about['device']}**, torch {about['torch']}, transformers {about['transformers']}."
    return "\n\n".join([head, *(tables.markdown(rows) for rows in (runs, resumed, missing) if rows)])


def _run(name: str, part: dict[str, Any]) -> dict[str, str]:
    return {
        "notebook": name,
        "precision": part["precision"],
        "batch": f"{part['batch']} in parts of {part['micro_batch']}",
        "first step after": tables.seconds(part.get("first_step_seconds")) or "",
        "a step": tables.seconds(part["step_seconds"]),
        "tokens/s": f"{part['tokens_per_second']:,.0f}",
        "MFU": f"{part['mfu']:.1%}" if part["mfu"] else "",
        "memory": tables.size(part["peak_memory_bytes"]),
    }
