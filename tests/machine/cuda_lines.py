"""The lines of helpers that only a CUDA GPU runs, and which of them a process has run."""

import ast
import functools
import sys
from pathlib import Path

HELPERS = Path(__file__).resolve().parents[2] / "helpers"
Place = tuple[str, int]  # file below helpers, line


@functools.cache
def only_on_cuda() -> dict[Place, str]:
    """The first line of each such statement: in `if` of something that is named after CUDA, with `torch.cuda`, in CudaEngine."""
    found = {}
    for path in sorted(HELPERS.rglob("*.py")):
        text = path.read_text()
        name, lines = str(path.relative_to(HELPERS)), text.splitlines()
        for statement in _statements(ast.parse(text), on_cuda=False):
            found[name, statement.lineno] = lines[statement.lineno - 1].strip()
    return found


def _statements(node: ast.AST, on_cuda: bool):
    for child in ast.iter_child_nodes(node):
        within = on_cuda or (isinstance(node, ast.If) and child in node.body and _is_cuda(node.test))
        within |= isinstance(child, ast.ClassDef) and "Cuda" in child.name
        if not isinstance(child, ast.stmt):
            continue
        if hasattr(child, "body"):
            yield from _statements(child, within)
        elif not _is_docstring(child) and (within or "id='torch'), attr='cuda'" in _dump(child)):
            yield child
    for other in getattr(node, "handlers", []):
        yield from _statements(other, on_cuda)


def _is_cuda(test: ast.expr) -> bool:
    return "cuda" in _dump(test).lower() and not any(word in _dump(test) for word in ("NotEq", "Not()"))


def _dump(node: ast.AST) -> str:
    return ast.dump(node).replace(", ctx=Load()", "")


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def watch() -> set[Place]:
    """From now on every line of a function that holds one of them is added to this set when it runs (in this thread)."""
    seen: set[Place] = set()
    files = {str(HELPERS / name): name for name, _ in only_on_cuda()}

    def on_call(frame, event, argument):
        return on_line if frame.f_code.co_filename in files else None

    def on_line(frame, event, argument):
        seen.add((files[frame.f_code.co_filename], frame.f_lineno))
        return on_line

    sys.settrace(on_call)
    return seen
