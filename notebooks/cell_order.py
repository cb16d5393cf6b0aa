"""What each cell of a notebook makes, and which cells make what it needs: the table that helpers/notebook/order.py goes by."""

import ast
import dis
import re
from collections.abc import Iterator
from types import CodeType

from closure import imports
from nbformat import NotebookNode

from helpers.notebook.order import METHOD, Cell, names

TITLE = re.compile(r"# @title ([^{\n]+)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
BOUND = ("STORE_NAME", "DELETE_NAME")


def table(cells: list[NotebookNode], package: str) -> list[Cell]:
    """A `Cell` for every code cell but the setup.

    package: of the method's room. Its name stands for the modules that `run.use_method()` imports anew: that cell makes them, and every
    later cell that imports from the package needs them. What is imported from elsewhere is the same under all settings, and counts
    neither as made nor as needed. A cell that calls `globals()` needs all that was made before. `trainer.train()` makes the trainer
    and the `model`.
    """
    rows: list[Cell] = []
    maker: dict[str, int] = {}  # the last cell so far that makes a name
    needed: list[dict[str, int]] = []  # of each cell: names, and who makes them
    for title, tags, source in _code(cells):
        place = len(rows)
        needs, makes, taken = _method_cell() if "method" in tags else _cell(title, ast.parse(source), package)
        if "globals" in needs:
            needs |= maker.keys()
        needed.append({name: maker[name] for name in sorted(needs & maker.keys())})
        rests = {*needed[place].values()}
        for at in [*rests]:
            rests.update(rows[at].rests)
        for at in rests:
            rows[at].feeds.append(place)
        for at, names_needed in enumerate(needed[:place]):
            spoiled = {names_needed[name] for name in taken & names_needed.keys()}
            rows[at].spoilers.extend((place, whose) for whose in sorted(spoiled))
        rows.append(Cell(title, sorted(makes), sorted(rests), [], []))
        maker |= dict.fromkeys(makes, place)
    return rows


def _method_cell() -> tuple[set[str], set[str], set[str]]:
    return {"run"}, {METHOD}, set()


def _cell(title: str, tree: ast.Module, package: str) -> tuple[set[str], set[str], set[str]]:
    """Names that a cell needs, those that it makes, and those among them that it binds or trains."""
    needs, makes = _reads(compile(tree, title, "exec")), names(tree)[1]
    elsewhere = _imported(tree, package)
    needs -= elsewhere
    trained = _trained(tree)
    taken = {
        step.argval for step in dis.get_instructions(compile(tree, title, "exec")) if step.opname in BOUND
    } | trained
    makes = {name for name in makes - elsewhere | trained if not name.startswith("_")}
    if any(node.attr == "use_method" for node in ast.walk(tree) if isinstance(node, ast.Attribute)):
        needs.add(METHOD)
        makes.add(package)
    elif any(name.startswith(package) for name in imports(tree, "")):
        needs.add(package)
    return needs, makes, taken - _imported(tree)


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


def _imported(tree: ast.Module, package: str = "") -> set[str]:
    """Names that imports bind, but for imports from the package."""
    bound = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                origin = f"{getattr(node, 'module', alias.name)}.{alias.name}"
                if not package or not origin.startswith(package):
                    bound.add(alias.asname or alias.name.partition(".")[0])
    return bound


def _trained(tree: ast.Module) -> set[str]:
    """Names of the objects that are trained: `name.train(...)`, `train(name, ...)`."""
    trained = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and node.func.attr == "train":
            subject = node.func
        elif isinstance(node.func, ast.Name) and node.func.id == "train" and node.args:
            subject = node.args[0]
        else:
            continue
        trained |= {part.id for part in ast.walk(subject) if isinstance(part, ast.Name)}
    return trained | ({"model"} if trained else set())
