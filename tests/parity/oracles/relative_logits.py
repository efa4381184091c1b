"""Inkling's relative logits elsewhere: a small query of the layer's input, nothing beyond."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from transformers.models.inkling.modeling_inkling import InklingRelativeLogits

from relpos.positions import RelativeLogits

from ..comparison import Comparison, Trial, attended, randomized
from .inputs import HEADS, MODEL, WIDTH, hidden, split

# torch.jit, which it uses for two activations, is deprecated.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from x_transformers.x_transformers import RelativeProjPositionalBias

EXTENT, BASIS = 20, 4


def trial(x: Tensor, keys: int, bias: Tensor, profiles: Tensor, projection: Tensor) -> Trial:
    """Scores with their bias beside ours, causal, scaled by `1 / d` as in the model."""
    scheme = RelativeLogits(EXTENT, BASIS, HEADS, MODEL, scale=1 / WIDTH, dtype=torch.float64)
    # Theirs count backwards from the query.
    tables = {"keys": profiles.mT.flip(0)[None], "r_proj.weight": projection}
    others = [hidden(length, seed=n) for n, length in enumerate((x.shape[1], keys, keys))]
    q, k, v = (split(each) for each in others)
    mask = torch.ones(x.shape[1], keys, dtype=torch.bool).tril(keys - x.shape[1])
    scores = (q @ k.mT / WIDTH + bias).masked_fill(~mask, -torch.inf)
    leaves = dict(zip("xqkv", (x, *others), strict=True))
    return Trial(
        ours=attended(scheme, tables, q, k, v, x, causal=True, scale=1 / WIDTH),
        theirs=scores.softmax(-1) @ v,
        leaves={**leaves, "profiles": profiles, "projection": projection},
        tables=["profiles", "projection"],
    )


def run_inkling(queries: int, keys: int) -> Trial:
    theirs = randomized(InklingRelativeLogits(BASIS, EXTENT))
    project = randomized(nn.Linear(MODEL, HEADS * BASIS, bias=False), seed=1)
    x = hidden(queries)
    positions = torch.arange(keys)
    relative = project(x).unflatten(2, (HEADS, BASIS))
    bias = theirs(relative, positions[keys - queries :], positions)
    return trial(x, keys, bias, theirs.proj, project.weight)


def run_x_transformers(queries: int, keys: int) -> Trial:
    """Its projection has a bias of its own, which is zero here."""
    theirs = randomized(RelativeProjPositionalBias(MODEL, HEADS, BASIS, EXTENT))
    project = theirs.to_distance_weights[0]
    nn.init.zeros_(project.bias)
    x = hidden(queries)
    return trial(x, keys, theirs(x, seq_len_k=keys), theirs.distance_bank, project.weight)


PAIRS = ({"queries": 1, "keys": 33}, {"queries": 33, "keys": 33}, {"queries": 33, "keys": 65})
FORMULA = "q_i . k_j / d + (x W)_i . P[i - j]"
REMARK = "causal; nothing from the extent on"
COMPARISONS = [
    Comparison(
        "RelativeLogits", "InklingRelativeLogits", "transformers", FORMULA, run_inkling, PAIRS,
        remark=REMARK,
    ),
    Comparison(
        "RelativeLogits", "RelativeProjPositionalBias", "x-transformers", FORMULA,
        run_x_transformers, PAIRS, remark=REMARK,
    ),
]  # fmt: skip
