"""Inkling's relative logits elsewhere: a small query of the layer's input, nothing beyond."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from transformers.models.inkling.configuration_inkling import InklingTextConfig
from transformers.models.inkling.modeling_inkling import InklingAttention, InklingRelativeLogits

from relpos.positions import RelativeLogits
from tests.parity.comparison import Comparison, Trial, attended, randomized
from tests.parity.oracles.inputs import HEADS, MODEL, WIDTH, hidden, merge, split

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


def run_layer(length: int, scaled: bool = False) -> Trial:
    """A whole layer: normalised queries and keys, short convolutions, one key head.

    From 16 tokens on its long-context factor multiplies queries and relative logits, if `scaled`.
    """
    config = InklingTextConfig(
        hidden_size=MODEL, num_attention_heads=HEADS, num_key_value_heads=1, head_dim=WIDTH,
        d_rel=BASIS, rel_extent=EXTENT, num_hidden_layers=1, layer_types=["hybrid"],
        log_scaling_n_floor=16 if scaled else None, attn_implementation="sdpa",
    )  # fmt: skip
    theirs = randomized(InklingAttention(config, layer_idx=0))
    x = hidden(length)
    mask = torch.ones(1, 1, length, length, dtype=torch.bool).tril()
    tau = torch.ones(length, 1)
    if scaled:
        grown = (torch.arange(1, length + 1).float() / 16).clamp(min=1).log()
        tau = 1 + config.log_scaling_alpha * grown[:, None]
    q = theirs.q_norm(split(theirs.q_proj(x))) * tau
    k = theirs.k_norm(split(theirs.k_sconv(theirs.k_proj(x)), 1))
    v = split(theirs.v_sconv(theirs.v_proj(x)), 1)
    scheme = RelativeLogits(EXTENT, BASIS, HEADS, MODEL, scale=1 / WIDTH, dtype=torch.float64)
    profiles = theirs.rel_logits_proj.proj
    tables = {"keys": profiles.mT.flip(0)[None], "r_proj.weight": theirs.r_proj.weight}
    ours = attended(scheme, tables, q, k, v, x * tau, causal=True, scale=1 / WIDTH)
    return Trial(
        ours=theirs.o_proj(merge(ours)),
        theirs=theirs(x, mask)[0],
        leaves={"x": x, **dict(theirs.named_parameters())},
        tables=["rel_logits_proj.proj", "r_proj.weight"],
    )


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
        "RelativeLogits", "InklingAttention", "transformers", FORMULA, run_layer,
        cases=({"length": 1}, {"length": 33}), remark="causal; a whole layer, one key head",
    ),
    Comparison(
        "RelativeLogits", "InklingAttention", "transformers",
        "t_i (q_i . k_j / d + (x W)_i . P[i - j])", run_layer,
        cases=({"length": 33, "scaled": True}, {"length": 65, "scaled": True}),
        precision=torch.finfo(torch.float32).eps / 2,
        remark="the same with its long-context factor t, multiplied in float32",
    ),
    Comparison(
        "RelativeLogits", "RelativeProjPositionalBias", "x-transformers", FORMULA,
        run_x_transformers, PAIRS, remark=REMARK,
    ),
]  # fmt: skip
