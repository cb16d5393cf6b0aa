"""Executed copies of the notebooks: what a reader sees who has not run one yet.

    python tools/gallery.py                                     # all five, on this machine, one after another
    python tools/gallery.py legal_cot_sft base_model=my/model   # one, with other parameters than those below
    python tools/gallery.py --check                             # exit 1 and name each copy that other code made

Each GPU notebook runs with the parameters below, in the present folder; the same command goes on with what was cut off.
`docs/gallery/` then holds the notebook with its outputs, without its packed `helpers`, and its last figure as a small .png, which
README and, after `make notebooks`, the notebook's first cell show.
"""

import argparse
import base64
import io
import json
import re
import resource
import sys
from pathlib import Path

import nbformat
from nbconvert.preprocessors.coalescestreams import CoalesceStreamsPreprocessor
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from papermill.iorw import load_notebook_node

from helpers.batch import grid

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS, GALLERY = ROOT / "notebooks", ROOT / "docs/gallery"
RESULTS = ROOT / "docs/results/gallery.json"
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
PARAMETERS = {
    "tinystories_reservoir": {},
    "lejepa_training": {"base_model": MINILM},
    "legal_cot_sft": {"base_model": "HuggingFaceTB/SmolLM2-135M-Instruct"},
    "graphmer_se": {"max_steps": 200},
    "hardware_tuning": {
        "base_model": MINILM,
        "num_rows": 2000,
    },
}
WIDTH, COLOURS = 720, 32  # of a picture
EARLIER = re.compile(r'<img [^>]*src="data:[^>]*>\n\n\*.+\*\n\n')  # the picture of an earlier copy, in the first cell
LEFT_OUT = "# The packed files of `helpers` and their setup stand here in the notebook itself."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebook", nargs="?", choices=PARAMETERS)
    parser.add_argument("parameters", nargs="*", metavar="name=value")
    parser.add_argument("--check", action="store_true", help="compare the copies' payload with that of the notebooks")
    arguments = parser.parse_args()
    if arguments.check:
        named = [f"{name}: other code made its copy; run `python tools/gallery.py {name}`" for name in stale()]
        sys.exit("\n".join(named) or None)
    for name in [arguments.notebook] if arguments.notebook else PARAMETERS:
        changes = dict(each.split("=", 1) for each in arguments.parameters)
        values = {"data_source": "sample"} | PARAMETERS[name] | changes
        folder = Path("outputs/gallery").resolve() / name
        given = [f"{key}={json.dumps(value) if isinstance(value, str) else value}" for key, value in values.items()]
        notebook = str(NOTEBOOKS / f"{name}.ipynb")
        ((_, row),) = grid.plan(load_notebook_node(notebook), folder, given)
        output = Path(row["output_dir"])
        before, is_new = processor_seconds(), not output.exists()
        if grid.main([notebook, "--output-dir", str(folder), *given]):
            sys.exit(f"{name}: {grid.recorded(output)['error']}")
        publish(
            name, output, {str(output): f"outputs/{name}", str(Path.cwd()): ".", f"{Path.home()}/": "~/", "/tmp/": ""}
        )
        note(name, output, processor_seconds() - before if is_new else None)


def stale() -> list[str]:
    """The notebooks whose payload is not the one that made their copy."""
    known = json.loads(RESULTS.read_text(encoding="utf-8"))
    names = []
    for name in PARAMETERS:
        notebook = (NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8")
        if name not in known or known[name]["code"]["payload_sha256"] not in notebook:
            names.append(name)
    return names


def processor_seconds() -> float:
    """Of all processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def note(name: str, output: Path, seconds: float | None) -> None:
    """Notes in docs/results/gallery.json what a copy took, for README. seconds: None for a run that was cut off in between."""
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    known.pop(name, None)
    if seconds:
        results = json.loads((output / "results.json").read_text(encoding="utf-8"))
        measured = {"processor_seconds": seconds, **{part: results[part] for part in ("code", "versions", "runtime")}}
        known[name] = measured
    RESULTS.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def publish(name: str, output: Path, replaced: dict[str, str]) -> None:
    """Writes the executed notebook of a run into the gallery, without what only its reader's machine needs, and its last figure as a .png.

    replaced: folders of this machine, and what stands for each in the copy.
    """
    executed = nbformat.read(f"{output}.ipynb", as_version=4)
    notebook, _ = CoalesceStreamsPreprocessor().preprocess(executed, {})
    for cell in notebook.cells:
        if "setup" in cell.metadata.get("tags", []):
            cell |= {"source": LEFT_OUT, "outputs": []}
        cell.source = EARLIER.sub("", cell.source)
        cell.metadata = {key: value for key, value in cell.metadata.items() if key in ("tags", "jupyter")}
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.get("outputs", []):
            output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
            if "image/png" in output.get("data", {}):
                (GALLERY / f"{name}.png").write_bytes(small(base64.b64decode(output.data["image/png"])))
    notebook.metadata = {key: notebook.metadata[key] for key in ("kernelspec", "language_info")}
    text = nbformat.writes(notebook)
    for folder, short in replaced.items():
        text = text.replace(folder, short)
    (GALLERY / f"{name}.ipynb").write_text(text + "\n", encoding="utf-8")


def small(figure: bytes) -> bytes:
    """The figure as a PNG of at most WIDTH pixels a side, with COLOURS."""
    picture, written = Image.open(io.BytesIO(figure)).convert("RGB"), io.BytesIO()
    picture.thumbnail((WIDTH, WIDTH))
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(written, "PNG", optimize=True)
    return written.getvalue()


if __name__ == "__main__":
    main()
