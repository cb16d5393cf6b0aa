"""Executed copies of the notebooks: what a reader sees who has not run one yet.

    python docs/gallery.py                              # all five, on this machine, one after another
    python docs/gallery.py legal_cot_sft                # one
    python docs/gallery.py lejepa_training base_model=/models/all-MiniLM-L6-v2     # with other parameters

Each GPU notebook runs with the parameters below, on data that need no network. What was cut off goes on where it stopped.
`docs/gallery/` then holds it without its packed `helpers`, and one of its figures twice: as .png, which README shows, and small as
_small.png, which `make notebooks` puts into the notebook's first cell. `--check` fails for a copy whose code cells are no longer
those of its notebook.
"""

import argparse
import asyncio
import base64
import io
import json
import re
import resource
import sys
from pathlib import Path

import nbformat
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers.batch import command as batch

ROOT = Path(__file__).resolve().parents[1]
GALLERY = ROOT / "docs/gallery"
RUNS = ROOT / "outputs/gallery"
RESULTS = ROOT / "docs/results/gallery.json"
PARAMETERS = {
    "tinystories_reservoir": {"max_steps": 300},
    "lejepa_training": {"base_model": "sample", "max_steps": 200},
    "legal_cot_sft": {
        "data_source": "sample",
        "base_model": "sample",
        "method": "full",
        "precision": "fp32",
        "batch_size": 2,
        "learning_rate": 3e-3,
        "max_steps": 400,
        "logging_steps": 50,
        "save_steps": 200,
    },
    "graphmer_se": {
        "data_source": str(Path(asyncio.__file__).parent),  # of the standard library's packages one of the larger
        "config": "cpu",
        "changes": "optimizer.scheduler.warmup_steps=20; run.eval_interval_steps=60; run.log_interval=10",
        "max_steps": 120,
    },
    "hardware_tuning": {
        "base_model": "sample",
        "num_rows": 2000,
        "try_compile": False,
        "max_steps": 300,
        "paired_seeds": 1,
        "text": "Return the number of bytes that were written to the socket.",
    },
}
FIRST_FIGURE = ("hardware_tuning",)  # README shows it; of the other notebooks the last
MOST_WIDTH, MOST_BYTES = 480, 9_000  # of a small picture
COLORS = (  # of matplotlib's figures: white to black, and its own, full and pale
    "ffffff c8c8c8 909090 505050 000000 1f77b4 ff7f0e 2ca02c d62728 9467bd 8c564b aec7e8 ffbb78 98df8a ff9896 b0c4de"
)
EARLIER = re.compile(r'<img [^>]*src="data:[^>]*>\n\n\*.+\*\n\n')  # the picture of an earlier copy, in the first cell
LEFT_OUT = "# The packed files of `helpers` and their setup stand here in the notebook itself."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebook", nargs="?", choices=PARAMETERS)
    parser.add_argument("parameters", nargs="*", metavar="name=value")
    parser.add_argument("--check", action="store_true", help="run nothing; exit 1 and name the copies that are stale")
    arguments = parser.parse_args()
    if arguments.check:
        old = [name for name in PARAMETERS if stale(name)]
        sys.exit(f"docs/gallery: {', '.join(old)}: not the code of the notebooks; run `make gallery`" if old else 0)
    for name in [arguments.notebook] if arguments.notebook else PARAMETERS:
        changes = dict(each.split("=", 1) for each in arguments.parameters)
        values = {"data_source": "sample"} | PARAMETERS[name] | changes
        folder, source = RUNS / name, ROOT / f"notebooks/{name}.ipynb"
        before = processor_seconds()
        batch.main([str(source), "--output-dir", str(folder), *(f"{key}={value}" for key, value in values.items())])
        (executed,) = folder.glob("*/*.ipynb")
        publish(executed, name, {str(folder): "outputs", str(ROOT): "."})
        note(
            name,
            json.loads(executed.with_name("results.json").read_text(encoding="utf-8")),
            processor_seconds() - before,
        )


def processor_seconds() -> float:
    """Of all processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def note(name: str, results: dict, seconds: float) -> None:
    """Notes in docs/results/gallery.json what a copy took, for README; of a run that was cut off, what its last part took."""
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    known[name] = {
        "processor_seconds": seconds,
        "resumed": len(results["sessions"]) > 1,
        **{part: results[part] for part in ("parameters", "code", "versions", "runtime")},
    }
    RESULTS.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def publish(executed: Path, name: str, replaced: dict[str, str]) -> None:
    """Writes `name`.ipynb and, where the notebook draws, one figure as `name`.png and `name`_small.png.

    replaced: folders of this machine, and what stands for each in what the notebook printed.
    """
    notebook = shown(nbformat.read(executed, as_version=4), replaced)
    GALLERY.mkdir(exist_ok=True)
    if drawn := figures(notebook):
        figure = drawn[0 if name in FIRST_FIGURE else -1]
        (GALLERY / f"{name}.png").write_bytes(base64.b64decode(figure.data["image/png"]))
        (GALLERY / f"{name}_small.png").write_bytes(small(base64.b64decode(figure.data["image/png"])))
    nbformat.write(notebook, GALLERY / f"{name}.ipynb")
    links = "\n".join(f"- [{path.stem}]({path.name})" for path in sorted(GALLERY.glob("*.ipynb")))
    (GALLERY / "README.md").write_text(INDEX.replace("LINKS", links), encoding="utf-8")


def stale(name: str) -> bool:
    """Whether the copy in the gallery shows other code than its notebook has."""
    copy, present = (nbformat.read(path / f"{name}.ipynb", as_version=4) for path in (GALLERY, ROOT / "notebooks"))
    return _code(copy) != _code(present)


def _code(notebook: nbformat.NotebookNode) -> list[str]:
    apart = {"setup", "injected-parameters"}  # the payload, and what differs from the defaults
    return [
        cell.source
        for cell in notebook.cells
        if cell.cell_type == "code" and not apart & {*cell.metadata.get("tags", ())}
    ]


def small(figure: bytes) -> bytes:
    """The figure as a PNG of MOST_WIDTH pixels in COLORS, or narrower, so that it has no more than MOST_BYTES."""
    palette = Image.new("P", (1, 1))
    palette.putpalette(bytes.fromhex(COLORS))
    whole = Image.open(io.BytesIO(figure)).convert("RGB")
    for width in range(min(MOST_WIDTH, whole.width), 0, -10):
        resized = whole.resize((width, max(1, round(whole.height * width / whole.width))), Image.Resampling.LANCZOS)
        written = io.BytesIO()
        resized.quantize(palette=palette, dither=Image.Dither.NONE).save(written, "PNG", optimize=True)
        if written.tell() <= MOST_BYTES:
            break
    return written.getvalue()


def figures(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """The outputs that are pictures, each described by the heading that it stands under."""
    found, heading = [], ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and (headings := re.findall(r"^#+ (.+)$", cell.source, re.MULTILINE)):
            heading = headings[-1]
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output.metadata["image/png"] = {"alt": f"Figure: {heading}"}
                found.append(output)
    return found


def shown(notebook: nbformat.NotebookNode, replaced: dict[str, str]) -> nbformat.NotebookNode:
    """The notebook without its setup cell, the picture of an earlier copy, folders of this machine, widgets, what libraries warned of on this machine, and what
    papermill and Jupyter noted in it."""
    for cell in notebook.cells:
        if "setup" in cell.metadata.get("tags", []):
            cell |= {"source": LEFT_OUT, "outputs": []}
        cell.source = without(EARLIER.sub("", cell.source), replaced)
        cell.metadata = nbformat.NotebookNode(
            {key: value for key, value in cell.metadata.items() if key in ("tags", "jupyter")}
        )
        if "outputs" in cell:
            cell.outputs = joined([output for output in cell.outputs if output.get("name") != "stderr"])
        for output in cell.get("outputs", []):
            if "text" in output:
                output.text = without(output.text, replaced)
            data = output.get("data", {})
            data.pop("application/vnd.jupyter.widget-view+json", None)
            for kind, value in data.items():
                if kind.startswith("text/"):
                    data[kind] = without(value, replaced)
    notebook.metadata = nbformat.NotebookNode(
        {key: value for key, value in notebook.metadata.items() if key in ("kernelspec", "language_info")}
    )
    return notebook


def joined(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Lines that were printed one after another as one output."""
    found: list[nbformat.NotebookNode] = []
    for output in outputs:
        if found and output.output_type == found[-1].output_type == "stream":
            found[-1].text += output.text
        else:
            found.append(output)
    return found


def without(text: str, replaced: dict[str, str]) -> str:
    for folder, short in replaced.items():
        text = text.replace(folder, short)
    return re.sub(re.escape(str(Path.home())) + r"(?=/)", "~", text)


INDEX = """# Executed notebooks

Each was run on a CPU, and is shown with what it printed and drew. The second cell of parameters has what differs from the defaults: small
models, and mostly data that need no network. The packed files of `helpers` are left out: to run a notebook take it from
[notebooks](../../notebooks). `make gallery` runs all five again with the parameters in [gallery.py](../gallery.py), without a network.

LINKS
"""


if __name__ == "__main__":
    main()
