"""Query-dependent absolute positions elsewhere."""

from __future__ import annotations

from math import sqrt

import torch
from bottleneck_transformer_pytorch.bottleneck_transformer_pytorch import AbsPosEmb

from relpos.positions import AbsoluteKeys

from ..comparison import Comparison, Trial, attended, randomized
from .inputs import HEADS, WIDTH, hidden
from .self_attention_cv import AbsPosEmb1D


def projected(length: int) -> list[torch.Tensor]:
    """Queries, keys and values `(b, h, i, d)`, leaves all three."""
    return [hidden(length, width=WIDTH, batch=2 * HEADS, seed=seed) for seed in range(3)]


def run_self_attention_cv(length: int) -> Trial:
    theirs = randomized(AbsPosEmb1D(length, WIDTH))
    leaves = projected(length)
    q, k, v = (leaf.unflatten(0, (2, HEADS)) for leaf in leaves)
    scores = q @ k.mT / sqrt(WIDTH) + theirs(q)
    # Their term is added unscaled.
    tables = {"rows": theirs.abs_pos_emb * sqrt(WIDTH)}
    return Trial(
        ours=attended(AbsoluteKeys(WIDTH, length, dtype=torch.float64), tables, q, k, v),
        theirs=scores.softmax(-1) @ v,
        leaves={**dict(zip("qkv", leaves, strict=True)), "rows": theirs.abs_pos_emb},
        tables=["rows"],
    )


def run_bottleneck(shape: tuple[int, int]) -> Trial:
    """A map's row and column add up to the place's vector."""
    theirs = randomized(AbsPosEmb(shape, WIDTH))
    length = shape[0] * shape[1]
    leaves = projected(length)
    q, k, v = (leaf.unflatten(0, (2, HEADS)) for leaf in leaves)
    scores = q / sqrt(WIDTH) @ k.mT + theirs(q / sqrt(WIDTH))
    tables = {"rows": (theirs.height[:, None] + theirs.width).flatten(0, 1)}
    return Trial(
        ours=attended(AbsoluteKeys(WIDTH, length, dtype=torch.float64), tables, q, k, v),
        theirs=scores.softmax(-1) @ v,
        leaves={**dict(zip("qkv", leaves, strict=True)), **dict(theirs.named_parameters())},
        tables=["height", "width"],
    )


COMPARISONS = [
    Comparison(
        "AbsoluteKeys", "AbsPosEmb1D", "self-attention-cv", "S q_i . k_j + q_i . R_j: unscaled",
        run_self_attention_cv, cases=({"length": 1}, {"length": 33}, {"length": 65}),
    ),
    Comparison(
        "AbsoluteKeys", "AbsPosEmb, 5 x 7 map", "bottleneck-transformer-pytorch",
        "S q_i . (k_j + H[y_j] + W[x_j])", run_bottleneck,
        cases=({"shape": (1, 1)}, {"shape": (5, 7)}),
    ),
]  # fmt: skip
