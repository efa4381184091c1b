"""Rotary positions on images elsewhere: both layouts."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import Sam3ViTConfig
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import (
    Qwen2VLVisionRotaryEmbedding,
    VisionAttention,
)
from transformers.models.sam3.modeling_sam3 import Sam3ViTRoPEAttention, Sam3ViTRotaryEmbedding

import relpos
from relpos.positions import AxialRotary
from tests.parity.comparison import Comparison, Trial, attended, randomized
from tests.parity.oracles.inputs import HEADS, MODEL, WIDTH, hidden, merge, split

SINGLE = torch.finfo(torch.float32).eps
ROPE = {"rope_type": "axial", "rope_theta": 500.0}


def coordinates(shape: tuple[int, int]) -> Tensor:
    """`(tokens, 2)`: row and column of each token."""
    return torch.cartesian_prod(*(torch.arange(n) for n in shape))


def run_qwen2_vl(shape: tuple[int, int]) -> Trial:
    config = Qwen2VLVisionConfig(
        embed_dim=MODEL, hidden_size=MODEL, num_heads=HEADS, rope_parameters=ROPE,
        attn_implementation="sdpa",
    )  # fmt: skip
    config.num_attention_heads = HEADS
    theirs = randomized(VisionAttention(config))
    n = shape[0] * shape[1]
    x = hidden(n, batch=1)
    turns = Qwen2VLVisionRotaryEmbedding(config)(x, coordinates(shape))
    output = theirs(x[0], torch.tensor([0, n]), position_embeddings=turns)
    q, k, v = (split(part) for part in theirs.qkv(x).chunk(3, dim=-1))
    scheme = AxialRotary(WIDTH, shape, 500.0)
    return Trial(
        ours=theirs.proj(merge(attended(scheme, {}, q, k, v)))[0],
        theirs=output,
        leaves={"x": x, **dict(theirs.named_parameters())},
        plain=theirs.proj(merge(relpos.attention(q, k, v)))[0],
    )


def run_sam3(shape: tuple[int, int]) -> Trial:
    config = Sam3ViTConfig(
        hidden_size=MODEL, num_attention_heads=HEADS, rope_parameters=ROPE,
        attn_implementation="sdpa",
    )  # fmt: skip
    theirs = randomized(Sam3ViTRoPEAttention(config))
    x = hidden(shape[0] * shape[1])
    turns = Sam3ViTRotaryEmbedding(config)(x, coordinates(shape))
    q, k, v = (split(linear(x)) for linear in (theirs.q_proj, theirs.k_proj, theirs.v_proj))
    scheme = AxialRotary(WIDTH, shape, 500.0, interleaved=True)
    return Trial(
        ours=theirs.o_proj(merge(attended(scheme, {}, q, k, v))),
        theirs=theirs(x.unflatten(1, shape), turns)[0].flatten(1, 2),
        leaves={"x": x, **dict(theirs.named_parameters())},
        plain=theirs.o_proj(merge(relpos.attention(q, k, v))),
    )


MAPS = ({"shape": (1, 1)}, {"shape": (1, 33)}, {"shape": (5, 7)})
COMPARISONS = [
    Comparison(
        "AxialRotary", "VisionAttention", "transformers", "S sum_a R_i q_i[a] . R_j k_j[a]",
        run_qwen2_vl, MAPS, precision=SINGLE, remark="Qwen2-VL, rotation in float32",
    ),
    Comparison(
        "AxialRotary", "Sam3ViTRoPEAttention", "transformers", "S sum_a R_i q_i[a] . R_j k_j[a]",
        run_sam3, MAPS, precision=SINGLE, remark="interleaved, rotation in float32",
    ),
]  # fmt: skip
