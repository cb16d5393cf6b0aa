"""What the TPU compiler says of the TPU notebooks' steps."""

from build import result

from helpers import tables

ENOUGH = 1.3  # times the least


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
            "planner's": f"{step['planned_peak'] / step['peak'] - 1:+.1%}",
            "TFLOP": f"{step['flops'] / 1e12:.2f}",
            "moved": tables.size(step["moved"]),
            "of the least": f"{step['moved'] / step['least_moved']:.2f}",
            "sent between chips": _sent(step),
            "compiled in": tables.seconds(step["seconds"]),
        }
        for step in _steps()
    ]
    return tables.markdown(rows)


def moved() -> str:
    """How many steps move little more than they must, and what the others move beside it."""
    found = _steps()
    more = [step for step in found if step["moved"] > ENOUGH * step["least_moved"]]
    within = (
        f"{len(found) - len(more)} of {len(found)} steps move at most {ENOUGH} times the least. The other "
        f"{len(more)} move more, and what moves most in each of them is:"
    )
    rows = [
        {
            "step": step["case"],
            "slice": step["hardware"],
            "of the least": f"{step['moved'] / step['least_moved']:.2f}",
            "attention between all tokens": f"{_square(step):.0%}" if "arrays" in step else "",
            "sums over chips": f"{_share(step, 'all-reduce'):.0%}",
            "most, one array": _most(step),
        }
        for step in more
    ]
    return within + "\n\n" + tables.markdown(rows)


def draws() -> str:
    """Steps on eight chips that draw for all of them, beside the same where each draws for its own examples."""
    own = result("tpu_compiler_steps.json")["steps"]
    rows = [
        {
            "step on v5e-8": before["case"],
            "memory of a chip": f"{tables.size(before['peak'])} → {tables.size(own[name]['peak'])}",
            "moved": f"{tables.size(before['moved'])} → {tables.size(own[name]['moved'])}",
            "of the least": f"{before['moved'] / before['least_moved']:.2f} → {own[name]['moved'] / own[name]['least_moved']:.2f}",
        }
        for name, before in result("tpu_compiler_steps_drawing_for_all.json")["steps"].items()
        if before["examples"] == own[name]["examples"]
    ]
    return tables.markdown(rows)


def _share(step: dict, *words: str) -> float:
    """Of the bytes moved, by the parts that are named after one of the words; only the largest parts are known."""
    return sum(size for name, size in step["largest"] if any(word in name for word in words)) / step["moved"]


def _square(step: dict) -> float:
    """Share of the bytes moved of arrays with a number for each pair of tokens of a sequence; of the largest arrays alone."""
    pair = f",{step['length']},{step['length']}]"
    return sum(size for array, size in step["arrays"] if array.endswith(pair)) / step["moved"]


def _most(step: dict) -> str:
    """`bf16[28,1024,1024] 35%`."""
    array, size = step.get("arrays", [("", 0)])[0]
    return f"`{array}` {size / step['moved']:.0%}" if array else ""


def _sent(step: dict) -> str:
    found = [
        f"{kind} {tables.size(sent['bytes'])} ({sent['count']})" for kind, sent in sorted(step["collectives"].items())
    ]
    return ", ".join(found)


def refused() -> str:
    """How many the compiler refused, and how near the planner comes."""
    found, tried = _steps(), len(result("tpu_compiler_steps.json")["steps"])
    near = [step for step in found if abs(step["planned_peak"] / step["peak"] - 1) <= 0.1]
    missed = ", ".join(f"{step['case']} on {step['hardware']}" for step in found if step not in near)
    donated = min(step["aliased"] / step["outputs"] for step in found)
    return (
        f"{len(found)} of {tried} steps that were tried compile and fit into a chip. At least {donated:.1%} of what a step writes at "
        f"its end takes the place of what it read. The planner's memory is within a tenth of the compiler's for {len(near)} of them"
        + (f", but not for {missed}." if missed else ".")
    )
