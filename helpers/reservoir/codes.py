"""Frozen input codes in which similar tokens are near each other: co-occurrence statistics of the training text, by SVD.

With random codes a readout learns every token anew at every delay.
"""

from __future__ import annotations

import numpy as np
import torch

# V vocabulary · C floats of a code · P distinct pairs

WINDOW_WEIGHTS = (1.0, 0.5, 1 / 3)  # of a neighbour by distance
CONTEXT_POWER = 0.75  # flattens the contexts' frequencies (Levy, Goldberg and Dagan 2015, section 3.1)
MAX_TOKENS = 20_000_000  # bounds time and memory


def cooccurrence_codes(tokens: np.ndarray, vocab_size: int, size: int, seed: int) -> torch.Tensor:
    """Codes [V, C] of unit mean square: the SVD of positive pointwise mutual information with the next and the last tokens.

    Left and right neighbours count apart (Levy and Goldberg 2014; singular values to the power 1/2 as in Levy, Goldberg and
    Dagan 2015). A token that never occurs has the code 0. The first 20 million tokens count.

    size: C, below V.
    seed: of the randomised SVD (Halko et al. 2011); the caller's generator stays as it was.
    """
    tokens = np.asarray(tokens[:MAX_TOKENS], dtype=np.int64)
    pairs, weights = _neighbours(tokens, vocab_size)
    token_P, context_P = pairs // (2 * vocab_size), pairs % (2 * vocab_size)
    token_V = np.bincount(token_P, weights, vocab_size)
    context_2V = np.bincount(context_P, weights, 2 * vocab_size) ** CONTEXT_POWER
    information_P = np.log(weights * context_2V.sum() / (token_V[token_P] * context_2V[context_P]))
    kept = information_P > 0
    matrix = torch.sparse_coo_tensor(
        torch.from_numpy(np.stack((token_P[kept], context_P[kept]))),
        torch.from_numpy(information_P[kept]).float(),
        (vocab_size, 2 * vocab_size),
        check_invariants=True,
    ).coalesce()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        left_VC, singular_C, _ = torch.svd_lowrank(matrix, q=min(size + 16, vocab_size), niter=4)
    codes_VC = left_VC[:, :size] * singular_C[:size].sqrt()
    seen_V1 = torch.from_numpy(token_V > 0)[:, None]
    codes_VC = torch.where(seen_V1, codes_VC - codes_VC[seen_V1[:, 0]].mean(0), 0.0)
    return torch.nn.functional.normalize(codes_VC, dim=1) * size**0.5


def _neighbours(tokens: np.ndarray, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes token * 2V + context of the distinct pairs, contexts to the right in [0, V), to the left in [V, 2V); weights."""
    all_pairs, all_weights = [], []
    for distance, weight in enumerate(WINDOW_WEIGHTS, start=1):
        earlier, later = tokens[:-distance], tokens[distance:]
        for pairs in (earlier * 2 * vocab_size + later, later * 2 * vocab_size + vocab_size + earlier):
            distinct, counts = np.unique(pairs, return_counts=True)
            all_pairs.append(distinct)
            all_weights.append(counts * weight)
    distinct, place = np.unique(np.concatenate(all_pairs), return_inverse=True)
    return distinct, np.bincount(place, np.concatenate(all_weights))
