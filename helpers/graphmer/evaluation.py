"""What the encoder learned: the tails of held-out triples, beside the resolver, words and the untrained start.

Filtered ranking as PyKEEN's RankBasedEvaluator has it: other true tails are left out, and equal scores share the mean of their ranks.

# Q triples · X candidates · N entities · E embedding
"""

import random
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import torch

from .encoder import GraphMERForPreTraining
from .graph.knowledge_graph import UNKNOWN, UNRESOLVED, Triple
from .search import index_texts, words
from .search_training import reciprocal_rank
from .text import shown_name
from .training import Corpus

BATCH = 256  # texts of a forward pass
Scorer = Callable[[list[str], str, list[str]], Sequence[np.ndarray]]  # heads, relation, candidates -> [X] for each head


def draw_triples(corpus: Corpus, most: int) -> list[Triple]:
    """Test triples whose tail is asked for, the same for every method; 0 takes all."""
    test = corpus.splits.test
    count = min(most or len(test), len(test))
    return sorted(random.Random(0).sample(test, count))


def rank_tails(scorer: Scorer, corpus: Corpus, triples: Sequence[Triple]) -> np.ndarray:
    """Reciprocal ranks [Q] of the right tail among all entities that the relation admits."""
    true_tails: dict[tuple[str, str], set[str]] = defaultdict(set)
    for head, relation, tail in corpus.graph.resolved():
        true_tails[head, relation].add(tail)
    ranks = {}
    for relation in {triple.relation for triple in triples}:
        questions = [triple for triple in triples if triple.relation == relation]
        candidates = admitted_tails(corpus, relation)
        for triple, scores in zip(
            questions, scorer([triple.head for triple in questions], relation, candidates), strict=True
        ):
            scores_X = np.array(scores, np.float64)
            others = true_tails[triple.head, relation] - {triple.tail}
            scores_X[np.isin(candidates, list(others))] = -np.inf
            ranks[triple] = reciprocal_rank(scores_X, candidates.index(triple.tail))
    return np.array([ranks[triple] for triple in triples])


def admitted_tails(corpus: Corpus, relation: str) -> list[str]:
    """Entities of the relation's range, of unknown type, and the few tails that the graph has against the ontology."""
    relations = corpus.train.encoded.relations
    types = {*relations.tail_types[relations.id(relation)], UNKNOWN}
    tails = {triple.tail for triple in corpus.graph.resolved() if triple.relation == relation}
    for entity in corpus.graph.entities.values():
        if entity.type in types and entity.status != UNRESOLVED:
            tails.add(entity.id)
    return sorted(tails)


def score_words(corpus: Corpus) -> Scorer:
    """BM25 of the candidates' names with the head's source as the question: what costs nothing."""

    def score(heads: list[str], relation: str, candidates: list[str]) -> list[np.ndarray]:
        index = index_texts([shown_name(name) for name in candidates])
        return [index.scores(words(corpus.documents.text(head))) for head in heads]

    return score


@torch.no_grad()
def score_encoder(model: GraphMERForPreTraining, corpus: Corpus) -> Scorer:
    """Cosine of what a masked leaf of the relation asks for at the head's document and of each name."""
    model.eval()
    chains, encoded = corpus.validation, corpus.validation.encoded
    parts = torch.from_numpy(encoded.text_ids_EC).split(BATCH)
    # One by one, since XLA would make one program of all.
    entities_NE = torch.cat([model.entities(part.to(model.device)).cpu() for part in parts]).numpy()

    @torch.no_grad()
    def score(heads: list[str], relation: str, candidates: list[str]) -> list[np.ndarray]:
        candidates_XE = entities_NE[[encoded.number[name] for name in candidates]]
        scores = []
        for head in heads:
            fields = chains.query(encoded.number[head], encoded.relations.id(relation))
            states = model(**{name: field.to(model.device) for name, field in fields.items()})
            query_E = model.queries(states)[0, 0].cpu().numpy()
            scores.append(candidates_XE @ query_E)
        return scores

    return score
