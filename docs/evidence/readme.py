"""README.md's table of the notebooks, and for each a picture with its numbers."""

import json
import sys
from dataclasses import dataclass

from evidence import graphmer, legal, lejepa, reservoir, tuning

from helpers.show import tables
from tools.pages import RESULTS

sys.path.append(str(RESULTS.parents[1] / "notebooks"))
import badges

GALLERY = RESULTS.parent / "gallery"


@dataclass(frozen=True)
class Notebook:
    """A row of the table, and the module here that knows what was measured."""

    title: str
    file: str
    page: str
    has: str
    gets: str
    evidence: object


NOTEBOOKS = (
    Notebook(
        "A language model of your own text",
        "tinystories_reservoir",
        "reservoir",
        "a text, or a folder of texts",
        "a small language model of it, which learns a new paragraph in a second",
        reservoir,
    ),
    Notebook(
        "A search over your own folder",
        "lejepa_training",
        "lejepa",
        "a folder of documents, or past questions with their answers",
        "a search that answers from them, and an embedding model",
        lejepa,
    ),
    Notebook(
        "A chat model fine-tuned on your own records",
        "legal_cot_sft",
        "legal",
        "questions with answers, or conversations",
        "a chat model that answers in your format with its reasons, on your own machine",
        legal,
    ),
    Notebook(
        "Answers about your own code",
        "graphmer_se",
        "graphmer",
        "a repository of Python",
        "who uses a function and what breaks if you change it, also as JSON for a coding agent; a code search",
        graphmer,
    ),
    Notebook(
        "The fastest settings of your own machine",
        "hardware_tuning",
        "tuning",
        "a table of texts with labels",
        "training settings that are measurably faster on your machine, and a script that uses them",
        tuning,
    ),
)


def table() -> str:
    """A row for each notebook: what a person brings and gets, what the executed copy took, and whether it beats the simple method."""
    rows = []
    for notebook in NOTEBOOKS:
        twins = (_opened("GPU", notebook.file), _opened("TPU", f"{notebook.file}_tpu"))
        rows.append(
            {
                "I have": notebook.has,
                "I get": notebook.gets,
                "Time": _time(notebook.file),
                "Does it beat the simple method?": notebook.evidence.beats(),
                "See it": _seen(notebook.file),
                "Open it": " · ".join(twins),
            }
        )
    return tables.markdown(rows)


def blocks() -> str:
    """For each notebook its picture, and the sentence whose numbers the picture shows."""
    return "\n\n".join(map(_block, NOTEBOOKS))


def _block(notebook: Notebook) -> str:
    figure = getattr(notebook.evidence, "FIGURE", "")
    lines = [f"### {notebook.title}", f"{notebook.evidence.headline()} ([evidence](docs/{notebook.page}.md))."]
    if figure:
        lines.append(f"![Evidence: {notebook.title}]({figure})")
    return "\n".join(lines)


def _time(file: str) -> str:
    """Processor time of the executed copy; "" where it was not measured."""
    measured = json.loads((RESULTS / "gallery.json").read_text(encoding="utf-8"))
    if file not in measured:
        return ""
    return f"{tables.seconds(measured[file]['processor_seconds'])} of a CPU core (the copy)"


def _seen(file: str) -> str:
    return f"[copy](docs/gallery/{file}.ipynb)" if (GALLERY / f"{file}.ipynb").is_file() else ""


def _opened(twin: str, name: str) -> str:
    """The twin's file, and the buttons that open it in Colab and on Kaggle."""
    return " ".join([f"[{twin}](notebooks/{name}.ipynb)", *badges.of(name)])
