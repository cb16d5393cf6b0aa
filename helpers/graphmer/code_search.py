"""Functions found by the first sentence of their docstring: MRR@10 of any score of text pairs.

# Q queries · N functions · E width of an embedding
"""

from __future__ import annotations

import ast
import io
import random
import re
import textwrap
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from helpers.graphmer.documents import header_and_source
from helpers.graphmer.knowledge_graph import DEFINED, KnowledgeGraph
from helpers.graphmer.ranking import bootstrap_interval, filtered_ranks

TextScore = Callable[[list[str], list[str]], np.ndarray]  # queries, documents -> [Q, N], higher is likelier


def by_embedding(embed: Callable[[list[str]], np.ndarray]) -> TextScore:
    """Cosine of embeddings, texts -> [N, E], as a score of text pairs."""

    def unit(vectors: np.ndarray) -> np.ndarray:
        vectors = np.asarray(vectors, np.float32)
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)

    return lambda queries, documents: unit(embed(queries)) @ unit(embed(documents)).T


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

    Raises ValueError: fewer than two are left.
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
    if len(found) < 2:
        raise ValueError(f"entities: {len(found)} functions with a docstring of their own; a search needs two")
    return sorted(random.Random(seed).sample(found, min(functions, len(found))), key=lambda function: function.entity)


def code_search(functions: Sequence[Function], similarity: TextScore) -> dict:
    """MRR@10 of docstring sentence -> function among all of `functions`; equal scores get their mean rank.

    Returns {"mrr@10", "interval" (95 %, bootstrap), "functions", "chance"}. Raises ValueError: scores that are NaN or of
    another shape than [N, N].
    """
    count = len(functions)
    scores_NN = np.asarray(
        similarity([function.sentence for function in functions], [function.code for function in functions])
    )
    if scores_NN.shape != (count, count):
        raise ValueError(f"similarity: scores {list(scores_NN.shape)} for {count} functions; give [{count}, {count}]")
    ranks_N = filtered_ranks(scores_NN, range(count), [[place] for place in range(count)])
    reciprocal_N = np.where(ranks_N <= 10, 1 / ranks_N, 0.0)
    return {
        "mrr@10": float(reciprocal_N.mean()),
        "interval": bootstrap_interval(reciprocal_N),
        "functions": count,
        "chance": sum(1 / place for place in range(1, 1 + min(10, count))) / count,
    }


def split_docstring(source: str) -> tuple[str, str] | None:
    """First sentence of a Python function's docstring, and the source without the docstring; None if it has none.

    The source may be cut off after the docstring.
    """
    source = textwrap.dedent(source)
    depth, state = 0, "before"
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if state == "before" and token.string in ("def", "class"):
                if token.string == "class":
                    return None
                state = "signature"
            elif state == "signature" and token.type == tokenize.OP:
                depth += (token.string in "([{") - (token.string in ")]}")
                if token.string == ":" and not depth:
                    state = "body"
            elif state == "body" and token.type == tokenize.STRING:
                return _cut(source, token)
            elif state == "body" and token.type not in _BLANK:
                return None
    except (tokenize.TokenError, SyntaxError):  # not Python, or cut off before the docstring's end
        return None
    return None


_BLANK = (tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.COMMENT)


def _cut(source: str, docstring: tokenize.TokenInfo) -> tuple[str, str] | None:
    try:
        value = ast.literal_eval(docstring.string)
    except ValueError:  # an f-string
        return None
    if not isinstance(value, str) or not value.strip():
        return None
    lines = source.splitlines(keepends=True)
    (first, start), (last, end) = docstring.start, docstring.end
    rest = lines[first - 1][:start] + lines[last - 1][end:].lstrip("; \t")
    code = "".join((*lines[: first - 1], rest if rest.strip() else "", *lines[last:]))
    paragraph = " ".join(re.split(r"\n\s*\n", value.strip(), maxsplit=1)[0].split())
    return re.split(r"(?<=[.!?])\s", paragraph, maxsplit=1)[0], code
