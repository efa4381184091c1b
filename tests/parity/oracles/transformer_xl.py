"""Transformer-XL's relative attention in speech: one formula, three sets of names.

All three are handed the sinusoids in float64, since their own are made in float32; those have a
test of their own (`test_sinusoids_of_speech_encoders_are_ours`).
"""

from __future__ import annotations

import contextlib
import io

import torch
from torch import Tensor, nn
from transformers import ParakeetEncoderConfig, Wav2Vec2BertConfig
from transformers.models.parakeet.modeling_parakeet import ParakeetEncoderAttention
from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import Wav2Vec2BertSelfAttention

from relpos.positions import TransformerXL
from relpos.positions.sinusoids import sinusoids
from tests.parity.comparison import Comparison, Trial, attended, randomized
from tests.parity.oracles.inputs import (
    BATCH,
    HEADS,
    MODEL,
    WIDTH,
    additive,
    hidden,
    keep,
    merge,
    split,
)

# espnet prints that it found no flash attention.
with contextlib.redirect_stdout(io.StringIO()):
    from espnet.nets.pytorch_backend.transformer.attention import RelPositionMultiHeadedAttention


def waves(length: int) -> Tensor:
    """Sines and cosines of query minus key, from `length - 1` down."""
    distances = torch.arange(length - 1, -length, -1)
    return sinusoids(distances, MODEL, dtype=torch.float64)[None]


def position(linear: nn.Linear, u: Tensor, v: Tensor) -> tuple[TransformerXL, dict[str, Tensor]]:
    """The scheme, and what its parameters are."""
    scheme = TransformerXL(WIDTH, HEADS, dtype=torch.float64)
    return scheme, {"linear_pos.weight": linear.weight, "pos_bias_u": u, "pos_bias_v": v}


def run_espnet(length: int, padded: bool = False) -> Trial:
    theirs = randomized(RelPositionMultiHeadedAttention(HEADS, MODEL, 0.0))
    x, mask = hidden(length), keep(length, padded=padded)
    q, k, v = (split(linear(x)) for linear in (theirs.linear_q, theirs.linear_k, theirs.linear_v))
    scheme, tables = position(theirs.linear_pos, theirs.pos_bias_u, theirs.pos_bias_v)
    return Trial(
        ours=theirs.linear_out(merge(attended(scheme, tables, q, k, v, mask=mask[:, None, None]))),
        theirs=theirs(x, x, x, waves(length), mask[:, None]),
        leaves={"x": x, **dict(theirs.named_parameters())},
        tables=["linear_pos.weight", "pos_bias_u", "pos_bias_v"],
    )


def run_wav2vec2_bert(length: int, padded: bool = False) -> Trial:
    config = Wav2Vec2BertConfig(
        hidden_size=MODEL, num_attention_heads=HEADS, position_embeddings_type="relative",
        attn_implementation="eager",
    )  # fmt: skip
    theirs = randomized(Wav2Vec2BertSelfAttention(config))
    x, mask = hidden(length), keep(length, padded=padded)[:, None, None]
    q, k, v = (split(linear(x)) for linear in (theirs.linear_q, theirs.linear_k, theirs.linear_v))
    scheme, tables = position(theirs.linear_pos, theirs.pos_bias_u, theirs.pos_bias_v)
    return Trial(
        ours=theirs.linear_out(merge(attended(scheme, tables, q, k, v, mask=mask))),
        theirs=theirs(x, additive(mask), waves(length))[0],
        leaves={"x": x, **dict(theirs.named_parameters())},
        tables=["linear_pos.weight", "pos_bias_u", "pos_bias_v"],
    )


def run_parakeet(length: int, padded: bool = False) -> Trial:
    """With one key head for all query heads. Its eager softmax is in float32, the other is not."""
    config = ParakeetEncoderConfig(
        hidden_size=MODEL, num_attention_heads=HEADS, attn_implementation="sdpa"
    )
    config.num_key_value_heads = 1
    theirs = randomized(ParakeetEncoderAttention(config, layer_idx=0))
    x, mask = hidden(length), keep(length, padded=padded)[:, None, None]
    q, k, v = split(theirs.q_proj(x)), split(theirs.k_proj(x), 1), split(theirs.v_proj(x), 1)
    scheme, tables = position(theirs.relative_k_proj, theirs.bias_u, theirs.bias_v)
    return Trial(
        ours=theirs.o_proj(merge(attended(scheme, tables, q, k, v, mask=mask))),
        theirs=theirs(x, waves(length).expand(BATCH, -1, -1), mask)[0],
        leaves={"x": x, **dict(theirs.named_parameters())},
        tables=["relative_k_proj.weight", "bias_u", "bias_v"],
    )


FORMULA = "S ((q_i + u) . k_j + (q_i + v) . W R[i - j])"
COMPARISONS = [
    Comparison("TransformerXL", "RelPositionMultiHeadedAttention", "espnet", FORMULA, run_espnet),
    Comparison(
        "TransformerXL", "ParakeetEncoderAttention", "transformers", FORMULA, run_parakeet,
        remark="one key head for all query heads",
    ),
    Comparison(
        "TransformerXL", "Wav2Vec2BertSelfAttention", "transformers", FORMULA,
        run_wav2vec2_bert, remark='position_embeddings_type="relative"',
    ),
]  # fmt: skip
