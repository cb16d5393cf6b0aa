"""The memory of the notebooks' training steps, and what each machine makes of them (benchmarks/memory.py)."""

from helpers.show import tables
from tools.pages import result

COLAB = "[March 2026](https://mccormickml.com/2024/04/23/colab-gpus-features-and-pricing/)"
LAMBDA = "[May 2026](https://techbytes.app/posts/serverless-gpu-pricing-matrix-modal-replicate-lambda-2026)"
# Machine, memory of a device, precision, dollars of an hour with month and source, sessions.
MACHINES = (
    ("T4", "16 GB", "fp16", 0.12, COLAB, "Colab, free: at most twelve hours. Kaggle, two: about 30 h a week"),
    ("L4", "24 GB", "bf16", 0.17, COLAB, "Colab, paid"),
    ("A100", "40 GB", "bf16", 0.54, COLAB, "Colab, paid"),
    ("A10", "24 GB", "bf16", 0.86, LAMBDA, "no limit"),
    ("V100", "16 GB", "fp16", None, "", ""),
    ("RTX 3050", "8 GB", "bf16", None, "your own", "no limit; the display uses a part of the memory"),
    ("v5e-1", "16 GB", "bf16", None, "free", "Colab: as the T4"),
    ("v5e-8", "8 chips of 16 GB", "bf16", None, "free", "Kaggle: about 20 h a week"),
    ("v2-8", "8 cores of 8 GB", "bf16", None, "", "Colab took it away in September 2025"),
    ("v3-8", "8 cores of 16 GB", "bf16", None, "", ""),
)


def machines() -> str:
    """What each machine has and costs."""
    rows = []
    for name, size, precision, dollars, source, sessions in MACHINES:
        price = f"${dollars:.2f}, {source}" if dollars else source
        row = {"machine": name, "memory of a device": size, "trains in": precision}
        rows.append(row | {"an hour": price, "sessions": sessions})
    return tables.markdown(rows)


def memory() -> str:
    """State of each default model, exactly, and activations of an example."""
    rows = []
    for name, step in result("memory.json")["steps"].items():
        row = {"notebook, model": name}
        for part, size in step["memory"].items():
            row["activations of an example" if part == "example" else part] = tables.size(size)
        rows.append(row)
    return tables.markdown(rows)


def choices() -> str:
    """The micro-batch that the plan takes on each machine."""
    rows = {}
    for name, step in result("memory.json")["steps"].items():
        for hardware, choice in step["machines"].items():
            row = rows.setdefault(hardware, {"machine": hardware})
            row[name] = _choice(choice)
    return tables.markdown([*rows.values()])


def _choice(choice: dict) -> str:
    """`4 x 2`: examples of a device at a time, and how many times before the optimizer's step."""
    if "problem" in choice:
        return "does not fit"
    text = f"{choice['micro_batch']} x {choice['parts']}"
    if choice["recomputed"]:
        text += ", recomputed"
    return text
