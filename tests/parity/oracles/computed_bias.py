"""Biases that are formulas of the distance, from what others have of them; and no position."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.roformer.modeling_roformer import RoFormerSinusoidalPositionalEmbedding

import relpos
from relpos.positions import Kerple, NoPosition, Sandwich
from tests.parity.comparison import Comparison, Trial, attended
from tests.parity.oracles.bias import PAIRS, AlibiPositionalBias, added
from tests.parity.oracles.inputs import HEADS, hidden, split


def run_alibi(queries: int, keys: int) -> Trial:
    """Theirs with any slopes, which are `r1`; the exponent 1 is a sigmoid of 0, twice."""
    theirs = AlibiPositionalBias(HEADS)
    slopes = torch.linspace(0.1, 0.9, HEADS, dtype=torch.float64).requires_grad_()
    theirs.slopes = slopes[:, None, None]
    scheme = Kerple(HEADS, "power", dtype=torch.float64)
    tables = {"log_r1": slopes.log(), "logit_r2": torch.zeros(HEADS, dtype=torch.float64)}
    trial = added(theirs(queries, keys), tables, scheme, keys)
    return Trial(trial.ours, trial.theirs, {**trial.leaves, "slopes": slopes}, ["slopes"])


def run_sinusoids(queries: int, keys: int) -> Trial:
    """The paper's inner product of somebody else's sinusoids; it may leave a constant out."""
    rows = RoFormerSinusoidalPositionalEmbedding(keys, 32).create_weight().double()
    compression = torch.arange(1, HEADS + 1) * 8 / HEADS
    bias = (rows @ rows.mT)[keys - queries :] / compression[:, None, None]
    trial = added(bias, {}, Sandwich(HEADS, 32), keys)
    q, k, v = (split(leaf) for leaf in trial.leaves.values())
    return Trial(trial.ours, trial.theirs, trial.leaves, plain=relpos.attention(q, k, v))


def run_sdpa(queries: int, keys: int) -> Trial:
    leaves = [hidden(n, seed=seed) for seed, n in enumerate((queries, keys, keys))]
    q, k, v = (split(leaf) for leaf in leaves)
    return Trial(
        ours=attended(NoPosition(), {}, q, k, v),
        theirs=scaled_dot_product_attention(q, k, v),
        leaves=dict(zip("qkv", leaves, strict=True)),
        # Nothing is to be moved; keys backwards are only there to be different.
        plain=relpos.attention(q, k.flip(2), v),
    )


COMPARISONS = [
    Comparison(
        "Kerple", "AlibiPositionalBias", "x-transformers", "S q_i . k_j - r1 |j - i|", run_alibi,
        PAIRS, remark="the power with r2 = 1",
    ),
    Comparison(
        "Sandwich", "RoFormerSinusoidalPositionalEmbedding", "transformers",
        "S q_i . k_j + p_i . p_j h / (8 n)", run_sinusoids, PAIRS,
        precision=torch.finfo(torch.float32).eps, remark="inner products of rows in float32",
    ),
    Comparison(
        "NoPosition", "scaled_dot_product_attention", "torch", "S q_i . k_j", run_sdpa, PAIRS
    ),
]  # fmt: skip
