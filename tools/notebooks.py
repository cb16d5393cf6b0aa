"""Builds the notebooks: each `source/NAME.py` becomes `NAME.ipynb` (GPU) and `NAME_tpu.ipynb` (TPU).

    python tools/notebooks.py            write them
    python tools/notebooks.py --check    exit 1 and name each one that differs from what would be written

A source is a jupytext percent file. A cell tagged `gpu` or `tpu` goes into that twin only, and so does a line of code
that ends in `# gpu only` or `# tpu only` (the marker is stripped). Three cells are written from one line each:

- tagged `setup`, `# requirements: torch transformers ...`: setup_cell.py, with these requirements in the ranges of
  requirements-gpu.txt or requirements-tpu.txt, and with what the notebook can reach of the `helpers` package (closure.py);
- tagged `parameters`, `# parameters: helpers.<room>.parameters.<Class>`: a form of all parameters of that class; a form that is
  written out stays;
- in the setup cell of a notebook that runs others, `# notebooks: legal_cot_sft ...` and `# files: benchmarks/gpu.py ...`: these files,
  and the code cells of these notebooks with all that they can reach, are in its payload, too;
- tagged `method`, `# method: helpers/<room>/<file>.py`: a cell that shows this file and writes it (`%%writefile`), so that a reader
  can edit it. The file is left out of the payload (helpers/notebook/method.py).

In a text cell `{own data}` stands for how a file of one's own gets into the runtime, a paragraph `{picture: what it shows}` for the picture of the executed
copy (docs/gallery), with a caption, and `{figure NAME: what it shows}` for one of docs/figures; without a file it is left out.
"""

import argparse
import base64
import bz2
import hashlib
import html
import importlib
import json
import re
import sys
from pathlib import Path
from typing import Literal, get_args, get_origin

import jupytext
import nbformat
from nbformat import NotebookNode
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from helpers.notebook import method  # noqa: E402
from helpers.parameters import MAIN, extra  # noqa: E402
from tools import badges  # noqa: E402
from tools.closure import reachable  # noqa: E402

MOST_MAIN = 8
FORM = "# @title Parameters"
WIDGETS = {str: "string", bool: "boolean", int: "integer", float: "number"}
NOTEBOOKS = ROOT / "notebooks"
SUFFIX = {"gpu": "", "tpu": "_tpu"}
BUNDLED = ("# notebooks:", "# files:")
COLAB_RUNTIME = {"gpu": ("GPU", "T4"), "tpu": ("TPU", "V5E1")}
GALLERY = ROOT / "docs/gallery"
FIGURES = ROOT / "docs/figures"
PICTURE = re.compile(r"\{(?:picture|figure (\w+)): (.+)\}\n\n")
OWN_DATA = "{own data}"
WHERE_OWN_DATA_ARE = (
    '**Your own data**: `data_source="upload"` asks for a file in Colab; a mounted Drive is `/content/drive/MyDrive`, an input '
    "on Kaggle `/kaggle/input/...`."
)
# In Colab, in Jupyter and VS Code, on Kaggle.
FOLDED = {"cellView": "form", "jupyter": {"source_hidden": True}, "_kg_hide-input": True}
ONLY = re.compile(r"\s*# (gpu|tpu) only$")


def render(source_folder: Path) -> dict[str, bytes]:
    """Both twins of every source: file name -> bytes.

    Raises FileNotFoundError when the folder holds no source, ValueError for what `notebook` refuses.
    """
    sources = sorted(source_folder.glob("*.py"))
    if not sources:
        raise FileNotFoundError(f"{source_folder} holds no notebook source (*.py)")
    return {
        f"{source.stem}{suffix}.ipynb": written(notebook(source, twin))
        for source in sources
        for twin, suffix in SUFFIX.items()
    }


def written(built: NotebookNode) -> bytes:
    """The file of a notebook: a line of JSON for each cell. Indented, with a line for each line of a cell, it would be 1 % larger."""
    *head, cells = ((name, part) for name, part in sorted(built.items(), key=lambda each: each[0] == "cells"))
    lines = [json.dumps(cell, separators=(",", ":"), ensure_ascii=False) for cell in cells[1]]
    rest = json.dumps(dict(head), separators=(",", ":"), ensure_ascii=False)
    return (f'{rest[:-1]},"cells":[\n' + ",\n".join(lines) + "\n]}\n").encode()


def notebook(source: Path, twin: str) -> NotebookNode:
    """One twin, `gpu` or `tpu`, as a valid nbformat 4.5 notebook without outputs.

    Raises ValueError for a wrong tag or marker, and for a setup cell that is absent, repeated or not understood.
    """
    accelerator, gpu_type = COLAB_RUNTIME[twin]
    built = nbformat.v4.new_notebook(
        cells=twin_cells(source, twin),
        metadata={
            "accelerator": accelerator,
            "colab": {"gpuType": gpu_type, "provenance": []},
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
    )
    built.nbformat_minor = 5
    nbformat.validate(built)
    return built


def twin_cells(source: Path, twin: str) -> list[NotebookNode]:
    """The cells of one twin. A cell that both twins have has the same id in both: its position."""
    read = jupytext.read(source, fmt="py:percent").cells
    if sum("setup" in _tags(cell) for cell in read) != 1:
        raise ValueError(f'{source}: needs exactly one cell with tags=["setup"]')
    cells = []
    for position, cell in enumerate(read):
        tags = _tags(cell)
        if {"gpu", "tpu"} <= set(tags):
            raise ValueError(f"{source}: cell {position} is tagged gpu and tpu; a cell of both twins has neither tag")
        if {"gpu", "tpu"} & set(tags) - {twin}:
            continue
        if cell.cell_type == "raw":
            raise ValueError(f"{source}: cell {position} is raw; write markdown or code (or check the file's header)")
        shown = [tag for tag in tags if tag not in SUFFIX]
        text, metadata = cell.source, {"tags": shown} if shown else {}
        if "parameters" in tags and not text.startswith(FORM):
            text = parameters_cell(text, twin, where=f"{source}: parameters cell")
        elif "method" in tags:
            metadata["file"], text = method_cell(text, where=f"{source}: cell {position}")
        elif cell.cell_type == "code" and "setup" not in tags:
            text = _twin_lines(text, twin, where=f"{source}: cell {position}")
        else:
            text = text.replace(OWN_DATA, WHERE_OWN_DATA_ARE)
            text = PICTURE.sub(lambda found: picture(source.stem, found[1], found[2]), text)
        new_cell = nbformat.v4.new_code_cell if cell.cell_type == "code" else nbformat.v4.new_markdown_cell
        cells.append(new_cell(text, id=f"{position:02d}", metadata=metadata))
    setup = next(cell for cell in cells if "setup" in _tags(cell))
    apart = ("setup", "method")
    calling = (cell.source for cell in cells if cell.cell_type == "code" and not {*apart} & {*_tags(cell)})
    files = reachable(calling, ROOT)
    files |= bundled(setup.source, source.parent, twin)
    setup.source = "\n".join(line for line in setup.source.splitlines() if not line.startswith(BUNDLED))
    shown = {file: files.pop(file) for cell in cells if "method" in _tags(cell) for file in [cell.metadata.pop("file")]}
    setup.source = setup_cell(setup.source, twin, files, shown, where=f"{source}: setup cell")
    for cell in cells:
        if {"setup", "method"} & set(_tags(cell)):
            cell.metadata |= FOLDED
    name = f"{source.stem}{SUFFIX[twin]}"
    title, _, rest = cells[0].source.partition("\n")
    cells[0].source = "\n".join([title, *badges.of(name), rest]).rstrip()
    return cells


def bundled(declaration: str, sources: Path, twin: str) -> dict[str, bytes]:
    """Files that a setup cell names, and code cells of notebooks that it names, with the payload of each; by path."""
    named = {start: [] for start in BUNDLED}
    for line in declaration.splitlines():
        start, _, names = line.partition(": ")
        named.get(f"{start}:", []).extend(names.split())
    files = {name: (ROOT / name).read_bytes() for name in named["# files:"]}
    for name in named["# notebooks:"]:
        built = notebook(sources / f"{name}.py", twin)
        built.cells = [cell for cell in built.cells if cell.cell_type == "code"]
        setup = next(cell for cell in built.cells if "setup" in _tags(cell))
        code, _, packed_files = setup.source.partition('\nset_up(\n    "')
        for file in bz2.decompress(base64.b85decode(packed_files.removesuffix('"\n)'))).split(b"\0"):
            path, _, content = file.partition(b"\n")
            files[path.decode()] = content
        # Its kernel finds helpers where the bundling notebook has unpacked it.
        constants, _, _ = code.partition("\n\n\ndef ")
        constants = re.sub(r"(?m)^# .*\n?", "", constants)
        said = "helpers.payload_sha256, helpers.shown = SHA256, SHOWN\nhelpers.began, helpers.first_step_seconds = time.monotonic(), None"
        install = code.strip().rpartition("\n")[2].strip()
        setup.source = f"import time\n{constants}\nimport helpers\n\n{said}\n{install}"
        files[f"notebooks/{name}{SUFFIX[twin]}.ipynb"] = written(built)
    return files


def picture(notebook: str, figure: str | None, shows: str) -> str:
    """A figure of the pages or the gallery's picture inside the text, so that it needs no network, with its caption; "" where there is none."""
    file = FIGURES / f"{figure}.png" if figure else GALLERY / f"{notebook}.png"
    if not file.is_file():
        return ""
    data = base64.b64encode(file.read_bytes()).decode()
    image = f'<img alt="{html.escape(shows)}" src="data:image/png;base64,{data}">'
    origin = "measured on a CPU" if figure else "from an executed copy on a CPU, no promise"
    return f"{image}\n\n*{shows}: {origin}.*\n\n"


def parameters_cell(declaration: str, twin: str, where: str = "parameters cell") -> str:
    """Code of the parameters cell: the main parameters first, then the groups, each with its description.

    declaration: the line `# parameters: helpers.<room>.parameters.<Class>`.
    """
    named = re.fullmatch(r"# parameters: (helpers\.[\w.]+)\.(\w+)", declaration.strip())
    if not named:
        raise ValueError(
            f"{where} must hold `# parameters: helpers.<room>.parameters.<Class>` and nothing else, not {declaration!r}"
        )
    cls = getattr(importlib.import_module(named[1]), named[2])
    groups: dict[str, list[str]] = {MAIN: []}
    for name, field in cls.model_fields.items():
        groups.setdefault(extra(field)["group"], []).append(name)
    if len(groups[MAIN]) > MOST_MAIN:
        raise ValueError(
            f"{where}: {len(groups[MAIN])} main parameters; move some to a group, at most {MOST_MAIN} stay"
        )
    lines = [FORM]
    for group, names in groups.items():
        lines += [] if group == MAIN else [f"# @markdown ### {group}"]
        for name in names:
            field, kind = cls.model_fields[name], kind_of(cls.model_fields[name].annotation)
            default = extra(field)["tpu"] if twin == "tpu" and extra(field)["tpu"] is not None else field.default
            lines += [
                f"# @markdown {field.description}",
                f"{name}: {kind.__name__} = {_literal(default)}  # @param {_widget(field, kind)}",
            ]
    return "\n".join(lines)


def method_cell(declaration: str, where: str = "method cell") -> tuple[str, str]:
    """Path of the method's file, relative to the repository, and the code of the cell that shows and writes it.

    declaration: the line `# method: helpers/<room>/<file>.py`.
    """
    named = re.fullmatch(r"# method: (helpers/[\w/]+\.py)", declaration.strip())
    if not named or not (ROOT / named[1]).is_file():
        raise ValueError(
            f"{where} must hold `# method: helpers/<room>/<file>.py`, a file that exists, not {declaration!r}"
        )
    return named[1], f"{method.WRITTEN}\n{(ROOT / named[1]).read_text(encoding='utf-8').rstrip()}"


def kind_of(annotation) -> type:
    """bool, int, float or str: a field's annotation, or the type of the choices of a `Literal`."""
    if get_origin(annotation) is Literal:
        return type(get_args(annotation)[0])
    return annotation


def _literal(value) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _widget(field, kind: type) -> str:
    """How Colab's form asks for a parameter."""
    suggestions = extra(field)["suggestions"]
    if get_origin(field.annotation) is Literal:
        return json.dumps(list(get_args(field.annotation)))
    if suggestions:
        raw = "" if kind is str else 'type: "raw", '
        return f"{json.dumps(suggestions)} {{{raw}allow-input: true}}"
    return f'{{type:"{WIDGETS[kind]}"}}'


def setup_cell(
    declaration: str,
    twin: str,
    files: dict[str, bytes],
    shown: dict[str, bytes],
    where: str = "setup cell",
) -> str:
    """Code of the setup cell: a readable header, then setup_cell.py with its constants filled in.

    declaration: one or more lines `# requirements: name name ...`.
    files: of the payload. shown: the file of the method, which has a cell of its own.
    """
    lines = declaration.strip().splitlines()
    if not lines or not all(line.startswith("# requirements:") for line in lines):
        raise ValueError(f"{where} must hold `# requirements: name name ...` and nothing else, not {declaration!r}")
    names = [name for line in lines for name in line.removeprefix("# requirements:").split()]
    version = re.search(rb'^__version__ = "(.+)"$', files["helpers/__init__.py"], re.MULTILINE).group(1).decode()
    header = [
        # With the space that `ruff format` wants; Colab reads `# @title` and `#@title` alike.
        '# @title Setup: unpack helpers, install what is missing {display-mode: "form"}',
        f"# The line below the code holds {len(files)} files of this project's package helpers {version}: what the notebook can reach.",
        "# `pip install helpers` would install a stranger's.",
    ]
    constants = {
        "REQUIREMENTS": '"""\n' + "\n".join(requirement_lines(names, twin, where)) + '\n"""',
        "SHA256": f'"{hashlib.sha256(packed(files)).hexdigest()}"',
        "SHOWN": json.dumps({file: method.digest(content.decode()) for file, content in shown.items()}),
    }
    _, _, code = (ROOT / "tools/setup_cell.py").read_text(encoding="utf-8").split('"""', 2)
    for name, value in constants.items():
        code, times = re.subn(rf"(?m)^{name} = .*$", lambda _, line=f"{name} = {value}": line, code)
        assert times == 1, f"setup_cell.py must assign {name} once"
    return "\n".join(header) + "\n" + code.strip().replace('set_up("")', f'set_up(\n    "{payload(files)}"\n)')


def requirement_lines(names: list[str], twin: str, where: str = "setup cell") -> list[str]:
    """The lines of the twin's requirements file for these names; torch brings torch_xla into the TPU twin."""
    file = ROOT / f"requirements-{twin}.txt"
    lines = (line.partition(" #")[0].strip() for line in file.read_text(encoding="utf-8").splitlines())
    known = {canonicalize_name(Requirement(line).name): line for line in lines if line and not line.startswith("#")}
    if twin == "tpu" and "torch" in names:
        names = [added for name in names for added in ((name, "torch_xla") if name == "torch" else (name,))]
    unknown = [name for name in names if canonicalize_name(name) not in known]
    if unknown:
        raise ValueError(f"{where} requires {', '.join(unknown)}: not in {file.name}; add it there with its range")
    return [known[canonicalize_name(name)] for name in names]


def packed(files: dict[str, bytes]) -> bytes:
    """The files, shared ones first, with a zero byte between: path, line break, content. JSON would escape every line break."""
    assert not any(b"\0" in content for content in files.values())
    names = sorted(files, key=lambda name: (name.count("/"), name))
    return b"\0".join(name.encode() + b"\n" + files[name] for name in names)


def payload(files: dict[str, bytes]) -> str:
    """The packed files, compressed, as base85: the same bytes on every machine.

    zlib and zlib-ng write different bytes, xz may change its own with a release, but bz2 has one implementation, unchanged
    for years and imitated byte for byte. On Python source it is also the smallest.
    """
    return base64.b85encode(bz2.compress(packed(files), 9)).decode()


def differences(built: dict[str, bytes], folder: Path) -> list[str]:
    """One line for each notebook in `folder` that is not what was built: missing, stale, or without a source."""
    there = {path.name: path.read_bytes() for path in folder.glob("*.ipynb")}
    found = [f"missing: {name}" for name in sorted(built.keys() - there.keys())]
    found += [f"stale: {name}" for name in sorted(built.keys() & there.keys()) if built[name] != there[name]]
    return found + [f"extra: {name} (it has no source; delete it)" for name in sorted(there.keys() - built.keys())]


def _tags(cell: NotebookNode) -> list[str]:
    return list(cell.metadata.get("tags", []))


def _twin_lines(text: str, twin: str, where: str) -> str:
    kept = [
        ONLY.sub("", line)
        for line in text.splitlines()
        if (marker := ONLY.search(line)) is None or marker.group(1) == twin
    ]
    if text and not kept:
        raise ValueError(f'{where} has no line left in the {twin} twin; tag the cell instead, tags=["gpu"] or ["tpu"]')
    return "\n".join(kept)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a notebook is out of date")
    parser.add_argument("--source", type=Path, default=NOTEBOOKS / "source", metavar="DIR")
    parser.add_argument("--out", type=Path, default=NOTEBOOKS, metavar="DIR")
    options = parser.parse_args(arguments)
    built = render(options.source)
    if not options.check:
        options.out.mkdir(parents=True, exist_ok=True)
        for name, content in built.items():
            (options.out / name).write_bytes(content)
        print(f"wrote {len(built)} notebooks to {options.out}")
        return 0
    found = differences(built, options.out)
    if found:
        print("\n".join([*found, "run `make notebooks`"]), file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
