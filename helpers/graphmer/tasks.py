"""What an encoder of code is for, beyond links: search, call graph, dependencies, names, masked tokens.

Each task is a function of a callable (a `ranking.Scorer`, a score of text pairs, logits), so that a model, its ablations and
the baselines are measured by the same code.
"""

from __future__ import annotations

import ast
import io
import random
import re
import textwrap
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from helpers.graphmer.knowledge_graph import DEFINED, KnowledgeGraph, Triple
from helpers.graphmer.ontology import Ontology
from helpers.graphmer.ranking import (
    PARTS,
    TAIL,
    Scorer,
    admitted,
    bootstrap_interval,
    filtered_ranks,
    rate,
    score,
    true_answers,
)
from helpers.graphmer.splits import Splits

if TYPE_CHECKING:
    import torch

# Q queries · N functions · P pairs · V vocabulary

TextScore = Callable[[list[str], list[str]], np.ndarray]  # queries, documents -> [Q, N], higher is likelier
IGNORED = -100
CALLS, IMPORTS = ("calls",), ("imports", "imports_name")


def by_embedding(embed: Callable[[list[str]], np.ndarray], embed_queries: Callable | None = None) -> TextScore:
    """Cosine of embeddings, texts -> [N, E], as a score of text pairs."""

    def unit(vectors: np.ndarray) -> np.ndarray:
        vectors = np.asarray(vectors, np.float32)
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)

    return lambda queries, documents: unit((embed_queries or embed)(queries)) @ unit(embed(documents)).T


# ---- code search


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
        header, source = _header_and_source(name, text)
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


def _header_and_source(entity_id: str, text: Callable[[str], str]) -> tuple[str, str]:
    """The line with the entity's own name where the text begins with it, else "", and the source."""
    found, header = text(entity_id), f"{entity_id}\n"
    return (header, found.removeprefix(header)) if found.startswith(header) else ("", found)


# ---- call graph and dependencies


@dataclass(frozen=True)
class Pairs:
    """Candidate pairs of one task; `true` says which of them hold."""

    triples: tuple[Triple, ...]
    true: tuple[bool, ...]


def candidate_pairs(
    splits: Splits,
    graph: KnowledgeGraph,
    ontology: Ontology,
    *,
    relations: Sequence[str],
    part: str,
    negatives: int = 4,
    max_heads: int = 0,
    seed: int = 0,
) -> Pairs:
    """The true tails of each (head, relation) of a part, and `negatives` wrong ones for each of them.

    Half of the wrong ones, where there are so many, are hard: what else the part says of the head's module, and entities
    of the same name as a true tail. The others are any candidates of the relation.

    max_heads: (head, relation) pairs, drawn with `seed`; 0 is all.

    Raises ValueError: an unknown part, no triple of the relations in it, `negatives` below 1.
    """
    if part not in PARTS:
        raise ValueError(f"part={part!r}: must be one of {', '.join(PARTS)}")
    if negatives < 1:
        raise ValueError(f"negatives={negatives}: must be at least 1; F1 of true pairs alone says nothing")
    tails: dict[tuple[str, str], list[str]] = defaultdict(list)
    for triple in getattr(splits, part):
        if triple.relation in relations:
            tails[triple.relation, triple.head].append(triple.tail)
    if not tails:
        raise ValueError(f"relations={list(relations)}, part={part!r}: no triple of these")
    known = true_answers((*splits.train, *splits.validation, *splits.test, *graph.resolved()))
    candidates = {name: found[TAIL] for name, found in admitted(graph, ontology, {key[0] for key in tails}).items()}
    named: dict[tuple[str, str], list[str]] = defaultdict(list)
    for relation, found in candidates.items():
        for name in found:
            named[relation, graph.entities[name].name].append(name)
    near: dict[tuple[str, str], set[str]] = defaultdict(set)
    for (relation, head), found in tails.items():
        near[relation, graph.entities[head].module].update(found)
    draw = random.Random(seed)
    chosen = sorted(tails)
    if max_heads and max_heads < len(chosen):
        chosen = sorted(draw.sample(chosen, max_heads))
    triples, true = [], []
    for relation, head in chosen:
        found, right = tails[relation, head], known[TAIL, relation, head] | {head}
        hard = set(near[relation, graph.entities[head].module])
        for tail in found:
            hard.update(named[relation, graph.entities[tail].name])
        hard = sorted(hard - right)
        count = negatives * len(found)
        wrong = set(draw.sample(hard, min(len(hard), count // 2)))
        for name in draw.sample(candidates[relation], min(len(candidates[relation]), 2 * count + len(right))):
            if len(wrong) < count and name not in right:
                wrong.add(name)
        triples += [Triple(head, relation, tail) for tail in (*found, *sorted(wrong))]
        true += [True] * len(found) + [False] * len(wrong)
    return Pairs(tuple(triples), tuple(true))


def pair_scores(scorer: Scorer, pairs: Pairs, *, chunk: int = 2**22) -> np.ndarray:
    """[P]; the candidates of a relation are those of all its pairs."""
    places: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))  # relation -> head -> pairs
    for place, triple in enumerate(pairs.triples):
        places[triple.relation][triple.head].append(place)
    scores_P = np.empty(len(pairs.triples))
    for relation, by_head in places.items():
        tails = sorted({pairs.triples[place].tail for found in by_head.values() for place in found})
        column = {name: number for number, name in enumerate(tails)}
        heads, size = sorted(by_head), max(1, chunk // len(tails))
        for first in range(0, len(heads), size):
            block = heads[first : first + size]
            scores_QX = score(scorer, block, relation, tails, TAIL)
            for row, head in enumerate(block):
                scores_P[by_head[head]] = scores_QX[row, [column[pairs.triples[place].tail] for place in by_head[head]]]
    return scores_P


def best_threshold(scores_P: Sequence[float], true_P: Sequence[bool]) -> float:
    """The score from which on pairs are called true, so that their F1 is highest; between two scores where it can be.

    Raises ValueError: no true pair, or scores that are NaN.
    """
    scores_P, true_P = np.asarray(scores_P, np.float64), np.asarray(true_P, bool)
    if not true_P.any() or np.isnan(scores_P).any():
        raise ValueError("pairs: no true one among them, or scores that are NaN; a threshold needs both to be there")
    order = np.argsort(-scores_P, kind="stable")
    scores_P, hits_P = scores_P[order], np.cumsum(true_P[order])
    f1_P = 2 * hits_P / (np.arange(1, len(scores_P) + 1) + true_P.sum())
    ends_P = np.append(scores_P[:-1] != scores_P[1:], True)  # equal scores are called true together
    best = int(np.where(ends_P, f1_P, -1).argmax())
    if best + 1 == len(scores_P):
        return float(scores_P[best])
    middle = (scores_P[best] + scores_P[best + 1]) / 2
    return float(middle if np.isfinite(middle) and middle > scores_P[best + 1] else scores_P[best])


def pair_f1(scorer: Scorer, validation: Pairs, test: Pairs, *, seed: int = 0, chunk: int = 2**22) -> dict:
    """F1 of the true pairs of `test`, called true from the threshold on that is best on `validation`.

    Returns {"f1", "precision", "recall", "interval" (95 % of F1, bootstrap over heads), "threshold", "pairs", "true",
    "all_true" (the F1 of calling every pair true)}.
    """
    threshold = best_threshold(pair_scores(scorer, validation, chunk=chunk), validation.true)
    called_P, true_P = pair_scores(scorer, test, chunk=chunk) >= threshold, np.asarray(test.true)
    heads_P = np.unique([triple.head for triple in test.triples], return_inverse=True)[1]
    hits_G, called_G, true_G = (np.bincount(heads_P, found) for found in (called_P & true_P, called_P, true_P))
    draws = np.random.default_rng(seed).multinomial(len(hits_G), np.full(len(hits_G), 1 / len(hits_G)), 1000)
    resampled = 2 * (draws @ hits_G) / np.maximum(draws @ (called_G + true_G), 1)
    hits, called, true = int(hits_G.sum()), int(called_G.sum()), int(true_G.sum())
    return {
        "f1": 2 * hits / (called + true),
        "precision": hits / called if called else 0.0,
        "recall": hits / true,
        "interval": [float(bound) for bound in np.percentile(resampled, (2.5, 97.5))],
        "threshold": threshold,
        "pairs": len(test.triples),
        "true": true,
        "all_true": 2 * true / (len(test.triples) + true),
    }


# ---- which one of a name


@dataclass(frozen=True)
class Mention:
    head: str
    relation: str
    tail: str
    others: tuple[str, ...]  # entities of the same name that the relation admits and that are wrong


def ambiguous_mentions(
    splits: Splits,
    graph: KnowledgeGraph,
    ontology: Ontology,
    *,
    text: Callable[[str], str] | None = None,
    relations: Sequence[str] = CALLS,
    part: str = "test",
) -> list[Mention]:
    """Triples of a part whose tail shares its unqualified name with other entities that the relation admits.

    text: entity id -> source; with it only mentions that are a word of the head's source.

    Raises ValueError: an unknown part, or no such triple.
    """
    if part not in PARTS:
        raise ValueError(f"part={part!r}: must be one of {', '.join(PARTS)}")
    triples = [triple for triple in getattr(splits, part) if triple.relation in relations]
    known = true_answers((*splits.train, *splits.validation, *splits.test, *graph.resolved()))
    named: dict[tuple[str, str], list[str]] = defaultdict(list)
    for relation, found in admitted(graph, ontology, {triple.relation for triple in triples}).items():
        for name in found[TAIL]:
            named[relation, graph.entities[name].name].append(name)
    mentions = []
    for head, relation, tail in triples:
        right = known[TAIL, relation, head]
        name = graph.entities[tail].name
        others = tuple(other for other in named[relation, name] if other != tail and other not in right)
        if others and (text is None or re.search(rf"\b{re.escape(name)}\b", _header_and_source(head, text)[1])):
            mentions.append(Mention(head, relation, tail, others))
    if not mentions:
        raise ValueError(f"relations={list(relations)}, part={part!r}: no tail shares its name with another candidate")
    return mentions


def disambiguation(scorer: Scorer, mentions: Sequence[Mention], *, chunk: int = 2**22) -> dict:
    """How often the right entity scores above all others of its name; of equal best scores each counts its share.

    Returns {"top1", "interval" (95 %, bootstrap over heads), "mentions", "chance", "candidates" (mean a mention)}.
    """
    groups: dict[tuple[str, tuple[str, ...]], list[int]] = defaultdict(list)
    for place, mention in enumerate(mentions):
        groups[mention.relation, tuple(sorted((mention.tail, *mention.others)))].append(place)
    right_P = np.empty(len(mentions))
    for (relation, names), places in groups.items():
        candidates, size = list(names), max(1, chunk // len(names))
        for first in range(0, len(places), size):
            block = places[first : first + size]
            heads = sorted({mentions[place].head for place in block})
            scores_QX = score(scorer, heads, relation, candidates, TAIL)
            for place in block:
                scores_X = scores_QX[heads.index(mentions[place].head)]
                best_X = scores_X == scores_X.max()
                right_P[place] = best_X[candidates.index(mentions[place].tail)] / best_X.sum()
    counts = [1 + len(mention.others) for mention in mentions]
    return {
        "top1": float(right_P.mean()),
        "interval": bootstrap_interval(right_P, [mention.head for mention in mentions]),
        "mentions": len(mentions),
        "chance": float(np.mean([1 / count for count in counts])),
        "candidates": float(np.mean(counts)),
    }


# ---- masked tokens and masked leaves


class TokenAccuracy:
    """Top-k accuracy of masked tokens over batches, and of whole leaves where the labels have them.

    For MLM give logits [B, M, V] and labels [B, M], for MNM logits [B, G, L, V] and labels [B, G, L] with `leaves=True`: a
    leaf is right when each of its labelled tokens is the likeliest. Labels of -100 count nowhere. The counts stay on the
    device until `summary`.
    """

    def __init__(self, k: Sequence[int] = (1, 5, 10), *, leaves: bool = False):
        if not k or min(k) < 1:
            raise ValueError(f"k={list(k)}: must be numbers of at least 1")
        self.k, self.leaves = tuple(sorted(set(k))), leaves
        self._counts: torch.Tensor | None = None  # a token each k, tokens, leaves right, leaves

    def update(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Raises ValueError for shapes that do not fit."""
        import torch

        if logits.shape[:-1] != labels.shape:
            raise ValueError(
                f"logits {list(logits.shape)}, labels {list(labels.shape)}: give one row of logits a label"
            )
        asked = labels != IGNORED
        of_labels = logits.gather(-1, labels.clamp_min(0)[..., None])
        # Equal logits count against the label, so that a constant model is never right.
        places = (logits >= of_labels).sum(-1)
        places = places.masked_fill(logits.isnan().any(-1), logits.shape[-1] + max(self.k))
        counts = [((places <= k) & asked).sum() for k in self.k] + [asked.sum()]
        if self.leaves:
            there = asked.any(-1)
            counts += [(((places <= 1) | ~asked).all(-1) & there).sum(), there.sum()]
        counts = torch.stack(counts)
        self._counts = counts if self._counts is None else self._counts + counts

    def summary(self) -> dict:
        """{"top1": {"rate", "count", "of", "interval"}, "top5": ..., "leaf": ...}, Wilson, 95 %."""
        counts = [0] * (len(self.k) + 3) if self._counts is None else self._counts.tolist()
        tokens = counts[len(self.k)]
        found = {f"top{k}": rate(count, tokens) for k, count in zip(self.k, counts, strict=False)}
        return found | ({"leaf": rate(*counts[len(self.k) + 1 :])} if self.leaves else {})
