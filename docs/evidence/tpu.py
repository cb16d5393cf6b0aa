"""What the TPU compiler says of the TPU notebooks' steps."""

from helpers.show import tables
from tools.pages import result


def steps() -> str:
    """Memory and traffic of each step at its real size, of those that the compiler did not refuse."""
    found = result("tpu_compiler_steps.json")["steps"]
    fit = [step for step in found.values() if "peak" in step]
    rows = []
    for step in fit:
        rows.append(
            {
                "step": step["case"],
                "slice": step["hardware"],
                "sequences x tokens": f"{step['examples_a_chip']} x {step['length']}",
                "memory": tables.size(step["peak"]),
                "compiled in": tables.seconds(step["seconds"]),
                "date": step.get("versions", {}).get("date", "older"),
            }
        )
    return f"{len(fit)} of {len(found)} steps compile and fit into a chip.\n\n{tables.markdown(rows)}"
