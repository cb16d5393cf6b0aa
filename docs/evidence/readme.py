"""The five blocks of README.md: what each notebook gives, the one number, and what a run takes."""

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


NOTEBOOKS = (
    Notebook(
        "A language model of your own text",
        "tinystories_reservoir",
        "reservoir",
        "A small language model of your own text, from one processor core: it counts short phrases, and a small readout of a random network that "
        "is never trained corrects the counts. It learns a new paragraph by counting it, in less than a second.",
        reservoir,
    ),
    Notebook(
        "A search over your own folder",
        "lejepa_training",
        "lejepa",
        "A folder that answers questions from your documents, or from past questions with their answers: an embedding model and BM25 side by "
        "side, weighed by your own questions, an index, and a short script that searches without this project.",
        lejepa,
    ),
    Notebook(
        "A chat model fine-tuned on your own records",
        "legal_cot_sft",
        "legal",
        "A fine-tuned chat model (LoRA, QLoRA or all weights) that answers in transformers and llama.cpp (a Modelfile for Ollama is written; Ollama itself was not run), and an honest "
        "score beside that of counting words. The example is legal reasoning; any file of questions and answers will do.",
        legal,
    ),
    Notebook(
        "Answers about your own code",
        "graphmer_se",
        "graphmer",
        "Who calls this function, and what does a change of it reach: proved from the sources in seconds, without a model. Then a code "
        "search that is tuned on your docstrings, and an encoder over code and its graph.",
        graphmer,
    ),
    Notebook(
        "The fastest settings of your own machine",
        "hardware_tuning",
        "tuning",
        "Tries training settings one by one, keeps those that are measurably faster on your machine, and writes a script that uses them with plain "
        "transformers.",
        tuning,
    ),
)


def blocks() -> str:
    """A block a notebook: its picture, what a person gets, the one number, and minutes."""
    return "\n\n".join(map(_block, NOTEBOOKS))


def _block(notebook: Notebook) -> str:
    links = " · ".join((_opened("GPU", notebook.file), _opened("TPU", f"{notebook.file}_tpu")))
    copy = f"docs/gallery/{notebook.file}"
    picture = (
        [f"[![{notebook.title}]({copy}.png)]({copy}.ipynb)\n"]
        if (RESULTS.parent / f"gallery/{notebook.file}.png").is_file()
        else []
    )
    figure = getattr(notebook.evidence, "FIGURE", "")
    lines = [
        f"### {notebook.title}",
        *picture,
        f"{notebook.gives}\n",
        f"{notebook.evidence.headline()} ([evidence](docs/{notebook.page}.md)).",
        *([f"\n![Evidence: {notebook.title}]({figure})\n"] if figure else []),
        f"{_minutes(notebook.file)} Notebook: {links}.",
    ]
    return "\n".join(line.strip(" ") for line in lines)


def _minutes(file: str) -> str:
    """What the executed copy took on a CPU, and what the planner expects of the default run on a T4."""
    measured = RESULTS / "gallery.json"
    known = json.loads(measured.read_text(encoding="utf-8")).get(file) if measured.is_file() else None
    copy, took = f"docs/gallery/{file}.ipynb", ""
    if known:
        took = f", which took {known['processor_seconds'] / 60:.0f} processor minutes on a CPU"
    said = [f"[Executed copy]({copy}){took}."] if (RESULTS.parents[1] / copy).is_file() else []
    runs = result("grid.json")["notebooks"].get(file, [])
    ends = next((run["run_seconds"] for run in runs if run["hardware"] == "T4"), None)
    if ends:
        said.append(
            f"Estimated for the default run on a free T4, not measured: {' to '.join(map(tables.seconds, ends))}."
        )
    return " ".join(said)


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
