"""Rotary positions elsewhere: both layouts, every scaling, and xPos."""

from __future__ import annotations

import warnings
from functools import partial

import torch
from torch import Tensor
from transformers import GPTJConfig, GPTNeoXConfig, LlamaConfig, RoFormerConfig
from transformers.cache_utils import DynamicCache
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXAttention, GPTNeoXRotaryEmbedding
from transformers.models.gptj.modeling_gptj import GPTJAttention, GPTJRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding
from transformers.models.roformer.modeling_roformer import (
    RoFormerSelfAttention,
    RoFormerSinusoidalPositionalEmbedding,
)

import relpos
from relpos.positions import Compose, Position, Rotary, T5Bias, XPos
from tests.parity.comparison import Comparison, Trial, attended, randomized
from tests.parity.oracles.inputs import HEADS, MODEL, WIDTH, additive, hidden, keep, merge, split

# torch.jit, which it uses for two activations, is deprecated.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from x_transformers.x_transformers import (
        RelativePositionBias,
        RotaryEmbedding,
        apply_rotary_pos_emb,
    )

SINGLE = torch.finfo(torch.float32).eps
# Shorter than the longest of the texts.
TRAINED = {"factor": 4.0, "original_max_position_embeddings": 16}
SCALINGS = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": TRAINED,
    "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0, **TRAINED},
}


def run_llama(length: int, cached: int = 0, scaling: str = "default") -> Trial:
    """`cached` tokens first, and then the others, which see them through their cache."""
    parameters = {"rope_type": scaling, "rope_theta": 500.0, **SCALINGS.get(scaling, {})}
    config = LlamaConfig(
        hidden_size=MODEL, num_attention_heads=HEADS, num_key_value_heads=1, head_dim=WIDTH,
        max_position_embeddings=48, rope_parameters=parameters, attn_implementation="sdpa",
    )  # fmt: skip
    embedding = LlamaRotaryEmbedding(config)
    theirs, x = randomized(LlamaAttention(config, layer_idx=0)), hidden(length)
    mask = additive(torch.ones(length, length, dtype=torch.bool).tril())
    cache = DynamicCache()
    for start, end in ((0, cached), (cached, length)):
        if start < end:
            part = x[:, start:end]
            turns = embedding(part, torch.arange(start, end)[None])
            output = theirs(part, turns, mask[None, None, start:end, :end], cache)[0]
    heads = (HEADS, 1, 1)
    linears = (theirs.q_proj, theirs.k_proj, theirs.v_proj)
    q, k, v = (split(linear(x), n) for linear, n in zip(linears, heads, strict=True))
    scheme, q = Rotary.from_config(config), q[:, :, cached:]
    ours = attended(scheme, {}, q, k, v, causal=True)
    plain = relpos.attention(q, k, v, causal=True)
    return Trial(
        ours=theirs.o_proj(merge(ours)),
        theirs=output,
        leaves={"x": x, **dict(theirs.named_parameters())},
        plain=theirs.o_proj(merge(plain)),
    )


def run_gpt_neox(length: int, padded: bool = False) -> Trial:
    """Half of the width is turned."""
    config = GPTNeoXConfig(
        hidden_size=MODEL, num_attention_heads=HEADS, attn_implementation="sdpa",
        rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
    )  # fmt: skip
    embedding = GPTNeoXRotaryEmbedding(config)
    theirs, x = randomized(GPTNeoXAttention(config, layer_idx=0)), hidden(length)
    allowed = torch.ones(length, length, dtype=torch.bool).tril()
    allowed = allowed & keep(length, padded=padded)[:, None, None]
    turns = embedding(x, torch.arange(length)[None])
    q, k, v = split(theirs.query_key_value(x)).chunk(3, dim=-1)
    ours = attended(Rotary.from_config(config), {}, q, k, v, mask=allowed)
    return Trial(
        ours=theirs.dense(merge(ours)),
        theirs=theirs(x, additive(allowed), position_embeddings=turns)[0],
        leaves={"x": x, **dict(theirs.named_parameters())},
        plain=theirs.dense(merge(relpos.attention(q, k, v, mask=allowed))),
    )


def run_gptj(length: int, padded: bool = False) -> Trial:
    config = GPTJConfig(n_embd=MODEL, n_head=HEADS, rotary_dim=4, n_positions=80, attn_pdrop=0.0)
    theirs, x = randomized(GPTJAttention(config, layer_idx=0)), hidden(length)
    allowed = torch.ones(length, length, dtype=torch.bool).tril()
    allowed = allowed & keep(length, padded=padded)[:, None, None]
    q, k, v = (split(linear(x)) for linear in (theirs.q_proj, theirs.k_proj, theirs.v_proj))
    scheme = Rotary.from_config(config, interleaved=True)
    turns = GPTJRotaryEmbedding(config)(x, torch.arange(length)[None])
    output = theirs(x, turns, additive(allowed))[0]
    return Trial(
        ours=theirs.out_proj(merge(attended(scheme, {}, q, k, v, mask=allowed))),
        theirs=output,
        leaves={"x": x, **dict(theirs.named_parameters())},
        plain=theirs.out_proj(merge(relpos.attention(q, k, v, mask=allowed))),
    )


def run_roformer(length: int, padded: bool = False) -> Trial:
    config = RoFormerConfig(
        hidden_size=MODEL, num_attention_heads=HEADS, embedding_size=MODEL, rotary_value=False,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    theirs, x = randomized(RoFormerSelfAttention(config)), hidden(length)
    embedding = RoFormerSinusoidalPositionalEmbedding(80, WIDTH)
    waves = embedding.create_weight()[:length].double()[None, None]
    mask = keep(length, padded=padded)[:, None, None]
    q, k, v = (split(linear(x)) for linear in (theirs.query, theirs.key, theirs.value))
    scheme = Rotary(WIDTH, interleaved=True)
    return Trial(
        ours=merge(attended(scheme, {}, q, k, v, mask=mask)),
        theirs=theirs(x, additive(mask), sinusoidal_pos=waves)[0],
        leaves={"x": x, **dict(theirs.named_parameters())},
        plain=merge(relpos.attention(q, k, v, mask=mask)),
    )


def heads_of(queries: int, keys: int) -> list[Tensor]:
    return [hidden(n, seed=seed) for seed, n in enumerate((queries, keys, keys))]


def x_transformers(width: int, **options: object) -> RotaryEmbedding:
    """Theirs, with frequencies in float64."""
    theirs = RotaryEmbedding(width, base=500, **options).double()
    theirs.inv_freq = 500.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    if theirs.scale is not None:
        theirs.scale = (torch.arange(0, width, 2).double() + 0.4 * width) / (1.4 * width)
    return theirs


def turned(theirs: RotaryEmbedding, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys as their `Attention` turns them; the queries are the last positions."""
    angles, factor = theirs(torch.arange(k.shape[2]).double())
    inverse = factor**-1
    q = apply_rotary_pos_emb(q, angles, factor)
    return q, apply_rotary_pos_emb(k, angles, inverse)


def run_x_transformers(
    queries: int, keys: int, scheme: Position, width: int = WIDTH, **options: object
) -> Trial:
    leaves = heads_of(queries, keys)
    q, k, v = (split(leaf) for leaf in leaves)
    turned_q, turned_k = turned(x_transformers(width, **options), q, k)
    causal = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    scores = turned_q @ turned_k.mT * WIDTH**-0.5
    return Trial(
        ours=attended(scheme, {}, q, k, v, causal=True),
        theirs=scores.masked_fill(~causal, -torch.inf).softmax(-1) @ v,
        leaves=dict(zip("qkv", leaves, strict=True)),
        plain=relpos.attention(q, k, v, causal=True),
    )


def run_both(queries: int, keys: int) -> Trial:
    """Rotary positions and a bias in buckets, as one layer of theirs can have."""
    bias = randomized(RelativePositionBias(scale=1.0, num_buckets=12, max_distance=40, heads=HEADS))
    leaves = heads_of(queries, keys)
    q, k, v = (split(leaf) for leaf in leaves)
    turned_q, turned_k = turned(x_transformers(WIDTH), q, k)
    table = bias.relative_attention_bias.weight
    scores = turned_q @ turned_k.mT * WIDTH**-0.5 + bias(queries, keys)
    scheme = Compose(Rotary(WIDTH, 500.0, interleaved=True), T5Bias(HEADS, 12, 40)).double()
    return Trial(
        ours=attended(scheme, {"positions.1.bias": table.mT}, q, k, v),
        theirs=scores.softmax(-1) @ v,
        leaves={**dict(zip("qkv", leaves, strict=True)), "bias": table},
        tables=["bias"],
        plain=relpos.attention(q, k, v),
    )


LLAMA = ({"length": 1}, {"length": 33}, {"length": 65, "cached": 32})
# Their dynamic cache holds keys at the angles of other lengths.
WHOLE = ({"length": 1}, {"length": 33}, {"length": 65})
PAIRS = ({"queries": 1, "keys": 33}, {"queries": 33, "keys": 65}, {"queries": 65, "keys": 65})
COSINES = "cosines in float32"


def llama(scaling: str, remark: str, cases: tuple[dict, ...]) -> Comparison:
    return Comparison(
        "Rotary", "LlamaAttention", "transformers", "S R_i q_i . R_j k_j",
        partial(run_llama, scaling=scaling), cases, precision=SINGLE, remark=remark,
    )  # fmt: skip


COMPARISONS = [
    llama("default", f"{COSINES}, one key head for all query heads", LLAMA),
    llama("linear", f"linear scaling, {COSINES}", LLAMA),
    llama("dynamic", f"dynamic NTK, longer than in training, {COSINES}", WHOLE),
    llama("yarn", f"YaRN with its attention factor, {COSINES}", LLAMA),
    llama("llama3", f"Llama 3's scaling, {COSINES}", LLAMA),
    Comparison(
        "Rotary", "GPTNeoXAttention", "transformers", "S R_i q_i . R_j k_j", run_gpt_neox,
        precision=SINGLE, remark=f"half of the width, {COSINES}",
    ),
    Comparison(
        "Rotary", "GPTJAttention", "transformers", "S R_i q_i . R_j k_j", run_gptj,
        precision=SINGLE, remark="interleaved, half of the width, scores in float32",
    ),
    Comparison(
        "Rotary", "RoFormerSelfAttention", "transformers", "S R_i q_i . R_j k_j", run_roformer,
        precision=SINGLE, remark=f"interleaved, {COSINES}",
    ),
    Comparison(
        "Rotary", "RotaryEmbedding", "x-transformers", "S R_i q_i . R_j k_j",
        partial(
            run_x_transformers, scheme=Rotary(WIDTH, 500.0, interleaved=True, rotary_dim=4), width=4
        ),
        PAIRS, remark="interleaved, half of the width",
    ),
    Comparison(
        "XPos", "RotaryEmbedding(use_xpos=True)", "x-transformers",
        "S z^((i - j) / B) R_i q_i . R_j k_j",
        partial(
            run_x_transformers, scheme=XPos(WIDTH, 500.0, scale_base=64.0), use_xpos=True,
            scale_base=64.0,
        ),
        PAIRS, remark="causal",
    ),
    Comparison(
        "Compose", "RotaryEmbedding, RelativePositionBias", "x-transformers",
        "S R_i q_i . R_j k_j + B[bucket(j - i)]", run_both, PAIRS,
        remark="Rotary and T5Bias",
    ),
]  # fmt: skip
