"""What the encoder learned: the tails of held-out triples, beside words and the untrained start.

Filtered ranking as PyKEEN's RankBasedEvaluator has it: other true tails are left out, and equal scores share the mean of their ranks.

# Q triples · X candidates · N entities · E embedding
"""

import random
from collections.abc import Callable, Sequence

import numpy as np
import torch

from .encoder import GraphMERForPreTraining
from .graph.knowledge_graph import Triple
from .search import index_texts, words
from .search_training import reciprocal_rank
from .text import shown_name
from .training import Corpus

BATCH = 256  # texts of a forward pass


def draw_triples(corpus: Corpus, limit: int) -> list[Triple]:
    """Test triples whose tail is asked for, the same for every method; 0 takes all."""
    test = corpus.splits.test
    return sorted(random.Random(0).sample(test, min(limit or len(test), len(test))))


def rank_tails(scorer: Callable, corpus: Corpus, triples: Sequence[Triple]) -> np.ndarray:
    """Reciprocal ranks [Q] of the right tail among all entities that the relation admits, and those few that are asked for against it.

    scorer: makes scores [X] for each head of heads, a relation and candidates.
    """
    encoded, ranks = corpus.train.encoded, {}
    for name in {triple.relation for triple in triples}:
        questions = [triple for triple in triples if triple.relation == name]
        heads = [encoded.number[triple.head] for triple in questions]
        relation = encoded.relations.id(name)
        admitted = encoded.admitted[encoded.relations.tail_types[relation]]
        candidates = sorted({*admitted, *(encoded.number[triple.tail] for triple in questions)})
        for triple, head, scores in zip(questions, heads, scorer(heads, relation, candidates), strict=True):
            scores_X = np.array(scores, np.float64)
            tail = encoded.number[triple.tail]
            others = encoded.true_tails[head, relation] - {tail}
            scores_X[np.isin(candidates, [*others])] = -np.inf
            ranks[triple] = reciprocal_rank(scores_X, candidates.index(tail))
    return np.array([ranks[triple] for triple in triples])


def score_words(corpus: Corpus) -> Callable:
    """BM25 of the candidates' names with the head's source as the question: what costs nothing."""
    ids = [entity.id for entity in corpus.train.encoded.entities]

    def score(heads, relation, candidates):
        index = index_texts([shown_name(ids[number]) for number in candidates])
        texts = [corpus.documents.text(ids[head]) for head in heads]
        return [index.scores(words(text)) for text in texts]

    return score


@torch.no_grad()
def score_encoder(model: GraphMERForPreTraining, corpus: Corpus) -> Callable:
    """Cosine of what a masked leaf of the relation asks for at the head's document and of each name."""
    model.eval()
    parts = torch.from_numpy(corpus.validation.encoded.text_ids_EC).split(BATCH)
    # One by one, since XLA would make one program of all.
    entities = [model.entities(part.to(model.device)).cpu() for part in parts]
    entities_NE = torch.cat(entities).numpy()

    @torch.no_grad()
    def score(heads, relation, candidates):
        scores = []
        for head in heads:
            fields = corpus.validation.query(head, relation)
            fields = {name: field.to(model.device) for name, field in fields.items()}
            states = model(**fields)
            query_E = model.queries(states)[0, 0].cpu().numpy()
            scores.append(entities_NE[candidates] @ query_E)
        return scores

    return score
