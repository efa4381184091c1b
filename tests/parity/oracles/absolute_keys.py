"""Query-dependent absolute positions elsewhere."""

from __future__ import annotations

from functools import partial
from math import sqrt

import torch
from bottleneck_transformer_pytorch.bottleneck_transformer_pytorch import AbsPosEmb

from relpos.positions import AbsoluteKeys
from relpos.positions import AbsPosEmb1D as OurAbsPosEmb1D
from tests.parity.comparison import Comparison, Trial, attended, randomized
from tests.parity.oracles.inputs import HEADS, WIDTH, hidden
from tests.parity.oracles.self_attention_cv import AbsPosEmb1D


def projected(length: int) -> list[torch.Tensor]:
    """Queries, keys and values `(b, h, i, d)`, leaves all three."""
    return [hidden(length, width=WIDTH, batch=2 * HEADS, seed=seed) for seed in range(3)]


def run_self_attention_cv(length: int, *, namesake: bool = False) -> Trial:
    """Their term is added unscaled; relpos's class of their name takes the rows as they are."""
    theirs = randomized(AbsPosEmb1D(length, WIDTH))
    leaves = projected(length)
    q, k, v = (leaf.unflatten(0, (2, HEADS)) for leaf in leaves)
    scores = q @ k.mT / sqrt(WIDTH) + theirs(q)
    rows = theirs.abs_pos_emb
    tables = {"abs_pos_emb": rows} if namesake else {"rows": rows * sqrt(WIDTH)}
    scheme = OurAbsPosEmb1D(length, WIDTH) if namesake else AbsoluteKeys(WIDTH, length)
    return Trial(
        ours=attended(scheme.double(), tables, q, k, v),
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


LENGTHS = ({"length": 1}, {"length": 33}, {"length": 65})
COMPARISONS = [
    Comparison(
        "AbsoluteKeys", "AbsPosEmb1D", "self-attention-cv", "S q_i . k_j + q_i . R_j",
        run_self_attention_cv, LENGTHS,
    ),
    Comparison(
        "AbsPosEmb1D", "AbsPosEmb1D", "self-attention-cv", "S q_i . k_j + q_i . R_j",
        partial(run_self_attention_cv, namesake=True), LENGTHS,
    ),
    Comparison(
        "AbsoluteKeys", "AbsPosEmb", "bottleneck-transformer-pytorch",
        "S q_i . (k_j + H[y_j] + W[x_j])", run_bottleneck,
        cases=({"shape": (1, 1)}, {"shape": (5, 7)}), remark="a map of 5 x 7",
    ),
]  # fmt: skip
