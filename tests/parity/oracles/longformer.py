"""Longformer's sliding window, without positions, and its global tokens: parts that are merged."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import LongformerConfig
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

import relpos
from tests.parity.comparison import Comparison, Trial, off_by_one, randomized
from tests.parity.oracles.float64 import float64_softmax
from tests.parity.oracles.inputs import HEADS, MODEL, hidden, keep, merge, split

RADIUS = 9


def longformer(
    x: Tensor, mask: Tensor, sees_all: Tensor | None = None
) -> tuple[LongformerSelfAttention, Tensor]:
    """Their layer and its output; as in their model, padding makes it a whole number of windows."""
    config = LongformerConfig(
        hidden_size=MODEL, num_attention_heads=HEADS, attention_window=[2 * RADIUS],
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    theirs = randomized(LongformerSelfAttention(config, layer_id=0))
    sees_all = torch.zeros_like(mask) if sees_all is None else sees_all
    missing = -x.shape[1] % (2 * RADIUS)
    padding, sees_all = ~pad(mask, (0, missing)), pad(sees_all, (0, missing))
    with float64_softmax():
        output = theirs(
            pad(x, (0, 0, 0, missing)),
            # Above zero for a global token, below for padding.
            attention_mask=sees_all.double() - padding.double(),
            is_index_masked=padding,
            is_index_global_attn=sees_all,
            is_global_attn=bool(sees_all.any()),
        )[0]
    return theirs, output[:, : x.shape[1]]


def run_longformer(
    length: int, padded: bool = False, window: tuple[int, int] = (RADIUS, RADIUS)
) -> Trial:
    """There is no position but the window."""
    x, mask = hidden(length), keep(length, padded=padded)
    theirs, output = longformer(x, mask)
    q, k, v = (split(linear(x)) for linear in (theirs.query, theirs.key, theirs.value))
    ranges = relpos.padding_ranges(mask.sum(1), length)
    # A padded query gives zeros in their code: compare the text.
    return Trial(
        ours=merge(relpos.attention(q, k, v, window=window, key_ranges=ranges))[mask],
        theirs=output[mask],
        leaves={"x": x, **dict(theirs.named_parameters())},
        plain=merge(relpos.attention(q, k, v, key_ranges=ranges))[mask],
    )


def run_global_tokens(
    length: int,
    tokens: tuple[list[int], list[int]],
    padded: bool = False,
    window: tuple[int, int] = (RADIUS, RADIUS),
    our_tokens: tuple[list[int], list[int]] | None = None,
) -> Trial:
    """`tokens` of each text see all, with projections of their own, and are seen by all."""
    x, mask = hidden(length), keep(length, padded=padded)
    theirs, output = longformer(x, mask, marked(tokens, length))
    sees_all = marked(tokens if our_tokens is None else our_tokens, length)
    q, k, v = (split(linear(x)) for linear in (theirs.query, theirs.key, theirs.value))
    ranges = relpos.padding_ranges(mask.sum(1), length)
    near = relpos.attention(
        q, k, v, window=window, key_ranges=ranges, mask=~sees_all[:, None, None], return_lse=True
    )
    far = relpos.attention(q, k, v, mask=sees_all[:, None, None], return_lse=True)
    local, _ = relpos.merge(*zip(near, far, strict=True))
    own = (theirs.query_global, theirs.key_global, theirs.value_global)
    everything = relpos.attention(*(split(linear(x)) for linear in own), key_ranges=ranges)
    return Trial(
        ours=merge(everything.where(sees_all[:, None, :, None], local))[mask],
        theirs=output[mask],
        leaves={"x": x, **dict(theirs.named_parameters())},
        plain=merge(relpos.attention(q, k, v, key_ranges=ranges))[mask],
    )


def marked(tokens: tuple[list[int], list[int]], length: int) -> Tensor:
    """`(b, j)`, True at the tokens of each text."""
    found = torch.zeros(len(tokens), length, dtype=torch.bool)
    for text, of_text in enumerate(tokens):
        found[text, of_text] = True
    return found


COMPARISONS = [
    Comparison(
        "NoPosition", "LongformerSelfAttention", "transformers",
        "S q_i . k_j for |j - i| <= r", run_longformer,
        remark="window=(r, r), softmax in float64", wrong=off_by_one(RADIUS, RADIUS),
    ),
    Comparison(
        "NoPosition", "LongformerSelfAttention", "transformers",
        "S q_i . k_j for |j - i| <= r, or i or j global", run_global_tokens,
        cases=(
            {"length": 33, "tokens": ([0], [0])},
            {"length": 65, "padded": True, "tokens": ([0, 1, 30], [40])},
        ),
        remark="the same with global tokens, put together by merge",
        wrong=[*off_by_one(RADIUS, RADIUS), {"our_tokens": ([0, 1], [40])}],
    ),
]  # fmt: skip
