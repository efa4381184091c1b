"""SeamlessM4T, v1 and v2: speech to text, whose encoder and decoder share one configuration."""

import torch
from transformers import (
    SeamlessM4TConfig,
    SeamlessM4TForSpeechToText,
    SeamlessM4Tv2Config,
    SeamlessM4Tv2ForSpeechToText,
)

from .case import Case, padded

SIZES = {
    "vocab_size": 50, "hidden_size": 32, "speech_encoder_layers": 2,
    "speech_encoder_attention_heads": 4, "speech_encoder_intermediate_size": 48,
    "feature_projection_input_dim": 16, "conv_depthwise_kernel_size": 5,
    "encoder_layers": 1, "encoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48,
    "adaptor_kernel_size": 4, "adaptor_stride": 4, "max_position_embeddings": 64,
    "dropout": 0.0, "attention_dropout": 0.0, "speech_encoder_dropout": 0.0,
    "adaptor_dropout": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0,
    "speech_encoder_layerdrop": 0.0, "tie_word_embeddings": False,
}  # fmt: skip


def inputs(batch, length, padding):
    ids = torch.randint(4, 50, (batch, 9))
    features = {
        "input_features": torch.randn(batch, length, 16),
        "decoder_input_ids": ids,
        "labels": ids,
    }
    mask = padded(batch, length, padding)
    return features if mask is None else features | {"attention_mask": mask}


def case(name, build, positions, attentions="encoder_attentions", **options):
    return Case(
        name,
        build,
        inputs,
        positions=positions,
        adapted=2,
        attention="speech_encoder.encoder.layers.1.self_attn",
        output="logits",
        generates=True,
        attentions=attentions,
        linears=("linear_q", "linear_v"),
        dropout=lambda attention, p: setattr(attention.dropout, "p", p),
        **options,
    )


def v2(**options):
    sizes = {"left_max_position_embeddings": 9, "right_max_position_embeddings": 4}
    return lambda: SeamlessM4Tv2ForSpeechToText(SeamlessM4Tv2Config(**SIZES, **sizes, **options))


CASES = [
    case(
        "seamless_m4t",
        lambda: SeamlessM4TForSpeechToText(SeamlessM4TConfig(**SIZES)),
        ("linear_pos", "pos_bias_v"),
        first=False,
    ),
    case("seamless_m4t_v2", v2(), ("distance_embedding",)),
    # Under "sdpa", the default: the original's eager attention hides neither chunks nor padding.
    # Left of the tokens whole chunks are padding, which reaches tokens by the adapter layers.
    case(
        "seamless_m4t_v2 in chunks",
        v2(speech_encoder_chunk_size=7, speech_encoder_left_chunk_num=1),
        ("distance_embedding",),
        attentions=None,
        paddings=("none", "right"),
    ),
    case(
        "seamless_m4t_v2 in chunks that see all before",
        v2(speech_encoder_chunk_size=7, speech_encoder_left_chunk_num=-1),
        ("distance_embedding",),
        paddings=("none", "right"),
        first=False,
    ),
]
