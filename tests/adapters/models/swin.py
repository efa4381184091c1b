"""Swin and its kin: windows of an image, shifted in every other layer."""

from functools import partial
from typing import Any

import torch
from transformers import (
    ClapAudioConfig,
    ClapAudioModel,
    DonutSwinConfig,
    DonutSwinModel,
    MaskFormerSwinConfig,
    Swin2SRConfig,
    Swin2SRModel,
    SwinConfig,
    SwinModel,
    Swinv2Config,
    Swinv2Model,
)
from transformers.models.maskformer.modeling_maskformer_swin import MaskFormerSwinModel

from .case import Case, draw, pixels

SIZES: dict[str, Any] = {
    "image_size": 9, "patch_size": 1, "embed_dim": 16, "depths": [2], "num_heads": [2],
    "window_size": 3, "mlp_ratio": 2.0, "drop_path_rate": 0.0,
}  # fmt: skip


def inputs(batch, length, padding):
    return {"pixel_values": pixels(batch, length)}


def sounds(batch, length, padding):
    """As many frames as make `length` patches of 4 x 4."""
    return {"input_features": torch.randn(batch, 1, 2 * length, 8)}


def drop(module, probability):
    if hasattr(module, "attention_dropout"):
        module.attention_dropout = probability
    else:
        module.dropout.p = probability


def draw_cosine(model):
    """With logarithms of scales that are near 0: beyond, float32 has few digits left."""
    draw(model)
    for name, parameter in model.named_parameters():
        if name.endswith("logit_scale"):
            torch.nn.init.normal_(parameter, std=0.3)


def clap(side):
    config = ClapAudioConfig(
        spec_size=4 * side, num_mel_bins=8, patch_size=4, patch_stride=[4, 4], window_size=3,
        patch_embeds_hidden_size=16, hidden_size=16, depths=[2], num_attention_heads=[2],
        drop_path_rate=0.0, hidden_dropout_prob=0.0,
    )  # fmt: skip
    return ClapAudioModel(config)


def case(name, build, positions, attention="encoder.layers.0.blocks.1.attention.self", **settings):
    settings = {
        "inputs": inputs, "lengths": (77, 20, 81), "long": 1640, "linears": ("query", "value"),
        **settings,
    }  # fmt: skip
    return Case(
        name, build, positions=(positions,), adapted=2, attention=attention, paddings=("none",),
        dropout=drop, local=True, **settings,
    )  # fmt: skip


TABLE, NETWORK = "relative_position_bias_table", "continuous_position_bias_mlp"
# A query's length does not matter to its cosines; what their scale gains by one pair it loses by
# others.
COSINE = ("query.weight", "query.bias", "logit_scale")

CASES = [
    case(
        "swin", lambda: SwinModel(SwinConfig(**SIZES)), TABLE,
        "encoder.layers.0.blocks.1.attention", linears=("q_proj", "o_proj"),
    ),
    case(
        "swinv2", lambda: Swinv2Model(Swinv2Config(**SIZES)), NETWORK, cancelling=COSINE,
        draw=draw_cosine, without=("fp16",),
    ),
    case(
        "swin2sr", lambda: Swin2SRModel(Swin2SRConfig(**SIZES)), NETWORK,
        "encoder.stages.0.layers.1.attention.self", cancelling=COSINE, first=False,
        draw=draw_cosine, lengths=(54, 81), long=1620,
    ),
    case("donut swin", lambda: DonutSwinModel(DonutSwinConfig(**SIZES)), TABLE, first=False),
    case(
        "maskformer swin", lambda: MaskFormerSwinModel(MaskFormerSwinConfig(**SIZES)), TABLE,
        first=False,
    ),
    case(
        "clap audio", partial(clap, 8), TABLE,
        "audio_encoder.layers.0.blocks.1.attention.self", inputs=sounds, first=False,
        lengths=(64,), long=1600, build_long=partial(clap, 40),
    ),
]  # fmt: skip
