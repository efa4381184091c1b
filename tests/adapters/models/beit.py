"""BEiT: a class token before the patches; biases that each layer makes, or the model for all."""

from dataclasses import replace
from functools import partial
from typing import Any

from transformers import BeitConfig, BeitModel

from .case import Case, pixels

SIZES: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "image_size": 6, "patch_size": 1, "layer_scale_init_value": 1.0, "drop_path_rate": 0.0,
}  # fmt: skip


def build(**settings):
    return BeitModel(BeitConfig(**SIZES, **settings), add_pooling_layer=False)


def inputs(batch, length, padding):
    """`length` patches, and the class token."""
    return {"pixel_values": pixels(batch, length)}


def drop(module, probability):
    module.attention_dropout = probability


OWN = Case(
    "beit",
    partial(build, use_relative_position_bias=True),
    inputs,
    positions=("relative_position_bias_table",),
    adapted=2,
    attention="layers.1.attention",
    lengths=(77, 6, 81),
    paddings=("none",),
    long=1640,
    linears=("q_proj", "o_proj"),
    dropout=drop,
)
CASES = [
    OWN,
    replace(
        OWN, name="beit, one bias for all layers", first=False,
        build=partial(build, use_shared_relative_position_bias=True),
    ),
]  # fmt: skip
