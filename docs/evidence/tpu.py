"""What the TPU compiler says of the TPU notebooks' steps."""

from build import result

from helpers.show import tables


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
            "of the planner's count": f"{step['peak'] / step['planned_peak']:.0%}",
            "TFLOP": f"{step['flops'] / 1e12:.2f}",
            "moved": tables.size(step["moved"]),
            "of the least": f"{step['moved'] / step['least_moved']:.2f}",
            "sent between chips": _sent(step),
            "compiled in": tables.seconds(step["seconds"]),
            "made": step.get("versions", {}).get("date", "before"),
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
    """How many the compiler refused, and how near the planner comes."""
    found, tried = _steps(), len(result("tpu_compiler_steps.json")["steps"])
    shares = [step["peak"] / step["planned_peak"] for step in found]
    donated = min(step["aliased"] / step["outputs"] for step in found)
    return (
        f"{len(found)} of {tried} steps that were tried compile and fit into a chip. At least {donated:.1%} of what a step writes at "
        f"its end (weights and optimizer state) is written over what it read, so that neither is kept twice. The steps need {min(shares):.0%} to {max(shares):.0%} of the memory that the planner counts "
        "for the same step without fusion."
    )


def tried() -> str:
    """Changes that were compiled, each beside the step as it is."""
    rows, results = [], result("tpu_tried.json")["tried"]
    for name, step in results.items():
        before = results[name.partition("/")[0] + "/none"]
        if step is not before:
            row = {"step": f"{name.partition('/')[0]}, {step['layers']} layers", "change": step["change"]}
            for part, show in (("moved", tables.size), ("peak", tables.size), ("seconds", tables.seconds)):
                row[part] = f"{show(before[part])} → {show(step[part])}"
            rows.append(row)
    return tables.markdown(rows)


def torch_tpu() -> str:
    """Steps of an earlier version, lowered through TorchTPU."""
    rows = []
    for step in result("torch_tpu_steps.json")["steps"].values():
        rows.append(
            {
                "step": step["case"],
                "memory": tables.size(step.get("peak")) or step["problem"],
                "TFLOP": step.get("flops", 0) / 1e12 or None,
                "moved": tables.size(step.get("moved")),
            }
        )
    return tables.markdown(rows)
