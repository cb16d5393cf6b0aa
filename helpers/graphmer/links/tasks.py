"""What else an encoder is asked: masked tokens and leaves, and functions by the first sentence of their docstring.

# B sequences · G leaves · L tokens of a leaf · N functions · V vocabulary
"""

from __future__ import annotations

import ast
import random
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch

from helpers.graphmer.graph.knowledge_graph import DEFINED, KnowledgeGraph
from helpers.graphmer.links.ranking import bootstrap_interval, filtered_ranks
from helpers.graphmer.text.documents import header_and_source


@dataclass(frozen=True)
class Function:
    """A function to be found: `sentence` is the first of its docstring, `code` its text without the docstring."""

    entity: str
    sentence: str
    code: str


def documented_functions(
    graph: KnowledgeGraph,
    text: Callable[[str], str],
    entities: Iterable[str],
    *,
    functions: int = 1000,
    words: int = 3,
    seed: int = 0,
) -> list[Function]:
    """Python functions and methods among `entities` whose docstring asks for them and for no other; sorted.

    text: entity id -> its source, its name on a line before it or not.
    functions: at most so many, drawn with `seed`.
    words: a sentence has at least so many. One that several functions share is no query, nor are they to be found.
    """
    found = []
    for name in sorted(set(entities)):
        entity = graph.entities[name]
        if entity.status != DEFINED or entity.end_line <= entity.line:
            continue
        header, source = header_and_source(name, text)
        split = split_docstring(source)
        if split and len(split[0].split()) >= words:
            found.append(Function(name, split[0], header + split[1]))
    shared = Counter(function.sentence.casefold() for function in found)
    found = [function for function in found if shared[function.sentence.casefold()] == 1]
    return sorted(random.Random(seed).sample(found, min(functions, len(found))), key=lambda function: function.entity)


def code_search(scores_NN: np.ndarray) -> dict:
    """MRR@10 of docstring sentence -> function, from the score of each sentence and function; equal ones get their mean rank.

    Returns {"mrr@10", "interval" (95 %, bootstrap), "functions", "chance"}. Raises ValueError: scores that are NaN.
    """
    count = len(scores_NN)
    ranks_N = filtered_ranks(scores_NN, range(count), [[place] for place in range(count)])
    reciprocal_N = np.where(ranks_N <= 10, 1 / ranks_N, 0.0)
    return {
        "mrr@10": float(reciprocal_N.mean()),
        "interval": bootstrap_interval(reciprocal_N),
        "functions": count,
        "chance": sum(1 / place for place in range(1, 1 + min(10, count))) / count,
    }


def split_docstring(source: str) -> tuple[str, str] | None:
    """First sentence of a Python function's docstring, and the source without the docstring; None if it has none."""
    source = textwrap.dedent(source)
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):  # not Python
        return None
    function = body[0] if len(body) == 1 else None  # a module has more
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    text = (ast.get_docstring(function) or "").strip()
    if not text:
        return None
    node, lines = function.body[0], source.encode().splitlines(keepends=True)  # columns of a tree are bytes
    before = lines[node.lineno - 1][: node.col_offset]
    rest = before + lines[node.end_lineno - 1][node.end_col_offset :].lstrip(b"; \t")
    code = b"".join((*lines[: node.lineno - 1], rest if rest.strip() else b"", *lines[node.end_lineno :])).decode()
    paragraph = " ".join(re.split(r"\n\s*\n", text, maxsplit=1)[0].split())
    return re.split(r"(?<=[.!?])\s", paragraph, maxsplit=1)[0], code


def count_right(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Tokens that are the likeliest, tokens asked for, and where labels are of leaves [B, G, L] leaves that are right, leaves.

    A leaf is right when each of its labelled tokens is. logits [..., V] of labels [...]; -100 counts nowhere. The counts are
    int64 on the device of the logits.
    """
    asked = labels != -100
    of_labels = logits.gather(-1, labels.clamp_min(0)[..., None])
    # Equal logits count against the label, and NaN too, so that a constant or a broken model is never right.
    right = ((logits >= of_labels).sum(-1) == 1) & ~logits.isnan().any(-1)
    counts = [(right & asked).sum(), asked.sum()]
    if labels.dim() == 3:
        there = asked.any(-1)
        counts += [((right | ~asked).all(-1) & there).sum(), there.sum()]
    return torch.stack(counts)
