"""Cells in any order: no cell runs on what was made for other settings, another method or other data, or on what is unfinished.

The setup cell hands over what notebooks/build.py read from the notebook: for every cell its heading, the names that it makes, and the
cells that make what it needs. When a cell runs, what later cells made of its names is taken out of the notebook. While a cell that it
needs has not run to its end, a cell is refused before its first line. An edited cell is recognised by the names that it makes; a cell
of the reader's own may use whatever is there.
"""

from __future__ import annotations

import ast
import dis
import json
from typing import NamedTuple

from IPython.core.error import InputRejected

METHOD = '"{run.method}"'  # what %%writefile writes: among the names of a cell it stands for the method's file


class OutOfOrder(InputRejected):
    """Other cells have to run before this one."""

    def _render_traceback_(self) -> list[str]:
        return [f"OutOfOrder: {self}"]


class Cell(NamedTuple):
    """A cell of the notebook as it was built.

    makes: names. makers: places of the cells that make what it needs. spoilers: places of later cells that take or train what it
    needs, each with the place of the cell that makes it.
    """

    title: str
    makes: set[str]
    makers: set[int]
    spoilers: list[tuple[int, int]]


class Run(NamedTuple):
    """A cell that ran: its code, the names that it needed and made, its place; None for a cell of the reader's own."""

    code: str
    needs: set[str]
    makes: set[str]
    place: int | None


def names(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Names that a cell needs, outside its functions, and names that it makes. Assigning a part of an object makes the object."""
    code = compile(tree, "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    needs, makes = set(), {METHOD}.intersection(code.co_consts)
    for step in dis.get_instructions(code):
        if step.opname in ("STORE_NAME", "DELETE_NAME"):
            makes.add(step.argval)
        elif step.opname == "LOAD_NAME" and step.argval not in makes:
            needs.add(step.argval)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            parts = {getattr(part, "id", "") for part in ast.walk(node)}
            makes |= needs & parts
    return needs, makes


class Order:
    """An AST transformer of IPython, which may refuse a cell.

    ran: the cells that count, in the order of their last run, by place; those of the reader's own by their code. begun: how many
    cells were begun when that at a place was.
    """

    def __init__(self, shell, cells: list):
        self.variables = shell.user_ns
        self.cells = [Cell(title, {*makes}, {*makers}, spoilers) for title, makes, makers, spoilers in cells]
        self.ran: dict[int | str, Run] = {}
        self.begun: dict[int | None, int] = {}
        self.running: Run | None = None

    def visit(self, tree: ast.AST) -> ast.AST:
        """Before a cell runs. Raises OutOfOrder."""
        if not isinstance(tree, ast.Module):
            return tree
        needs, makes = names(tree)
        place = self._place(makes)
        if place is None:
            missing = self._first_makers(needs - self.variables.keys()) - self.ran.keys()
        else:
            missing = self.cells[place].makers - self.ran.keys()
            for spoiler, maker in self.cells[place].spoilers:
                if self.begun.get(spoiler, 0) > self.begun.get(maker, 0):
                    missing.add(maker)
        self._refuse(needs, missing)
        self.ran.pop(place, None)
        self.begun[place] = sum(self.begun.values()) + 1
        self._forget(self._makers(makes) if place is None else {place}, needs)
        self.running = Run(ast.unparse(tree), needs, makes, place)
        return tree

    def finish(self, result) -> None:
        """After a cell."""
        run, self.running = self.running, None
        if run and result.success:
            key = run.code if run.place is None else run.place
            self.ran.pop(key, None)
            self.ran[key] = run
        elif isinstance(result.error_in_exec, NameError):  # in a function of another cell
            name = {result.error_in_exec.name}
            self._refuse(name, self._first_makers(name) - self.ran.keys())

    def code(self) -> list[str]:
        """The running cell's code, after that of the cells which it needs, directly or not, and of the reader's own, as they ran."""
        needed = {self.running.place}
        for place in reversed(range(len(self.cells))):
            if place in needed:
                needed |= self.cells[place].makers
        runs = [run for run in self.ran.values() if run.place is None or run.place in needed]
        return [run.code for run in [*runs, self.running]]

    def _refuse(self, needs: set[str], missing: set[int]) -> None:
        """Raises OutOfOrder if cells are missing."""
        if not missing:
            return
        names = ", ".join(sorted(name for name in needs if self._makers({name}) & missing))
        for place in reversed(range(len(self.cells))):
            if place in missing:
                missing |= self.cells[place].makers - self.ran.keys()
        titles = "\n".join(f"- {self.cells[place].title}" for place in sorted(missing))
        raise OutOfOrder(
            f"this cell needs {names or 'other cells'}: not there, made before the settings, the method or the data changed, or left by a "
            f"cell that was stopped. Run these cells to their end, in this order, and then this one again:\n{titles}"
        )

    def _place(self, makes: set[str]) -> int | None:
        """The place of the notebook's cell that makes most of these names, if they are half of its own: all of the parameters."""
        best, found = (1, -1_000), None
        for place, cell in enumerate(self.cells):
            shared = len(makes & cell.makes)
            enough = len(cell.makes) / (2 if cell.makers else 1)
            if shared >= enough and (shared, -len(cell.makes)) > best:
                best, found = (shared, -len(cell.makes)), place
        return found

    def _makers(self, names: set[str]) -> set[int]:
        return {place for place, cell in enumerate(self.cells) if names & cell.makes}

    def _first_makers(self, names: set[str]) -> set[int]:
        return {min(self._makers({name}), default=-1) for name in names} - {-1}

    def _forget(self, touched: set[int], needs: set[str]) -> None:
        """Takes out what was made of what the touched cells make. What these make themselves goes where they count no more."""
        stale, gone = set(touched), set()
        for place, cell in enumerate(self.cells):
            if cell.makers & stale:
                stale.add(place)
                self.ran.pop(place, None)
            if place in stale:
                gone |= cell.makes - needs
        for name in gone:
            if not self._makers({name}) & self.ran.keys():
                self.variables.pop(name, None)
        for key, run in [*self.ran.items()]:
            if run.place is None and gone & (run.needs | run.makes) - self.variables.keys():
                del self.ran[key]


watching: Order | None = None


def watch(shell, cells: str) -> None:
    """Watches the cells of this notebook (JSON: the fields of each), and those of no other that ran in this kernel."""
    global watching
    for former in [known for known in shell.ast_transformers if hasattr(known, "ran")]:
        shell.ast_transformers.remove(former)
        shell.events.unregister("post_run_cell", former.finish)
    watching = Order(shell, json.loads(cells))
    shell.ast_transformers.append(watching)
    shell.events.register("post_run_cell", watching.finish)
