"""Sliding windows with positions elsewhere, computed in blocks: LongT5's, and Gemma 3n's audio."""

from __future__ import annotations

import torch
from torch.nn.functional import softplus
from transformers import Gemma3nAudioConfig, LongT5Config
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nAudioAttention
from transformers.models.longt5.modeling_longt5 import (
    LongT5LocalAttention,
    _get_local_attention_mask,
)

import relpos
from relpos.positions import NoPosition, Shaw
from tests.parity.comparison import Comparison, Trial, attended, off_by_one, randomized
from tests.parity.oracles.bias import BUCKETS, FAR, t5_bias
from tests.parity.oracles.float64 import float64_softmax
from tests.parity.oracles.inputs import HEADS, MODEL, WIDTH, hidden, keep, merge, split

RADIUS, CAP = 9, 2.0
AUDIO = {"length": 65, "padded": True, "chunk": 5, "left": 8, "right": 3}


def run_longt5(
    length: int,
    padded: bool = False,
    window: tuple[int, int] = (RADIUS, RADIUS),
    positions: bool = True,
) -> Trial:
    """Blocks of `radius + 1` queries, each with its own keys and those of both neighbours."""
    config = LongT5Config(
        d_model=MODEL, d_kv=WIDTH, num_heads=HEADS, local_radius=RADIUS, is_decoder=False,
        relative_attention_num_buckets=BUCKETS, relative_attention_max_distance=FAR,
    )  # fmt: skip
    theirs = randomized(LongT5LocalAttention(config, has_relative_attention_bias=True))
    x, mask = hidden(length), keep(length, padded=padded)
    with float64_softmax():
        output = theirs(x, _get_local_attention_mask(mask, theirs.block_len, x.device))[0]
    q, k, v = (split(linear(x)) for linear in (theirs.q, theirs.k, theirs.v))
    scheme, tables = t5_bias(theirs.relative_attention_bias.weight, decoder=False)
    if not positions:
        scheme, tables = NoPosition(), {}
    ranges = relpos.padding_ranges(mask.sum(1), length)
    ours = attended(scheme, tables, q, k, v, window=window, key_ranges=ranges, scale=1.0)
    # A padded query averages over its blocks in their code: compare the text.
    return Trial(
        ours=theirs.o(merge(ours))[mask],
        theirs=output[mask],
        leaves={"x": x, **dict(theirs.named_parameters())},
        tables=["relative_attention_bias.weight"],
    )


def run_gemma3n(
    length: int,
    padded: bool = False,
    chunk: int = 12,
    left: int = 13,
    right: int = 0,
    window: tuple[int, int] | None = None,
    softcap: float | None = CAP,
    positions: bool = True,
) -> Trial:
    """Each query sees itself, `left - 1` tokens before and `right` after, whatever the chunk is.

    Both sides have their sinusoids, of float32, and their scale for each number of a query.
    """
    config = Gemma3nAudioConfig(
        hidden_size=MODEL, conf_num_attention_heads=HEADS, conf_attention_chunk_size=chunk,
        conf_attention_context_left=left, conf_attention_context_right=right,
        conf_attention_logit_cap=CAP,
    )  # fmt: skip
    theirs = randomized(Gemma3nAudioAttention(config))
    x, mask = hidden(length), keep(length, padded=padded)
    with float64_softmax():
        output = theirs(x, ~mask)
    q, k, v = (split(linear(x)) for linear in (theirs.q_proj, theirs.k_proj, theirs.v_proj))
    embedding = theirs.relative_position_embedding
    # Query minus key, from the first offset of the window to the last.
    distances = torch.arange(left - 1, -right - 1, -1)
    waves = embedding._get_timing_signal_1d_pos(distances, torch.float64)
    scheme = Shaw(WIDTH, (left - 1, right), HEADS, values=False, dtype=torch.float64)
    tables = {"keys": split(embedding.pos_proj(waves)).squeeze(0)}
    if not positions:
        scheme, tables = NoPosition(), {}
    ours = attended(
        scheme, tables, q * theirs.q_scale * softplus(theirs.per_dim_scale), k, v,
        window=(left - 1, right) if window is None else window, softcap=softcap, scale=1.0,
        key_ranges=relpos.padding_ranges(mask.sum(1), length),
    )  # fmt: skip
    return Trial(
        ours=ours.transpose(1, 2)[mask],
        theirs=output[mask],
        leaves={"x": x, **dict(theirs.named_parameters())},
        tables=["relative_position_embedding.pos_proj.weight"],
    )


COMPARISONS = [
    Comparison(
        "T5Bias", "LongT5LocalAttention", "transformers",
        "q_i . k_j + B[bucket(j - i)] for |j - i| <= r", run_longt5,
        remark="window=(r, r), softmax in float64",
        wrong=[*off_by_one(RADIUS, RADIUS), {"positions": False}],
    ),
    Comparison(
        "Shaw", "Gemma3nAudioAttention", "transformers",
        "c tanh((q_i . k_j + q_i . W R[i - j]) / c) for -l < j - i <= r", run_gemma3n,
        cases=({"length": 1}, {"length": 33}, {"length": 33, "left": 1, "right": 6}, AUDIO),
        remark="window=(l - 1, r), softcap=c, softmax in float64",
        wrong=[*off_by_one(7, 3), {"softcap": None}, {"softcap": 2 * CAP}, {"positions": False}],
    ),
]  # fmt: skip
