"""Cells in any order: no cell runs on what was made for other settings, another method or other data, or on what is unfinished.

The setup cell hands over what notebooks/cell_order.py read from the notebook. When a cell runs, what later cells made of its names is
taken out of the notebook. While a cell that it rests on has not run to its end, a cell is refused before its first line. An edited cell
is recognised by the names that it makes; a cell of the reader's own may use whatever is there.
"""

from __future__ import annotations

import ast
import dis
import json
from typing import NamedTuple

from IPython.core.error import InputRejected

# What %%writefile writes; among the names of a cell it stands for the method's file. Before there is a `run`, IPython takes the
# text as it stands: its folder does not exist then, and nothing is written.
METHOD = '"{run.method.parent}/{run.method.name}"'


class Cell(NamedTuple):
    """A cell of the notebook as it was built.

    makes: names. rests: places of the cells whose names it needs, and of those that these need. feeds: places of the cells that rest
    on it. spoilers: later cells that take or train what it needs, each with the cell that makes it.
    """

    title: str
    makes: list[str]
    rests: list[int]
    feeds: list[int]
    spoilers: list[tuple[int, int]]


class OutOfOrder(InputRejected):
    """Other cells have to run before this one."""

    def _render_traceback_(self) -> list[str]:
        return [f"OutOfOrder: {self}"]


def names(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Names that a cell needs, outside its functions, and names that it makes. Assigning a part of an object makes the object."""
    code = compile(tree, "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    needs, assigned = set(), {METHOD}.intersection(code.co_consts)
    for step in dis.get_instructions(code):
        if step.opname in ("STORE_NAME", "DELETE_NAME"):
            assigned.add(step.argval)
        elif step.opname == "LOAD_NAME" and step.argval not in assigned:
            needs.add(step.argval)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            assigned |= needs.intersection(getattr(part, "id", "") for part in ast.walk(node))
    return needs, assigned


class Order:
    """An AST transformer of IPython, which may refuse a cell.

    ran: code and names of the cells that count, in the order of their last run, by place; the reader's own by their code. begun: when
    a cell began, counted in cells.
    """

    def __init__(self, shell, cells: str):
        self.variables = shell.user_ns
        self.cells = [Cell(*fields) for fields in json.loads(cells)]
        self.ran: dict[int | str, tuple[str, set[str]]] = {}
        self.begun: dict[int | None, int] = {}
        self.running: tuple = ()

    def visit(self, tree: ast.AST) -> ast.AST:
        """Before a cell runs. Raises OutOfOrder."""
        if not isinstance(tree, ast.Module):
            return tree
        needs, assigned = names(tree)
        place = self._place(assigned)
        missing: set[int] = set()
        stale: set[int] = set()
        if place is None:
            for maker in self._makers(needs - self.variables.keys()) - self.ran.keys():
                missing |= {maker, *self.cells[maker].rests}
            missing -= self.ran.keys()
            for maker in self._makers(assigned):
                stale.update(self.cells[maker].feeds)
        else:
            cell = self.cells[place]
            missing.update(cell.rests)
            missing -= self.ran.keys()
            for spoiler, maker in cell.spoilers:
                if self.begun.get(spoiler, 0) > self.begun.get(maker, 0):
                    missing.add(maker)
            stale = {place, *cell.feeds}
        if missing:
            raise OutOfOrder(self._remedy(missing, needs))
        for old in stale:
            self.ran.pop(old, None)
        self._forget(stale, needs)
        self.begun[place] = max(self.begun.values(), default=-1) + 1
        code = ast.unparse(tree)
        key = code if place is None else place
        self.running = key, code, needs | assigned
        return tree

    def finish(self, result) -> None:
        """After a cell."""
        if self.running and result.success:
            key, code, used = self.running
            self.ran.pop(key, None)
            self.ran[key] = code, used
        self.running = ()

    def code(self) -> list[str]:
        """Code of the running cell, after that of the cells on which it rests and of the reader's own, as they ran."""
        place, running, _ = self.running
        codes = []
        for key, (code, _) in self.ran.items():
            if isinstance(key, str) or key in self.cells[place].rests:
                codes.append(code)
        return [*codes, running]

    def _place(self, assigned: set[str]) -> int | None:
        """The place of the notebook's cell that these names fit best, half of its own at least: all where it has the parameters."""
        best, place_found = 0.0, None
        for place, cell in enumerate(self.cells):
            shared, own = len(assigned.intersection(cell.makes)), len(cell.makes)
            fit = shared**2 / max(own, 1)
            is_enough = 2 * shared >= own if cell.rests else shared == own
            if fit > best and is_enough:
                best, place_found = fit, place
        return place_found

    def _makers(self, looked_for: set[str]) -> set[int]:
        return {place for place, cell in enumerate(self.cells) if looked_for.intersection(cell.makes)}

    def _remedy(self, missing: set[int], needs: set[str]) -> str:
        titles, lost = [], set()
        for place in sorted(missing):
            titles.append(f"- {self.cells[place].title}")
            lost.update(self.cells[place].makes)
        needed = sorted(lost & needs) or ["other cells"]
        if len(needed) > 3:
            needed = [*needed[:3], "..."]
        return (
            f"this cell needs {', '.join(needed)} (missing or out of date): the settings, the method or the data have changed, "
            "the model was trained since, or a cell was stopped. Run these cells to their end, in this order, then this one:\n"
            + "\n".join(titles)
        )

    def _forget(self, stale: set[int], needs: set[str]) -> None:
        """Takes out what stale cells made, unless a cell that counts made it, too, or the present one needs it."""
        gone = set()
        for place in stale:
            for name in {*self.cells[place].makes} - needs:
                if not self._makers({name}) & self.ran.keys():
                    gone.add(name)
                    self.variables.pop(name, None)
        for key, (_, used) in [*self.ran.items()]:
            if isinstance(key, str) and gone & used:
                del self.ran[key]


watching: Order  # from `watch` on


def watch(shell, cells: str) -> None:
    """Watches the cells of this notebook (JSON: the fields of each), and those of no other that ran in this kernel."""
    global watching
    shell.ast_transformers = [other for other in shell.ast_transformers if not hasattr(other, "ran")]
    watching = Order(shell, cells)
    shell.ast_transformers.append(watching)
    shell.events.register("post_run_cell", watching.finish)
