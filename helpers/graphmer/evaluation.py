"""What the encoder learned: the tails of held-out triples, beside the resolver, words and the untrained start.

Filtered ranking as PyKEEN's RankBasedEvaluator has it: other true tails are left out, and equal scores share the mean of their ranks.

# Q triples · X candidates
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
Scorer = Callable[[str, str, list[str]], np.ndarray]  # head, relation, candidates -> [X]


def draw_triples(corpus: Corpus, most: int) -> list[Triple]:
    """Test triples whose tail is asked for, the same for every method; 0 takes all."""
    test = list(corpus.splits.test)
    if not most or most >= len(test):
        return test
    return sorted(random.Random(0).sample(test, most))


def rank_tails(scorer: Scorer, corpus: Corpus, triples: Sequence[Triple]) -> np.ndarray:
    """Reciprocal ranks [Q] of the right tail among all entities that the relation admits. Raises ValueError for scores that are NaN."""
    right: dict[tuple[str, str], set[str]] = defaultdict(set)
    tails: dict[str, set[str]] = defaultdict(set)
    for head, relation, tail in corpus.graph.resolved():
        right[head, relation].add(tail)
        tails[relation].add(tail)
    candidates = {}
    for relation in {triple.relation for triple in triples}:
        candidates[relation] = _admitted(corpus, relation, tails[relation])
    ranks = []
    for head, relation, tail in triples:
        names = candidates[relation]
        scores_X = np.array(scorer(head, relation, names), np.float64)
        if np.isnan(scores_X).any():
            raise ValueError(f"scores of {relation} are NaN, which has no rank; look at the model")
        others = right[head, relation] - {tail}
        scores_X[[name in others for name in names]] = -np.inf
        ranks.append(reciprocal_rank(scores_X, names.index(tail)))
    return np.array(ranks)


def _admitted(corpus: Corpus, relation: str, tails: set[str]) -> list[str]:
    """Entities of the relation's range, of unknown type, and the few `tails` that the graph has against the ontology."""
    relations = corpus.train.relations
    types = {*relations.tail_types[relations.id(relation)], UNKNOWN}
    entities = corpus.graph.entities.values()
    return [one.id for one in entities if one.id in tails or (one.type in types and one.status != UNRESOLVED)]


class Words:
    """BM25 of the candidates' names with the head's source as the question: what costs nothing."""

    def __init__(self, corpus: Corpus):
        self._documents, self._indices = corpus.documents, {}

    def __call__(self, head: str, relation: str, names: list[str]) -> np.ndarray:
        if relation not in self._indices:
            self._indices[relation] = index_texts([shown_name(name) for name in names])
        return self._indices[relation].scores(words(self._documents.text(head)))


class Encoder:
    """Cosine of what a masked leaf of the relation asks for at the head's document and of each name."""

    @torch.no_grad()
    def __init__(self, model: GraphMERForPreTraining, corpus: Corpus):
        self.model = model.eval()
        self.chains = corpus.validation
        parts = torch.from_numpy(self.chains.encoded.text_ids_EC).split(BATCH)
        # One by one, since XLA would make one program of all.
        entities = [self.model.entities(part.to(model.device)).cpu() for part in parts]
        self._entities = torch.cat(entities).numpy()

    @torch.no_grad()
    def __call__(self, head: str, relation: str, names: list[str]) -> np.ndarray:
        number = self.chains.encoded.number
        batch = self.chains.query(number[head], self.chains.relations.id(relation))
        states = self.model(**{name: value.to(self.model.device) for name, value in batch.items()})
        query_E = self.model.queries(states)[0, 0].cpu().numpy()
        return self._entities[[number[name] for name in names]] @ query_E
