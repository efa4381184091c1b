"""Encoders of images."""

from __future__ import annotations

import transformers
from torch import nn

from .model import AdaptedModel, image

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


MODELS = (
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
