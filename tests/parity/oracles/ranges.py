"""A range of keys for each query elsewhere, as masks: SeamlessM4T's chunks, T5 with a prefix."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor
from transformers import SeamlessM4Tv2Config
from transformers.models.seamless_m4t_v2.modeling_seamless_m4t_v2 import (
    SeamlessM4Tv2ConformerEncoder,
    SeamlessM4Tv2ConformerSelfAttention,
)

import relpos
from relpos.positions import NoPosition, Shaw
from tests.parity.comparison import Comparison, Trial, attended, randomized
from tests.parity.oracles.bias import t5, t5_bias
from tests.parity.oracles.inputs import HEADS, MODEL, WIDTH, additive, hidden, keep, merge, split

LEFT, RIGHT = 16, 4


def run_seamless(
    length: int,
    padded: bool = False,
    size: int = 7,
    left_chunks: int = 2,
    shift: tuple[int, int] = (0, 0),
    positions: bool = True,
) -> Trial:
    """The mask is that of their encoder, in which -1 means all chunks before a query's own."""
    config = SeamlessM4Tv2Config(
        hidden_size=MODEL, speech_encoder_attention_heads=HEADS, speech_encoder_chunk_size=size,
        speech_encoder_left_chunk_num=left_chunks, position_embeddings_type="relative_key",
        left_max_position_embeddings=LEFT, right_max_position_embeddings=RIGHT,
        attn_implementation="eager",
    )  # fmt: skip
    theirs = randomized(SeamlessM4Tv2ConformerSelfAttention(config))
    x, mask = hidden(length), keep(length, padded=padded)
    encoder = SimpleNamespace(config=config)
    allowed = SeamlessM4Tv2ConformerEncoder._apply_chunk_attention(encoder, mask, x)
    linears = (theirs.linear_q, theirs.linear_k, theirs.linear_v)
    q, k, v = (split(linear(x)) for linear in linears)
    scheme = Shaw(WIDTH, (LEFT, RIGHT), values=False, dtype=torch.float64)
    tables = {"keys": theirs.distance_embedding.weight[None]}
    if not positions:
        scheme, tables = NoPosition(), {}
    chunks = relpos.chunk_ranges(length, size, left_chunks if left_chunks >= 0 else None)
    padding = relpos.padding_ranges(mask.sum(1), length)
    ranges = relpos.intersect_ranges(chunks + torch.tensor(shift), padding)
    # In a chunk of padding alone a query has no key, which gives zeros here and NaN in their code.
    finite = additive(allowed).clamp(min=torch.finfo(torch.float64).min)
    return Trial(
        ours=theirs.linear_out(merge(attended(scheme, tables, q, k, v, key_ranges=ranges)))[mask],
        theirs=theirs(x, finite)[0][mask],
        leaves={"x": x, **dict(theirs.named_parameters())},
        tables=["distance_embedding.weight"],
    )


def run_prefix(length: int, decoder: bool = False, shift: int = 0, positions: bool = True) -> Trial:
    """A prefix of another length in each text; the buckets are an encoder's or a decoder's."""
    theirs, x = t5(decoder=decoder), hidden(length)
    prefix = torch.tensor([20, 7])
    index = torch.arange(length)
    allowed: Tensor = (index < prefix[:, None, None]) | (index <= index[:, None])
    q, k, v = (split(linear(x)) for linear in (theirs.q, theirs.k, theirs.v))
    scheme, tables = t5_bias(theirs.relative_attention_bias.weight, decoder=decoder)
    if not positions:
        scheme, tables = NoPosition(), {}
    ranges = relpos.prefix_ranges(prefix + shift, length)
    ours = attended(scheme, tables, q, k, v, key_ranges=ranges, scale=1.0)
    return Trial(
        ours=theirs.o(merge(ours)),
        theirs=theirs(x, additive(allowed[:, None]))[0],
        leaves={"x": x, **dict(theirs.named_parameters())},
        tables=["relative_attention_bias.weight"],
    )


# One token more or less at either end of each range.
SHIFTS = tuple({"shift": shift} for shift in ((-1, 0), (1, 0), (0, -1), (0, 1)))
PREFIX = "q_i . k_j + B[bucket(j - i)] for j < p or j <= i"
PREFIX_CASES = ({"length": 1}, {"length": 33}, {"length": 65})
PREFIX_WRONG = ({"shift": -1}, {"shift": 1}, {"positions": False})
COMPARISONS = [
    Comparison(
        "Shaw", "SeamlessM4Tv2ConformerSelfAttention", "transformers",
        "S q_i . (k_j + E[clip(j - i, -l, r)]) for c(i) - n <= c(j) <= c(i)", run_seamless,
        cases=(
            {"length": 1},
            {"length": 33, "left_chunks": 0},
            {"length": 33, "left_chunks": -1},
            {"length": 65, "padded": True},
        ),
        remark="chunk_ranges: chunks c of 7 tokens, n before one's own",
        wrong=[*SHIFTS, {"positions": False}],
    ),
    Comparison(
        "T5Bias", "T5Attention", "transformers", PREFIX, run_prefix, PREFIX_CASES,
        remark="prefix_ranges, an encoder's buckets", wrong=PREFIX_WRONG,
    ),
    Comparison(
        "T5Bias", "T5Attention", "transformers", PREFIX, run_prefix,
        cases=tuple({**case, "decoder": True} for case in PREFIX_CASES),
        remark="prefix_ranges, a decoder's buckets", wrong=PREFIX_WRONG,
    ),
]  # fmt: skip
