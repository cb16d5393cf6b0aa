"""What each cell of a notebook makes, and which cells make what it needs: the table that helpers/notebook/order.py goes by."""

import ast
import dis
import re
from collections.abc import Iterator
from types import CodeType

from closure import imports
from nbformat import NotebookNode

from helpers.notebook.order import METHOD, names

TITLE = re.compile(r"# @title ([^{\n]+)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def table(cells: list[NotebookNode], package: str) -> list[list]:
    """For every code cell but the setup its heading, the names that it makes, and the places of the cells that make what it needs.

    package: of the method's room. Its name stands for the modules that `run.use_method()` imports anew: that cell makes them, and every
    later cell that imports from the package needs them. What is imported from elsewhere is the same under all settings, and counts
    neither as made nor as needed. A cell that calls `globals()` needs all that was made before. `trainer.train()` makes the trainer.
    """
    rows: list[list] = []
    maker: dict[str, int] = {}  # the last cell so far that makes a name
    for title, tags, source in _code(cells):
        if "method" in tags:
            needs, makes = {"run"}, {METHOD}
        else:
            tree = ast.parse(source)
            needs, makes = _reads(compile(tree, title, "exec")), names(tree)[1]
            elsewhere = _imported_elsewhere(tree, package)
            makes = makes - elsewhere | _trained(tree)
            needs -= elsewhere
            if "globals" in needs:
                needs |= maker.keys()
            if any(node.attr == "use_method" for node in ast.walk(tree) if isinstance(node, ast.Attribute)):
                needs.add(METHOD)
                makes.add(package)
            elif any(name.startswith(package) for name in imports(tree, "")):
                needs.add(package)
        makes = {name for name in makes if not name.startswith("_")}
        rows.append([title, sorted(makes), sorted({maker[name] for name in needs & maker.keys()})])
        maker |= dict.fromkeys(makes, len(rows) - 1)
    return rows


def _code(cells: list[NotebookNode]) -> Iterator[tuple[str, list[str], str]]:
    """Title, tags and code of the code cells: the title of its form, or the heading above it, with a number from the second on."""
    heading, seen = "", 0
    for cell in cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type == "markdown":
            if headings := HEADING.findall(cell.source):
                heading, seen = headings[-1], 0
        elif "setup" not in tags:
            seen += 1
            form = TITLE.match(cell.source)
            yield form[1].strip() if form else heading if seen == 1 else f"{heading} (cell {seen})", tags, cell.source


def _reads(code: CodeType) -> set[str]:
    """Names of the notebook that code reads before it assigns them; the body of a function is read when its cell has run."""
    reads, makes, later = set(), set(), set()
    for step in dis.get_instructions(code):
        if step.opname == "STORE_NAME":
            makes.add(step.argval)
        elif step.opname in ("LOAD_NAME", "LOAD_GLOBAL") and step.argval not in makes:
            reads.add(step.argval)
        elif isinstance(step.argval, CodeType):
            later |= _reads(step.argval)
    return reads | later - makes


def _imported_elsewhere(tree: ast.Module, package: str) -> set[str]:
    """Names that imports bind to what is not of the package."""
    bound = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                if not f"{getattr(node, 'module', alias.name)}.{alias.name}".startswith(package):
                    bound.add(alias.asname or alias.name.partition(".")[0])
    return bound


def _trained(tree: ast.Module) -> set[str]:
    """Names of the objects whose `train` is called."""
    trained = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "train":
            trained |= {part.id for part in ast.walk(node.func) if isinstance(part, ast.Name)}
    return trained
