"""The one table of README.md: what each notebook gives, what was measured, and where it ran."""

import json
from dataclasses import dataclass

from build import RESULTS, result
from evidence import graphmer, legal, lejepa, reservoir, tuning

from helpers import tables


@dataclass(frozen=True)
class Notebook:
    """A notebook, and the module here that knows what was measured of it."""

    title: str
    file: str
    page: str
    gives: str
    evidence: object


NOTEBOOKS = {
    "reservoir": Notebook(
        "TinyStories reservoir",
        "tinystories_reservoir",
        "reservoir",
        "a language model of your texts whose recurrent part is frozen and random; only a readout learns",
        reservoir,
    ),
    "lejepa": Notebook(
        "LeJEPA embeddings",
        "lejepa_training",
        "lejepa",
        "a retrieval model fitted to a folder of documents, no questions needed",
        lejepa,
    ),
    "legal": Notebook(
        "Legal chain of thought",
        "legal_cot_sft",
        "legal",
        "a small chat model that answers legal questions in steps, and stops",
        legal,
    ),
    "graphmer": Notebook(
        "GraphMER-SE",
        "graphmer_se",
        "graphmer",
        "an encoder over code and its graph: who calls, contains, inherits from what",
        graphmer,
    ),
    "tuning": Notebook(
        "Hardware tuning",
        "hardware_tuning",
        "tuning",
        "the fastest settings for a text classifier on your machine, and a script with them",
        tuning,
    ),
}


def results() -> str:
    """A row a notebook."""
    rows = [
        {
            "notebook": f"**{notebook.title}**: [GPU](notebooks/{notebook.file}.ipynb) · "
            f"[TPU](notebooks/{notebook.file}_tpu.ipynb)",
            "what you get": f"{notebook.gives} ([how](docs/{notebook.page}.md))",
            "what was measured": notebook.evidence.headline(),
            "ran on": _ran_on(name, notebook),
        }
        for name, notebook in NOTEBOOKS.items()
    ]
    return tables.markdown(rows)


def _ran_on(name: str, notebook: Notebook) -> str:
    kinds = {cell["kind"] for cell in result("faults.json")["cells"].values() if cell["model"] == name}
    steps = result("tpu_compiler_steps.json")["steps"].values()
    compiled = any(step["notebook"] == notebook.file and "peak" in step for step in steps)
    return " · ".join(
        f"{where} {'yes' if found else 'no'}"
        for where, found in {
            "CPU": "cpu" in kinds,
            "XLA virtual devices": "xla" in kinds,
            "TPU compiler": compiled,
            "TPU": _measured_on("xla", notebook),
            "GPU": _measured_on("cuda", notebook),
        }.items()
    )


def _measured_on(kind: str, notebook: Notebook) -> bool:
    """Whether a results file is of a run of this notebook on such a device."""
    for path in RESULTS.glob(f"{notebook.file}*.json"):
        machine = json.loads(path.read_text(encoding="utf-8")).get("runtime") or {}
        if machine.get("kind") == kind:
            return True
    return False
