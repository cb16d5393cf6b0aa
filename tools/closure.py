"""What a notebook can reach: the modules that its cells import, those that these import, and the data beside them.

Imports inside functions count. Those under TYPE_CHECKING and of a module's own command line do not, since a notebook
never runs them.
"""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGE = "helpers"
NEVER = ("TYPE_CHECKING", "__name__ == '__main__'")  # conditions that do not hold in a notebook
ALWAYS = (
    "helpers.notebook.unpacking",
    "helpers.notebook.setup",
)  # run and imported by the setup cell


def reachable(sources: Iterable[str], root: Path) -> dict[str, bytes]:
    """Content of every file under `root/helpers` that this code can reach, by its path relative to `root`.

    sources: code of the notebook's cells.
    """
    queue = [*ALWAYS, *(name for source in sources for name in imports(ast.parse(source), ""))]
    files: dict[str, bytes] = {}
    while queue:
        name = queue.pop()
        path = module_file(name, root)
        if path is None or path.relative_to(root).as_posix() in files:
            continue
        files[path.relative_to(root).as_posix()] = path.read_bytes()
        tree = ast.parse(path.read_bytes())
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        queue += [package, *imports(tree, package)]
        for data in data_files(path, tree):
            files[data.relative_to(root).as_posix()] = data.read_bytes()
    return files


def imports(tree: ast.AST, package: str) -> Iterator[str]:
    """Dotted names that a module of `package` imports from PACKAGE; of `from a import b` both a and a.b."""
    for node in _running(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".") if node.level else []
            parents = parts[: len(parts) - node.level + 1]
            module = ".".join([*parents, *([node.module] if node.module else [])])
            names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == PACKAGE)


def module_file(name: str, root: Path) -> Path | None:
    """The file of a dotted name; None for what is no module of ours, a function in one, say."""
    path = root.joinpath(*name.split("."))
    found = (path / "__init__.py", path.with_suffix(".py"))
    return next((each for each in found if each.is_file()), None)


def data_files(path: Path, tree: ast.AST) -> list[Path]:
    """Files that are no modules, or in a folder without modules, beside `path`, whose name stands in its code."""
    named = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    beside = (each for each in path.parent.iterdir() if each.name != "__pycache__" and each.suffix != ".py")
    found = [each for each in beside if each.name in named]
    folders = [each for each in found if each.is_dir() and not [*each.glob("*.py")]]
    files = [*found, *(file for folder in folders for file in folder.iterdir())]
    return sorted(file for file in files if file.is_file())


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes of what may run in a notebook."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in NEVER:
            continue
        yield node
        yield from _running(node)
