"""Finds names that current transformers, TRL and torch_xla no longer have, in Python files and notebooks.

python tests/removed_api.py PATHS      folders are searched; one line a finding, exit status 1 when there is any
"""

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path

# Pairs, not a dict: these names as keys of a dict are findings, here too.
ARGUMENTS = (
    ("warmup_ratio", "warmup_steps"),
    ("evaluation_strategy", "eval_strategy"),
    ("tpu_num_cores", "SPMD over all chips"),
)
# Only of what is named so; elsewhere the name is alive.
TRAINER_ARGUMENTS = (("tokenizer", "processing_class"),)
SFT_ARGUMENTS = (("max_seq_length", "max_length"),)
ATTRIBUTES = (
    ("xm xla_model", "xla_device", "torch_xla.device()"),
    ("xm xla_model", "mark_step", "torch_xla.sync()"),
    ("xmp xla_multiprocessing", "spawn", "SPMD in this process"),
)
SUFFIXES = (".py", ".ipynb")


def findings(path: Path | str) -> list[str]:
    """One line `file:line: name is removed ...` for every use in a .py file or in a notebook's code cells."""
    path = Path(path)
    found = []
    for where, source in _sources(path):
        try:
            tree = ast.parse(source)
        except SyntaxError as error:
            found.append(f"{where}:{error.lineno}: cannot be parsed: {error.msg}")
            continue
        uses = sorted({use for node in ast.walk(tree) for use in _uses(node)})
        found += [f"{where}:{line}: {name} is removed, use {instead}" for line, name, instead in uses]
    return found


def files(paths: list[str]) -> Iterator[Path]:
    """The files to look at: the paths themselves, and what lies in folders."""
    for path in map(Path, paths):
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist")
        yield from (
            sorted(
                file for file in path.rglob("*") if file.suffix in SUFFIXES and ".ipynb_checkpoints" not in file.parts
            )
            if path.is_dir()
            else [path]
        )


def _sources(path: Path) -> Iterator[tuple[str, str]]:
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        yield str(path), text
        return
    for number, cell in enumerate(json.loads(text)["cells"]):
        if cell["cell_type"] == "code":
            yield f"{path}[cell {number}]", _without_magics("".join(cell["source"]))


def _without_magics(source: str) -> str:
    # `pass` keeps line numbers, and the block whose only statement a magic was.
    lines = source.splitlines()
    stripped = [line.lstrip() for line in lines]
    return "\n".join(
        line[: len(line) - len(bare)] + "pass" if bare.startswith(("%", "!")) else line
        for line, bare in zip(lines, stripped, strict=True)
    )


def _uses(node: ast.AST) -> Iterator[tuple[int, str, str]]:
    """(line, removed name, what to use) of one node."""
    if isinstance(node, ast.Call):
        called = _last_name(node.func)
        own = TRAINER_ARGUMENTS if called.endswith("Trainer") else ()
        own += SFT_ARGUMENTS if called.startswith("SFT") else ()
        yield from _matching(((keyword.value.lineno, keyword.arg) for keyword in node.keywords), ARGUMENTS + own)
    elif isinstance(node, ast.Dict):  # arguments that travel as **fields
        keys = (key for key in node.keys if isinstance(key, ast.Constant))
        yield from _matching(((key.lineno, key.value) for key in keys), ARGUMENTS)
    elif isinstance(node, ast.Attribute):
        yield from _matching([(node.lineno, node.attr)], _attributes_of(_last_name(node.value)))
    elif isinstance(node, ast.ImportFrom) and node.module:
        names = ((node.lineno, alias.name) for alias in node.names)
        yield from _matching(names, _attributes_of(node.module.rpartition(".")[2]))


def _matching(used, removed) -> Iterator[tuple[int, str, str]]:
    return ((line, name, instead) for line, name in used for banned, instead in removed if name == banned)


def _attributes_of(module: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, instead) for modules, name, instead in ATTRIBUTES if module in modules.split())


def _last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


if __name__ == "__main__":
    lines = [line for file in files(sys.argv[1:]) for line in findings(file)]
    print("\n".join(lines) or "no removed API")
    sys.exit(bool(lines))
