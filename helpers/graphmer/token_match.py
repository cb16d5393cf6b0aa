"""How well an entity's name fits what a masked leaf expects, token by token: names of entities never seen are made of known tokens.

A vector a text forgets rare words. Here a leaf also says which tokens it expects, by a product with the embeddings, and which
it copies from its document's roots, by exact match. The first collapses to one more dot product of vectors; the second is
late interaction over equal tokens, as COIL has it (Gao, Dai and Callan, arXiv 2104.07186).

A name has three fields, matched apart: its own part (`default` of `method json.encoder.JSONEncoder.default`), its owner
(`JSONEncoder.`) and the rest. Who calls it writes the first, what `JSONEncoder` contains has the second, what `json` holds the third.
Of its own part also pairs of neighbours are copied, hashed: `get_state` is not any name with `get` and `_state` in it, and `.default`
is not `default(`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from helpers.graphmer.architecture import MATCH_KEY, MATCH_PAIRS

# B batch · S roots · G leaves · C tokens of an entity's text · D width · V vocabulary · K key · P queries · X entities
# F fields · T tokens and pairs of a document

FIELDS = 3  # own part, owner, rest: token v of field f is number v + f V; then come pairs
_MIX = 40_503  # a prime: two tokens seldom share a number with two others


class LeafTokens(NamedTuple):
    """What leaves ask for: expected [B, G, F D] to be multiplied with a name's mean embeddings, and the tokens that they copy.

    Of these the numbers ids_BT, the same for all leaves of a sequence, and the weights copied_BGT.
    """

    expected: torch.Tensor
    ids_BT: torch.Tensor
    copied_BGT: torch.Tensor


class NameTokens(NamedTuple):
    """What names offer: mean embedding of the tokens of each field [X, F D], bias_X of all, numbers and weights to meet copies.

    The last two are [X, 2 C - 1]: the tokens', then the pairs'.
    """

    mean: torch.Tensor
    bias_X: torch.Tensor
    ids_XT: torch.Tensor
    weights_XT: torch.Tensor


class TokenMatch(nn.Module):
    """score(leaf, name) = sum over fields f and tokens c there of w_c (expected_f . embedding_c + bias_c + weight of copies of c for f)
    + sum over pairs p of the own part of w_p (weight of copies of p).

    w is softplus of a learned weight a token or pair, the w of a field scaled to one learned length, so that a long name gains
    nothing.

    separators: tokens that end a part, such as those of `.` and `(`; the own part is behind the last. Without any, all of a
        name is its own part.
    """

    def __init__(self, vocab_size: int, hidden_size: int, separators: Sequence[int] = ()):
        super().__init__()
        self.vocab_size = vocab_size
        self.expected = nn.Linear(hidden_size, FIELDS * hidden_size)
        self.copy_query = nn.Linear(hidden_size, (FIELDS + 1) * MATCH_KEY)
        self.copy_key = nn.Linear(hidden_size, (FIELDS + 1) * MATCH_KEY)
        self.copy_offset = nn.Parameter(torch.empty(FIELDS + 1))
        self.token_weight = nn.Parameter(torch.empty(vocab_size))
        self.pair_weight = nn.Parameter(torch.empty(MATCH_PAIRS))
        self.token_bias = nn.Parameter(torch.empty(vocab_size))
        self.log_length = nn.Parameter(torch.empty(FIELDS + 1))
        separates_V = torch.zeros(vocab_size)
        separates_V[list(separators)] = 1
        # Saved with the weights: from_pretrained makes what is not saved of empty memory.
        self.register_buffer("separates_V", separates_V)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """All but the linear maps, which the model initialises as it does its others."""
        with torch.no_grad():
            self.copy_offset.fill_(-1.0)  # little is copied at first
            for weight in (self.token_weight, self.pair_weight, self.token_bias, self.log_length):
                weight.zero_()

    @property
    def numbers(self) -> int:
        """Of tokens in each field and of pairs."""
        return FIELDS * self.vocab_size + MATCH_PAIRS

    def leaves(
        self,
        leaves_BGD: torch.Tensor,
        roots_BSD: torch.Tensor,
        root_ids_BS: torch.Tensor,
        leaf_segments_BG: torch.Tensor,
        root_segments_BS: torch.Tensor,
    ) -> LeafTokens:
        """Of leaves that may copy from the roots of their own document."""
        query_BFGK = self.copy_query(leaves_BGD).unflatten(-1, (FIELDS + 1, -1)).transpose(1, 2)
        key_BFSK = self.copy_key(roots_BSD).unflatten(-1, (FIELDS + 1, -1)).transpose(1, 2)
        scores_BFGS = (query_BFGK @ key_BFSK.transpose(2, 3) / MATCH_KEY**0.5).float()
        own_BGS = (leaf_segments_BG[..., None] == root_segments_BS[:, None]) & (root_segments_BS > 0)[:, None]
        copied_BFGS = nn.functional.softplus(scores_BFGS + self.copy_offset[:, None, None]) * own_BGS[:, None]
        next_segment_BS = nn.functional.pad(root_segments_BS[:, 1:], (0, 1))
        after_BS = nn.functional.pad(root_ids_BS[:, 1:], (0, 1)) * (next_segment_BS == root_segments_BS)
        ids_BT = torch.cat(
            [*(root_ids_BS + field * self.vocab_size for field in range(FIELDS)), self._pairs(root_ids_BS, after_BS)],
            dim=1,
        )
        return LeafTokens(self.expected(leaves_BGD), ids_BT, copied_BFGS.transpose(1, 2).flatten(2))

    def names(self, text_ids: torch.Tensor, embedding_VD: torch.Tensor, pad: int) -> NameTokens:
        """Of texts [..., C]; an empty one offers nothing."""
        field = self._field(text_ids)
        fields = torch.stack([field == one for one in range(FIELDS)], dim=-2) & (text_ids != pad)[..., None, :]
        weights = nn.functional.softplus(_of_tokens(text_ids, self.token_weight)).float()[..., None, :] * fields
        norm = (weights.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        weights = weights * self.log_length[:FIELDS].exp()[:, None] / norm
        tokens = nn.functional.embedding(text_ids, embedding_VD)
        mean = (weights.to(tokens.dtype) @ tokens).flatten(-2)
        weights = weights.sum(-2)  # a token is of one field
        bias = (weights * _of_tokens(text_ids, self.token_bias)).sum(-1)
        pairs, pair_weights = self._own_pairs(text_ids, (field == 0) & (text_ids != pad))
        ids = torch.cat((text_ids + self.vocab_size * field, pairs), dim=-1)
        return NameTokens(mean, bias, ids, torch.cat((weights, pair_weights), dim=-1))

    def _own_pairs(self, text_ids: torch.Tensor, own: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Numbers and weights [..., C - 1] of neighbours whose second is of the own part; the first may be the separator."""
        pairs = self._pairs(text_ids[..., :-1], text_ids[..., 1:])
        weights = nn.functional.softplus(_of_tokens(pairs - FIELDS * self.vocab_size, self.pair_weight)).float()
        weights = weights * own[..., 1:]
        norm = (weights.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        return pairs, weights * self.log_length[FIELDS].exp() / norm

    def _pairs(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Number of each pair."""
        return FIELDS * self.vocab_size + (first * _MIX + second) % MATCH_PAIRS

    def _field(self, text_ids: torch.Tensor) -> torch.Tensor:
        """Of tokens [..., C]: how many separators are at or behind them, int64, at most the last field."""
        separates = _of_tokens(text_ids, self.separates_V)
        return separates.flip(-1).cumsum(-1).flip(-1).long().clamp(max=FIELDS - 1)

    def bags(self, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """[..., numbers] from numbers of tokens and pairs and their weights [..., n]."""
        empty = weights.new_zeros((*weights.shape[:-1], self.numbers))
        return empty.scatter_add(-1, ids.expand(weights.shape), weights)

    def copied_bags(self, leaves: LeafTokens) -> torch.Tensor:
        """[B, G, numbers] of what leaves copy, fp32."""
        return self.bags(leaves.ids_BT[:, None], leaves.copied_BGT).float()

    def scores(self, leaves: LeafTokens, names: NameTokens) -> torch.Tensor:
        """[P, X] of every leaf (P = B G) and every name, fp32."""
        dense_PX = (leaves.expected.flatten(0, 1) @ names.mean.T).float() + names.bias_X
        return dense_PX + self.copied_bags(leaves).flatten(0, 1) @ self.bags(names.ids_XT, names.weights_XT).float().T

    def own_scores(self, leaves: LeafTokens, names: NameTokens) -> torch.Tensor:
        """[B, G, U] of every leaf and its own U names; `names` of these [B, G, U, ...]."""
        dense_BGU = (names.mean @ leaves.expected[..., None]).squeeze(-1).float() + names.bias_X
        copied = self.copied_bags(leaves).gather(-1, names.ids_XT.flatten(2)).view(names.ids_XT.shape)
        return dense_BGU + (names.weights_XT * copied).sum(-1)


def _of_tokens(ids: torch.Tensor, values_V: torch.Tensor) -> torch.Tensor:
    return nn.functional.embedding(ids, values_V[:, None]).squeeze(-1)
