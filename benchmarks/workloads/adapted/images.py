"""Encoders of images."""

from __future__ import annotations

import transformers
from torch import nn

from .model import AdaptedModel, image, small_patches

__all__ = ["MODELS"]


def _sam(layers: int) -> nn.Module:
    config = transformers.SamVisionConfig(
        num_hidden_layers=layers, global_attn_indexes=[layers - 1]
    )
    return transformers.SamVisionModel(config)


def _vitdet(layers: int) -> nn.Module:
    config = transformers.VitDetConfig(
        num_hidden_layers=layers, image_size=1024, pretrain_image_size=224, window_size=14,
        window_block_indices=list(range(layers - 1)), use_relative_position_embeddings=True,
    )  # fmt: skip
    return transformers.VitDetModel(config)


def _beit(layers: int) -> nn.Module:
    # The size of the large one, as in DPT and ZoeDepth.
    config = transformers.BeitConfig(
        hidden_size=1024, num_attention_heads=16, intermediate_size=4096, num_hidden_layers=layers,
        image_size=384, use_relative_position_bias=True, drop_path_rate=0.0,
    )  # fmt: skip
    return transformers.BeitModel(config)


def _data2vec_vision(layers: int) -> nn.Module:
    config = transformers.Data2VecVisionConfig(
        num_hidden_layers=layers, use_relative_position_bias=True, drop_path_rate=0.0
    )
    return transformers.Data2VecVisionModel(config)


# The small ones: of 56 x 56 patches of 4 x 4 pixels, in windows of 7 x 7; the layer's are shifted.
def _swin(layers: int) -> nn.Module:
    config = transformers.SwinConfig(depths=[layers], num_heads=[3], drop_path_rate=0.0)
    return transformers.SwinModel(config)


# And of 64 x 64 patches, in windows of 16 x 16.
def _swinv2(layers: int) -> nn.Module:
    config = transformers.Swinv2Config(
        depths=[layers], num_heads=[3], image_size=256, window_size=16, drop_path_rate=0.0
    )
    return transformers.Swinv2Model(config)


# The base size, of a page at half its resolution: windows of 10 x 10.
def _donut(layers: int) -> nn.Module:
    config = transformers.DonutSwinConfig(
        embed_dim=128, depths=[layers], num_heads=[4], window_size=10, image_size=[1280, 960],
        drop_path_rate=0.0,
    )  # fmt: skip
    return transformers.DonutSwinModel(config)


MODELS = (
    AdaptedModel(
        "swin", "Swin T", _swin, small_patches, "patches of an image",
        (3136, 12544), (3136, 12544), "encoder.layers.0.blocks.1", "attention", {},
    ),
    AdaptedModel(
        "swinv2", "Swin v2 T, windows of 16 x 16", _swinv2, small_patches, "patches of an image",
        (4096, 16384), (4096, 16384), "encoder.layers.0.blocks.1", "attention.self", {},
    ),
    AdaptedModel(
        "donut", "Donut B, encoder", _donut, small_patches, "patches of a page",
        (6400, 25600), (25600,), "encoder.layers.0.blocks.1", "attention.self", {},
    ),
    AdaptedModel(
        "beit", "BEiT L", _beit, image, "patches of an image",
        (196, 576, 1024, 4096), (1024, 4096), "layers.1", "attention", {},
    ),
    AdaptedModel(
        "data2vec", "Data2Vec B, vision", _data2vec_vision, image, "patches of an image",
        (196, 1024), (1024,), "encoder.layer.1", "attention.attention", {},
    ),
    AdaptedModel(
        "sam", "SAM B, global layer", _sam, image, "patches of an image",
        (4096,), (4096,), "vision_encoder.layers.1", "attn", {4096: 2.5},
    ),
    AdaptedModel(
        "vitdet", "ViTDet B, global layer", _vitdet, image, "patches of an image",
        (1024, 4096), (4096,), "encoder.layer.1", "attention", {},
    ),
)  # fmt: skip
