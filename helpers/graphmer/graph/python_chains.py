"""Expressions as the text of what they mention, with what only running would tell left out: a *chain*.

`os.path.join`, `f().x` and `<str>.join` (of a literal) can be looked up; `?.x`, an attribute of anything else, cannot.
"""

from __future__ import annotations

import ast

_LITERALS = {
    ast.JoinedStr: "<str>",
    ast.List: "<list>",
    ast.ListComp: "<list>",
    ast.Dict: "<dict>",
    ast.DictComp: "<dict>",
    ast.Set: "<set>",
    ast.SetComp: "<set>",
    ast.Tuple: "<tuple>",
}
_CONSTANTS = {kind: f"<{kind.__name__}>" for kind in (str, bytes, int, float, complex, bool)}
_TYPE_OPERATORS = {"Optional", "Union", "Annotated", "ClassVar", "Final", "InitVar", "Required", "NotRequired", "Type"}


def chain_of(node: ast.AST) -> str:
    names = ""
    while True:
        kind = type(node)
        if kind is ast.Attribute:
            names = f".{node.attr}{names}"
            node = node.value
        elif kind is ast.Name:
            return node.id + names
        elif kind is ast.Call:
            if type(node.func) is ast.Name and node.func.id == "super" and node.args:
                return f"super({chain_of(node.args[0])}){names}"
            names = f"(){names}"
            node = node.func
        else:
            root = _CONSTANTS.get(type(node.value)) if kind is ast.Constant else _LITERALS.get(kind)
            if root is None:
                return "?." + names.rpartition(".")[2] if names else "?"
            return root + names


def annotated_types(node: ast.AST | None) -> list[str]:
    """Chains of the types that an annotation names; of `list[int]` only the outer one, of `X | None` only X."""
    if node is None:
        return []
    kind = type(node)
    if kind is ast.Name or kind is ast.Attribute:
        return [chain_of(node)]
    if kind is ast.BinOp:
        return annotated_types(node.left) + annotated_types(node.right)
    if kind is ast.Subscript:
        outer = chain_of(node.value)
        if outer.rpartition(".")[2] not in _TYPE_OPERATORS:
            return [] if outer.rpartition(".")[2] == "Literal" else [outer]
        inner = node.slice
        if type(inner) is ast.Tuple:
            union = outer.endswith("Union")
            return [chain for part in inner.elts[: None if union else 1] for chain in annotated_types(part)]
        return annotated_types(inner)
    if kind is ast.Constant and type(node.value) is str:
        try:
            return annotated_types(ast.parse(node.value.strip(), mode="eval").body)
        except (SyntaxError, ValueError):
            return []
    return []
