"""How well an entity's name fits what a masked leaf expects, token by token: names of entities never seen are made of known tokens.

A vector a text forgets rare words. Here a leaf also says which tokens it expects, by a product with the embeddings, and which
it copies from its document's roots, by exact match. The first collapses to one more dot product of vectors; the second is
late interaction over equal tokens, as COIL has it (Gao, Dai and Callan, arXiv 2104.07186).

A name has three fields, matched apart: its own part (`default` of `method json.encoder.JSONEncoder.default`), its owner
(`JSONEncoder.`) and the rest. Who calls it writes the first, what `JSONEncoder` contains has the second, what `json` holds the third.
Of its own part also pairs of neighbours are copied, hashed: `get_state` is not any name with `get` and `_state` in it, and `.default`
is not `default(`. And paths are, whole: `json.encoder.JSONEncoder` of a document is the owner of `json.encoder.JSONEncoder.default`,
and of no other `default` of any other encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

# B batch · S roots · G leaves · C tokens of an entity's text · D width · V vocabulary · K key · P queries · X entities
# F fields · T tokens and pairs of a document

FIELDS = 3  # own part, owner, rest: token v of field f is number v + f V; then come pairs
MATCH_KEY = 64  # width in which a leaf finds the roots that it copies
MATCH_PAIRS = 2**14  # numbers that pairs of neighbouring tokens are hashed into
PATHS = 2**20  # numbers that paths are hashed into
PATH_TOKENS = 12  # the last of a path that are hashed
COPIED = FIELDS + 1 + FIELDS  # kinds of copies: tokens of each field, pairs, the path to the end of each field
_MIX = 40_503  # a prime: two tokens seldom share a number with two others


class LeafTokens(NamedTuple):
    """What leaves ask for: expected [B, G, F D] to be multiplied with a name's mean embeddings, and the tokens that they copy.

    Of these the numbers ids_BT, the same for all leaves of a sequence, and the weights copied_BGT. So of the paths that end at
    each root paths_BS, -1 where none does, and for each field of a name followed_BFGS.
    """

    expected: torch.Tensor
    ids_BT: torch.Tensor
    copied_BGT: torch.Tensor
    paths_BS: torch.Tensor
    followed_BFGS: torch.Tensor


class NameTokens(NamedTuple):
    """What names offer: mean embedding of the tokens of each field [X, F D], bias_X of all, numbers and weights to meet copies.

    The last two are [X, 2 C - 1]: the tokens', then the pairs'. paths_XF: of the path that ends with each field, -2 without.
    """

    mean: torch.Tensor
    bias_X: torch.Tensor
    ids_XT: torch.Tensor
    weights_XT: torch.Tensor
    paths_XF: torch.Tensor


class CopyHead(nn.Module):
    """score(leaf, name) = sum over fields f and tokens c there of w_c (expected_f . embedding_c + bias_c + weight of copies of c for f)
    + sum over pairs p of the own part of w_p (weight of copies of p) + sum over f of w_f (weight of copies of the path to the end of f).

    w is softplus of a learned weight a token or pair, the w of a field scaled to one learned length, so that a long name gains
    nothing.

    separators: tokens that end a part, such as those of `.` and `(`; the own part is behind the last. Without any, all of a
        name is its own part.
    breaks: tokens that are of no path; those of paths are words and, of the separators, the dot.
    """

    def __init__(self, vocab_size: int, hidden_size: int, separators: Sequence[int] = (), breaks: Sequence[int] = ()):
        super().__init__()
        self.vocab_size = vocab_size
        self.expected = nn.Linear(hidden_size, FIELDS * hidden_size)
        self.copy_query = nn.Linear(hidden_size, COPIED * MATCH_KEY)
        self.copy_key = nn.Linear(hidden_size, COPIED * MATCH_KEY)
        self.copy_offset = nn.Parameter(torch.empty(COPIED))
        self.token_weight = nn.Parameter(torch.empty(vocab_size))
        self.pair_weight = nn.Parameter(torch.empty(MATCH_PAIRS))
        self.token_bias = nn.Parameter(torch.empty(vocab_size))
        self.log_length = nn.Parameter(torch.empty(COPIED))
        separates_V, breaks_V = torch.zeros(2, vocab_size)
        separates_V[list(separators)] = 1
        breaks_V[list(breaks)] = 1
        # Saved with the weights: from_pretrained makes what is not saved of empty memory.
        self.register_buffer("separates_V", separates_V)
        self.register_buffer("breaks_V", breaks_V)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """All but the linear maps, which the model initialises as it does its others."""
        with torch.no_grad():
            self.copy_offset.fill_(-1.0)  # little is copied at first
            for weight in (self.token_weight, self.pair_weight, self.token_bias, self.log_length):
                weight.zero_()

    @property
    def numbers(self) -> int:
        """Of tokens in each field, of pairs and of paths to the end of each field."""
        return self.first_path + FIELDS * PATHS

    @property
    def first_path(self) -> int:
        """Number behind those of tokens and pairs."""
        return FIELDS * self.vocab_size + MATCH_PAIRS

    def leaf_tokens(
        self,
        leaves_BGD: torch.Tensor,
        roots_BSD: torch.Tensor,
        root_ids_BS: torch.Tensor,
        leaf_segments_BG: torch.Tensor,
        root_segments_BS: torch.Tensor,
    ) -> LeafTokens:
        """What each leaf expects of the name that it asks for, and how much it copies of each root of its own document.

        Of `return json.loads(text)` it can copy the token `loads`, the pair `.loads` and the path `json.loads`. There are N = COPIED
        kinds of copies, since tokens and paths weigh otherwise in each field of a name.

        Args:
            leaves_BGD, roots_BSD: states.
            root_ids_BS: tokens of the roots.
            leaf_segments_BG, root_segments_BS: number of the document that each belongs to, 0 for padding.
        """
        query_BNGK = self.copy_query(leaves_BGD).unflatten(-1, (COPIED, -1)).transpose(1, 2)
        key_BNSK = self.copy_key(roots_BSD).unflatten(-1, (COPIED, -1)).transpose(1, 2)
        scores_BNGS = (query_BNGK @ key_BNSK.transpose(2, 3) / MATCH_KEY**0.5).float()
        own_BGS = (leaf_segments_BG[..., None] == root_segments_BS[:, None]) & (root_segments_BS > 0)[:, None]
        copied_BNGS = nn.functional.softplus(scores_BNGS + self.copy_offset[:, None, None]) * own_BGS[:, None]
        goes_on_BS = nn.functional.pad(root_segments_BS[:, 1:], (0, 1)) == root_segments_BS
        next_ids_BS = nn.functional.pad(root_ids_BS[:, 1:], (0, 1)) * goes_on_BS
        ids_BT = torch.cat(
            [
                *(root_ids_BS + field * self.vocab_size for field in range(FIELDS)),
                self._pairs(root_ids_BS, next_ids_BS),
            ],
            dim=1,
        )
        ends_path_BS = self._words(root_ids_BS) & ~(self._words(next_ids_BS) & goes_on_BS)
        paths_BS = torch.where(ends_path_BS, self._paths(root_ids_BS, root_segments_BS), -1)
        of_tokens, of_paths = copied_BNGS.split((FIELDS + 1, FIELDS), dim=1)
        return LeafTokens(self.expected(leaves_BGD), ids_BT, of_tokens.transpose(1, 2).flatten(2), paths_BS, of_paths)

    def name_tokens(self, text_ids: torch.Tensor, embedding_VD: torch.Tensor, pad: int) -> NameTokens:
        """What names offer to be met, from their texts [..., C]; an empty one offers nothing."""
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
        return NameTokens(mean, bias, ids, torch.cat((weights, pair_weights), dim=-1), self._ends(text_ids, fields))

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

    def _words(self, ids: torch.Tensor) -> torch.Tensor:
        return _of_tokens(ids, self.separates_V + self.breaks_V) == 0

    def _paths(self, ids: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        """Of tokens [..., n]: number in [0, PATHS) of the path that each ends, by its last `PATH_TOKENS` tokens."""
        inside, total = torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids)
        goes_on = _of_tokens(ids, self.breaks_V) == 0
        for back in range(min(PATH_TOKENS, ids.shape[-1])):
            before, same, open_ = (
                nn.functional.pad(values[..., : values.shape[-1] - back], (back, 0))
                for values in (ids, segments, goes_on)
            )
            inside = inside & open_ & (same == segments)
            total = total + (before + 1) * inside * pow(_MIX, back + 1, PATHS)
        return total % PATHS

    def _ends(self, text_ids: torch.Tensor, fields: torch.Tensor) -> torch.Tensor:
        """[..., F]: number of the path that ends with the last word of each field; -2 without one."""
        places = torch.arange(1, text_ids.shape[-1] + 1, device=text_ids.device)
        last = ((fields & self._words(text_ids)[..., None, :]) * places).amax(-1)
        paths = self._paths(text_ids, torch.ones_like(text_ids)).gather(-1, (last - 1).clamp(min=0))
        return torch.where(last > 0, paths, -2)

    def bags(self, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """[..., first_path] from numbers of tokens and pairs and their weights [..., n]."""
        empty = weights.new_zeros((*weights.shape[:-1], self.first_path))
        return empty.scatter_add(-1, ids.expand(weights.shape), weights)

    def copied_bags(self, leaves: LeafTokens) -> torch.Tensor:
        """[B, G, first_path] of what leaves copy, fp32."""
        return self.bags(leaves.ids_BT[:, None], leaves.copied_BGT).float()

    def path_weights(self) -> torch.Tensor:
        """w of the path to the end of each field, [F]."""
        return self.log_length[FIELDS + 1 :].exp()

    def scores(self, leaves: LeafTokens, names: NameTokens) -> torch.Tensor:
        """[P, X] of every leaf (P = B G) and every name, fp32."""
        scores_PX = (leaves.expected.flatten(0, 1) @ names.mean.T).float() + names.bias_X
        if leaves.ids_BT.device.type == "xla":
            there_BTX = _weight_of(leaves.ids_BT, names.ids_XT[None], names.weights_XT[None])
            scores_PX = scores_PX + (leaves.copied_BGT.float() @ there_BTX).flatten(0, 1)
        else:
            bags_XV = self.bags(names.ids_XT, names.weights_XT).float()
            scores_PX = scores_PX + self.copied_bags(leaves).flatten(0, 1) @ bags_XV.T
        for field, weight in enumerate(self.path_weights()):
            same_BSX = leaves.paths_BS[..., None] == names.paths_XF[:, field]
            followed_BGX = leaves.followed_BFGS[:, field] @ same_BSX.to(leaves.followed_BFGS.dtype)
            scores_PX = scores_PX + weight * followed_BGX.flatten(0, 1)
        return scores_PX

    def own_scores(self, leaves: LeafTokens, names: NameTokens) -> torch.Tensor:
        """[B, G, U] of every leaf and its own U names; `names` of these [B, G, U, ...]."""
        scores_BGU = (names.mean @ leaves.expected[..., None]).squeeze(-1).float() + names.bias_X
        if leaves.ids_BT.device.type == "xla":
            there_BTX = _weight_of(leaves.ids_BT, names.ids_XT.flatten(1, 2), names.weights_XT.flatten(1, 2))
            there_BGTU = there_BTX.unflatten(-1, names.ids_XT.shape[1:3]).transpose(1, 2)
            scores_BGU = scores_BGU + (leaves.copied_BGT.float()[..., None] * there_BGTU).sum(2)
        else:
            copied = self.copied_bags(leaves).gather(-1, names.ids_XT.flatten(2)).view(names.ids_XT.shape)
            scores_BGU = scores_BGU + (names.weights_XT * copied).sum(-1)
        for field, weight in enumerate(self.path_weights()):
            same_BGSU = leaves.paths_BS[:, None, :, None] == names.paths_XF[:, :, None, :, field]
            followed_BG1S = leaves.followed_BFGS[:, field, :, None]
            scores_BGU = scores_BGU + weight * (followed_BG1S @ same_BGSU.to(followed_BG1S.dtype)).squeeze(2)
        return scores_BGU

    def all_copied(self, leaves: LeafTokens) -> tuple[torch.Tensor, torch.Tensor]:
        """Numbers [B, T + F S] and weights [B, G, T + F S] of all that leaves copy: tokens, pairs, paths."""
        none_BS = leaves.paths_BS < 0
        paths = [self.first_path + field * PATHS + leaves.paths_BS.clamp(min=0) for field in range(FIELDS)]
        followed_BGFS = (leaves.followed_BFGS * ~none_BS[:, None, None]).transpose(1, 2)
        return torch.cat((leaves.ids_BT, *paths), dim=1), torch.cat((leaves.copied_BGT, followed_BGFS.flatten(2)), -1)

    def all_of_names(self, names: NameTokens) -> tuple[torch.Tensor, torch.Tensor]:
        """Numbers and weights [X, T + F] of all by which names meet copies."""
        first_F = self.first_path + torch.arange(FIELDS, device=names.paths_XF.device) * PATHS
        weights_XF = self.path_weights() * (names.paths_XF >= 0)
        return (
            torch.cat((names.ids_XT, first_F + names.paths_XF.clamp(min=0)), dim=-1),
            torch.cat((names.weights_XT, weights_XF), dim=-1),
        )


def _of_tokens(ids: torch.Tensor, values_V: torch.Tensor) -> torch.Tensor:
    return nn.functional.embedding(ids, values_V[:, None]).squeeze(-1)


def _weight_of(ids_BT: torch.Tensor, ids_BXC: torch.Tensor, weights_BXC: torch.Tensor) -> torch.Tensor:
    """[B, T, X]: what each number weighs in each name, each compared with each; fused by XLA, too large for anything else.

    Bags would be filled by a scatter, for which XLA sends the numbers and the gradients of all chips to every one.
    """
    same_BTXC = ids_BT.int()[:, :, None, None] == ids_BXC.int()[:, None]
    return (same_BTXC * weights_BXC.float()[:, None]).sum(-1)
