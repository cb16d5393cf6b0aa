"""What the ontology forbids, as terms of GraphMER's loss: triples that cannot all hold must not all score high.

    score     s(h, r, t) = cos(M_r h, t) of two entities' embeddings; a matrix a relation, so that s(h, r, t) is not s(t, r, h)
    hinge     max(0, mean score of a cycle - MARGIN)

An antisymmetric relation forbids h -> t -> h, an acyclic one also h -> t -> u -> h.

# P leaves · E entity embedding · R relations · D width
"""

import torch
from torch import Tensor, nn

MARGIN = 0.5  # mean score of a forbidden cycle that is let pass


def unit(x: Tensor):
    """Unit vectors, in fp32 at least."""
    if x.dtype != torch.float64:
        x = x.float()
    return nn.functional.normalize(x, dim=-1)


def mean_where(values: Tensor, counted: Tensor):
    """Mean of the values that count, 0 where none does."""
    count = counted.sum().to(values.dtype)
    return (values * counted).sum() / count.clamp(min=1)


def relation_product(vectors_PLD, relation_P, weight_RDD):
    """W_r v for each of the L vectors of each leaf [P, L, D]; relations from 1, and 0 of relation 0.

    A copy of W_r for each leaf would be P D^2 numbers. All R products have shapes that depend on no value: XLA compiles them once.
    """
    total_PLD = torch.zeros_like(vectors_PLD)
    for relation, weight_DD in enumerate(weight_RDD.unbind(), 1):
        is_relation_P = relation_P == relation
        total_PLD = total_PLD + (vectors_PLD @ weight_DD.T) * is_relation_P[:, None, None]
    return total_PLD


class OntologyTerms(nn.Module):
    """Scores of triples by the names of their ends, and the two terms over forbidden cycles.

    antisymmetric, acyclic: ids of relations, from 1.
    """

    def __init__(self, relations: int, size: int, antisymmetric: list[int], acyclic: list[int]):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(relations, size, size))
        forbidden_2R = torch.zeros(2, relations + 1)  # saved: from_pretrained makes what is not saved of empty memory
        forbidden_2R[0, antisymmetric] = 1
        forbidden_2R[1, acyclic] = 1
        self.register_buffer("forbidden_2R", forbidden_2R)

    def expected_tails(self, heads_PE, relation_P):
        """M_r h as unit vectors [P, E]; 0 of relation 0."""
        product_P1E = relation_product(heads_PE[:, None], relation_P, self.weight)
        return unit(product_P1E.squeeze(1))

    def forward(self, heads_PE, tails_PE, relation_P, head_P, tail_P, true_P):
        """The terms antisymmetry and acyclicity. head_P, tail_P: numbers of entities; true_P: leaves that are true triples.

        The third of a cycle is the tail of another leaf; all leaves are shifted by one random number, by 1 in evaluation.
        """
        other_P = self.other_leaves(tail_P)
        third_PE = tails_PE.index_select(0, other_P)
        third_P = tail_P.index_select(0, other_P)
        there_P = self.scores(heads_PE, tails_PE, relation_P)
        back_P = self.scores(tails_PE, heads_PE, relation_P)
        onward_P = self.scores(tails_PE, third_PE, relation_P)
        around_P = self.scores(third_PE, heads_PE, relation_P)
        pair, cycle = [there_P, back_P], [there_P, onward_P, around_P]
        distinct_P = true_P & (head_P != tail_P)
        antisymmetric_P, acyclic_P = distinct_P & self.forbidden_2R[:, relation_P].bool()
        three_P = acyclic_P & (third_P >= 0) & (third_P != tail_P) & (third_P != head_P)
        return {
            "antisymmetry": cycle_loss(pair, antisymmetric_P),
            "acyclicity": cycle_loss(pair, acyclic_P) + cycle_loss(cycle, three_P),
        }

    def scores(self, heads_PE, tails_PE, relation_P):
        return (self.expected_tails(heads_PE, relation_P) * tails_PE).sum(-1)

    def other_leaves(self, tail_P):
        count, device = len(tail_P), tail_P.device
        shift = 1
        if self.training:
            shift = torch.randint(1, max(count, 2), (1,), device=device)
        return (torch.arange(count, device=device) + shift) % count


def cycle_loss(scores: list[Tensor], counted_P):
    """Hinge on the mean score [P] of the triples of a forbidden cycle."""
    excess_P = torch.stack(scores).float().mean(0) - MARGIN
    return mean_where(excess_P.clamp(min=0), counted_P)
