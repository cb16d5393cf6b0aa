"""README.md's table of the notebooks."""

import json
from dataclasses import dataclass

from evidence import graphmer, legal, lejepa, reservoir, tuning

from helpers.show import tables
from tools import badges
from tools.pages import RESULTS

GALLERY = RESULTS.parent / "gallery"


@dataclass(frozen=True)
class Notebook:
    """A row of the table, and the module here that knows what was measured."""

    file: str
    has: str
    gets: str
    evidence: object


NOTEBOOKS = (
    Notebook(
        "tinystories_reservoir",
        "a text, or a folder of texts",
        "a small language model of it, which learns a new paragraph in a second",
        reservoir,
    ),
    Notebook(
        "lejepa_training",
        "a folder of documents, or past questions with their answers",
        "a search that answers from them, and an embedding model",
        lejepa,
    ),
    Notebook(
        "legal_cot_sft",
        "questions with answers, or conversations",
        "a chat model that answers in your format, with its reasons",
        legal,
    ),
    Notebook(
        "graphmer_se",
        "a repository of Python",
        "who uses a function and what breaks if you change it; a code search",
        graphmer,
    ),
    Notebook(
        "hardware_tuning",
        "a table of texts with labels",
        "training settings that are faster on your machine, and a script that uses them",
        tuning,
    ),
)


def table() -> str:
    """A row for each notebook: what a person brings and gets, what the executed copy took, and whether it beats the simple method."""
    rows = []
    for notebook in NOTEBOOKS:
        rows.append(
            {
                "I have": notebook.has,
                "I get": notebook.gets,
                "CPU time of the copy": _time(notebook.file),
                "better than the strongest simple method?": notebook.evidence.beats(),
                "copy": _seen(notebook.file),
                "GPU": _opened(notebook.file),
                "TPU": _opened(f"{notebook.file}_tpu"),
            }
        )
    return tables.markdown(rows)


def _time(file: str) -> str:
    """Processor time of the executed copy; "" where it was not measured."""
    measured = json.loads((RESULTS / "gallery.json").read_text(encoding="utf-8"))
    if file not in measured:
        return ""
    return tables.seconds(measured[file]["processor_seconds"]) or ""


def _seen(file: str) -> str:
    return f"[copy](docs/gallery/{file}.ipynb)" if (GALLERY / f"{file}.ipynb").is_file() else ""


def _opened(name: str) -> str:
    """The notebook's file, and the buttons that open it in Colab and on Kaggle."""
    return " ".join([f"[open](notebooks/{name}.ipynb)", *badges.of(name)])
