"""Which of several entities of one name is meant.

The task is a function of a `ranking.Scorer`, so that a model, its ablations and the baselines are measured by the same code.

# Q queries · X candidates
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from helpers.graphmer.graph.knowledge_graph import KnowledgeGraph
from helpers.graphmer.graph.ontology import Ontology
from helpers.graphmer.graph.splits import Splits
from helpers.graphmer.links.ranking import PARTS, TAIL, Scorer, admitted, bootstrap_interval, scores_of, true_answers
from helpers.graphmer.text.documents import header_and_source

CALLS = ("calls",)


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
        if others and (text is None or re.search(rf"\b{re.escape(name)}\b", header_and_source(head, text)[1])):
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
        heads = sorted({mentions[place].head for place in places})
        scores = dict(scores_of(scorer, heads, relation, list(names), TAIL, chunk))
        for place in places:
            scores_X = scores[mentions[place].head]
            best_X = scores_X == scores_X.max()
            right_P[place] = best_X[names.index(mentions[place].tail)] / best_X.sum()
    counts = [1 + len(mention.others) for mention in mentions]
    return {
        "top1": float(right_P.mean()),
        "interval": bootstrap_interval(right_P, [mention.head for mention in mentions]),
        "mentions": len(mentions),
        "chance": float(np.mean([1 / count for count in counts])),
        "candidates": float(np.mean(counts)),
    }
