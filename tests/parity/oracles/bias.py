"""Biases elsewhere: T5's buckets, ALiBi's slopes, WavLM's gate."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from transformers import T5Config
from transformers.cache_utils import DynamicCache
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.wavlm.modeling_wavlm import WavLMAttention

from relpos.positions import Alibi, GatedBias, T5Bias
from tests.parity.comparison import Comparison, Trial, attended, randomized
from tests.parity.oracles.inputs import HEADS, MODEL, WIDTH, additive, hidden, keep, merge, split

# torch.jit, which it uses for two activations, is deprecated.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from x_transformers.x_transformers import AlibiPositionalBias, RelativePositionBias

BUCKETS, FAR = 12, 40


def t5(*, decoder: bool) -> T5Attention:
    config = T5Config(
        d_model=MODEL, d_kv=WIDTH, num_heads=HEADS, is_decoder=decoder,
        relative_attention_num_buckets=BUCKETS, relative_attention_max_distance=FAR,
        attn_implementation="eager",
    )  # fmt: skip
    return randomized(T5Attention(config, has_relative_attention_bias=True, layer_idx=0))


def t5_bias(table: Tensor, *, decoder: bool) -> tuple[T5Bias, dict[str, Tensor]]:
    """The scheme, and what its parameter is: theirs is `(buckets, heads)`."""
    scheme = T5Bias(HEADS, BUCKETS, FAR, bidirectional=not decoder, dtype=torch.float64)
    return scheme, {"bias": table.mT}


def run_encoder(length: int, padded: bool = False) -> Trial:
    theirs, x = t5(decoder=False), hidden(length)
    mask = keep(length, padded=padded)[:, None, None]
    q, k, v = (split(linear(x)) for linear in (theirs.q, theirs.k, theirs.v))
    scheme, tables = t5_bias(theirs.relative_attention_bias.weight, decoder=False)
    return Trial(
        ours=theirs.o(merge(attended(scheme, tables, q, k, v, mask=mask, scale=1.0))),
        theirs=theirs(x, additive(mask))[0],
        leaves={"x": x, **dict(theirs.named_parameters())},
        tables=["relative_attention_bias.weight"],
    )


def run_decoder(length: int, cached: int = 0) -> Trial:
    """`cached` tokens first, and then the others, which see them through their cache."""
    theirs, x = t5(decoder=True), hidden(length)
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    cache = DynamicCache()
    for start, end in ((0, cached), (cached, length)):
        if start < end:
            allowed = additive(mask[start:end, :end])
            output = theirs(x[:, start:end], allowed, cache=cache)[0]
    q, k, v = (split(linear(x)) for linear in (theirs.q, theirs.k, theirs.v))
    scheme, tables = t5_bias(theirs.relative_attention_bias.weight, decoder=True)
    ours = attended(scheme, tables, q[:, :, cached:], k, v, causal=True, scale=1.0)
    return Trial(
        ours=theirs.o(merge(ours)),
        theirs=output,
        leaves={"x": x, **dict(theirs.named_parameters())},
        tables=["relative_attention_bias.weight"],
    )


def added(bias: Tensor, tables: dict[str, Tensor], scheme: object, keys: int) -> Trial:
    """Scores with their bias beside ours."""
    q, k, v = (hidden(length, seed=n) for n, length in enumerate((bias.shape[-2], keys, keys)))
    heads = [split(each, bias.shape[0]) for each in (q, k, v)]
    scores = heads[0] @ heads[1].mT * heads[0].shape[3] ** -0.5 + bias
    return Trial(
        ours=attended(scheme, tables, *heads),
        theirs=scores.softmax(-1) @ heads[2],
        leaves={"q": q, "k": k, "v": v},
        tables=[],
    )


def run_x_transformers(queries: int, keys: int) -> Trial:
    theirs = randomized(
        RelativePositionBias(scale=1.5, num_buckets=BUCKETS, max_distance=FAR, heads=HEADS)
    )
    table = theirs.relative_attention_bias.weight
    scheme, _ = t5_bias(table, decoder=False)
    trial = added(theirs(queries, keys), {"bias": 1.5 * table.mT}, scheme, keys)
    return Trial(trial.ours, trial.theirs, {**trial.leaves, "bias": table}, ["bias"])


def run_alibi(queries: int, keys: int, heads: int) -> Trial:
    """The slopes are a leaf too, with the values that ours begin with."""
    theirs = AlibiPositionalBias(heads)
    scheme = Alibi(heads, learned=True, dtype=torch.float64)
    slopes = scheme.slopes.detach().requires_grad_()
    theirs.slopes = slopes[:, None, None]
    tables = {"log2_slopes": slopes.log2()}
    trial = added(theirs(queries, keys), tables, scheme, keys)
    return Trial(trial.ours, trial.theirs, {**trial.leaves, "slopes": slopes}, ["slopes"])


def run_wavlm(length: int, padded: bool = False) -> Trial:
    theirs = randomized(WavLMAttention(MODEL, HEADS, num_buckets=BUCKETS, max_distance=FAR))
    x, mask = hidden(length), keep(length, padded=padded)
    q, k, v = (split(linear(x)) for linear in (theirs.q_proj, theirs.k_proj, theirs.v_proj))
    bias, _ = t5_bias(theirs.rel_attn_embed.weight, decoder=False)
    scheme = GatedBias(bias, HEADS, WIDTH, dtype=torch.float64)
    # Eight outputs, summed in fours, are two.
    gates = theirs.gru_rel_pos_linear
    tables = {
        "bias.bias": theirs.rel_attn_embed.weight.mT,
        "gates.weight": gates.weight.unflatten(0, (2, 4)).sum(1),
        "gates.bias": gates.bias.unflatten(0, (2, 4)).sum(1),
        "reset": theirs.gru_rel_pos_const.flatten(),
    }
    ours = attended(scheme, tables, q, k, v, x, mask=mask[:, None, None])
    with warnings.catch_warnings():
        # It hands torch a boolean mask for the padding beside a bias of numbers.
        warnings.filterwarnings("ignore", "Support for mismatched key_padding_mask", UserWarning)
        output = theirs(x, mask.long())[0]
    return Trial(
        ours=theirs.out_proj(merge(ours)),
        theirs=output,
        leaves={"x": x, **dict(theirs.named_parameters())},
        tables=["rel_attn_embed.weight", "gru_rel_pos_linear.weight", "gru_rel_pos_const"],
    )


PAIRS = ({"queries": 1, "keys": 33}, {"queries": 33, "keys": 65}, {"queries": 65, "keys": 65})
COMPARISONS = [
    Comparison(
        "T5Bias", "T5Attention", "transformers",
        "q_i . k_j + B[bucket(j - i)]", run_encoder, remark="encoder",
    ),
    Comparison(
        "T5Bias", "T5Attention", "transformers",
        "q_i . k_j + B[bucket(j - i)]", run_decoder, remark="decoder, with its cache too",
        cases=({"length": 1}, {"length": 33}, {"length": 65, "cached": 32}),
    ),
    Comparison(
        "T5Bias", "RelativePositionBias", "x-transformers",
        "S q_i . k_j + c B[bucket(j - i)]", run_x_transformers, PAIRS,
    ),
    Comparison(
        "Alibi", "AlibiPositionalBias", "x-transformers", "S q_i . k_j - m |j - i|", run_alibi,
        cases=tuple({**pair, "heads": heads} for pair in PAIRS for heads in (2, 3)),
    ),
    Comparison(
        "GatedBias", "WavLMAttention", "transformers",
        "S q_i . k_j + (a_i (r_i c - 1) + 2) B[bucket(j - i)]", run_wavlm,
    ),
]  # fmt: skip
