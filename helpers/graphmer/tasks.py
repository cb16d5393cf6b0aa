"""What links are for: which functions are called, which modules needed, which of several of a name is meant.

Each task is a function of a `ranking.Scorer`, so that a model, its ablations and the baselines are measured by the same code.

# Q queries · X candidates · P pairs · G heads
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from helpers.graphmer.documents import header_and_source
from helpers.graphmer.knowledge_graph import KnowledgeGraph, Triple
from helpers.graphmer.ontology import Ontology
from helpers.graphmer.ranking import PARTS, TAIL, Scorer, admitted, bootstrap_interval, scores_of, true_answers
from helpers.graphmer.splits import Splits

CALLS, IMPORTS = ("calls",), ("imports", "imports_name")


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
        for head, scores_X in scores_of(scorer, sorted(by_head), relation, tails, TAIL, chunk):
            scores_P[by_head[head]] = scores_X[[column[pairs.triples[place].tail] for place in by_head[head]]]
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
