"""The one table of README.md: what each notebook gives, what was measured, and where it ran."""

import json
from dataclasses import dataclass

from build import RESULTS, result
from evidence import graphmer, legal, lejepa, reservoir, tuning

from helpers.show import tables

ADDRESS = ""  # owner/name on GitHub, once the repository is public: then each notebook has buttons that open it


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
            "notebook": f"**{notebook.title}**: {_opened('GPU', notebook.file)} · {_opened('TPU', notebook.file + '_tpu')}",
            "what you get": f"{notebook.gives} ([how](docs/{notebook.page}.md))",
            "what was measured": notebook.evidence.headline(),
            "ran on": _ran_on(name, notebook),
        }
        for name, notebook in NOTEBOOKS.items()
    ]
    return tables.markdown(rows)


def pictures() -> str:
    """A row of the executed notebooks that draw, each with a figure."""
    gallery = RESULTS.parent / "gallery"
    shown = {}
    for notebook in NOTEBOOKS.values():
        page = f"docs/gallery/{notebook.file}.ipynb"
        if (gallery / f"{notebook.file}.png").is_file():
            picture = f"![{notebook.title}](docs/gallery/{notebook.file}.png)"
            shown[f"[{notebook.title}]({page})"] = f"[{picture}]({page})"
    return tables.markdown([shown])


def _opened(twin: str, name: str) -> str:
    """The twin's file, and the buttons that open it in Colab and on Kaggle."""
    path = f"notebooks/{name}.ipynb"
    buttons = {
        "Colab": (
            "https://colab.research.google.com/assets/colab-badge.svg",
            f"https://colab.research.google.com/github/{ADDRESS}/blob/main/{path}",
        ),
        "Kaggle": (
            "https://kaggle.com/static/images/open-in-kaggle.svg",
            f"https://kaggle.com/kernels/welcome?src=https://github.com/{ADDRESS}/blob/main/{path}",
        ),
    }
    shown = [f"[![{where}]({image})]({target})" for where, (image, target) in buttons.items() if ADDRESS]
    return " ".join([f"[{twin}]({path})", *shown])


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
