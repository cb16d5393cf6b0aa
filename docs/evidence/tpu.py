"""What the TPU compiler says of the TPU notebooks' steps."""

from helpers.show import tables
from tools.pages import result


def _steps() -> list[dict]:
    """Of those that the compiler did not refuse."""
    return [step for step in result("tpu_compiler_steps.json")["steps"].values() if "peak" in step]


def steps() -> str:
    """Memory, work and traffic of each step at its real size."""
    rows = [
        {
            "step": step["case"],
            "slice": step["hardware"],
            "sequences x tokens a chip": f"{step['examples_a_chip']} x {step['length']}",
            "memory of a chip": tables.size(step["peak"]),
            "TFLOP": f"{step['flops'] / 1e12:.2f}",
            "moved": tables.size(step["moved"]),
            "sent between chips": _sent(step),
            "compiled in": tables.seconds(step["seconds"]),
            "date": step.get("versions", {}).get("date", "older"),
        }
        for step in _steps()
    ]
    return tables.markdown(rows)


def _sent(step: dict) -> str:
    found = [
        f"{kind} {tables.size(sent['bytes'])} ({sent['count']})" for kind, sent in sorted(step["collectives"].items())
    ]
    return ", ".join(found)


def refused() -> str:
    """How many the compiler refused."""
    found, tried = _steps(), len(result("tpu_compiler_steps.json")["steps"])
    donated = min(step["aliased"] / step["outputs"] for step in found)
    return (
        f"{len(found)} of {tried} steps compile and fit into a chip. At least {donated:.1%} of the weights and the optimizer state is written to the "
        "place from which it was read, so that neither is in memory twice."
    )


def tried() -> str:
    """Changes that were compiled, each beside the step with attention whole."""
    rows, results = [], result("tpu_tried.json")["tried"]
    for name, step in results.items():
        notebook = name.split()[0]
        before = results[f"{notebook} 1"]
        if step is not before:
            row = {"step": f"{notebook}, {step['layers']} layers", "parts": step["parts"], "change": step["change"]}
            for part in ("moved", "peak"):
                row[part] = f"{tables.size(before[part])} → {tables.size(step[part])}"
            row["TFLOP"] = f"{before['flops'] / 1e12:.2f} → {step['flops'] / 1e12:.2f}"
            rows.append(row)
    return tables.markdown(rows)
